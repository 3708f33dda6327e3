"""Recorded rollouts as facts that a policy can be learned from; a recording with holes is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from invigilator.ebpf.events import EventBatch, EventClass, Flag, Kind, NetHook, Phase
from invigilator.guard.errors import GuardError
from invigilator.incidents.replay import to_batch
from invigilator.profiles.learning import Command, Connection, Recording, Use
from invigilator.profiles.paths import canonical

if TYPE_CHECKING:
    import pyarrow as pa

    from invigilator.guard.research import Invigilator
    from invigilator.incidents.records import Report
    from invigilator.profiles.policy import FileAccess

REFUSED = "it was refused when it was recorded"
REFUSED_NETWORK = "it was refused, or could not be reached, when it was recorded"
REFUSED_CALL = "a privileged call that was refused when it was recorded"
NEEDED = ("process", "file", "network", "privilege")
"""Classes without which something would look unused that was used."""
O_ACCMODE, O_CREAT, O_TRUNC, O_APPEND, O_PATH, O_TMPFILE = 0o3, 0o100, 0o1000, 0o2000, 0o10000000, 0o20000000
S_IFMT, S_IFDIR = 0o170000, 0o040000
AT_REMOVEDIR = 0x200
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
EACCES, EPERM, EROFS, ECONNREFUSED, EINPROGRESS, ECONNRESET = 13, 1, 30, 111, 115, 104
SHARED_OBJECT = re.compile(rb"\.so(?:\.[0-9]+)*\Z")
NAMELESS = Flag.MEMFD | Flag.DELETED | Flag.RECORDED_STREAM
BROKEN = Flag.PATH_CUT | Flag.PATH_FAULT
CALL_KINDS = ("PTRACE", "VM_ACCESS", "PIDFD_GETFD", "SETNS", "CHROOT", "MOUNT")
WRITES = (
    Kind.RENAME, Kind.LINK, Kind.SYMLINK, Kind.UNLINK, Kind.MKDIR, Kind.MKNOD, Kind.TRUNCATE, Kind.CHMOD,
    Kind.CHOWN, Kind.CLONE_RANGE, Kind.EXCHANGE_RANGE, Kind.COPY_RANGE, Kind.MMAP_WRITE, Kind.WRITE,
    Kind.FALLOCATE, Kind.XATTR, Kind.UTIMES,
)  # fmt: skip
FILES = (Kind.EXEC, Kind.OPEN, Kind.GETDENTS, Kind.READ, *WRITES)
MAKES = (Kind.SYMLINK, Kind.MKDIR, Kind.MKNOD)
EITHER = (Kind.RENAME, Kind.CHMOD, Kind.CHOWN, Kind.UTIMES, Kind.XATTR)


@dataclass(slots=True)
class Intake:
    """Takes in a sandbox's stored events, in order and in any pieces. `last_seq`: of the last one taken."""

    rollout_id: str
    facts: Recording = field(default_factory=lambda: Recording(""))
    count: int = 0
    last_seq: int = 0
    _entered: set[tuple[int, int]] = field(default_factory=set)
    _known: set[int] = field(default_factory=set)

    def take(self, table: pa.Table) -> None:
        """Learn from some more events. GuardError where they cannot be learned from."""
        batch = to_batch(table)
        _refuse_unknown(batch, self.rollout_id)
        _commands(batch, self.facts, self._entered, self._known)
        agent = batch.select(batch.column("phase") == Phase.AGENT)
        _files(agent, self.facts)
        _network(agent, self.facts)
        _privileged(agent, self.facts)
        self.count += len(batch)
        self.last_seq = int(batch.column("seq")[-1])

    def ended(self, report: Report) -> Recording:
        """All of a rollout that has ended. GuardError where a class that is needed was not seen whole."""
        refuse_loss(report)
        if self.count < report.events.stored:
            problem = f"the store has {self.count} of its {report.events.stored} events"
            fix = "wait until all are shipped (`guard status`), or record it where they are kept long enough"
            raise GuardError(problem, where=report.rollout_id, fix=fix)
        self.facts.title = (
            f"rollout {report.rollout_id}, attempt {report.attempt}, sandbox {report.sandbox_id}, "
            f"policy {report.policy.name}: {report.events.stored} events, none lost"
        )
        return self.facts

    def so_far(self, sandbox_id: str) -> Recording:
        """What there is of a rollout that runs. GuardError where events before the last are missing: of
        which class they were is known at its end."""
        if missing := self.last_seq - self.count:
            problem = f"nothing is learned from it; {missing} of its first {self.last_seq} events are missing"
            raise GuardError(
                problem, where=self.rollout_id, fix="wait for its end, which says what they were"
            )
        self.facts.title = (
            f"rollout {self.rollout_id}, sandbox {sandbox_id}, while it ran: its first {self.count} events"
        )
        return self.facts


