"""Facts that no system call shows: the agent finds them and puts them into the sandbox's record.

They go through the sensor, so that they take their place in `seq` among the kernel's own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from invigilator.detectors.tenures import ABOUT_TO
from invigilator.ebpf.events import Actor, DiffChange, EventClass, Kind, Phase, Tier
from invigilator.ebpf.sensor import Loss, Sensor
from invigilator.guard import bytecode, canary, shadows
from invigilator.guard.canary import Canary
from invigilator.guard.gitfacts import FutureCommit, FutureObjects
from invigilator.profiles.policy import Policy
from invigilator.profiles.protected import PathClasses
from invigilator.sandbox.base import Change, LimitHit, Sandbox, SandboxError

IDS_AN_EVENT = 60
"""Ids of SHA-256 that a string of the event record holds, with room to spare."""
DIFFS_MAX = 100_000
"""Differences of each sort told of one phase: new files, however many, do not crowd out changed ones."""
NOT_HASHED = frozenset({"system_binary"})
"""Classes of many and large files, whose changes the events tell; their size, mode and inode are compared."""
HASHED_MAX_BYTES = 16 << 20
"""Larger files are compared by size, mode and inode alone."""
SUBMISSION_MAX_BYTES = 512 << 20
"""Of one submission, how much is searched for canaries."""

COUNTED = frozenset({"memory", "pids", "cpu", "io"})
"""What the cgroups refuse, and the kernel counts: later hits are told too."""

NUMBER_MAX = (1 << 63) - 1
"""Of a number in an event: more is told as this."""
_CHANGES = {
    "added": DiffChange.ADDED,
    "modified": DiffChange.MODIFIED,
    "removed": DiffChange.REMOVED,
    "metadata": DiffChange.METADATA,
}
_TICKS_PER_S = 100
"""USER_HZ of x86-64 and arm64 (include/asm-generic/param.h): the unit of starttime in /proc/PID/stat."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that outlived its phase, as it was before it was ended."""

    pid: int
    start_ns: int
    phase: Phase
    command: bytes

    @classmethod
    def of(cls, pid: int, phase: Phase) -> Survivor:
        """The process of that id in the host's namespace; `phase` is the one that it began in."""
        return cls(pid, _start_ns(pid), phase, _command(pid))


