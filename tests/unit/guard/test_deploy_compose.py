"""The compose file: what each container may do, and what it does not give away."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from invigilator.guard import deploy

TEXT = (deploy.FOLDER / "compose.yaml").read_text()
CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(TEXT)["services"]
    return found


def test_no_port_is_opened_to_anybody(services: dict[str, Any]) -> None:
    assert {name for name, one in services.items() if "ports" in one} == set()
    assert [name for name, one in services.items() if one.get("network_mode") == "host"] == ["agent"]


def test_only_the_agent_is_root_of_the_host_and_the_service_cannot_become_it(
    services: dict[str, Any],
) -> None:
    assert [name for name, one in services.items() if one.get("privileged")] == ["agent"]
    serve = services["serve"]
    unit = (deploy.FOLDER / "invigilator-serve.service").read_text()
    [bounds] = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    assert serve["cap_drop"] == ["ALL"]
    assert {f"CAP_{name}" for name in serve["cap_add"]} == set(bounds.split())
    assert serve["security_opt"] == ["no-new-privileges:true"] and serve["read_only"]


def test_the_password_stands_in_no_file_of_the_project_and_in_no_environment(
    services: dict[str, Any],
) -> None:
    for name in ("clickhouse", "serve"):
        assert services[name]["secrets"] == ["clickhouse-password"]
        assert not any(
            "PASSWORD" in key for key in services[name]["environment"] if not key.endswith("_FILE")
        )
    assert "$$(cat /run/secrets/clickhouse-password)" in services["serve"]["entrypoint"][2]


def test_what_is_built_and_mounted_is_there(services: dict[str, Any]) -> None:
    for name in ("serve", "agent"):
        build = services[name]["build"]
        assert (deploy.FOLDER.resolve() / build["context"]).resolve() == CHECKOUT
        assert (CHECKOUT / build["dockerfile"]).is_file()
        assert any(volume.endswith(":/var/lib/invigilator") for volume in services[name]["volumes"])
    extras = re.findall(r"/src\[([\w,]+)\]", (deploy.FOLDER / "Dockerfile").read_text())
    known = (CHECKOUT / "pyproject.toml").read_text()
    assert extras and all(re.search(rf"^{extra} = \[", known, re.MULTILINE) for extra in extras[0].split(","))


def test_each_waits_for_what_it_needs(services: dict[str, Any]) -> None:
    needs = {name: list(one.get("depends_on", {})) for name, one in services.items()}
    assert needs == {"clickhouse": [], "serve": ["clickhouse"], "agent": ["serve"]}
    assert all("healthcheck" in services[name] for name in ("clickhouse", "serve"))
