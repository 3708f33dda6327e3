"""The trainers' own packages, each in its own environment, and a service with verdicts of every sort."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
ENVIRONMENTS = CHECKOUT / ".state" / "trainers"
INSTALL_TIMEOUT_S, CHECK_TIMEOUT_S = 1800, 600
sys.path += [str(HERE.parent / "api"), str(HERE / "checks")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trainers)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real `guard serve` that holds the rollouts that the checks ask for."""
    from serving import incident, report, serving, ship_report

    from invigilator.guard.home import Home
    from invigilator.incidents.records import Penalty

    cheat = incident("system_binary_overwrite")
    flood = incident("sensor_flood", weight=0.1)
    stood = incident("system_binary_overwrite", weight=1.0)
    verdicts = [
        report("clean"),
        report("cheat", [cheat]),
        report("bound", [stood], status="partial", penalty=Penalty(value=-1.0, bound=True)),
        report("flood", [flood], penalty=Penalty(value=-0.1, drop=True)),
        report("partial", status="partial", penalty=Penalty(value=None, drop=True)),
        report(
            "failed", status="failed", failure="the node lost power", penalty=Penalty(value=None, drop=True)
        ),
    ]
    folder = tmp_path_factory.mktemp("trainers")
    with serving(Home(folder / "home")) as running:
        for number, verdict in enumerate(verdicts):
            ship_report(running, verdict, folder / f"spool-{number}")
        yield running


@pytest.fixture(scope="session")
def check(service: Any) -> Callable[..., dict[str, Any]]:
    """Run a check in its trainer's environment: `check("trl", "guarded")` gives what it told."""
    token = service.token("trainer")

    @functools.cache
    def run(name: str, *words: str) -> dict[str, Any]:
        ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(
            [str(HERE / "setup.sh"), str(ENVIRONMENTS), name],
            capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr[-3000:]
        done = subprocess.run(
            [str(ENVIRONMENTS / name / "bin" / "python"), str(HERE / "checks" / f"{name}_check.py"), *words],
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("INVIGILATOR_")},
                "PYTHONPATH": str(CHECKOUT / "src"),
                "INVIGILATOR_SERVE_URL": f"http://127.0.0.1:{service.port}",
                "INVIGILATOR_TOKEN": token,
                "CUDA_VISIBLE_DEVICES": "",
                "HF_HUB_OFFLINE": "1",
            },
            capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    return run