@dataclass(slots=True)
class Recorder:
    """Writes facts about one sandbox. `phase` is the one that facts are told of."""

    sensor: Sensor
    slot: int
    policy: Policy
    phase: Phase = Phase.UNKNOWN
    _told: dict[bytes, tuple[Change, bytes]] = field(default_factory=dict)
    _limits: dict[str, int] = field(default_factory=dict)

    def phase_edge(self, *, begins: bool) -> None:
        """The phase begins or ends."""
        self._emit(Kind.PHASE, a0=int(begins))

    def step_begins(self, ordinal: int, step_id: str, actor: Actor) -> None:
        """A step begins."""
        self._emit(Kind.STEP, text=step_id.encode(), step=ordinal, a0=1, actor=int(actor))

    def step_ends(self, ordinal: int, step_id: str, actor: Actor, code: int) -> None:
        """A step ends with an exit code."""
        self._emit(Kind.STEP, text=step_id.encode(), step=ordinal, a0=0, result=code, actor=int(actor))

    def canaries_planted(self, canaries: Iterable[Canary], locate: Callable[[str], tuple[int, int]]) -> None:
        """The canaries are in place; `locate` gives the (device, inode number) of a path in the sandbox."""
        for one in canaries:
            dev, ino = locate(one.path)
            text, size = one.digest.encode(), len(one.content)
            self._emit(
                Kind.CANARY,
                path=one.path.encode(),
                text=text,
                a1=size,
                size=size,
                dev=dev,
                ino=ino,
                cls=EventClass.FILE,
            )

    def future_commits(self, commits: Iterable[FutureCommit], workspace: str) -> None:
        """The workspace's git stores hold these commits, which are no ancestors of HEAD."""
        for one in commits:
            folder = (
                workspace.encode() if one.repository == b"." else workspace.encode() + b"/" + one.repository
            )
            self._emit(
                Kind.GIT_FUTURE,
                path=folder,
                text=one.commit.encode(),
                path2=b"\0".join(one.refs),
                cls=EventClass.FILE,
            )

    def future_objects(self, objects: Iterable[FutureObjects], workspace: str) -> None:
        """Trees and blobs that only such commits hold: their ids, as many to an event as a string takes."""
        for one in objects:
            folder = (
                workspace.encode() if one.repository == b"." else workspace.encode() + b"/" + one.repository
            )
            for start in range(0, len(one.ids), IDS_AN_EVENT):
                ids = "\0".join(one.ids[start : start + IDS_AN_EVENT])
                self._emit(Kind.GIT_FUTURE, path=folder, text=ids.encode(), a0=1, cls=EventClass.FILE)

    def survivors(self, survivors: Sequence[Survivor], *, ended: bool) -> None:
        """Processes of an earlier phase were alive when the phase began."""
        for one in survivors:
            self._emit(
                Kind.SURVIVOR,
                text=one.command,
                pid=one.pid,
                start_ns=one.start_ns,
                a0=int(ended),
                origin_phase=int(one.phase),
            )

    def differences(self, sandbox: Sandbox) -> list[bytes]:
        """Changes of protected paths since the phase began: what the comparison with the sandbox's beginning
        shows, against what earlier phases' comparisons have told of. Which of them are caches of Python's."""
        classes = PathClasses(self.policy)
        under = sorted({p for c in self.policy.filesystem.protected.values() for p in c.paths})
        room = dict.fromkeys(_CHANGES, DIFFS_MAX)
        there: set[bytes] = set()
        new: set[bytes] = set()
        caches: list[bytes] = []
        hiding: list[tuple[Change, bytes, list[bytes]]] = []
        for change in sandbox.changes(under):
            name = classes.classify(change.path)
            if name is None:
                continue
            there.add(change.path)
            digest = b"" if name in NOT_HASHED else _digest(sandbox, change)
            before = self._told.get(change.path)
            self._told[change.path] = (change, digest)
            now = _since(before, change, digest)
            if now and now.change == "added":
                new.add(now.path)
            if now and bytecode.is_cache(now):
                caches.append(now.path)
            if now and room[now.change] > 0:
                room[now.change] -= 1
                if hidden := shadows.would_hide(now):
                    hiding.append((now, digest, hidden))  # until it is known what else is new
                else:
                    self._difference(now, digest)
        for now, digest, hidden in hiding:
            old = (one for one in hidden if one not in new and shadows.is_file(sandbox, one))
            self._difference(now, digest, next(old, b""))
        for path in [p for p, (was, _) in self._told.items() if was.change == "added" and p not in there]:
            was, _ = self._told.pop(path)
            if room["removed"] > 0:
                room["removed"] -= 1
                self._difference(Change(path, "removed", 0, was.mode, was.ino), b"")
        return caches

    def _difference(self, change: Change, digest: bytes, hidden: bytes = b"") -> None:
        self._emit(
            Kind.DIFF,
            path=change.path,
            path2=hidden,
            text=digest,
            a0=int(_CHANGES[change.change]),
            a1=change.size,
            size=change.size,
            mode=change.mode,
            ino=change.ino,
            cls=EventClass.FILE,
            tier=Tier.DIFF,
        )

    def canaries_in_submission(self, sandbox: Sandbox, canaries: Sequence[Canary]) -> None:
        """Submitted files that hold what a canary says: small files first, of each its beginning. What could
        not be searched is told as a limit, in bytes."""
        if not canaries:
            return
        left, unsearched = SUBMISSION_MAX_BYTES, 0
        submitted = [c for c in sandbox.changes(self.policy.filesystem.submission) if _holds_content(c)]
        for change in sorted(submitted, key=lambda change: (change.size, change.path)):
            most = min(left, canary.READ_MAX_BYTES)
            content = _beginning(sandbox, change.path, most) if most else b""
            left -= len(content)
            unsearched += max(change.size - len(content), 0)
            for one in canary.matches(canaries, content):
                if one.path.encode() != change.path:
                    self._emit(
                        Kind.CANARY_MATCH,
                        path=change.path,
                        text=one.path.encode(),
                        size=change.size,
                        ino=change.ino,
                        cls=EventClass.FILE,
                    )
        if unsearched:
            # Sizes are what the agent says: sparse files add up to more than a field holds.
            self._emit(
                Kind.LIMIT,
                text=b"canary_search",
                a0=min(unsearched, NUMBER_MAX),
                a1=SUBMISSION_MAX_BYTES,
                cls=EventClass.FILE,
            )

    def limits(self, hits: Iterable[LimitHit]) -> None:
        """Limits that were reached; each is told once, those that count how often whenever they rise."""
        for hit in hits:
            told = self._limits.get(hit.limit)
            if told is None or (hit.limit in COUNTED and hit.value > told):
                self._limits[hit.limit] = hit.value
                cls = EventClass.DENIAL if hit.limit in COUNTED else EventClass.OUTPUT
                self._emit(Kind.LIMIT, text=hit.limit.encode(), a0=hit.value, a1=hit.maximum, cls=cls)

    def policy_changes(self, confinement: str) -> None:
        """Another policy is about to be put in force: its version."""
        self._emit(Kind.POLICY, text=confinement.encode(), a0=ABOUT_TO)

    def policy_changed(self, confinement: str, tiers: Mapping[str, str]) -> None:
        """Another policy was put in force: its version, and what became of each tier."""
        became = "; ".join(f"{tier} {state}" for tier, state in sorted(tiers.items()))
        self._emit(Kind.POLICY, text=confinement.encode(), path2=became.encode())

    def sensor_losses(self, loss: Loss) -> None:
        """The sandbox made events faster than they could be kept: what was lost by its own rate, not by
        another's flood."""
        own = sum(number for (_, reason), number in loss.lost_by.items() if reason == "own_rate")
        if own:
            self._emit(Kind.LIMIT, text=b"sensor", a0=own, a1=loss.produced, cls=EventClass.SENSOR)

    def _emit(
        self,
        kind: Kind,
        *,
        path: bytes = b"",
        path2: bytes = b"",
        text: bytes = b"",
        cls: EventClass = EventClass.PROCESS,
        tier: Tier = Tier.AGENT,
        **fields: int,
    ) -> None:
        now = int(self.phase)
        numbers = {"phase": now, "origin_phase": now, "class": int(cls), "tiers": int(tier), **fields}
        self.sensor.emit(self.slot, kind, path=path, path2=path2, text=text, **numbers)


