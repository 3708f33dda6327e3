"""What the detectors of reads of protected classes share."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import Mask, Outcome
from invigilator.detectors.context import Context
from invigilator.detectors.kept import Firsts
from invigilator.detectors.scene import Scene
from invigilator.detectors.touches import Act, Touches, first_acts, is_kind
from invigilator.detectors.walks import Met, sort_of
from invigilator.ebpf.events import EventClass, Kind

READS = frozenset(
    {Kind.OPEN, Kind.READ, Kind.EXEC, Kind.GETDENTS, Kind.ACCESS, Kind.HANDLE_OPEN, Kind.COPY_RANGE}
    | {Kind.CLONE_RANGE, Kind.EXCHANGE_RANGE, Kind.LINK, Kind.RENAME, Kind.MOUNT}
)
"""Kinds by which a protected object is read, or brought within reach."""
READ_CLASSES = frozenset({EventClass.FILE})

READ, LISTED, MISSED = 0.95, 0.6, 0.7
"""Confidence of a content read (done or refused), of a folder listed or a name taken, of a name not there."""


def reads(scene: Scene, *names: str) -> Touches:
    """The agent's reads, done or tried, of objects of the classes, where the policy minds them."""
    touches = scene.touches
    codes = scene.context.codes(*names)
    codes = codes[scene.context.read_judged[codes]]
    mask = np.isin(touches.cls, codes) & scene.judged[touches.row] & ~touches.above
    mask &= is_kind(scene.r, tuple(READS))[touches.row]
    mask &= (touches.act & (Act.READ | Act.LIST | Act.PROBE | Act.LINKED | Act.REMOVE)) != 0
    return touches.where(mask)


def missing(scene: Scene, touches: Touches) -> Mask:
    """Whether the object was not there."""
    verdict: Mask = np.isin(scene.r["result"][touches.row], (-errno.ENOENT, -errno.ENOTDIR))
    return verdict


def confidence(scene: Scene, touches: Touches) -> npt.NDArray[np.float64]:
    """How sure a read is one, shape (n,)."""
    found = np.full(len(touches), LISTED)
    found[(touches.act & Act.READ) != 0] = READ
    found[missing(scene, touches)] = MISSED
    found[(touches.act & Act.PROBE) != 0] = LISTED
    return found


def took(scene: Scene, touches: Touches) -> Mask:
    """Whether content came into the agent's hands."""
    verdict: Mask = ((touches.act & Act.READ) != 0) & (scene.outcome[touches.row] == Outcome.SUCCESS)
    return verdict


def walked(context: Context, firsts: Firsts) -> Mask:
    """Of each kept event, whether its process walked a whole tree."""
    if not len(firsts):
        return np.zeros(0, np.bool_)
    r = firsts.records()
    names = list(zip(*(r[name].tolist() for name in _PROCESS_FIELDS), strict=True))
    known = {who: context.walks.is_walker(who[:2], who[2:]) for who in set(names)}
    return np.fromiter((known[who] for who in names), np.bool_, len(names))


def met(context: Context, firsts: Firsts, paths: Sequence[bytes]) -> Mask:
    """Of each kept event, whether its process came upon the object, of that path, by walking a whole tree:
    a folder listed on the way, or a file read as the others there."""
    found = walked(context, firsts)
    if not found.any():
        return found
    r = firsts.records()
    for at in np.flatnonzero(found & ((first_acts(r) & Act.READ) != 0)).tolist():
        pid, start, ppid, parent_start = r[at][list(_PROCESS_FIELDS)].item()
        folder, seq = paths[at].rpartition(b"/")[0] or b"/", int(r["seq"][at])
        who = ((pid, start), (ppid, parent_start))
        found[at] = context.walks.is_met(Met(*who, folder, sort_of(paths[at]), seq, seq))
    return found


_PROCESS_FIELDS = ("pid", "start_ns", "ppid", "parent_start_ns")
