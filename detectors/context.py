"""What is known of one sandbox while its events go by.

Everything that is looked up for an event is its value just before that event, so it does not matter where
one batch ends and the next begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from invigilator.detectors.aliases import Aliases
from invigilator.detectors.ancestry import Marks
from invigilator.detectors.archives import Archives
from invigilator.detectors.authored import Authored
from invigilator.detectors.base import Codes
from invigilator.detectors.identities import Identities
from invigilator.detectors.ledger import Ledger
from invigilator.detectors.taken import Taken
from invigilator.detectors.tenures import Tenures
from invigilator.detectors.walks import Walks
from invigilator.ebpf.events import EventBatch, Kind, Phase
from invigilator.profiles.paths import canonical
from invigilator.profiles.policy import Policy
from invigilator.profiles.protected import HIDDEN, PathClasses, rules

KNOWN_PATHS_MAX = 1 << 17
"""Distinct paths whose class is remembered; past that the memory starts anew."""

INSTALLERS = frozenset(
    b"/usr/bin/" + name
    for name in (
        b"dpkg",
        b"dpkg-deb",
        b"dpkg-divert",
        b"apt",
        b"apt-get",
        b"aptitude",
        b"update-alternatives",
        b"rpm",
        b"dnf",
    )
) | {b"/usr/sbin/ldconfig", b"/usr/sbin/update-ca-certificates", b"/usr/sbin/apk"}
"""Programs that replace system files by trade (Debian Policy §6, FHS paths)."""
_HELPERS = (b"ldconfig", b"update-alternatives", b"dpkg-divert")
STARTERS = frozenset(p for p in INSTALLERS if not p.endswith(_HELPERS))
"""Those of them under which maintainer scripts run."""


@dataclass(frozen=True, slots=True)
class Word:
    """A distinct path: canonical by its text, the code of its class, and of the first class below it."""

    path: bytes
    cls: int
    above: int


class Context:
    """The state of one sandbox that detectors share.

    `classes`: names of the path classes; a class's code is its index, 0 is no class. `read_judged` and
    `write_judged`, by code: whether the policy minds that an agent reads or changes objects of the class.
    """

    def __init__(self, policy: Policy, later: Mapping[str, Policy] | None = None) -> None:
        self.policy = policy
        self.tenures = Tenures(policy, later)
        self.paths = PathClasses(policy)
        protected = policy.filesystem.protected
        names = [HIDDEN, *(name for name in protected if name != HIDDEN)]
        self.classes: list[str] = ["", *names]
        self.read_judged = np.array([False, True, *(protected[n].read != "allow" for n in names[1:])])
        self.write_judged = np.array([False, True, *(protected[n].write != "allow" for n in names[1:])])
        self.finished = False
        self.lost_events = False
        self.last_seq = 0
        self.canaries: dict[bytes, int] = {}
        self.steps: dict[int, bytes] = {}
        self.walks = Walks(policy)
        self.aliases = Aliases(near=self._near, inside=lambda p: self.word(p).cls != 0)
        self.identities = Identities()
        self.installers = Marks()
        self.employed = Marks()
        self.taken = Taken()
        self.pips = Marks()
        self.authored = Authored()
        self.archives = Archives()
        self.packagers = Marks()
        self.namespaced = Marks()
        self.ledger = Ledger()
        self._words: dict[bytes, Word] = {}
        self._phases: list[tuple[int, int]] = []
        self._above = self._folders_above(policy)

    def code(self, name: str) -> int:
        """The code of a class; 0 where the policy has none of that name."""
        return self.classes.index(name) if name in self.classes else 0

    def codes(self, *names: str) -> Codes:
        """The codes of those of the classes that the policy has."""
        return np.array([code for name in names if (code := self.code(name))], np.uint8)

    def word(self, path: bytes) -> Word:
        """What is known of a path by its text alone."""
        known = self._words.get(path)
        if known is None:
            if len(self._words) >= KNOWN_PATHS_MAX:
                self._words.clear()
            known = self._words[path] = self._describe(path)
        return known

    def phases_at(self, seq: npt.NDArray[np.uint64]) -> Codes:
        """The phase that had begun last before each event; `UNKNOWN` before the first."""
        since = np.array([s for s, _ in self._phases], np.uint64)
        codes = np.array([Phase.UNKNOWN, *(p for _, p in self._phases)], np.uint8)
        found: Codes = codes[np.searchsorted(since, seq, side="right")]
        return found

    def observe_facts(self, batch: EventBatch) -> None:
        """Phases, steps, canaries and losses (gaps of `seq`) of the next events."""
        r = batch.records
        gaps = np.diff(r["seq"], prepend=np.uint64(self.last_seq)) > 1
        self.lost_events |= bool(gaps.any())
        self.last_seq = int(r["seq"][-1])
        self.tenures.observe(batch)
        for row in np.flatnonzero(r["kind"] == Kind.CANARY).tolist():
            self.canaries.setdefault(canonical(batch.text("path", row)), int(r["seq"][row]))
        begins = np.flatnonzero((r["kind"] == Kind.PHASE) & (r["a0"] == 1))
        self._phases += [(int(r["seq"][row]), int(r["phase"][row])) for row in begins.tolist()]
        for row in np.flatnonzero((r["kind"] == Kind.STEP) & (r["text"] != 0)).tolist():
            self.steps[int(r["step"][row])] = batch.text("text", row)

    def _describe(self, path: bytes) -> Word:
        if not path.startswith(b"/"):
            return Word(path, 0, 0)
        path = canonical(path)
        name = self.paths.classify(path)
        return Word(path, self.code(name) if name else 0, 0 if name else self._above.get(path, 0))

    def _folders_above(self, policy: Policy) -> dict[bytes, int]:
        """Every folder above a class's place, with the code of the class it stands for."""
        found: dict[bytes, int] = {}
        for rule in sorted(rules(policy), key=lambda rule: _rank(rule.name)):
            parts = rule.path.split(b"/")
            for depth in range(1, len(parts)):
                found.setdefault(b"/".join(parts[:depth]) or b"/", self.code(rule.name))
        return found

    def _near(self, path: bytes, seq: int) -> bool:
        word = self.word(path)
        return bool(word.cls or word.above) or self.canaries.get(word.path, seq) < seq


def _rank(name: str) -> int:
    """Which class a folder above several stands for: the one whose replacement does most."""
    order = ("reward", "system_binary", "test")
    return order.index(name) if name in order else len(order)
