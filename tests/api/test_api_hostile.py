"""What a stranger, or a process with the least of tokens, can try against the service; what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from serving import Service, report, serving, ship_report
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from invigilator.guard.api.access import RIGHTS, Access, Caller
from invigilator.guard.api.connections import HEADERS_S, PEER_MOST
from invigilator.guard.api.traffic import Traffic, TrafficRules
from invigilator.guard.home import Home, connect_unix

HALF_OPEN = 300
HEAD = b"GET /v1/health HTTP/1.1\r\nhost: serve\r\n"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of these tests' own: what they use up is nobody else's."""
    with serving(Home(tmp_path_factory.mktemp("home"))) as running:
        yield running


def tcp(service: Service) -> socket.socket:
    """A bare connection over TCP."""
    return socket.create_connection(("127.0.0.1", service.port), timeout=10)


def local(service: Service) -> socket.socket:
    """A bare connection over the Unix socket."""
    return connect_unix(service.home.serve_socket, socket.SOCK_STREAM)


def answer_of(link: socket.socket) -> bytes:
    """All that comes until the service closes."""
    got = b""
    link.settimeout(15)
    with contextlib.suppress(ConnectionError):
        while piece := link.recv(65536):
            got += piece
    return got


@pytest.mark.parametrize("open_one", [tcp, local])
def test_half_open_connections_keep_nobody_out_and_are_closed(attacked, open_one):
    with contextlib.ExitStack() as held:
        links = [held.enter_context(contextlib.closing(open_one(attacked))) for _ in range(HALF_OPEN)]
        for number, link in enumerate(links):
            # What is over a peer's limit is already being closed while this goes on.
            with contextlib.suppress(ConnectionError):
                link.sendall(b"" if number % 3 == 0 else HEAD)
        client = attacked.client(attacked.token("trainer"), tcp=open_one is tcp)
        began_s = time.monotonic()
        assert client.get("/v1/rollouts").status_code == 200
        assert time.monotonic() - began_s < HEADERS_S
        closed = select.poll()
        for link in links:
            closed.register(link, select.POLLIN)
        assert len(closed.poll(0)) >= HALF_OPEN - PEER_MOST
        trickled = links[-1]
        for _ in range(4):
            time.sleep(HEADERS_S / 5)
            # A byte now and then buys no time.
            trickled.sendall(b"x-more: 1\r\n")
        deadline_s = time.monotonic() + HEADERS_S * 2
        while len(closed.poll(100)) < HALF_OPEN:
            assert time.monotonic() < deadline_s, "some are still open"
            time.sleep(0.1)
    assert attacked.client().get("/v1/health").status_code == 200


def test_a_stranger_s_body_is_neither_waited_for_nor_read(attacked):
    head = (
        b"POST /v1/penalties HTTP/1.1\r\nhost: serve\r\ncontent-length: 16000000\r\nconnection: close\r\n\r\n"
    )
    with contextlib.closing(tcp(attacked)) as link:
        link.sendall(head + b"connection: close\r\n\r\n")
        assert answer_of(link).startswith(b"HTTP/1.1 401 ")
    for path in ("/v1/sql", "/v1/segments", "/v1/segments/together", "/v1/queries/x", "/v1/no-such"):
        answer = attacked.client(tcp=True).post(path, content=b"{" * 10)
        assert answer.status_code == 401, path


def test_a_stranger_s_requests_use_up_no_token_s_rate():
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("fine")(scope, receive, send)

    rules = TrafficRules(app, Access({"good": Caller("job", "trainer")}.get, frozenset({0})), Traffic())

    async def ask(client: str, token: str = "") -> int:
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        scope = {"type": "http", "path": "/v1/rollouts", "headers": headers, "client": (client, 1)}
        statuses: list[int] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await rules(scope, lambda: asyncio.sleep(0, {"type": "http.request"}), send)
        return statuses[0]

    async def course() -> None:
        for stranger in (("127.0.0.1",), ("127.0.0.1", "wrong"), ("peer:4242",)):
            assert {await ask(*stranger) for _ in range(600)} >= {429}
        assert await ask("127.0.0.1", "good") == 200
        assert {await ask("peer:0") for _ in range(600)} == {200}
        assert {await ask("127.0.0.1", "good") for _ in range(600)} == {200, 429}

    asyncio.run(course())