def _since(before: tuple[Change, bytes] | None, change: Change, digest: bytes) -> Change | None:
    """What a change comes to since `before`, what an earlier phase's comparison told of it; None: nothing."""
    if before is None:
        return change
    was, content = before
    if (was, content) == (change, digest):
        return None
    if was.change != "added" or change.change != "added":
        return change
    same = bool(digest) and (content, was.size) == (digest, change.size)
    folder = stat.S_ISDIR(was.mode) and stat.S_ISDIR(change.mode)  # what is in it has lines of its own
    if same or folder:
        return dataclasses.replace(change, change="metadata") if was.mode != change.mode else None
    return dataclasses.replace(change, change="modified")


def _digest(sandbox: Sandbox, change: Change) -> bytes:
    """Hex SHA-256 of a changed file; b"" for what is no regular file or is gone."""
    if change.change == "removed" or not stat.S_ISREG(change.mode):
        return b""
    return hashlib.sha256(_content(sandbox, change.path, HASHED_MAX_BYTES)).hexdigest().encode()


def _content(sandbox: Sandbox, path: bytes, most: int) -> bytes:
    """A file's content; b"" for what is no regular file, is larger or is gone."""
    try:
        return sandbox.read_file(path.decode("utf-8", "surrogateescape"), most)
    except (SandboxError, OSError):
        return b""


def _holds_content(change: Change) -> bool:
    regular = stat.S_ISREG(change.mode) or not change.mode
    return change.change in ("added", "modified") and change.size > 0 and regular


def _beginning(sandbox: Sandbox, path: bytes, most: int) -> bytes:
    """A file's beginning; b"" for what is no regular file or is gone."""
    try:
        return sandbox.read_beginning(path.decode("utf-8", "surrogateescape"), most)
    except (SandboxError, OSError):
        return b""


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()[:4096].rstrip(b"\0")
    except OSError:
        return b""


def _start_ns(pid: int) -> int:
    """Start of the process, CLOCK_BOOTTIME, to a hundredth of a second; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[19]) * (1_000_000_000 // _TICKS_PER_S)