def recording(record: Invigilator, report: Report) -> Recording:
    """The facts of a report's sandbox. GuardError where a class that is needed was not seen whole."""
    refuse_loss(report)
    intake = Intake(report.rollout_id)
    for table in record.raw_events(report.sandbox_id):
        intake.take(table)
    return intake.ended(report)


def refuse_loss(report: Report) -> None:
    """GuardError, saying which class and how many, where the recording has holes in what is needed."""
    lost: dict[str, int] = {}
    for key, number in report.events.lost_by.items():
        lost[key.partition("/")[0]] = lost.get(key.partition("/")[0], 0) + number
    holes = []
    for name in NEEDED:
        state = report.coverage.get(name, "disabled")
        if state != "ok" or lost.get(name):
            said = f"{lost[name]} events lost" if lost.get(name) else "not seen whole"
            holes.append(f"{name}: {said} (coverage {state})")
    unknown = report.events.lost - sum(lost.values())
    if unknown > 0:
        holes.append(f"{unknown} events of unknown class lost")
    if report.status == "failed":
        holes.append(f"the rollout failed ({report.failure})")
    if holes:
        fix = "what was lost would look unused: record it again"
        raise GuardError(f"nothing is learned from it; {'; '.join(holes)}", where=report.rollout_id, fix=fix)


def _refuse_unknown(batch: EventBatch, rollout: str) -> None:
    classes = [EventClass[name.upper()] for name in NEEDED]
    needed = np.isin(batch.column("class"), classes) & (batch.column("phase") == Phase.AGENT)
    nameless = int((needed & (batch.column("flags") & Flag.STRING_LOST != 0)).sum())
    if nameless:
        problem = f"nothing is learned from it; {nameless} events lost their names"
        raise GuardError(problem, where=rollout, fix="what was lost would look unused: record it again")
    ring = int((needed & (batch.column("kind") == Kind.IO_URING_OP)).sum())
    if ring:
        problem = (
            f"nothing is learned from it; {ring} operations went through io_uring, their results unknown"
        )
        raise GuardError(problem, where=rollout, fix="record it under a policy with `io_uring: deny`")


def _distinct(*columns: npt.NDArray[np.generic]) -> Iterator[tuple[tuple[int, ...], int]]:
    """(values, how often) of each distinct row of the columns."""
    if not len(columns[0]):
        return
    rows, counts = np.unique(
        np.stack([one.astype(np.int64) for one in columns], axis=1), axis=0, return_counts=True
    )
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        yield tuple(row), count


