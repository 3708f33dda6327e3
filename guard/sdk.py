"""The SDK: a guarded sandbox for harnesses that call tools many times.

    async with Sandbox.create(policy="swe-task", workspace="repo", rollout_id="r1") as box:
        done = await box.exec("python solve.py", step_id="call-7")
        await box.phase("verify")
        await box.exec(["pytest", "-q"], actor="platform")
        report = await box.verdict()

`SyncSandbox` (`sync.py`) is its twin without `await`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from invigilator.guard.folders import identity
from invigilator.guard.home import Home
from invigilator.guard.link import Link, Request
from invigilator.guard.order import (
    ActorName,
    CommandOrder,
    CommandResult,
    SandboxOrder,
    new_rollout_id,
    owner_of,
)
from invigilator.guard.pipes import Pipes
from invigilator.incidents.records import Report
from invigilator.profiles import library
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


class Sandbox:
    """A guarded sandbox; `Sandbox.create` makes one. Leaving its `async with` removes every trace of it."""

    def __init__(self, order: SandboxOrder, home: Home) -> None:
        self._order = order
        self._home = home
        self._opened_link: Link | None = None
        self._opened: dict[str, Any] = {}
        self.notice: str | None = None
        """After the verdict: why the store does not have all of it yet, if so."""

    @classmethod
    def create(
        cls,
        *,
        policy: str | Policy = "base",
        workspace: str | os.PathLike[str] | None = None,
        rollout_id: str | None = None,
        run_id: str | None = None,
        attempt: int = 1,
        labels: Mapping[str, str] | None = None,
        backend: str = "process",
        root: str | os.PathLike[str] | None = None,
        image: str | None = None,
        environment: Mapping[str, str] | None = None,
        copy_back: bool = True,
        home: str | os.PathLike[str] | None = None,
    ) -> Sandbox:
        """A sandbox to be entered with `async with`.

        `policy` is a library policy's name, a file's path or a Policy. `workspace` is a host folder of which
        the sandbox sees a copy; with `copy_back`, its changes come back at the verdict. `image` is one of
        Docker's, for `backend="container"`. Sandboxes of one `rollout_id` and `attempt` are one rollout and
        judged together: a second try is a higher `attempt`. A wrong policy is a PolicyError; entering raises
        `GuardError`s, each of which says what to do.
        """
        folder = Path(workspace).absolute() if workspace is not None else None
        owner_uid, owner_gid = owner_of(folder)
        order = SandboxOrder(
            policy=policy if isinstance(policy, Policy) else library.load(policy),
            workspace=str(folder) if folder else None,
            root=str(Path(root).absolute()) if root is not None else None,
            image=image,
            workspace_identity=identity(folder),
            root_identity=identity(root),
            rollout_id=rollout_id or new_rollout_id(),
            run_id=run_id,
            attempt=attempt,
            labels=dict(labels or {}),
            backend=backend,
            owner_uid=owner_uid,
            owner_gid=owner_gid,
            environment=dict(environment or {}),
            copy_back=copy_back,
        )
        return cls(order, Home.locate(Path(home) if home is not None else None))

    @property
    def rollout_id(self) -> str:
        """The rollout's id, given or generated."""
        return self._order.rollout_id

    @property
    def sandbox_id(self) -> str:
        """The sandbox's UUID."""
        return str(self._opened["sandbox_id"])

    @property
    def enforcement(self) -> dict[str, str]:
        """What is in force, tier by tier."""
        return dict(self._opened["enforcement"])

    async def __aenter__(self) -> Sandbox:
        self._opened_link = await Link.open(self._home)
        try:
            order = self._order.model_dump(mode="json")
            self._opened = await self._opened_link.ask("create", order=order)
        except BaseException:
            await self._opened_link.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._leave())

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
        command begins phase agent."""
        await self._link.ask("phase", phase=name)

    async def write_file(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Put a file into the sandbox."""
        raw = content.encode() if isinstance(content, str) else content
        await self._link.ask("write_file", path=path, content=base64.b64encode(raw).decode(), mode=mode)

    async def read_file(self, path: str) -> bytes:
        """Take a regular file out of the sandbox; also after the verdict."""
        return base64.b64decode((await self._link.ask("read_file", path=path))["content"])

    async def verdict(self, *, failure: str | None = None) -> Report:
        """End the rollout, and judge it. `failure`: what went wrong on the harness's side, if anything; the
        rollout is then `failed`, which is no reward of 0. Asked again, the answer is the same."""
        answer = await self._link.ask("verdict", failure=failure)
        self.notice = answer["notice"]
        return Report.model_validate(answer["report"])

    @property
    def _link(self) -> Link:
        if self._opened_link is None:
            raise RuntimeError("the sandbox is entered with `async with`")
        return self._opened_link

    async def _give_up(self, request: Request) -> None:
        with contextlib.suppress(Exception):
            await self.cancel(request)
            await self._link.finish(request)

    async def _leave(self) -> None:
        with contextlib.suppress(Exception):
            await self._link.ask("close")
        await self._link.close()
