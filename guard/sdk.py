"""The SDK: a guarded sandbox for harnesses that call tools many times.

    async with Sandbox.create(policy="swe-task", workspace="repo", rollout_id="r1") as box:
        done = await box.exec("python solve.py", step_id="call-7")
        await box.phase("verify")
        await box.exec(["pytest", "-q"], actor="platform")
        report = await box.verdict()

`SyncSandbox` (`sync.py`) is its twin without `await`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from invigilator.guard.box import Box, Command, Result
from invigilator.guard.entered import Entered
from invigilator.guard.folders import identity
from invigilator.guard.home import Home
from invigilator.guard.order import SandboxOrder, new_rollout_id, owner_of
from invigilator.profiles import library
from invigilator.profiles.policy import Policy

__all__ = ["Command", "Result", "Sandbox"]


class Sandbox(Entered, Box):
    """A guarded sandbox; `Sandbox.create` makes one. Leaving its `async with` removes every trace of it."""

    def __init__(self, order: SandboxOrder, home: Home) -> None:
        super().__init__(home, "create", {"order": order.model_dump(mode="json")})
        self._order = order

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
