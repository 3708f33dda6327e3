"""Commands, phases and files of a sandbox, over a connection to the agent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from invigilator.guard.entered import Linked
from invigilator.guard.link import Request
from invigilator.guard.order import ActorName, CommandOrder, CommandResult
from invigilator.guard.pipes import Pipes
from invigilator.incidents.records import PolicyChange
from invigilator.profiles.policy import PhaseName, Policy

Command = str | Sequence[str | bytes]


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended and what it wrote. `exit_code` as a shell says it: 128 + signal, 124 timed out, 126
    and 127 where it could not be executed. `output_cut`: the policy's output limit was reached."""

    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    reason: Literal["exited", "signalled", "timeout", "oom", "limit"]
    output_cut: bool

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 show as U+FFFD."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 show as U+FFFD."""
        return self.stderr_bytes.decode(errors="replace")


class Box(Linked):
    """A sandbox that can be spoken of once it is entered with `async with`."""

    async def exec(
        self,
        command: Command,
        *,
        step_id: str | None = None,
        timeout_s: float | None = None,
        actor: ActorName | None = None,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Result:
        """Run a command and wait for its end; a string runs under `bash -c`.

        `step_id` names the harness's tool call; events and incidents carry it. `actor` says whose command it
        is: by default the agent's in phase agent, else the platform's. Cancelled, the command is ended.
        """
        arguments = command if isinstance(command, str) else [os.fsdecode(word) for word in command]
        order = CommandOrder(
            command=arguments,
            step_id=step_id,
            timeout_s=timeout_s,
            actor=actor,
            cwd=cwd,
            environment=dict(environment or {}),
        )
        async with Pipes(stdin) as pipes:
            request = await self.start(order, pipes.theirs)
            pipes.close_theirs()
            try:
                ended = await self.finish(request)
            except asyncio.CancelledError:
                await asyncio.shield(self._give_up(request))
                raise
            out, err = await pipes.collected()
        return Result(ended.code, out, err, ended.reason, ended.output_cut)

    async def start(self, order: CommandOrder, streams: Sequence[int]) -> Request:
        """Start a command on descriptors of the caller's: (stdin, stdout, stderr)."""
        return await self._link.begin("exec", {"order": order.model_dump()}, streams)

    async def finish(self, request: Request) -> CommandResult:
        """How a started command ended."""
        return CommandResult.model_validate(await self._link.finish(request))

    async def signal(self, request: Request, number: int) -> None:
        """Send a signal to a started command's foreground process group."""
        await self._link.ask("signal", exec=request.number, signal=int(number))

    async def cancel(self, request: Request) -> None:
        """End a started command: TERM, then KILL."""
        await self._link.ask("cancel", exec=request.number)

    async def resize(self, request: Request, rows: int, columns: int) -> None:
        """Tell a started command's pseudo-terminal its size."""
        await self._link.ask("resize", exec=request.number, rows=rows, columns=columns)

    async def phase(self, name: PhaseName) -> None:
        """End the present phase and begin another: setup, then agent, then verify. Without a call, the first
        command of who began the rollout begins phase agent."""
        await self._link.ask("phase", phase=name)

    async def change_policy(self, policy: Policy) -> PolicyChange:
        """Put another policy in force on what runs, as far as the kernel lets that be: what became of each
        tier. What the network and the limits let be is judged by it from then on; what is protected, and what
        a misdeed costs, stays as the rollout began."""
        answer = await self._link.ask("policy", policy=policy.model_dump(mode="json"))
        return PolicyChange.model_validate(answer["change"])

    async def write_file(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Put a file into the sandbox."""
        raw = content.encode() if isinstance(content, str) else content
        await self._link.ask("write_file", path=path, content=base64.b64encode(raw).decode(), mode=mode)

    async def read_file(self, path: str) -> bytes:
        """Take a regular file out of the sandbox; also after the verdict."""
        return base64.b64decode((await self._link.ask("read_file", path=path))["content"])

    async def _give_up(self, request: Request) -> None:
        with contextlib.suppress(Exception):
            await self.cancel(request)
            await self._link.finish(request)
