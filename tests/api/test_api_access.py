"""Who may ask what: peers by the kernel's word, tokens by their role; nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import Service, incident, report, ship_report

from invigilator.guard.api.tokens import TokenFile
from invigilator.guard.api.traffic import Buckets

ANYBODY_UID = 4242


def test_tcp_without_a_token_is_refused_with_what_to_do(service: Service) -> None:
    for method, path in (
        ("GET", "/v1/rollouts"),
        ("POST", "/v1/penalties"),
        ("POST", "/v1/sql"),
        ("POST", "/v1/segments"),
        ("GET", "/v1/incidents/abcdef"),
        ("GET", "/v1/queries"),
        ("GET", "/v1/policies"),
    ):
        answer = service.client(tcp=True).request(method, path)
        assert answer.status_code in (401, 422), path
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["code"] == "token-needed"


def test_every_data_route_needs_a_caller(service: Service) -> None:
    document = service.client().get("/v1/openapi.json").json()
    assert all(path.startswith("/v1/") for path in document["paths"])
    for path, methods in document["paths"].items():
        for method in methods:
            if path == "/v1/health":
                continue
            body = {"rollout_ids": [], "query": "SELECT 1", "decision": "confirm", "parameters": {}}
            filled = path.replace("{sandbox_id}", "00000000-0000-0000-0000-000000000000")
            query = {"detection": "d", "penalty": "p"}
            sent = None if method == "get" else body
            answer = service.client(tcp=True).request(method.upper(), filled, json=sent, params=query)
            assert answer.status_code in (401, 422), (method, path, answer.status_code)
            assert "penalties" not in answer.text or answer.status_code == 422


@pytest.mark.parametrize("wrong", ["x", "inv_a_b", "inv__", "inv_" + "a" * 5000, "Basic abc"])
def test_wrong_tokens_are_refused(service: Service, wrong: str) -> None:
    client = service.client(tcp=True)
    answer = client.get("/v1/rollouts", headers={"Authorization": f"Bearer {wrong}"})
    assert answer.status_code == 401


def test_a_wrong_token_is_refused_on_the_socket_too(service: Service) -> None:
    assert service.client("inv_a_b").get("/v1/rollouts").status_code == 401


def test_a_token_with_a_changed_secret_is_refused(service: Service) -> None:
    token = service.token("researcher")
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert service.client(token, tcp=True).get("/v1/rollouts").status_code == 200
    assert service.client(changed, tcp=True).get("/v1/rollouts").status_code == 401


def test_a_token_ends_when_it_says_and_when_revoked(service: Service) -> None:
    short = service.client(service.token("trainer", 5.0), tcp=True)
    statuses = [short.get("/v1/rollouts").status_code]
    while statuses[-1] == 200:
        time.sleep(0.2)
        statuses.append(short.get("/v1/rollouts").status_code)
    assert statuses[0] == 200 and statuses[-1] == 401
    token, text = TokenFile(service.home.tokens).create("gone", "trainer")
    assert service.client(text, tcp=True).get("/v1/rollouts").status_code == 200
    TokenFile(service.home.tokens).revoke(token.id)
    assert service.client(text, tcp=True).get("/v1/rollouts").status_code == 401


def test_tokens_are_kept_as_hashes_in_a_file_of_the_serving_user(service: Service) -> None:
    text = service.token("admin")
    status = service.home.tokens.stat()
    assert status.st_mode & 0o777 == 0o600
    if os.geteuid() == 0:
        assert status.st_uid == 61500
    assert text.split("_", 2)[2] not in service.home.tokens.read_text()


RIGHTS = {
    "node": {"segments"},
    "trainer": {"rollouts", "penalties"},
    "researcher": {"rollouts", "penalties", "sql", "review"},
    "engineer": {"rollouts", "penalties", "sql"},
    "admin": {"segments", "rollouts", "penalties", "sql", "review"},
}


@pytest.mark.parametrize("role", RIGHTS)
def test_a_role_can_what_it_may_and_nothing_else(service: Service, role: str) -> None:
    client = service.client(service.token(role), tcp=True)
    asked = {
        "segments": client.post("/v1/segments", content=b"x", headers={"X-Segment": "{}"}),
        "rollouts": client.get("/v1/rollouts"),
        "penalties": client.post("/v1/penalties", json={"rollout_ids": []}),
        "sql": client.post("/v1/sql", json={"query": "SELECT 1"}),
        "review": client.post("/v1/incidents/none-such/reviews", json={"decision": "comment"}),
    }
    may = {name for name, answer in asked.items() if answer.status_code != 403}
    assert may == RIGHTS[role]


def test_monitor_only_incidents_never_reach_a_trainer(service: Service, spool_folder: Path) -> None:
    changes = {"monitor_only": True, "counted": False, "weight": 0.0, "summary": "held out"}
    watched = incident("residual_search", id="aa11bb22cc33", **changes)
    shown = incident("reward_forge")
    ship_report(service, report("a-watched", [watched, shown]), spool_folder)
    trainer = service.client(service.token("trainer"), tcp=True)
    researcher = service.client(service.token("researcher"), tcp=True)
    for client, sees in ((trainer, False), (researcher, True)):
        answers = [
            client.get("/v1/incidents", params={"rollout_id": "a-watched"}),
            client.get("/v1/rollouts/a-watched"),
            client.get(f"/v1/incidents/{watched.id}"),
            client.get("/v1/rollouts", params={"rollout_id": "a-watched"}),
            client.post("/v1/penalties", json={"rollout_ids": ["a-watched"]}),
        ]
        assert any("held out" in answer.text for answer in answers) is sees
        assert any("residual_search" in answer.text for answer in answers) is sees
    assert trainer.get(f"/v1/incidents/{watched.id}").status_code == 404
    assert trainer.get("/v1/rollouts/a-watched").json()["incidents"][0]["id"] == shown.id


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to ask as somebody else: peers were not tried")
@pytest.mark.usefixtures("open_checkout")
def test_another_user_on_the_socket_is_not_trusted(tmp_path: Path) -> None:
    import shutil
    import tempfile

    from serving import serving

    from invigilator.guard.home import Home

    folder = Path(tempfile.mkdtemp(prefix="invigilator-peer-"))
    folder.chmod(0o755)
    try:
        with serving(Home(folder / "home")) as running:
            script = (
                "import os, sys, httpx\n"
                f"os.setgroups([]); os.setresgid(*[{ANYBODY_UID}] * 3); os.setresuid(*[{ANYBODY_UID}] * 3)\n"
                "client = httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1]), base_url='http://serve')\n"
                "print(client.get('/v1/health').status_code, client.get('/v1/rollouts').status_code)\n"
                "headers = {'Authorization': 'Bearer ' + sys.argv[2]}\n"
                "print(client.get('/v1/rollouts', headers=headers).status_code)\n"
            )
            command = [sys.executable, "-c", script, str(running.home.serve_socket), running.token("trainer")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
            assert done.stdout.split() == ["200", "401", "200"]
    finally:
        shutil.rmtree(folder)


def test_a_tcp_client_cannot_pose_as_a_peer(service: Service) -> None:
    client = service.client(tcp=True)
    for headers in ({"X-Forwarded-For": "peer:0"}, {"Forwarded": "for=peer:0"}, {"X-Real-IP": "peer:0"}):
        assert client.get("/v1/rollouts", headers=headers).status_code == 401


def test_oversized_bodies_are_refused_declared_or_chunked(service: Service) -> None:
    client = service.client()
    big = b"x" * (17 << 20)
    assert client.post("/v1/sql", content=big).status_code == 413
    chunks = (b"x" * (1 << 20) for _ in range(18))
    answer = client.post("/v1/sql", content=chunks)
    assert answer.status_code == 413
    assert answer.json()["code"] == "body-too-large"


def test_an_address_that_asks_without_end_is_refused_until_it_waits() -> None:
    buckets = Buckets(rate_per_s=10, burst=20)
    assert sum(buckets.take("a", 0.0) for _ in range(100)) == 20
    assert buckets.take("b", 0.0)
    assert not buckets.take("a", 0.0)
    assert sum(buckets.take("a", 1.0) for _ in range(100)) == 10
