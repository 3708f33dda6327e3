"""What a client enters with `async with`: a connection of its own, opened by one request, until it leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Self

from invigilator.guard.home import Home
from invigilator.guard.link import Link
from invigilator.incidents.records import Report


class Linked:
    """Speaks with the agent between entering and leaving."""

    def __init__(self) -> None:
        self._opened_link: Link | None = None

    @property
    def _link(self) -> Link:
        if self._opened_link is None:
            raise RuntimeError("it is entered with `async with`")
        return self._opened_link


class Entered(Linked):
    """A sandbox, or a watch, that its client begins and ends. Leaving removes every trace of it."""

    def __init__(self, home: Home, operation: str, asked: Mapping[str, Any]) -> None:
        """`operation` with `asked` is what entering requests of the agent."""
        super().__init__()
        self._home, self._operation, self._asked = home, operation, asked
        self._opened: dict[str, Any] = {}
        self.notice: str | None = None
        """After the verdict: why the store does not have all of it yet, if so."""

    async def __aenter__(self) -> Self:
        self._opened_link = await Link.open(self._home)
        try:
            self._opened = await self._opened_link.ask(self._operation, **self._asked)
        except BaseException:
            await self._opened_link.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._leave())

    async def verdict(self, *, failure: str | None = None) -> Report:
        """End it, and judge what was seen. `failure`: what went wrong on the harness's side, if anything; the
        rollout is then `failed`, which is no reward of 0. Asked again, the answer is the same."""
        answer = await self._link.ask("verdict", failure=failure)
        self.notice = answer["notice"]
        return Report.model_validate(answer["report"])

    async def _leave(self) -> None:
        with contextlib.suppress(Exception):
            await self._link.ask("close")
        await self._link.close()
