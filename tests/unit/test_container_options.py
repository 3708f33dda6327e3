"""What Docker is told of a sandbox's container, as its SDK would send it; no daemon is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from invigilator.profiles import limits
from invigilator.profiles.policy import Limits, Policy
from invigilator.sandbox.engine import Engine, Image, Wanted

INSPECTED = {"GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": "/", "LowerDir": "/one:/two"}}}


class Daemon:
    """The SDK's own host configuration, and a daemon that makes whatever it is told."""

    def __init__(self) -> None:
        docker = pytest.importorskip(
            "docker", reason="the SDK is not installed: pip install invigilator[docker]"
        )
        self._client = docker.APIClient(base_url="unix:///nobody.listens", version="1.41")
        self.told: dict[str, Any] = {}

    def create_host_config(self, **options: Any) -> Any:
        return self._client.create_host_config(**options)

    def create_container(self, image: str, **options: Any) -> dict[str, str]:
        self.told = {"image": image, **options}
        return {"Id": "c0"}

    def inspect_container(self, container: str) -> dict[str, Any]:
        return INSPECTED


def told(policy: Policy, profile: str | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    daemon, engine = Daemon(), Engine()
    monkeypatch.setattr(engine, "_api", lambda: daemon)
    image = Image("sha256:00", {}, "")
    pause, home = Path("/guard/launcher"), Path("/guard")
    made = engine.create(
        Wanted("box", image, "box", pause, 7000, limits.compile(policy), "agent", home, profile)
    )
    assert made.id == "c0"
    return daemon.told


def test_the_profile_limits_and_the_network_are_those_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(name="p", limits=Limits(memory_bytes=1 << 30, pids=77, cpus=1.5))
    said = told(policy, "invigilator-00", monkeypatch)
    host = said["host_config"]
    assert set(host["SecurityOpt"]) == {"no-new-privileges", "apparmor=invigilator-00"}
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (1 << 30, 1 << 30, 77)
    assert host["CpuQuota"] / host["CpuPeriod"] == 1.5
    assert (host["NetworkMode"], host["CapDrop"], host["IpcMode"]) == ("none", ["ALL"], "private")
    assert host["Binds"] == ["/guard/launcher:/.init:ro"]
    assert not host.get("Privileged") and not host.get("CapAdd")
    assert (said["user"], said["entrypoint"]) == ("7000:7000", ["/.init"])


def test_without_apparmor_no_profile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker refuses the option where the kernel has no AppArmor."""
    assert told(Policy(name="p"), None, monkeypatch)["host_config"]["SecurityOpt"] == ["no-new-privileges"]
