"""The course of a rollout as it goes: phases, steps, exits, output, and what failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from invigilator.ebpf.events import Actor
from invigilator.guard.order import CommandOrder, CommandResult
from invigilator.incidents.records import Exit, PhaseRecord
from invigilator.incidents.rows import Step
from invigilator.profiles.policy import PhaseName
from invigilator.sandbox.base import Process

STEP_COMMAND_MAX = 4096
"""Characters of a step's command that are kept."""


@dataclass(slots=True)
class Running:
    """A command at work. `ordinal` is its step's, 0 without one."""

    order: CommandOrder
    process: Process
    phase: PhaseName
    actor: Actor
    ordinal: int
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(slots=True)
class Progress:
    """What the report will say of the rollout's course."""

    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    phases: list[PhaseRecord] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    agent_exit: Exit | None = None
    failure: str | None = None
    output_bytes: int = 0
    expired: bool = False

    def phase_begins(self, name: PhaseName) -> None:
        """A phase begins."""
        self.phases.append(PhaseRecord(name=name, started_at=datetime.now(UTC)))

    def phase_ends(self) -> None:
        """The last phase ends."""
        self.phases[-1] = self.phases[-1].model_copy(update={"ended_at": datetime.now(UTC)})

    def command_ends(self, running: Running, result: CommandResult) -> None:
        """A command has ended: its exit is its phase's, until another command of the phase ends."""
        outcome = Exit(code=result.code, reason=result.reason)
        self.output_bytes += result.output_bytes
        for number, record in enumerate(self.phases):
            if record.name == running.phase:
                self.phases[number] = record.model_copy(update={"exit": outcome})
        if running.phase == "agent" and running.actor is Actor.AGENT:
            self.agent_exit = outcome
        if running.ordinal:
            self.steps.append(_step(running, outcome, result.output_bytes))


def _step(running: Running, outcome: Exit, output_bytes: int) -> Step:
    order = running.order
    words = [order.command] if isinstance(order.command, str) else order.command
    return Step(
        step=running.ordinal,
        step_id=order.step_id or "",
        actor=running.actor.name.lower(),
        phase=running.phase,
        command=[" ".join(words)[:STEP_COMMAND_MAX]],
        started_at=running.started_at,
        ended_at=datetime.now(UTC),
        exit=outcome,
        output_bytes=output_bytes,
    )
