"""What every request passes through: who asks, size and rate limits, and the time of the last one."""

from __future__ import annotations

import time
from collections import OrderedDict

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from invigilator.guard.api.access import Access, Caller
from invigilator.guard.api.gate import PROJECTS
from invigilator.guard.api.problem import ProblemError

SEGMENT_BYTES_MAX = 256 << 20
BODY_BYTES_MAX = 16 << 20
"""A list of 100,000 rollout ids of 100 bytes fits."""
REQUESTS_PER_S = 50.0
REQUESTS_BURST = 200.0
ADDRESSES_MAX = 4096
DATA_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
SEGMENTS_PATH = "/v1/segments"
WATCHING_PATHS = frozenset({"/v1/health"})
"""Asking these does not keep an idle server alive."""
DATA_PREFIX = "/v1/"
OPEN_PATHS = frozenset({"/v1/openapi.json"})
"""Below DATA_PREFIX, and yet open to all: the service's description, which holds nothing recorded."""


class Buckets:
    """Token buckets, one an address or caller; past ADDRESSES_MAX the least used is forgotten."""

    def __init__(self, rate_per_s: float = REQUESTS_PER_S, burst: float = REQUESTS_BURST) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str, now_s: float) -> bool:
        """Whether one more request of `address` is within its rate; counts it if so."""
        level, then_s = self._levels.pop(address, (self._burst, now_s))
        level = min(self._burst, level + (now_s - then_s) * self._rate_per_s)
        allowed = level >= 1.0
        self._levels[address] = (level - 1.0 if allowed else level, now_s)
        if len(self._levels) > ADDRESSES_MAX:
            self._levels.popitem(last=False)
        return allowed


class Traffic:
    """Requests in flight and when the last one ended (monotonic seconds)."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.last_s = time.monotonic()

    def touch(self) -> None:
        """Count idleness from now."""
        self.last_s = time.monotonic()

    def idle_s(self) -> float:
        """Seconds since a request was last being answered."""
        return 0.0 if self.in_flight else time.monotonic() - self.last_s


class TrafficRules:
    """ASGI middleware: knows callers, and refuses bodies over their limit and callers over their rate.

    A caller is known before a byte of the body is read, so that nobody else's is held or parsed. Whose rate
    counts is the token's, so that a stranger at the same address uses up nobody's.
    """

    def __init__(self, app: ASGIApp, access: Access, traffic: Traffic) -> None:
        self._app = app
        self._access = access
        self._traffic = traffic
        self._buckets = Buckets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request through, or answer it with 401, 413 or 429."""
        if scope["type"] != "http" or scope["path"] in WATCHING_PATHS:
            await self._app(scope, receive, send)
            return
        self._traffic.in_flight += 1
        send = unsniffed(send)
        try:
            await self._limited(scope, receive, send)
        except ProblemError as error:
            await error.response()(scope, receive, send)
        finally:
            self._traffic.in_flight -= 1
            self._traffic.last_s = time.monotonic()

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._admitted(scope)
        scope.setdefault("state", {})["caller"] = caller
        PROJECTS.set(caller.projects if caller else ())
        limit = SEGMENT_BYTES_MAX if scope["path"] == SEGMENTS_PATH else BODY_BYTES_MAX
        declared = header(scope, b"content-length")
        if declared.isdigit() and int(declared) > limit:
            raise too_large(limit)
        await self._app(scope, counted(receive, limit), send)

    def _admitted(self, scope: Scope) -> Caller | None:
        """Who asks, None where that does not matter; 401 where it does, 429 past the rate."""
        client = scope.get("client") or ("", 0)
        address = str(client[0])
        is_open = not scope["path"].startswith(DATA_PREFIX) or scope["path"] in OPEN_PATHS
        authorization = header(scope, b"authorization")
        if not authorization and self._access.trusts(address):
            return self._access.identify(address, "")
        try:
            caller = None if is_open else self._access.identify(address, authorization)
        except ProblemError:
            self._count(address)
            raise
        self._count(f"token {caller.name}" if caller else address)
        return caller

    def _count(self, whose: str) -> None:
        if not self._buckets.take(whose, time.monotonic()):
            raise ProblemError(429, "too-many-requests", "more requests than allowed", retry_after_s=1.0)


def header(scope: Scope, name: bytes) -> str:
    """A header's first value, "" without one."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def unsniffed(send: Send) -> Send:
    """`send`, with the headers of an answer that is data: not cached, not taken for something else."""

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            added = [(name, value) for name, value in DATA_HEADERS if name not in given]
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return marked


def counted(receive: Receive, limit: int) -> Receive:
    """`receive`, refusing to hand on more than `limit` bytes of body (a chunked body declares no length)."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise too_large(limit)
        return message

    return limited


def too_large(limit: int) -> ProblemError:
    """The 413 for a body over `limit` bytes."""
    return ProblemError(413, "body-too-large", f"the body is over {limit} bytes", fix="send it in parts")
