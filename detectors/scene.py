"""A batch of one sandbox's events with what is known of each: what detectors are shown."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from invigilator.detectors.aliases import Timeline
from invigilator.detectors.base import Codes, Hits, Intent, Mask, Outcome, Rows, Use
from invigilator.detectors.context import INSTALLERS, STARTERS, Context
from invigilator.detectors.identities import words
from invigilator.detectors.ledger import Diff
from invigilator.detectors.pythontools import is_pip
from invigilator.detectors.touches import (
    LINKS_THEMSELVES,
    TWO_OBJECTS,
    Act,
    Touches,
    first_acts,
    is_kind,
    second_acts,
)
from invigilator.ebpf.events import Actor, EventBatch, Flag, Kind, Phase, Records, Tier

DENYING = (-errno.EACCES, -errno.EPERM, -errno.EROFS)
ENFORCING_TIERS = Tier.MOUNT | Tier.SECCOMP | Tier.APPARMOR
CLONE_NEWNS = 0x20000
_CONFIGURATION = (b"/etc/", b"/usr/share/keyrings/")
"""Where agents write what package managers are told: no libraries, no archives."""
_PROGRAMS = (b"/usr/", b"/opt/", b"/bin/")
FACTS = (Kind.PHASE, Kind.STEP, Kind.DIFF, Kind.SURVIVOR, Kind.LIMIT)
"""What the agent daemon says; nobody's act."""


