"""How clients reach `guard serve`: where it is, one request with its retries, and errors that say what to do.

Needs httpx and nothing of a node, so that it works in a bare install.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx

from invigilator.guard.errors import GuardError, NotFoundError, RefusedError, UnreachableError
from invigilator.guard.home import Home
from invigilator.guard.tls import verification

URL_VARIABLE = "INVIGILATOR_SERVE_URL"
TOKEN_VARIABLE = "INVIGILATOR_TOKEN"
REQUEST_TIMEOUT_S = 60.0
PAUSES_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Pauses between tries; the last one repeats."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that a flow wants made; it may be made again, as the service's requests are idempotent."""

    method: Literal["GET", "POST", "PUT"]
    path: str
    body: Any = None
    query: Mapping[str, str] | None = None
    accept: str = "application/json"


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait that a flow wants, in seconds."""

    seconds: float


Flow = Generator[Ask | Pause, Any, T]
"""What a client does, without saying how: it yields asks and pauses and is sent each answer. The same flow is
run by the sync and the async connection."""


class BusyError(UnreachableError):
    """The service or its store is down or busy; asking again may help. `answered`: it said so itself."""

    def __init__(
        self,
        problem: str,
        *,
        where: str = "",
        fix: str = "",
        retry_after_s: float = 0.0,
        answered: bool = True,
    ) -> None:
        super().__init__(problem, where=where, fix=fix)
        self.retry_after_s = retry_after_s
        self.answered = answered


@dataclass(frozen=True, slots=True)
class Address:
    """Where the service is: a URL, or the Unix socket of `home` (started on demand where this user may)."""

    url: str | None
    token: str | None
    home: Home

    @classmethod
    def locate(cls, url: str | None = None, token: str | None = None, home: Path | None = None) -> Address:
        """What is given, else `$INVIGILATOR_SERVE_URL` and `$INVIGILATOR_TOKEN`, else the home's socket."""
        chosen = None if home and not url else url or os.environ.get(URL_VARIABLE) or None
        if chosen is not None and not re.match(r"https?://[^/]", chosen):
            raise GuardError(
                "this is no URL of a service",
                where=chosen,
                fix="write http://HOST:PORT, or https://HOST:PORT",
            )
        return cls(chosen, token or os.environ.get(TOKEN_VARIABLE) or None, Home.locate(home))

    def __str__(self) -> str:
        return self.url or str(self.home.serve_socket)

    def ensure(self) -> None:
        """Have the home's own service run; UnreachableError or MissingError where that cannot be."""
        if self.url is None:
            from invigilator.guard.node import ensure_serve

            ensure_serve(self.home)


class _Link:
    """What the sync and the async connection share: httpx's arguments, and the socket's folder held open."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._folder = -1
        self.headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}

    def socket_path(self) -> str | None:
        """A path of the Unix socket that fits its 107 bytes however deep it lies; None with a URL."""
        if self.address.url is not None:
            return None
        path = self.address.home.serve_socket
        if self._folder < 0:
            self._folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._folder}/{path.name}"

    @property
    def base_url(self) -> str:
        """The URL that requests are relative to."""
        return self.address.url or "http://serve"

    def release(self) -> None:
        """Close the folder."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def unreachable(self, error: Exception) -> BusyError:
        """The error for a request that got no answer."""
        text = " ".join(str(error).split()) or type(error).__name__
        fix = "see `guard status`" if self.address.url is None else "does `guard serve --listen` run there?"
        problem = f"guard serve does not answer: {text}"
        return BusyError(problem, where=str(self.address), fix=fix, answered=False)


class Connection(_Link):
    """A synchronous connection."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._client: httpx.Client | None = None

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end and return its result."""
        try:
            step = next(flow)
            while True:
                try:
                    answer = self._ask(step)
                except BusyError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self.release()

    def _ask(self, ask: Ask | Pause) -> httpx.Response | None:
        if isinstance(ask, Pause):
            time.sleep(ask.seconds)
            return None
        if self._client is None:
            self.address.ensure()
            transport = httpx.HTTPTransport(uds=self.socket_path(), verify=verification(self.base_url))
            self._client = httpx.Client(
                base_url=self.base_url, headers=self.headers, transport=transport, timeout=REQUEST_TIMEOUT_S
            )
        try:
            return checked(self._client.send(request(self._client, ask)), self.address)
        except httpx.TransportError as error:
            self.close()
            raise self.unreachable(error) from error


class AsyncConnection(_Link):
    """An asynchronous connection, for one event loop."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._client: httpx.AsyncClient | None = None

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end and return its result."""
        try:
            step = next(flow)
            while True:
                try:
                    answer = await self._ask(step)
                except BusyError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        self.release()

    async def _ask(self, ask: Ask | Pause) -> httpx.Response | None:
        if isinstance(ask, Pause):
            await asyncio.sleep(ask.seconds)
            return None
        if self._client is None:
            await asyncio.to_thread(self.address.ensure)
            transport = httpx.AsyncHTTPTransport(uds=self.socket_path(), verify=verification(self.base_url))
            self._client = httpx.AsyncClient(
                base_url=self.base_url, headers=self.headers, transport=transport, timeout=REQUEST_TIMEOUT_S
            )
        try:
            return checked(await self._client.send(request(self._client, ask)), self.address)
        except httpx.TransportError as error:
            await self.close()
            raise self.unreachable(error) from error


def request(client: httpx.Client | httpx.AsyncClient, ask: Ask) -> httpx.Request:
    """The HTTP request of an ask."""
    body = None if ask.method == "GET" else ask.body
    query = dict(ask.query) if ask.query else None
    return client.build_request(ask.method, ask.path, json=body, params=query, headers={"Accept": ask.accept})


def checked(answer: httpx.Response, address: Address) -> httpx.Response:
    """The answer if it is one, else the error that its problem document describes."""
    if answer.is_success:
        return answer
    try:
        problem = answer.json()
        detail, fix = str(problem["detail"]), str(problem.get("fix", ""))
    except (ValueError, KeyError, TypeError):
        detail, fix = f"status {answer.status_code}, and no explanation", "is this really guard serve?"
    where = str(address)
    if answer.status_code in (429, 502, 503, 504):
        after = answer.headers.get("retry-after", "")
        raise BusyError(detail, where=where, fix=fix, retry_after_s=float(after) if after.isdigit() else 0.0)
    if answer.status_code == 404:
        raise NotFoundError(detail, fix=fix)
    if answer.status_code < 500:
        raise RefusedError(detail, fix=fix)
    raise GuardError(detail, where=where, fix=fix)


def patiently(ask: Ask, deadline_s: float, *, silence_s: float = math.inf) -> Flow[httpx.Response]:
    """A flow: the answer to `ask`, asking again while the service is busy, until `deadline_s` (monotonic).

    A service that does not answer at all is asked again for `silence_s` only.
    """
    silent_since_s: float | None = None
    tries = 0
    while True:
        try:
            answer: httpx.Response = yield ask
            return answer
        except BusyError as error:
            now_s = time.monotonic()
            silent_since_s = None if error.answered else silent_since_s or now_s
            end_s = deadline_s if silent_since_s is None else min(deadline_s, silent_since_s + silence_s)
            left_s = end_s - now_s
            pause_s = max(error.retry_after_s, PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            if pause_s > left_s:
                raise
            tries += 1
        yield Pause(pause_s)
