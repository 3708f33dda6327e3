"""What a profile must know of a sandbox's root: links on the way to what a policy names.

AppArmor knows an object by where it is, and not by the links that led there: a rule about /srv/tests in a
root where /srv is a link has to name what it leads to as well.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence

from invigilator.profiles import protected
from invigilator.profiles.apparmor import Layout
from invigilator.profiles.paths import canonical, to_bytes
from invigilator.profiles.policy import Policy
from invigilator.sandbox.lower import LowerFolder
from invigilator.sandbox.root import Lower

LINKS_MAX = 40
"""As the kernel's MAXSYMLINKS (linux/namei.h)."""


def layout(policy: Policy, lowers: Sequence[Lower]) -> Layout:
    """The layout of a root with these lower layers, as far as the policy is about it."""
    found: dict[bytes, bytes] = dict(Layout().aliases)
    for path in sorted(_named(policy)):
        found.update(_links(path, lowers))
    return Layout(aliases=tuple(found.items()))


def _named(policy: Policy) -> set[bytes]:
    files = policy.filesystem.files
    return {rule.path for rule in protected.rules(policy)} | {
        canonical(to_bytes(path)) for rule in files for path in rule.paths
    }


def _links(path: bytes, lowers: Sequence[Lower]) -> Iterator[tuple[bytes, bytes]]:
    """(link, where it leads) for each link on the way."""
    shown, real = b"", b""
    for part in path.strip(b"/").split(b"/"):
        shown = shown + b"/" + part
        expected = real + b"/" + part
        resolved = _real(expected, lowers)
        if resolved is None:
            return
        if resolved != expected:
            yield shown, resolved
        real = resolved


def _real(path: bytes, lowers: Sequence[Lower]) -> bytes | None:
    """Where a path whose folder is no link leads; None for one that leads nowhere."""
    done, parts, links = b"", path.strip(b"/").split(b"/"), 0
    while parts:
        here = done + b"/" + parts.pop(0)
        target = _link(here, lowers)
        if target is None:
            done = here
            continue
        links += 1
        if links > LINKS_MAX:
            return None
        whole = posixpath.normpath(b"/" + posixpath.join(done, target, *parts))
        done, parts = b"", [part for part in whole.split(b"/") if part]
    return done or b"/"


def _link(path: bytes, lowers: Sequence[Lower]) -> bytes | None:
    """What a link says; None for what is none."""
    holding = max(
        (one for one in lowers if (path + b"/").startswith(_below(one))), key=lambda one: len(_below(one))
    )
    *folders, name = path[len(_below(holding)) :].split(b"/")
    folder = LowerFolder.open(holding.folders)
    try:
        for part in folders:
            inner = folder.enter(part)
            folder.close()
            folder = inner
        found = folder.find(name)
        if found is None or not stat.S_ISLNK(found[1].st_mode):
            return None
        with contextlib.suppress(OSError):
            return os.readlink(name, dir_fd=found[0])
        return None
    finally:
        folder.close()


def _below(lower: Lower) -> bytes:
    return os.fsencode(lower.mount_point.rstrip("/")) + b"/"
