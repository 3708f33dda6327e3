"""What every adapter shares: rollouts asked for, and a reward and a penalty made one reward, or none.

A reward of None is a masked rollout: no gradient, and no part in its group's mean and spread. It is never 0.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, TypedDict

from invigilator.guard.answers import RolloutPenalty
from invigilator.guard.client import MAX_UNKNOWN, OnUnavailable, PenaltyClient, TooManyUnknownError
from invigilator.guard.errors import GuardError

Mode = Literal["penalty", "screening"]
GATHER_S = 0.02
"""How long questions about single rollouts wait for others, to be asked as one."""
WINDOW = 1000
"""Rollouts asked for one by one, whose unknown ones are counted together."""


class CannotMaskError(GuardError):
    """A rollout must be dropped, and this trainer, so configured, would train on it all the same."""


class NoRolloutIdError(GuardError):
    """The trainer does not say which rollout a reward is of."""


class Terms(TypedDict):
    """How the client is asked, whatever it is asked for."""

    run_id: str | None
    timeout_s: float
    on_unavailable: OnUnavailable
    penalty_version: str | None


@dataclass(frozen=True)
class Adjusted:
    """A rollout's reward with its penalty: None to mask it. `dropped`: for the verdict's sake, of which `why`
    tells, and not because the task did not score."""

    reward: float | None
    penalty: RolloutPenalty
    dropped: bool

    @property
    def why(self) -> str:
        """Why it is dropped, or what it was charged for."""
        verdict = self.penalty
        texts = "; ".join(reason.text for reason in verdict.reasons)
        if verdict.status == "failed" or verdict.value is None:
            return verdict.failure or f"its penalty is not known ({verdict.status})"
        return texts


@dataclass
class Judge:
    """How penalties become rewards; one for a training run.

    `mode`: `penalty` adds weight × value (≤ 0) to the task's reward; `screening` masks what has cost anything
    and leaves other rewards as they are. What has `drop` set or no value is masked in both. `weight`: what a
    penalty of 1 is worth in the task's rewards.

    `client`: by default one for `$INVIGILATOR_SERVE_URL` or `$INVIGILATOR_HOME`. The rest as for
    `PenaltyClient.batch`; where a trainer asks one by one, `max_unknown` is a share of the last 1,000.
    """

    client: PenaltyClient = field(default_factory=PenaltyClient)
    mode: Mode = "penalty"
    weight: float = 1.0
    run_id: str | None = None
    timeout_s: float = 60.0
    on_unavailable: OnUnavailable = "raise"
    max_unknown: float | None = MAX_UNKNOWN
    penalty_version: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("penalty", "screening"):
            raise ValueError(f"mode {self.mode!r} is neither penalty nor screening")
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"weight {self.weight} is not a finite number from 0 on")
        self._gathering: Gathering | None = None
        self._recent: deque[bool] = deque(maxlen=WINDOW)

    def adjust(self, rewards: Sequence[float | None], rollout_ids: Sequence[str]) -> list[Adjusted]:
        """The rewards of a batch with their penalties."""
        return self._adjusted(rewards, self.ask(rollout_ids))

    async def adjust_async(
        self, rewards: Sequence[float | None], rollout_ids: Sequence[str]
    ) -> list[Adjusted]:
        """As `adjust`, awaiting."""
        return self._adjusted(rewards, await self.ask_async(rollout_ids))

    def ask(self, rollout_ids: Sequence[str]) -> list[RolloutPenalty]:
        """The penalties of a batch, in its order. One alone is counted with those before it."""
        if len(rollout_ids) == 1:
            [found] = self.client.batch(rollout_ids, **self._terms(), max_unknown=None)
            self.count(found)
            return [found]
        return self.client.batch(rollout_ids, **self._terms(), max_unknown=self.max_unknown)

    async def ask_async(self, rollout_ids: Sequence[str]) -> list[RolloutPenalty]:
        """As `ask`, awaiting."""
        if len(rollout_ids) == 1:
            return [await self.ask_one(rollout_ids[0])]
        return await self.client.batch_async(rollout_ids, **self._terms(), max_unknown=self.max_unknown)

    async def ask_one(self, rollout_id: str) -> RolloutPenalty:
        """One rollout's penalty. Those asked for at about the same time are asked for in one request."""
        if self._gathering is None or self._gathering.closed:
            self._gathering = Gathering(self)
        found = await self._gathering.ask(rollout_id)
        self.count(found)
        return found

    async def ask_each(self, rollout_ids: Sequence[str]) -> list[RolloutPenalty]:
        """The penalties of rollouts gathered by chance, whose unknown ones say nothing of a batch."""
        return await self.client.batch_async(rollout_ids, **self._terms(), max_unknown=None)

    def _adjusted(self, rewards: Sequence[float | None], found: Sequence[RolloutPenalty]) -> list[Adjusted]:
        return [
            Adjusted(self.combine(reward, one), one, self.masks(one))
            for reward, one in zip(rewards, found, strict=True)
        ]

    def combine(self, reward: float | None, penalty: RolloutPenalty) -> float | None:
        """The reward to train on; None: mask it. A task's None or NaN (not scored) stays None.

        ValueError for an infinite reward: a penalty beside it would be nothing.
        """
        if reward is None or math.isnan(reward):
            return None
        if math.isinf(reward):
            raise ValueError(f"rollout {penalty.rollout_id!r} has an infinite reward")
        if self.masks(penalty) or penalty.value is None:
            return None
        return reward + self.weight * penalty.value if self.mode == "penalty" else reward

    def masks(self, penalty: RolloutPenalty) -> bool:
        """Whether the rollout is to be masked."""
        if penalty.drop or penalty.value is None:
            return True
        return self.mode == "screening" and penalty.value < 0

    def shares(self, penalty: RolloutPenalty, step_ids: Sequence[str]) -> list[float]:
        """What each step is charged, weighted; in `screening`, and without a value, 0."""
        if self.mode == "screening" or penalty.value is None:
            return [0.0] * len(step_ids)
        return [self.weight * penalty.by_step.get(one, 0.0) for one in step_ids]

    def steps(self, penalty: RolloutPenalty, step_ids: Sequence[str]) -> list[float]:
        """What each of all of a rollout's steps is charged, weighted; they sum up to the whole.

        What belongs to none of `step_ids` (found at the end, or a step that the trainer does not know) is the
        last step's. ValueError without steps.
        """
        if not step_ids:
            raise ValueError(f"rollout {penalty.rollout_id!r} has no steps")
        charged = self.shares(penalty, step_ids)
        if self.mode == "penalty" and penalty.value is not None:
            charged[-1] += self.weight * penalty.value - sum(charged)
        return charged

    def count(self, penalty: RolloutPenalty) -> None:
        """Count a rollout that was asked for alone; TooManyUnknownError over `max_unknown` of the window.

        The share is of at least a hundred, so that the first rollout of a run is no batch of its own.
        """
        self._recent.append(penalty.value is None)
        unknown, seen = sum(self._recent), len(self._recent)
        if self.max_unknown is not None and unknown > self.max_unknown * max(seen, 100):
            problem = f"the penalty of {unknown} of the last {seen} rollouts is unknown"
            raise TooManyUnknownError(f"{problem}, over {self.max_unknown:.0%}", [penalty])

    def _terms(self) -> Terms:
        return Terms(
            run_id=self.run_id,
            timeout_s=self.timeout_s,
            on_unavailable=self.on_unavailable,
            penalty_version=self.penalty_version,
        )

    def close(self) -> None:
        """End the client's connection."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Gathering:
    """Questions about single rollouts of one event loop, asked together."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[RolloutPenalty]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def closed(self) -> bool:
        """Whether its loop has ended, or is not the one that runs here."""
        return self._loop is not asyncio.get_running_loop()

    async def ask(self, rollout_id: str) -> RolloutPenalty:
        """The penalty, from the next request."""
        if not self._waiting:
            task = self._loop.create_task(self._send())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        answer = self._waiting.setdefault(rollout_id, self._loop.create_future())
        return await asyncio.shield(answer)

    async def _send(self) -> None:
        await asyncio.sleep(GATHER_S)
        waiting, self._waiting = self._waiting, {}
        try:
            found = await self._judge.ask_each(list(waiting))
        except Exception as error:
            for answer in waiting.values():
                answer.set_exception(error)
            return
        for one in found:
            waiting[one.rollout_id].set_result(one)


def rollout_id_in(fields: Mapping[str, object], name: str = "rollout_id", *, where: str) -> str:
    """The rollout's id among a trainer's fields; NoRolloutIdError where there is none, so that no rollout
    goes unjudged for a wrong name."""
    found = fields.get(name)
    if isinstance(found, str) and found:
        return found
    fix = f"put the rollout's id there when the rollout is made; there are: {', '.join(map(str, fields))}"
    raise NoRolloutIdError(f"no {name!r}", where=where, fix=fix)
