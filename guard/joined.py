"""A second client of a rollout that runs: it may run commands and begin phases, and ends nothing but its own.

async with Joined("r1", Home.locate()) as box:
    await box.phase("verify")
    await box.exec(["pytest", "-q"], actor="platform")
"""

from __future__ import annotations

import asyncio

from invigilator.guard.box import Box
from invigilator.guard.home import Home
from invigilator.guard.link import Link


class Joined(Box):
    """A rollout of this node's agent, by its id or by its sandbox's UUID. Who began it keeps it: its
    verdict is theirs to ask for, and its end ends what was started here."""

    def __init__(self, rollout: str, home: Home) -> None:
        super().__init__()
        self._rollout = rollout
        self._home = home

    async def __aenter__(self) -> Joined:
        self._opened_link = await Link.open(self._home, start=False)
        try:
            await self._opened_link.ask("join", rollout=self._rollout)
        except BaseException:
            await self._opened_link.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._link.close())
