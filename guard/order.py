"""What a client asks of the agent: a sandbox, and commands in it. Both sides read the same models."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from invigilator.profiles.policy import PhaseName, Policy

ActorName = Literal["agent", "platform"]
TIMEOUT_MAX_S = 1e8
ATTACHED = "attach"
"""The backend of rollouts in cgroups of others', as reports name it."""


def new_rollout_id() -> str:
    """An id for a rollout that was given none."""
    return uuid.uuid4().hex


def attach_order(
    policy: Policy, *, rollout_id: str, run_id: str | None, attempt: int, labels: dict[str, str]
) -> SandboxOrder:
    """The order of a rollout in a cgroup of others'."""
    return SandboxOrder(
        policy=policy,
        rollout_id=rollout_id,
        run_id=run_id,
        attempt=attempt,
        labels=labels,
        backend=ATTACHED,
        copy_back=False,
    )


def owner_of(workspace: Path | None) -> tuple[int, int]:
    """(uid, gid) that copied files are to belong to: the workspace's owner, else the caller."""
    if workspace is None:
        return os.getuid(), os.getgid()
    found = workspace.stat()
    return found.st_uid, found.st_gid


class _Order(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SandboxOrder(_Order):
    """A rollout's sandbox.

    `image`: what a container is made from. `workspace` and `root` are absolute host folders; their identities
    (device, inode) are what the client saw there. `attempt` counts the tries of one `rollout_id`, of which
    the latest answers. `copy_back`: bring the workspace's changes to the host folder at the verdict.
    """

    policy: Policy
    workspace: str | None = None
    root: str | None = None
    image: str | None = Field(default=None, min_length=1, max_length=1024)
    workspace_identity: tuple[int, int] | None = None
    root_identity: tuple[int, int] | None = None
    rollout_id: str = Field(min_length=1, max_length=256)
    run_id: str | None = Field(default=None, max_length=256)
    attempt: int = Field(default=1, ge=1, le=2**31)
    labels: dict[str, str] = {}
    backend: str = "process"
    owner_uid: int = 0
    owner_gid: int = 0
    environment: dict[str, str] = {}
    copy_back: bool = True


class CommandOrder(_Order):
    """A command: a string runs under `bash -c`. `actor` None: the agent in phase agent, else the platform.

    `timeout_s` ends it with exit code 124. With `tty`, its streams are a pseudo-terminal of that size.
    """

    command: str | list[str]
    step_id: str | None = Field(default=None, max_length=1024)
    timeout_s: float | None = Field(default=None, gt=0, le=TIMEOUT_MAX_S)
    actor: ActorName | None = None
    cwd: str | None = None
    environment: dict[str, str] = {}
    tty: bool = False
    rows: int = 24
    columns: int = 80

    def arguments(self) -> list[str]:
        """The command as an argument vector."""
        return ["bash", "-c", self.command] if isinstance(self.command, str) else self.command

    def actor_in(self, phase: PhaseName) -> ActorName:
        """Whose command it is in `phase`."""
        return self.actor or ("agent" if phase == "agent" else "platform")


class CommandResult(_Order):
    """How a command ended: `code` as a shell says it (124 timed out), and what became of its output.

    `output_error`: the errno with which one of the caller's streams took no more of it (0: none).
    """

    code: int
    reason: Literal["exited", "signalled", "timeout", "oom", "limit"]
    output_bytes: int = 0
    output_cut: bool = False
    output_error: int = 0
