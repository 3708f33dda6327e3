"""One rollout in the foreground of a terminal or a script: streams, signals, phases, verdict, exit status."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from invigilator.guard.attending import Attended, order_on_streams
from invigilator.guard.errors import GuardError
from invigilator.guard.order import CommandOrder, CommandResult
from invigilator.guard.sdk import Sandbox
from invigilator.incidents.records import Report

FAILED_CODE = 125
"""The guard itself failed, as env, nohup and timeout of coreutils say it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `setup` and `verify` are shell commands of the platform; their output goes to stderr."""

    command: Sequence[str]
    setup: str | None = None
    verify: str | None = None
    timeout_s: float | None = None
    tty: bool = False
    environment: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it: the exit status to end with, the verdict, why the store is behind, if it is, and why
    some of the command's output could not be written, if so."""

    code: int
    report: Report
    notice: str | None
    lost_output: str | None


class Foreground:
    """Runs a plan in a sandbox; signals that this process gets, the command gets."""

    def __init__(self, box: Sandbox, plan: Plan) -> None:
        self._box = box
        self._plan = plan
        self._attended = Attended(box)

    async def run(self) -> Outcome:
        """The whole rollout."""
        with self._attended.handlers():
            async with self._box:
                try:
                    return await self._phases()
                except asyncio.CancelledError:
                    raise
                except GuardError as error:
                    return await self._failed(error)

    async def _phases(self) -> Outcome:
        plan = self._plan
        if plan.setup is not None:
            await self._box.phase("setup")
            done = await self._platform(plan.setup)
            if done.code and self._interrupted is None:
                return await self._conclude(
                    FAILED_CODE, f"the setup command ended with exit status {done.code}"
                )
        await self._box.phase("agent")
        done = await self._agent()
        if plan.verify is not None and self._interrupted is None:
            await self._box.phase("verify")
            await self._platform(plan.verify)
            if self._interrupted is not None and not done.code:
                # What comes after it in a script must not take a half verified rollout for a good one.
                return await self._conclude(128 + self._interrupted, None)
        return await self._conclude(done.code, None)

    async def _failed(self, error: GuardError) -> Outcome:
        """The agent refused something; while it lives, the rollout's verdict says so."""
        try:
            return await self._conclude(FAILED_CODE, str(error))
        except GuardError:
            raise error from None

    async def _conclude(self, code: int, failure: str | None) -> Outcome:
        """An interrupted rollout is no verdict on the agent, but the exit status stays `code`; so it does
        where the command's output is lost, as script(1) has it."""
        if self._interrupted is not None:
            failure = failure or f"interrupted by {signal.Signals(self._interrupted).name}"
        report = await self._box.verdict(failure=failure)
        failed = report.failure is not None and self._interrupted is None
        error = self._attended.output_error
        return Outcome(
            FAILED_CODE if failed else code, report, self._box.notice, os.strerror(error) if error else None
        )

    async def _agent(self) -> CommandResult:
        plan = self._plan
        order = order_on_streams(
            plan.command,
            actor="agent",
            timeout_s=plan.timeout_s,
            environment=plan.environment or {},
            on_terminal=plan.tty,
        )
        return await self._attended.execute(order, (0, 1, 2))

    async def _platform(self, command: str) -> CommandResult:
        order = CommandOrder(
            command=command, actor="platform", environment=dict(self._plan.environment or {})
        )
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return await self._attended.execute(order, (nothing, 2, 2))
        finally:
            os.close(nothing)

    @property
    def _interrupted(self) -> int | None:
        return self._attended.interrupted
