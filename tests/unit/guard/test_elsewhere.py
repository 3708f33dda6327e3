"""Commands for containers of others', and what Docker tells of those: text in, text out."""

from __future__ import annotations

from typing import Any

import pytest

from invigilator.guard.elsewhere import docker_exec
from invigilator.guard.order import CommandOrder
from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.containers import found_in

ID = "4f" * 32


def test_an_order_becomes_docker_exec_word_for_word() -> None:
    order = CommandOrder(command=["sh", "-c", "-x $HOME"], cwd="/w", environment={"A": "b=c"}, tty=True)
    assert docker_exec(ID, order) == [
        "docker", "exec", "--interactive", "--tty", "--env", "A=b=c", "--workdir", "/w", ID,
        "sh", "-c", "-x $HOME",
    ]  # fmt: skip
    assert docker_exec(ID, CommandOrder(command=["true"])) == ["docker", "exec", "--interactive", ID, "true"]


def told(parent: str = "", *, running: bool = False) -> dict[str, Any]:
    return {
        "Id": ID,
        "Name": "/task",
        "State": {"Running": running, "Pid": 2**22 if running else 0},
        "HostConfig": {"CgroupParent": parent},
        "Config": {"Image": "room:1", "Labels": None},
    }


def test_a_container_that_does_not_run_is_foretold_its_cgroup_by_the_driver() -> None:
    early = found_in(told(), "cgroupfs", "")
    assert (early.place, early.early, early.name, early.labels) == (f"/docker/{ID}", True, "task", {})
    assert found_in(told(), "cgroupfs", "/jobs").place == f"/jobs/{ID}"
    assert found_in(told("/own"), "cgroupfs", "/jobs").place == f"/own/{ID}"
    late = found_in(told("a-b.slice"), "systemd", "")
    assert (late.place, late.early) == (f"/a.slice/a-b.slice/docker-{ID}.scope", False)


def test_what_cannot_be_foretold_or_found_is_an_error_in_words() -> None:
    with pytest.raises(SandboxError, match="relative"):
        found_in(told("jobs"), "cgroupfs", "")
    with pytest.raises(SandboxError, match="none of this machine's"):
        found_in(told(running=True), "cgroupfs", "")
