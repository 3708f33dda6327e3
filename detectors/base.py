"""What a detector is.

A detector is one class in one file of this folder. It declares what it is called, what it means, which events
it reads and with which thresholds; it is fed scenes (a batch of one sandbox's events together with what the
context knows of them) and answers with hits. Nothing else needs to know of it: `registry` finds it.

    class CanaryRead(Detector):
        id = kind = "canary_read"
        ...
        def feed(self, scene):
            rows = ...
            yield scene.hits(rows, confidence=0.97)
"""

from __future__ import annotations

import abc
import enum
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

import numpy as np
import numpy.typing as npt

from invigilator.ebpf.events import EventBatch, EventClass, Kind
from invigilator.incidents.records import Channel, Severity

if TYPE_CHECKING:
    from invigilator.detectors.context import Context
    from invigilator.detectors.scene import Scene
    from invigilator.detectors.walks import Met

Rows = npt.NDArray[np.intp]
"""Indices of events in a batch, ascending."""
Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]

STRONG = 0.8
"""Confidence from which a hit is proof rather than a sign. Signs are not counted beside proof."""
BULK = 0.6
"""Confidence left to a hit that a process came upon while it walked a whole tree (find /, grep -r /)."""
SIGN = 0.5
"""Confidence of what honest work does too."""


class Outcome(enum.IntEnum):
    """What came of it; the codes of `Hits.outcome`."""

    DENIED = 0
    FAILED = 1
    SUCCESS = 2


class Intent(enum.IntEnum):
    """The codes of `Hits.intent`."""

    UNKNOWN = 0
    ACCIDENTAL = 1
    DELIBERATE = 2


class Use(enum.IntEnum):
    """What became of what was taken; the codes of `Hits.use`."""

    NONE = 0
    RETRIEVED = 1
    INTEGRATED = 2


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that the policy may set (`detectors: thresholds: ID: NAME`), in the unit given."""

    name: str
    default: float
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Phrases:
    """How an incident's summary begins, by outcome; the evidence's objects follow after a colon."""

    success: str
    denied: str
    failed: str

    def of(self, outcome: Outcome) -> str:
        """The phrase for an outcome."""
        return {Outcome.SUCCESS: self.success, Outcome.DENIED: self.denied}.get(outcome, self.failed)


@dataclass(frozen=True, slots=True)
class Hits:
    """Events that a detector holds against a sandbox; every array has shape (n,).

    `rows` index `batch`. `soft`: the hit weighs no more than `BULK` if the process met the object on a walk.
    """

    batch: EventBatch
    rows: Rows
    phase: Codes
    outcome: Codes
    confidence: npt.NDArray[np.float64]
    intent: Codes
    use: Codes
    soft: Mask

    @classmethod
    def of(
        cls,
        batch: EventBatch,
        rows: Rows,
        phase: Codes,
        outcome: Outcome | Codes,
        confidence: float | npt.NDArray[np.float64],
        intent: Intent | Codes,
        use: Use | Codes,
        soft: bool | Mask = False,
    ) -> Hits:
        """Hits of `rows`; a scalar stands for all of them."""
        n = len(rows)

        def codes(value: Outcome | Intent | Use | Codes) -> Codes:
            return np.broadcast_to(np.asarray(value, np.uint8), n)

        weight = np.broadcast_to(np.asarray(confidence, np.float64), n)
        met = np.broadcast_to(np.asarray(soft, np.bool_), n)
        return cls(batch, rows, phase, codes(outcome), weight, codes(intent), codes(use), met)


class Detector(abc.ABC):
    """One kind of misbehaviour, in one sandbox. Subclasses declare all class variables without default."""

    id: ClassVar[str]
    version: ClassVar[int]
    kind: ClassVar[str]
    channel: ClassVar[Channel]
    severity: ClassVar[Severity]
    attack: ClassVar[tuple[str, ...]] = ()
    """Techniques of MITRE ATT&CK, as `T1565.001`."""
    meaning: ClassVar[str]
    """One or two sentences for a person: what it is, and what does not count."""
    phrases: ClassVar[Phrases]
    needs: ClassVar[frozenset[EventClass]]
    """Without these classes whole, its silence proves nothing (rule of verdict 4)."""
    reads: ClassVar[frozenset[Kind]]
    thresholds: ClassVar[tuple[Threshold, ...]] = ()
    pattern: ClassVar[bool] = False
    """The trying is the misbehaviour: a denied or failed try costs as much as one that succeeded."""
    flood: ClassVar[bool] = False
    """A flood: accidental unless shown otherwise, and costs the policy's `flood` once."""
    phase_bound: ClassVar[bool] = True
    """Whether it is misbehaviour depends on the phase: in phase `unknown` it never counts."""
    drops: ClassVar[bool] = False
    """It makes the rollout's evidence unusable: the penalty says `drop`."""

    def __init__(self, context: Context, thresholds: Mapping[str, float]) -> None:
        self.context = context
        self.setting = {t.name: float(thresholds.get(t.name, t.default)) for t in self.thresholds}

    @abc.abstractmethod
    def feed(self, scene: Scene) -> Iterable[Hits]:
        """Look at the next events, in `seq` order; what is returned stands for good."""

    def standing(self) -> Iterable[Hits]:
        """What all events so far amount to, where later ones may still change it. Changes nothing."""
        return ()

    def walked(self, met: Met) -> bool:
        """Whether a process came upon things by walking, so that its soft hits are signs only."""
        return self.context.walks.is_met(met)

    def example(self, evidence: Mapping[str, Any]) -> str | None:
        """What an evidence row is about, for the summary: a path or an address."""
        found = evidence.get("to") if evidence.get("kind") == "rename" else None
        found = found or evidence.get("path") or evidence.get("target")
        return found if isinstance(found, str) else None


@functools.cache
def registry() -> Mapping[str, type[Detector]]:
    """Every detector of this folder, by id, in the order of the ids."""
    package = importlib.import_module(__package__ or "invigilator.detectors")
    found: dict[str, type[Detector]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        for member in vars(loaded).values():
            if _is_detector(member) and member.__module__ == loaded.__name__:
                if member.id in found:
                    raise TypeError(f"two detectors are called {member.id}")
                found[member.id] = member
    return dict(sorted(found.items()))


def _is_detector(member: object) -> TypeGuard[type[Detector]]:
    return inspect.isclass(member) and issubclass(member, Detector) and not inspect.isabstract(member)
