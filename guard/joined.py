"""A second client of a rollout that runs: it may run commands and begin phases, and ends nothing but its own.

async with Joined("r1", Home.locate()) as box:
    await box.phase("verify")
    await box.exec(["pytest", "-q"], actor="platform")
"""

from __future__ import annotations

import asyncio

from invigilator.guard.box import Box
from invigilator.guard.errors import GuardError
from invigilator.guard.home import Home
from invigilator.guard.link import Link
from invigilator.guard.order import CommandOrder


class Joined(Box):
    """A rollout of this node's agent, by its id or by its sandbox's UUID. Who began it keeps it: its
    verdict is theirs to ask for, and its end ends what was started here."""

    def __init__(self, rollout: str, home: Home) -> None:
        super().__init__()
        self._rollout = rollout
        self._home = home
        self._container: str | None = None

    @property
    def attached(self) -> bool:
        """Whether its container is somebody else's, and the guard only watches it."""
        return self._container is not None

    @property
    def container(self) -> str:
        """The id of such a container, by which its runtime runs commands; GuardError where none is known."""
        if not self._container:
            raise GuardError(
                "the guard watches a cgroup here and knows of no container: commands are for whoever made it",
                fix="run it by the container's runtime; `guard phase` declares the phase",
            )
        return self._container

    async def __aenter__(self) -> Joined:
        self._opened_link = await Link.open(self._home, start=False)
        try:
            joined = await self._opened_link.ask("join", rollout=self._rollout)
            self._container = joined["container"]
        except BaseException:
            await self._opened_link.close()
            raise
        return self

    async def announce(self, order: CommandOrder) -> None:
        """Of a container that is only watched: who enters it next does so for this order."""
        await self._link.ask("announce", order=order.model_dump())

    async def concluded(self, code: int) -> None:
        """What was announced has ended with this exit status."""
        await self._link.ask("conclude", code=code)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._link.close())
