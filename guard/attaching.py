"""A client that watches a cgroup of others' from its beginning, or from now on, to its end.

async with Attaching(order, "/docker/4f…", Home.locate()) as watch:
    await watch.ended()
    report = await watch.verdict()
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from invigilator.guard.home import Home
from invigilator.guard.link import Link
from invigilator.guard.order import SandboxOrder
from invigilator.incidents.records import Report
from invigilator.profiles.policy import PhaseName


class Attaching:
    """One watch, entered with `async with`. `make`: the cgroup is about to be made (a container that was
    created and has not started), and may be there before its runtime makes it. `container`: its id at
    Docker's, where it has one."""

    def __init__(
        self,
        order: SandboxOrder,
        cgroup: str,
        home: Home,
        *,
        make: bool = False,
        phase: PhaseName | None = None,
        container: str = "",
    ) -> None:
        self._home = home
        self._asked = {
            "order": order.model_dump(mode="json"),
            "cgroup": cgroup,
            "make": make,
            "phase": phase,
            "container": container,
        }
        self._opened: dict[str, Any] = {}
        self._opened_link: Link | None = None
        self.notice: str | None = None
        """After the verdict: why the store does not have all of it yet, if so."""

    @property
    def rollout_id(self) -> str:
        """The rollout's id."""
        return str(self._opened["rollout_id"])

    @property
    def cgroup(self) -> str:
        """The cgroup's path from its hierarchy's root."""
        return str(self._opened["cgroup"])

    @property
    def whole(self) -> bool:
        """Whether nobody was in it when the watch began."""
        return bool(self._opened["whole"])

    async def __aenter__(self) -> Attaching:
        self._opened_link = await Link.open(self._home)
        try:
            self._opened = await self._opened_link.ask("attach", **self._asked)
        except BaseException:
            await self._opened_link.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._leave())

    async def ended(self) -> str:
        """Wait for the end: `empty`, `removed`, or `asked` where the verdict was asked for."""
        return str((await self._link.ask("await_end"))["ended"])

    async def verdict(self, *, failure: str | None = None) -> Report:
        """End the watch, and judge what was seen."""
        answer = await self._link.ask("verdict", failure=failure)
        self.notice = answer["notice"]
        return Report.model_validate(answer["report"])

    @property
    def _link(self) -> Link:
        if self._opened_link is None:
            raise RuntimeError("the watch is entered with `async with`")
        return self._opened_link

    async def _leave(self) -> None:
        with contextlib.suppress(Exception):
            await self._link.ask("close")
        await self._link.close()
