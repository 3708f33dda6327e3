"""What trainers and researchers import: penalties for a list of rollouts, and the record as data frames.

    with PenaltyClient() as client:
        for penalty in client.batch(["r1", "r2"], timeout_s=60):
            reward = None if penalty.drop else task_reward[penalty.rollout_id] + penalty.value

A value is never 0 because something is missing: what is not known is None, and to be masked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from invigilator.guard.answers import Penalties, RolloutPenalty, with_differences
from invigilator.guard.compact import COMPACT, decode
from invigilator.guard.connection import (
    Address,
    Ask,
    AsyncConnection,
    BusyError,
    Connection,
    Flow,
    Pause,
    patiently,
)
from invigilator.guard.errors import GuardError, UnreachableError
from invigilator.guard.research import Invigilator

__all__ = [
    "Invigilator",
    "PenaltyClient",
    "PenaltyUnavailableError",
    "RolloutPenalty",
    "TooManyUnknownError",
]

ROLLOUTS_PER_REQUEST = 50_000
POLL_FIRST_S = 0.1
POLL_MOST_S = 2.0
MAX_UNKNOWN = 0.05
"""Share of a batch whose penalty may be unknown before the client raises."""
WaitFor = Literal["final", "nothing"]
OnUnavailable = Literal["raise", "none"]


class PenaltyUnavailableError(UnreachableError):
    """Some rollouts have no verdict yet, or the service does not answer; `rollout_ids` says which."""

    def __init__(self, problem: str, rollout_ids: Sequence[str], *, fix: str = "") -> None:
        super().__init__(problem, fix=fix)
        self.rollout_ids = tuple(rollout_ids)


class TooManyUnknownError(GuardError):
    """More of the batch is unknown than `max_unknown` allows; `penalties` holds the answers all the same."""

    def __init__(self, problem: str, penalties: Sequence[RolloutPenalty]) -> None:
        super().__init__(problem, fix="look at their status and reasons before training on what is left")
        self.penalties = tuple(penalties)


class PenaltyClient:
    """Asks for penalties. One client may be kept for a whole training run; it is not for several threads.

    `url` and `token`: of a `guard serve` on TCP. Without a url: `$INVIGILATOR_SERVE_URL`, else the socket in
    `home` (default `$INVIGILATOR_HOME`). Use it in `with`, or `async with` for the async methods.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, home: Path | None = None) -> None:
        self._address = Address.locate(url, token, home)
        self._sync = Connection(self._address)
        self._async = AsyncConnection(self._address)

    def batch(
        self,
        rollout_ids: Sequence[str],
        *,
        run_id: str | None = None,
        wait_for: WaitFor = "final",
        timeout_s: float = 60.0,
        on_unavailable: OnUnavailable = "raise",
        max_unknown: float | None = MAX_UNKNOWN,
        penalty_version: str | None = None,
        as_of: datetime | str | None = None,
    ) -> list[RolloutPenalty]:
        """One penalty a rollout, in the order of `rollout_ids`.

        `wait_for="final"` waits up to `timeout_s` until each has a verdict; `"nothing"` answers at once. What
        has none by then raises PenaltyUnavailableError, or with `on_unavailable="none"` is answered with
        status `unavailable`, value None, drop True (also where the service does not answer at all).
        `max_unknown`: share of the batch, 0 to 1, whose value may be None; more raises TooManyUnknownError,
        which has the answers all the same. None: any share.

        `penalty_version`: computed by the penalty part of that version, so that an edit of the policy moves
        no reward of a running job. `as_of`: the answer as it was at that time (a datetime with its offset, or
        RFC 3339), the same however often it is asked: an answer's own `as_of` repeats it.
        """
        pinning = pins(penalty_version, as_of)
        flow = batch_flow(rollout_ids, run_id, wait_for, timeout_s, on_unavailable, max_unknown, pinning)
        return self._sync.run(flow)

    async def batch_async(
        self,
        rollout_ids: Sequence[str],
        *,
        run_id: str | None = None,
        wait_for: WaitFor = "final",
        timeout_s: float = 60.0,
        on_unavailable: OnUnavailable = "raise",
        max_unknown: float | None = MAX_UNKNOWN,
        penalty_version: str | None = None,
        as_of: datetime | str | None = None,
    ) -> list[RolloutPenalty]:
        """As `batch`, awaiting."""
        pinning = pins(penalty_version, as_of)
        flow = batch_flow(rollout_ids, run_id, wait_for, timeout_s, on_unavailable, max_unknown, pinning)
        return await self._async.run(flow)

    def close(self) -> None:
        """End the synchronous connection."""
        self._sync.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._async.close()
        self.close()