@pytest.mark.parametrize("role", sorted(RIGHTS))
def test_every_route_asks_for_a_right_and_only_roles_that_have_it_pass(service, role):
    may = Caller("", role).may
    rights = {
        ("post", "/v1/segments"): "ingest",
        ("post", "/v1/segments/together"): "ingest",
        ("get", "/v1/stay"): "ingest",
        ("post", "/v1/penalties"): "verdicts",
        ("get", "/v1/penalties/used"): "verdicts",
        ("post", "/v1/penalties/backtest"): "verdicts",
        ("get", "/v1/rollouts"): "verdicts",
        ("get", "/v1/rollouts/{rollout_id}"): "verdicts",
        ("get", "/v1/sandboxes/{sandbox_id}/events"): "sql",
        ("get", "/v1/policies"): "sql",
        ("get", "/v1/incidents"): "verdicts",
        ("get", "/v1/incidents/{incident_id}"): "verdicts",
        ("post", "/v1/incidents/{incident_id}/reviews"): "review",
        ("post", "/v1/sql"): "sql",
        ("get", "/v1/queries"): "sql",
        ("post", "/v1/queries/{name}"): "sql",
        ("get", "/v1/metrics"): "metrics",
        ("post", "/v1/exports/{subject}"): "export",
        ("post", "/v1/falco"): "falco",
        ("get", "/v1/audit"): "audit",
        ("post", "/v1/forget"): "forget",
        ("get", "/v1/retention"): "audit",
        ("put", "/v1/retention/{table}"): "forget",
    }
    paths = service.client().get("/v1/openapi.json").json()["paths"]
    routes = {(method, path) for path, methods in paths.items() for method in methods}
    assert routes - {("get", "/v1/health")} == set(rights), "a new route states its right here"
    client = service.client(service.token(role), tcp=True)
    for (method, path), right in rights.items():
        filled = path.replace("{sandbox_id}", "00000000-0000-0000-0000-000000000000")
        body = None if method == "get" else {"rollout_ids": [], "decision": "comment"}
        answer = client.request(method.upper(), filled, json=body, params={"detection": "d", "penalty": "p"})
        assert (answer.status_code == 403) is not may(right), (method, path, answer.text)


def test_deep_and_odd_json_is_refused_and_nothing_breaks(service):
    trainer = service.client(service.token("trainer"), tcp=True)
    for content in (
        b"[" * 100_000,
        b'{"rollout_ids":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"rollout_ids": [' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"]}",
        b'{"rollout_ids": ["\\ud800"]}',
        b'{"rollout_ids": [1e999]}',
        b'{"rollout_ids": ["a"], "run_id": 5}',
        b"\xff\xfe",
        b'{"rollout_ids": ' + b"9" * 10_000 + b"}",
        b"",
    ):
        answer = trainer.post("/v1/penalties", content=content, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422), (content[:40], answer.status_code, answer.text[:200])
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.content) < 4096
    assert trainer.get("/v1/rollouts").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../etc/passwd",
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "/static/%2e%2e/tokens",
        "/static//etc/passwd",
        "/static/app.js%00",
        "//etc/passwd",
        "/v1/queries/..%2f..%2ftokens",
        "/v1/rollouts/..%2f..%2ftokens",
        "/v1/incidents/%2e%2e%2ftokens",
    ],
)
def test_no_path_leads_to_a_file(service, path):
    request = f"GET {path} HTTP/1.1\r\nhost: serve\r\nconnection: close\r\n\r\n"
    with contextlib.closing(local(service)) as link:
        link.sendall(request.encode())
        got = answer_of(link)
    assert got.split()[1] in (b"404", b"405"), got[:200]
    assert b"root:" not in got and b"digest" not in got


def test_what_is_asked_for_never_becomes_a_header(service, spool_folder: Path):
    name = "evil\r\nx-evil: 1\r\n\r\n<script>"
    ship_report(service, report(name), spool_folder)
    client = service.client()
    for answer in (
        client.get("/v1/rollouts/" + quote(name, safe="")),
        client.get("/v1/rollouts", params={"rollout_id": name}),
        client.get("/v1/rollouts/none%0d%0ax-evil:%201"),
        client.post("/v1/queries/none%0d%0ax-evil:%201", json={}),
    ):
        assert "x-evil" not in answer.headers
        assert "html" not in answer.headers["content-type"]
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["OPTIONS", "GET"])
def test_a_page_of_another_origin_may_read_nothing(service, method):
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for path in ("/v1/rollouts", "/v1/health", "/"):
        answer = service.client().request(method, path, headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_a_form_of_another_origin_does_nothing(service):
    # A browser sends such a body without asking first; it must not be taken for JSON.
    answer = service.client().post(
        "/v1/penalties", content=b'{"rollout_ids": []}', headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 422


def test_no_token_is_in_the_log_or_in_an_error(attacked):
    token = attacked.token("trainer")
    secret = token.split("_", 2)[2]
    client = attacked.client(tcp=True)
    texts = [
        client.get("/v1/rollouts", headers={"Authorization": f"Bearer {token}x"}).text,
        client.get(f"/v1/rollouts?token={token}").text,
        client.post("/v1/sql", json={"query": "x"}, headers={"Authorization": f"Bearer {token}"}).text,
        client.post("/v1/penalties", content=b"{", headers={"Authorization": f"Bearer {token}"}).text,
        (attacked.home.run / "test.log").read_text(),
    ]
    assert not [text for text in texts if secret in text]


def test_what_is_no_http_is_closed(attacked):
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n" + b"a" * 100_000,
        b"\0" * 10,
    ):
        with contextlib.closing(tcp(attacked)) as link:
            with contextlib.suppress(ConnectionError):
                link.sendall(sent)
                link.shutdown(socket.SHUT_WR)
            assert not json.dumps(answer_of(link).decode("latin-1")).count("Traceback")
    assert attacked.client().get("/v1/health").status_code == 200


def test_a_stranger_writes_nothing_into_the_log(attacked):
    log = attacked.home.run / "test.log"
    before = log.read_bytes()
    upgrade = b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    for sent in (b"nonsense\r\n\r\n", upgrade):
        for _ in range(20):
            with contextlib.closing(tcp(attacked)) as link:
                link.sendall(sent)
                assert link.recv(100)
    client = attacked.client("inv_wrong_wrong", tcp=True)
    for _ in range(20):
        assert client.get("/v1/rollouts").status_code in (401, 429)
    assert log.read_bytes() == before
