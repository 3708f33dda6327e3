"""TLS: a network is crossed encrypted, and a client speaks to nobody whose certificate is not vouched for."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Service, report, serving, ship_report

from invigilator.guard.api.listening import listen_tcp
from invigilator.guard.api.start import ServeSettings
from invigilator.guard.client import PenaltyClient
from invigilator.guard.errors import GuardError, UnreachableError
from invigilator.guard.home import Home
from invigilator.guard.tls import server_context, verification


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]
    command += [
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-subj",
        f"/CN={name}",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    command += ["-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return made, key


def options(made: tuple[Path, Path]) -> list[str]:
    return ["--tls-cert", str(made[0]), "--tls-key", str(made[1])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the certificates are; no user but this one reads them."""
    place = tmp_path_factory.mktemp("tls")
    place.chmod(0o700)
    return place


@pytest.fixture(scope="module")
def secured(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Path]]:
    """A service with TLS, and the certificate that vouches for it."""
    made = certificate(folder, "mine")
    with serving(Home(tmp_path_factory.mktemp("home")), *options(made)) as running:
        yield running, made[0]


def test_the_penalty_client_trusts_the_authority_it_was_given_and_no_other(
    secured: tuple[Service, Path], folder: Path, spool_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, made = secured
    ship_report(service, report("over-tls"), spool_folder)
    url = f"https://127.0.0.1:{service.port}"
    token = service.token("trainer")
    monkeypatch.setenv("INVIGILATOR_CA", str(made))
    with PenaltyClient(url, token) as client:
        assert client.batch(["over-tls"], run_id="run-1")[0].value == 0.0
    monkeypatch.setenv("INVIGILATOR_CA", str(certificate(folder, "stranger")[0]))
    with (
        PenaltyClient(url, token) as client,
        pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.batch(["over-tls"], run_id="run-1", timeout_s=0.5)
    monkeypatch.delenv("INVIGILATOR_CA")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{url}/v1/health")


def test_a_tls_port_answers_nothing_in_the_clear_and_the_socket_needs_none(
    secured: tuple[Service, Path],
) -> None:
    service, _ = secured
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{service.port}/v1/health")
    assert service.client().get("/v1/rollouts").status_code == 200


def test_over_tls_a_token_is_needed_as_ever(secured: tuple[Service, Path]) -> None:
    service, made = secured
    context = ssl.create_default_context(cafile=made)
    answer = httpx.get(f"https://127.0.0.1:{service.port}/v1/rollouts", verify=context)
    assert answer.status_code == 401


def settings(folder: Path, host: str, **more: Any) -> ServeSettings:
    return ServeSettings(Home(folder), str(folder), listen=(host, 0), **more)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_off_loopback_nothing_is_listened_on_in_the_clear(tmp_path: Path, host: str) -> None:
    with pytest.raises(GuardError, match="in the clear") as refused:
        listen_tcp(settings(tmp_path, host))
    assert "--tls-cert" in refused.value.fix


def test_off_loopback_it_listens_with_tls_or_when_told_to(folder: Path, tmp_path: Path) -> None:
    context = server_context(*certificate(folder, "all"))
    for more in ({"tls": context}, {"insecure_plaintext": True}):
        for link in listen_tcp(settings(tmp_path, "0.0.0.0", **more)):
            link.close()
    for host in ("127.0.0.1", "127.8.9.10", "localhost"):
        for link in listen_tcp(settings(tmp_path, host)):
            link.close()


@pytest.mark.parametrize("damage", ["no-key", "other-key", "no-file", "no-certificate"])
def test_what_is_no_certificate_with_its_key_is_refused_by_name(folder: Path, damage: str) -> None:
    made, key = certificate(folder, damage)
    given = {
        "no-key": (made, made),
        "other-key": (made, certificate(folder, "another")[1]),
        "no-file": (made, folder / "none.key"),
        "no-certificate": (key, key),
    }[damage]
    with pytest.raises(GuardError) as refused:
        server_context(*given)
    assert str(given[1]) in str(refused.value)


def test_a_file_without_an_authority_is_no_ground_for_trust(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INVIGILATOR_CA", str(certificate(folder, "keyed")[1]))
    with pytest.raises(GuardError, match="no certificate"):
        verification("https://guard.example")
    monkeypatch.setenv("INVIGILATOR_CA", str(folder / "nowhere"))
    with pytest.raises(GuardError, match="cannot be read"):
        verification("https://guard.example")