def batch_flow(
    rollout_ids: Sequence[str],
    run_id: str | None,
    wait_for: WaitFor,
    timeout_s: float,
    on_unavailable: OnUnavailable,
    max_unknown: float | None,
    pinning: Mapping[str, str],
) -> Flow[list[RolloutPenalty]]:
    """The flow behind `batch`."""
    if isinstance(rollout_ids, str):
        raise TypeError("rollout_ids is a list of ids, not one id")
    deadline_s = time.monotonic() + timeout_s
    found: dict[str, RolloutPenalty] = {}
    trouble: BusyError | None = None
    pause_s = POLL_FIRST_S
    while wanted := [one for one in dict.fromkeys(rollout_ids) if one not in found]:
        try:
            answered = yield from ask_flow(wanted, run_id, deadline_s, pinning)
            found |= {one.rollout_id: one for one in answered if one.status != "unavailable"}
        except BusyError as error:
            trouble = error
        if trouble or wait_for == "nothing" or "as_of" in pinning or time.monotonic() + pause_s > deadline_s:
            break
        yield Pause(pause_s)
        pause_s = min(POLL_MOST_S, pause_s * 1.5)
    absent = [one for one in dict.fromkeys(rollout_ids) if one not in found]
    if absent and on_unavailable == "raise":
        raise unavailable(absent, len(rollout_ids), trouble) from trouble
    penalties = with_differences(
        [found.get(one) or RolloutPenalty(rollout_id=one, run_id=run_id) for one in rollout_ids]
    )
    check_unknown(penalties, max_unknown)
    return penalties


def pins(penalty_version: str | None, as_of: datetime | str | None) -> dict[str, str]:
    """What is asked of the answer's version and time; ValueError for a time without its offset."""
    found = {} if penalty_version is None else {"penalty_version": penalty_version}
    if as_of is None:
        return found
    at = datetime.fromisoformat(as_of) if isinstance(as_of, str) else as_of
    if at.tzinfo is None:
        raise ValueError(f"as_of {as_of} has no offset from UTC: write 2026-01-31T12:00:00Z")
    return found | {"as_of": at.isoformat()}


def ask_flow(
    wanted: Sequence[str], run_id: str | None, deadline_s: float, pinning: Mapping[str, str]
) -> Flow[list[RolloutPenalty]]:
    """One question to the service, in parts where the list is very long."""
    answered: list[RolloutPenalty] = []
    for start in range(0, len(wanted), ROLLOUTS_PER_REQUEST):
        body: dict[str, Any] = {"rollout_ids": wanted[start : start + ROLLOUTS_PER_REQUEST], "run_id": run_id}
        body |= pinning
        ask = Ask("POST", "/v1/penalties", body, accept=f"{COMPACT}, application/json;q=0.5")
        answer = yield from patiently(ask, deadline_s)
        answered += penalties_in(answer)
    return answered


def penalties_in(answer: httpx.Response) -> list[RolloutPenalty]:
    """The penalties of an answer; of a service that is older than its client, as a plain list."""
    try:
        if answer.headers.get("content-type", "").startswith(COMPACT):
            return decode(answer.content)
        return Penalties.model_validate_json(answer.content).penalties
    except ValueError as error:
        raise GuardError("the service's answer is no list of penalties", fix="compare versions") from error


def unavailable(absent: Sequence[str], asked: int, trouble: BusyError | None) -> PenaltyUnavailableError:
    """The error for rollouts without a verdict."""
    why = f"; {trouble}" if trouble else ""
    problem = f"no verdict for {len(absent)} of {asked} rollouts (first: {absent[0]!r}){why}"
    fix = "wait longer, or take on_unavailable='none' and mask them"
    return PenaltyUnavailableError(problem, absent, fix=fix)


def check_unknown(penalties: Sequence[RolloutPenalty], max_unknown: float | None) -> None:
    """TooManyUnknownError where the share of unknown values is over `max_unknown`."""
    unknown = sum(one.value is None for one in penalties)
    if max_unknown is not None and penalties and unknown > max_unknown * len(penalties):
        problem = f"the penalty of {unknown} of {len(penalties)} rollouts is unknown, over {max_unknown:.0%}"
        raise TooManyUnknownError(problem, penalties)