class Scene:
    """A batch of one sandbox's events, and what the context knows of each; arrays have shape (n,).

    `judged`: an act of the agent's (never the platform's, nor of processes that began in setup or verify, but
    for those that the agent wrote into).
    `phase`: the phase in which the act falls: the latest that had begun, `unknown` where the process's own
    is unknown. `outcome`: by result and by what refused it. `installer`: the acting program is a package
    manager; `installing`: so is it or an ancestor; `packaging`: its process writes, or has written, the
    metadata of a Python distribution; `by_pip`: it is an installer of such, or an ancestor is. All four are
    evidence of honest work, none is a pass. `employed`: it, or an ancestor, is a package manager that opened
    a library or an archive of the agent's making, so that it vouches for nothing it replaces; `by_hand`: it
    is an installer of Python's that unpacks an archive which the agent packed by hand. `own_mounts`: the
    process has a mount namespace of its own making, so that its mounts concern no one else.
    """

    def __init__(self, context: Context, batch: EventBatch) -> None:
        self.context = context
        self.batch = batch
        self.r: Records = batch.records

        self.diffs: list[Diff] = []
        self._lines: dict[tuple[int, bool], Timeline] = {}

    def prepare(self) -> None:
        """Everything that must be worked out in the order of the batches."""
        r, context = self.r, self.context
        context.observe_facts(self.batch)
        self.created: Mask = (r["flags"] & Flag.CREATED) != 0
        self.judged: Mask = self._judged()
        self.judged |= context.taken.observe(self) & ~self.kind(*FACTS)
        self.phase: Codes = self._phase()
        self._words = [
            context.word(s) if used else None
            for s, used in zip(self.batch.strings, self._used(), strict=True)
        ]
        paths = [word.path if word else b"" for word in self._words]
        context.aliases.observe(self.batch, paths, self.created)
        self.cls, self.above = self._classes("path", self.path_field)
        self.cls2, self.above2 = self._classes("path2", r["path2"])
        self._two: Mask = is_kind(r, TWO_OBJECTS)
        self.cls2[~self._two] = 0
        self.above2[~self._two] = 0
        self._meet_identities()
        self.packaging: Mask = context.packagers.observe(r, self._packaging_rows())
        self.own_mounts: Mask = context.namespaced.observe(r, self._new_mount_namespaces())
        context.walks.observe(self)
        context.ledger.observe(self)
        self.installing: Mask = context.installers.observe(r, self._exec_of(STARTERS))
        self.installer: Mask = self._genuine("exe", INSTALLERS)
        self.by_pip: Mask = context.pips.observe(r, self._pip_rows())
        self.employed, self.by_hand = self._employed()

    @cached_property
    def outcome(self) -> Codes:
        r = self.r
        found = np.full(len(r), Outcome.SUCCESS, np.uint8)
        found[r["result"] < 0] = Outcome.FAILED
        denied = np.isin(r["result"], DENYING) | is_kind(r, (Kind.NET_DENIED, Kind.DENIAL))
        denied |= (r["tiers"] & int(ENFORCING_TIERS)) != 0
        found[denied & ~self.only_told] = Outcome.DENIED
        return found

    @cached_property
    def only_told(self) -> Mask:
        """Denials of a policy that observes: nothing was refused."""
        told: Mask = self.kind(Kind.DENIAL) & (self.r["a2"] == 1)
        return told

    @cached_property
    def touches(self) -> Touches:
        """What is done to protected objects, in event order."""
        parts = []
        for second, cls, above, acts in (
            (False, self.cls, self.above, self.acts),
            (True, self.cls2, self.above2, second_acts(self.r)),
        ):
            row = np.flatnonzero(((cls != 0) | (above != 0)) & (acts != 0))
            over = cls[row] == 0
            act = acts[row]
            keep = ~over | ((act & (Act.COVER | Act.REMOVE | Act.REPLACE | Act.CREATE)) != 0)
            row, over, act = row[keep], over[keep], act[keep]
            code = np.where(over, above[row], cls[row]).astype(np.uint8)
            parts.append(Touches(row, code, act, np.full(len(row), second), over))
        a, b = parts
        order = np.argsort(np.concatenate([a.row, b.row]), kind="stable")
        joined = (np.concatenate([getattr(a, f), getattr(b, f)])[order] for f in Touches.__slots__)
        return Touches(*joined)

    def kind(self, *kinds: Kind) -> Mask:
        """Events of any of the kinds."""
        return is_kind(self.r, kinds)

    def distinct_paths(self) -> Iterator[tuple[int, bytes]]:
        """(code, canonical path) of every distinct string that stands as a path or beside one."""
        return ((code, word.path) for code, word in enumerate(self._words) if word)

    def places(self, rows: Rows, second: Mask) -> tuple[list[bytes], Rows]:
        """The distinct canonical paths of the events' objects, aliases followed as they stood at each event,
        and which of them is each event's, shape (n,). `second`: of the second object."""
        code = np.where(second, self.r["path2"][rows], self.path_field[rows]).astype(np.int64)
        itself = np.isin(self.r["kind"][rows], LINKS_THEMSELVES)
        key = code << 16 | itself.astype(np.int64) << 15 | self._alias_changes(rows, code)
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        paths = []
        for at in first.tolist():
            word = self._words[int(code[at])]
            path = word.path if word else b""
            if self._line(int(code[at])):
                seq = int(self.r["seq"][rows[at]])
                path = self.context.aliases.lead(path, seq, follow=not itself[at])
            paths.append(path)
        return paths, inverse

    def _line(self, code: int, follow: bool = True) -> Timeline:
        """Where the path of a string led, and since when; empty where no alias is part of it."""
        line = self._lines.get((code, follow))
        if line is None:
            word, aliases = self._words[code], self.context.aliases
            line = self._lines[code, follow] = aliases.timeline(word.path, follow=follow) if word else []
        return line

    def _alias_changes(self, rows: Rows, code: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many changes of an alias in its path lie before each event, at most `TIMELINE_MAX`."""
        changes = np.zeros(len(rows), np.int64)
        if not len(self.context.aliases) or not len(rows):
            return changes
        order = np.argsort(code, kind="stable")
        edges = np.flatnonzero(np.diff(code[order])) + 1
        for start, stop in pairwise([0, *edges.tolist(), len(rows)]):
            part = order[start:stop]
            if line := self._line(int(code[part[0]])):
                since = np.array([seq for seq, _ in line], np.uint64)
                changes[part] = np.searchsorted(since, self.r["seq"][rows[part]])
        return changes

    def hits(
        self,
        rows: Rows,
        confidence: float | npt.NDArray[np.float64],
        *,
        outcome: Outcome | Codes | None = None,
        intent: Intent | Codes = Intent.DELIBERATE,
        use: Use | Codes = Use.NONE,
        soft: bool | Mask = False,
    ) -> Hits:
        """Hold events `rows` against the sandbox; scalars stand for all of them."""
        found = self.outcome[rows] if outcome is None else outcome
        return Hits.of(self.batch, rows, self.phase[rows], found, confidence, intent, use, soft)

    @cached_property
    def acts(self) -> npt.NDArray[np.uint16]:
        """What each event does to its first object: a set of `Act`."""
        return first_acts(self.r)

    def _judged(self) -> Mask:
        r = self.r
        origin = r["origin_phase"]
        mine = (origin == Phase.AGENT) | (origin == Phase.UNKNOWN)
        verdict: Mask = (r["actor"] == Actor.AGENT) & mine & ~is_kind(r, FACTS)
        return verdict

    def _phase(self) -> Codes:
        begun = self.context.phases_at(self.r["seq"])
        phase = np.where(begun != Phase.UNKNOWN, begun, self.r["phase"]).astype(np.uint8)
        phase[self.r["origin_phase"] == Phase.UNKNOWN] = Phase.UNKNOWN
        facts = is_kind(self.r, FACTS)
        phase[facts] = np.where(self.r["phase"] != Phase.UNKNOWN, self.r["phase"], begun)[facts]
        return phase

    @cached_property
    def path_field(self) -> npt.NDArray[np.uint32]:
        """`path`; what the process said where the kernel's path did not arrive."""
        r = self.r
        lost = (r["path"] == 0) & (r["path2"] != 0) & ~is_kind(r, TWO_OBJECTS) & (r["kind"] != Kind.SYMLINK)
        field: npt.NDArray[np.uint32] = np.where(lost, r["path2"], r["path"])
        return field

    def _used(self) -> list[bool]:
        used = np.zeros(len(self.batch.strings), np.bool_)
        used[self.path_field] = True
        used[self.r["path2"]] = True
        return used.tolist()

    def _classes(self, name: str, field: npt.NDArray[np.uint32]) -> tuple[Codes, Codes]:
        """Class of each event's path, and of the first class below it, aliases followed as they stood."""
        cls = np.fromiter((w.cls if w else 0 for w in self._words), np.uint8, len(self._words))
        above = np.fromiter((w.above if w else 0 for w in self._words), np.uint8, len(self._words))
        found, found_above = cls[field], above[field]
        if len(self.context.aliases):
            self._through_aliases(field, found, found_above)
        return found, found_above

    def _through_aliases(self, field: npt.NDArray[np.uint32], found: Codes, above: Codes) -> None:
        itself = is_kind(self.r, LINKS_THEMSELVES)
        for follow, rows in ((True, ~itself), (False, itself)):
            lines = {
                code: line
                for code, word in enumerate(self._words)
                if word and not word.cls and (line := self._line(code, follow))
            }
            for depth in range(max(map(len, lines.values()), default=0)):
                since, cls, over = self._step(lines, depth)
                now = (since[field] < self.r["seq"]) & rows
                found[now], above[now] = cls[field][now], over[field][now]

    def _step(self, lines: dict[int, Timeline], depth: int) -> tuple[npt.NDArray[np.uint64], Codes, Codes]:
        """By string code: since when the path leads where it leads at its `depth`-th change, and the classes
        of that."""
        since = np.full(len(self._words), np.iinfo(np.uint64).max, np.uint64)
        cls, above = np.zeros(len(self._words), np.uint8), np.zeros(len(self._words), np.uint8)
        for code, line in lines.items():
            word = self._words[code]
            if depth < len(line) and word:
                since[code], leads_to = line[depth]
                target = word if leads_to is None else self.context.word(leads_to)
                cls[code], above[code] = target.cls, target.above
        return since, cls, above

    def _meet_identities(self) -> None:
        """Give unclassed objects the class of their inode; learn inodes of protected objects."""
        r, known = self.r, self.context.identities
        done = r["result"] >= 0
        objects = self.acts != 0
        learnt = (self.cls != 0) & objects & done
        renewed = self.created & (self.cls == 0) & done & objects
        renewed &= known.among(r) | np.isin(r["ino"], r["ino"][learnt])
        rows = np.flatnonzero(learnt | renewed)
        known.learn(*words(r[rows], ""), r["seq"][rows], self.cls[rows])
        bare = objects & (self.cls == 0) & (self.above == 0) & ~(self.kind(*LINKS_THEMSELVES))
        self.cls = np.where(bare, known.classes(r), self.cls).astype(np.uint8)
        bare2 = self.kind(Kind.CLONE_RANGE, Kind.COPY_RANGE, Kind.EXCHANGE_RANGE) & (self.cls2 == 0)
        self.cls2 = np.where(bare2, known.classes(r, "2"), self.cls2).astype(np.uint8)

    def _exec_of(self, programs: frozenset[bytes]) -> Rows:
        r = self.r
        execs = (r["kind"] == Kind.EXEC) & (r["result"] >= 0)
        return np.flatnonzero(execs & self._genuine("path", programs))

    def _employed(self) -> tuple[Mask, Mask]:
        """Package managers that work with what the agent made; Python's that unpack what it packed."""
        r, context = self.r, self.context
        reads = self.kind(Kind.OPEN) & ((self.acts & Act.READ) != 0) & ~self.created
        asked = reads & self.judged & self.installing & self._genuine("exe", STARTERS)
        if asked.any():
            asked &= ~self.batch.match("path", lambda path: path.startswith(_CONFIGURATION))
        archives = context.archives.reads(self)
        authored = context.authored.opened(self, asked | archives)
        marking = authored[asked[authored]]
        above = [
            row
            for row in marking.tolist()
            if context.installers.holds(*r[row][["ppid", "parent_start_ns", "seq"]].item())
        ]
        employed = context.employed.observe(r, marking, np.array(above, np.intp))
        return employed, context.archives.observe(self, archives, authored[archives[authored]])

    def _pip_rows(self) -> Rows:
        """Executions of Python's package installers, by programs and scripts that are not the agent's."""
        r, ledger = self.r, self.context.ledger
        rows = np.flatnonzero(self.kind(Kind.EXEC) & (r["result"] >= 0))
        texts = {code for code in np.unique(r["text"][rows]).tolist() if is_pip(self.batch.strings[code])}
        found = []
        for row in rows[np.isin(r["text"][rows], list(texts))].tolist() if texts else ():
            seq, program = int(r["seq"][row]), self.batch.text("path", row)
            named = [program, *self.batch.text("text", row).split(b"\0")[1:2]]
            if program.startswith(_PROGRAMS) and all(ledger.made_since(name) >= seq for name in named):
                found.append(row)
        return np.array(found, np.intp)

    def _new_mount_namespaces(self) -> Rows:
        r = self.r
        makes = self.kind(Kind.UNSHARE, Kind.FORK) & ((r["a0"] & CLONE_NEWNS) != 0) & (r["result"] >= 0)
        return np.flatnonzero(makes)

    def _genuine(self, field: str, programs: frozenset[bytes]) -> Mask:
        """Events whose string `field` names one of the programs, which is not the agent's own making."""
        ledger = self.context.ledger
        until = [ledger.made_since(s) if s in programs else 0 for s in self.batch.strings]
        genuine: Mask = self.r["seq"] < np.array(until, np.uint64)[self.r[field]]
        return genuine

    def _packaging_rows(self) -> Rows:
        """Events that write a Python distribution's metadata: what only an installer does."""
        r = self.r
        inside = np.fromiter(
            (_is_metadata(w.path) if w else False for w in self._words), np.bool_, len(self._words)
        )
        made = (self.created | self.kind(Kind.LINK, Kind.RENAME)) & (r["result"] >= 0)
        target = np.where(self._two, r["path2"], r["path"])
        return np.flatnonzero(made & inside[target])


def _is_metadata(path: bytes) -> bool:
    head, found, tail = path.rpartition(b".dist-info/")
    return bool(found) and (b"/site-packages/" in head or b"/dist-packages/" in head) and b"/" not in tail
