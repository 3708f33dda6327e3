"""Which policy held when: a sandbox's first, and those put in force on it while it ran.

The record says it: an event POLICY when another is about to be put in force (`a0` 1), and one when it is
(`a0` 0). What happens between the two may meet either. What is protected never changes, nor does what is
judged and what it costs: by the others it is judged what the network and the limits let be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import Mask
from invigilator.ebpf.events import EventBatch, Kind
from invigilator.profiles.canonical import policy_versions
from invigilator.profiles.policy import Policy

Sequences = npt.NDArray[np.uint64]
ABOUT_TO = 1
"""`a0` of a POLICY event: from now on the policy may be in force."""


class UnknownPolicyError(ValueError):
    """The record speaks of a policy whose text is not there: what it let be cannot be judged."""


class Tenures:
    """Policies of one sandbox by the `seq` from which they hold.

    `later`: by confinement version, the policies that may be put in force; None: whatever the record says,
    all is judged by the first.
    """

    def __init__(self, first: Policy, later: Mapping[str, Policy] | None = None) -> None:
        self.policies = [first]
        self._later = later
        self._since = [0]
        self._holding: list[tuple[int, ...]] = [(0,)]

    def observe(self, batch: EventBatch) -> None:
        """Take the next events' changes of policy."""
        if self._later is None:
            return
        r = batch.records
        for row in np.flatnonzero(r["kind"] == Kind.POLICY).tolist():
            number = self._number(batch.text("text", row).decode(errors="replace"))
            former = self._holding[-1] if r["a0"][row] == ABOUT_TO else ()
            self._since.append(int(r["seq"][row]))
            self._holding.append((*former, number))

    def parts(self, seq: Sequences) -> Iterator[tuple[Mask, Sequence[int]]]:
        """Events in parts, each with the numbers in `policies` of those that may have held."""
        if len(self._since) == 1:
            yield np.ones(len(seq), np.bool_), self._holding[0]
            return
        tenure = np.searchsorted(np.array(self._since, np.uint64), seq, side="right") - 1
        for number in np.unique(tenure).tolist():
            yield tenure == number, self._holding[number]

    def most(self, seq: Sequences, what: Callable[[Policy], int]) -> npt.NDArray[np.int64]:
        """For each event the most that a policy says which may have held."""
        found = np.zeros(len(seq), np.int64)
        for part, numbers in self.parts(seq):
            found[part] = max(what(self.policies[number]) for number in numbers)
        return found

    def _number(self, version: str) -> int:
        assert self._later is not None
        policy = self._later.get(version)
        if policy is None and version == policy_versions(self.policies[0]).confinement:
            policy = self.policies[0]
        if policy is None:
            raise UnknownPolicyError(f"the text of policy {version} is not known, which was in force later")
        if policy not in self.policies:
            self.policies.append(policy)
        return self.policies.index(policy)
