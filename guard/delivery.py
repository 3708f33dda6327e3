"""Where segments go: to `guard serve` over HTTP, or straight into ClickHouse. Either stores a segment once,
however often it is sent."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import httpx
import pyarrow as pa

from invigilator.guard.errors import GuardError
from invigilator.guard.home import Home
from invigilator.guard.node import ensure_serve
from invigilator.guard.tls import verification
from invigilator.incidents.segment import Segment, SegmentError

if TYPE_CHECKING:
    from invigilator.incidents.store import Store

_log = logging.getLogger("invigilator.ship")

URL_VARIABLE = "INVIGILATOR_SERVE_URL"
TOKEN_VARIABLE = "INVIGILATOR_TOKEN"
SHIP_VARIABLE = "INVIGILATOR_SHIP_TO"
"""A ClickHouse server's URL, `http(s)://[user:password@]host[:port][/database]`: the agent stores itself."""
REQUEST_TIMEOUT_S = 60.0
ENCODING = "zstd"
_FINAL_REFUSALS = (400, 409, 413, 422)
_UNKNOWN_THERE = (404, 405)
"""A service of an earlier version takes segments one by one."""

Outcome = tuple[Segment, str | None]
"""A segment, and None where it is stored, or why it never will be."""


class ShipError(GuardError):
    """The store did not take a segment; it will be sent again."""


class Delivery(Protocol):
    """One way to the store. `place` names it, without credentials."""

    place: str

    def deliver(self, group: Sequence[Segment]) -> Iterator[Outcome]:
        """Store the segments in their order; what is yielded is settled. ShipError, httpx.HTTPError or
        OSError where nothing is taken at the moment."""

    def stay(self) -> None:
        """Have what is on the way stay there while rollouts run."""

    def close(self) -> None:
        """End the connection; the next `deliver` makes another."""


def choose(home: Home) -> Delivery:
    """The way that the environment names: `$INVIGILATOR_SHIP_TO`, else a serve."""
    if target := os.environ.get(SHIP_VARIABLE):
        return ToStore(target)
    return ToServe(home)


class ToServe:
    """Over HTTP to this node's own serve, started where none runs, or to the one that
    `$INVIGILATOR_SERVE_URL` names (with the bearer token in `$INVIGILATOR_TOKEN`).

    Bodies are compressed once the service has said that it takes that (RFC 7694: `Accept-Encoding` in an
    answer); one of an earlier version does not say it, and goes on getting them as they are.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._client: httpx.Client | None = None
        self._folder = -1
        self._compress = False
        url = os.environ.get(URL_VARIABLE)
        self.place = f"guard serve at {_without_credentials(url)}" if url else "this node's guard serve"

    def deliver(self, group: Sequence[Segment]) -> Iterator[Outcome]:
        client = self._connect()
        if len(group) > 1 and self._send_together(client, group):
            yield from ((one, None) for one in group)
            return
        for one in group:
            yield one, self._send(client, one)

    def stay(self) -> None:
        self._connect().get("/v1/stay")

    def close(self) -> None:
        self._compress = False
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _send_together(self, client: httpx.Client, group: Sequence[Segment]) -> bool:
        """Send a group in one request; False where one of it is damaged or refused, to be found by itself."""
        try:
            parts = [part for one in group for part in (one.header().encode(), b"\n", one.read_bytes())]
        except SegmentError:
            return False
        headers = {"Content-Type": "application/octet-stream"}
        answer = self._post(client, "/v1/segments/together", b"".join(parts), headers)
        if answer.status_code in (*_FINAL_REFUSALS, *_UNKNOWN_THERE):
            return False
        if not answer.is_success:
            raise ShipError(_problem(answer))
        return True

    def _send(self, client: httpx.Client, segment: Segment) -> str | None:
        try:
            content = segment.read_bytes()
        except SegmentError as error:
            return str(error)
        headers = {"X-Segment": segment.header(), "Content-Type": "application/vnd.apache.arrow.file"}
        answer = self._post(client, "/v1/segments", content, headers)
        if answer.status_code in _FINAL_REFUSALS:
            return answer.text
        if not answer.is_success:
            raise ShipError(_problem(answer))
        return None

    def _post(
        self, client: httpx.Client, path: str, content: bytes, headers: dict[str, str]
    ) -> httpx.Response:
        if self._compress:
            packed = pa.compress(content, codec=ENCODING, asbytes=True)
            answer = client.post(path, content=packed, headers={**headers, "Content-Encoding": ENCODING})
        else:
            answer = client.post(path, content=content, headers=headers)
        offered = [word.strip() for word in answer.headers.get("accept-encoding", "").split(",")]
        self._compress = ENCODING in offered and pa.Codec.is_available(ENCODING)
        return answer

    def _connect(self) -> httpx.Client:
        if self._client is None:
            self._client = self._remote(url) if (url := os.environ.get(URL_VARIABLE)) else self._local()
        return self._client

    def _remote(self, url: str) -> httpx.Client:
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        verify = verification(url)
        return httpx.Client(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S, verify=verify)

    def _local(self) -> httpx.Client:
        address = ensure_serve(self._home)
        # A deep path does not fit a socket's address; one through a descriptor of its folder always does.
        self._folder = os.open(address.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        transport = httpx.HTTPTransport(uds=f"/proc/self/fd/{self._folder}/{address.name}")
        return httpx.Client(base_url="http://serve", transport=transport, timeout=REQUEST_TIMEOUT_S)


class ToStore:
    """Straight into a ClickHouse server, by the store's own ledger. It changes no schema: that is for
    `guard serve` with this store, or `guard store migrate`, to do once for all nodes."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._store: Store | None = None
        self.place = f"ClickHouse at {_without_credentials(target)}"

    def deliver(self, group: Sequence[Segment]) -> Iterator[Outcome]:
        from invigilator.incidents.store import StoreError

        try:
            store = self._open()
            try:
                store.ingest_together([(one.read_bytes(), one.header()) for one in group])
            except SegmentError:
                yield from ((one, _refusal(store, one)) for one in group)
                return
        except StoreError as error:
            raise ShipError(str(error)) from error
        yield from ((one, None) for one in group)

    def stay(self) -> None:
        """A server stays."""

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _open(self) -> Store:
        if self._store is None:
            if not self._target.startswith(("http://", "https://")):
                problem = f"${SHIP_VARIABLE} names no ClickHouse server"
                raise ShipError(problem, fix="http(s)://user:password@host:8123/database")
            try:
                from invigilator.incidents.store import Store
            except ImportError as error:
                fix = "pip install 'invigilator[serve]'"
                raise ShipError(f"no client of ClickHouse is installed ({error.name})", fix=fix) from error
            store = Store.open(self._target)
            try:
                if missing := store.unapplied():
                    fix = "`guard store migrate` brings it to this version"
                    raise ShipError(f"{self.place} lacks the schema {missing[-1]}", fix=fix)
            except BaseException:
                store.close()
                raise
            self._store = store
        return self._store


def _refusal(store: Store, segment: Segment) -> str | None:
    try:
        store.ingest(segment.read_bytes(), segment.header())
    except SegmentError as error:
        return str(error)
    return None


def _without_credentials(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
    except ValueError:
        return "an address that is no URL"


def _problem(answer: httpx.Response) -> str:
    """What serve says is wrong, from its problem document (RFC 9457), or its raw answer."""
    try:
        told = answer.json()
        parts = [told["detail"], told.get("fix") or ""]
        return "; ".join(str(part) for part in parts if part)
    except (ValueError, KeyError, TypeError):
        return f"serve answered {answer.status_code}: {answer.text[:200]}"