def _outcome(result: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0: let; 1: refused; 2: failed for another reason."""
    refused = np.isin(result, [-EACCES, -EPERM, -EROFS])
    return np.where(result >= 0, 0, np.where(refused, 1, 2))


def _files(batch: EventBatch, facts: Recording) -> None:
    kinds, family = batch.column("kind"), batch.column("family")
    unix = np.isin(kinds, [Kind.CONNECT, Kind.BIND]) & (family == AF_UNIX)
    batch = batch.select(np.isin(kinds, FILES) | unix)
    a0 = batch.column("a0").astype(np.uint64)
    kind = batch.column("kind")
    wanted = np.where(
        kind == Kind.OPEN, a0 & np.uint64(O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | O_PATH | O_TMPFILE), 0
    )
    is_dir = (batch.column("mode") & S_IFMT) == S_IFDIR
    is_dir |= kind == Kind.MKDIR
    is_dir |= (kind == Kind.UNLINK) & ((a0 & np.uint64(AT_REMOVEDIR)) != 0)
    # Not every kernel's event of a call by name has the object's type: then it may be either.
    unknown = ~is_dir & (batch.column("mode") == 0) & np.isin(kind, EITHER)
    which = np.where(unknown, 2, is_dir)
    flags = batch.column("flags") & np.uint16(NAMELESS | BROKEN | Flag.CREATED)
    outcome = _outcome(batch.column("result"))
    columns = (kind, batch.column("path"), batch.column("path2"), wanted, which, flags, outcome)
    for row, count in _distinct(*columns):
        number, path, path2, open_flags, is_folder, flag, became = row
        names = batch.strings[path], batch.strings[path2]
        for folder in (False, True) if is_folder == 2 else (bool(is_folder),):
            one = _Used(Kind(number), *names, open_flags, folder, Flag(flag))
            _learn_file(one, became, count, facts)


class _Used(NamedTuple):
    """One distinct use of a file. `wanted`: of an open, its flags."""

    kind: Kind
    path: bytes
    path2: bytes
    wanted: int
    folder: bool
    flags: Flag


def _learn_file(one: _Used, became: int, count: int, facts: Recording) -> None:
    if became == 1:
        facts.leave_out(REFUSED, one.path, count)
    elif became == 2 or one.flags & NAMELESS or not one.path.startswith(b"/"):
        # What failed for want of a file, and what has no name, needs no rule.
        return
    elif one.flags & BROKEN:
        facts.leave_out("its name is not known whole", one.path, count)
    elif one.kind == Kind.OPEN and one.wanted & O_TMPFILE:
        facts.leave_out("a file without a name was made in it (O_TMPFILE)", one.path, count)
    else:
        for use in _uses(one):
            facts.uses[use._replace(path=canonical(use.path))] += count
        if one.kind in (Kind.RENAME, Kind.LINK) and not one.path2.startswith(b"/"):
            facts.leave_out("its new name is known only as the program said it", one.path2, count)


def _uses(one: _Used) -> Iterator[Use]:
    path, path2, folder = one.path, one.path2, one.folder
    if one.kind == Kind.EXEC:
        named = [path2] if path2.startswith(b"/") and canonical(path2) != canonical(path) else []
        for name in (path, *named):
            yield from (Use(name, "exec"), Use(name, "read"))
    elif one.kind in (Kind.GETDENTS, Kind.READ):
        yield Use(path, "read", folder)
    elif one.kind == Kind.OPEN:
        yield from _opened(one)
    elif one.kind in (Kind.CONNECT, Kind.BIND):
        created = one.kind == Kind.BIND
        yield from (Use(path, "read", False, created), Use(path, "write", False, created))
    elif one.kind == Kind.LINK:
        yield Use(path, "link")
        if path2.startswith(b"/"):
            yield Use(path2, "link", False, True)
    elif one.kind == Kind.RENAME:
        # The kernel asks for reading the old name too (apparmor_path_rename, security/apparmor/lsm.c).
        yield from (Use(path, "read", folder), Use(path, "write", folder))
        if path2.startswith(b"/"):
            yield Use(path2, "write", folder, True)
    else:
        yield Use(path, "write", folder, one.kind in MAKES)


def _opened(one: _Used) -> Iterator[Use]:
    if one.wanted & O_PATH:
        return
    access = one.wanted & O_ACCMODE
    created = bool(one.flags & Flag.CREATED)
    if access in (0, 2):
        yield Use(one.path, "read", one.folder, created)
        if access == 0 and not one.folder and SHARED_OBJECT.search(one.path):
            yield Use(one.path, "mmap")
    if access in (1, 2) or created or one.wanted & O_TRUNC:
        only_append = one.wanted & O_APPEND and not created and not one.wanted & O_TRUNC
        writing: FileAccess = "append" if only_append else "write"
        yield Use(one.path, writing, one.folder, created)


def _network(batch: EventBatch, facts: Recording) -> None:
    kind, family = batch.column("kind"), batch.column("family")
    for code, count in _distinct(batch.column("text")[kind == Kind.DNS]):
        name = batch.strings[code[0]].rstrip(b".").lower()
        facts.names[name] += count
        facts.asked.add(name)
    unnamed = (kind == Kind.NET_DENIED) & (batch.column("a0") == NetHook.NAME)
    for code, count in _distinct(batch.column("path2")[unnamed]):
        facts.leave_out(REFUSED_NETWORK, b"name " + batch.strings[code[0]], count)
    raw = int((kind == Kind.SOCKET).sum())
    if raw:
        facts.leave_out("no sandbox has raw or packet sockets", b"socket", raw)
    reached = np.isin(kind, [Kind.CONNECT, Kind.SEND, Kind.BIND]) & np.isin(family, [AF_INET, AF_INET6])
    batch = batch.select(reached | (kind == Kind.NET_DENIED) & ~unnamed)
    result = batch.column("result")
    let = (result >= 0) | np.isin(result, [-EINPROGRESS, -ECONNREFUSED, -ECONNRESET])
    # A port that was taken then may be free the next time.
    own = batch.column("kind") == Kind.BIND
    let = (let | own & ~np.isin(result, [-EACCES, -EPERM])) & (batch.column("kind") != Kind.NET_DENIED)
    halves = np.ascontiguousarray(batch.column("address")).view("<i8").reshape(-1, 2)
    columns = (halves[:, 0], halves[:, 1], batch.column("port"), batch.column("protocol"), let, own)
    for (low, high, port, protocol, was_let, is_own), count in _distinct(*columns):
        address = b"".join(half.to_bytes(8, "little", signed=True) for half in (low, high))
        if was_let:
            (facts.binds if is_own else facts.connections)[Connection(address, port, protocol)] += count
        else:
            said = f"{address.hex()} port {port}".encode()
            facts.leave_out(REFUSED_NETWORK, said, count)


def _privileged(batch: EventBatch, facts: Recording) -> None:
    batch = batch.select(np.isin(batch.column("kind"), [Kind[name] for name in CALL_KINDS]))
    for (number, became), count in _distinct(batch.column("kind"), _outcome(batch.column("result"))):
        name = Kind(number).name
        facts.calls.add(name)
        reason = REFUSED_CALL if became == 1 else "a privileged call, which is left to the base"
        facts.leave_out(reason, name.lower().encode(), count)


def _commands(batch: EventBatch, facts: Recording, entered: set[tuple[int, int]], known: set[int]) -> None:
    """What was started from outside the sandbox: the first exec of a process whose parent is not in it."""
    known |= set(np.unique(batch.column("pid")[batch.column("kind") == Kind.FORK]).tolist())
    execs = batch.select((batch.column("kind") == Kind.EXEC) & (batch.column("result") >= 0))
    records = execs.records[~np.isin(execs.column("pid"), list(known))]
    _, first = np.unique(records[["pid", "start_ns"]], return_index=True)
    for at in sorted(first.tolist()):
        process = (int(records["pid"][at]), int(records["start_ns"][at]))
        if process not in entered:
            entered.add(process)
            words = execs.strings[int(records["text"][at])].split(b"\0")
            whole = not int(records["flags"][at]) & (Flag.REDACTED | Flag.TEXT_CUT)
            phase = Phase(int(records["phase"][at])).name.lower()
            facts.commands.append(Command(phase, tuple(words), whole))
