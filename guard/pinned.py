"""Recorded incidents under another penalty policy: the same detection, the same rules, other weights."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from invigilator.guard import penalty
from invigilator.incidents.records import CoverageState, Incident, Penalty, Status
from invigilator.profiles.policy import Policy


@dataclass(frozen=True, slots=True)
class Judged:
    """One sandbox's verdict under a penalty policy."""

    status: Status
    penalty: Penalty


class Pin:
    """Judges recorded incidents by the detection part of the policies that recorded them and a penalty part.

    `penalty_part`: that part as JSON. `policies`: detection version → the policy's text as JSON; one that
    does not read is not known.
    """

    def __init__(self, penalty_part: Mapping[str, Any], policies: Mapping[str, Mapping[str, Any]]) -> None:
        self._policies = {}
        for version, text in policies.items():
            # A text of another version of the policy's language: as if it were not there.
            with contextlib.suppress(ValidationError):
                self._policies[version] = Policy.model_validate({**text, "penalty": penalty_part})
        self._clean: dict[tuple[str, frozenset[tuple[str, CoverageState]], bool], Judged] = {}

    def judge(
        self,
        detection: str,
        incidents: Sequence[Incident],
        coverage: Mapping[str, CoverageState],
        failed: bool,
        dismissed: Collection[str] = (),
        revision: int = 1,
    ) -> Judged:
        """The verdict on a sandbox. Whether it is partial is decided anew: it hangs on what is penalised."""
        if incidents:
            return self._judge(detection, incidents, coverage, failed, dismissed, revision)
        key = (detection, frozenset(coverage.items()), failed)
        if key not in self._clean:
            self._clean[key] = self._judge(detection, (), coverage, failed, (), revision)
        return self._clean[key]

    def knows(self, detection: str) -> bool:
        """Whether it can judge what a detection version found."""
        return detection in self._policies

    def cap(self) -> float:
        """The largest penalty that it allows."""
        return max((policy.penalty.cap for policy in self._policies.values()), default=0.0)

    def _judge(
        self,
        detection: str,
        incidents: Sequence[Incident],
        coverage: Mapping[str, CoverageState],
        failed: bool,
        dismissed: Collection[str],
        revision: int,
    ) -> Judged:
        policy = self._policies[detection]
        status: Status = (
            "failed" if failed else "partial" if penalty.is_partial(policy, coverage) else "final"
        )
        found = penalty.compute(incidents, policy, coverage, status, dismissed=dismissed, revision=revision)
        return Judged(status, found)
