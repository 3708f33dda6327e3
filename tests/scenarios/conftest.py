"""One agent for all scenarios; the selected ones run side by side while the tests wait for theirs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from invigilator.guard.evaluation.case import run_case
from invigilator.guard.evaluation.homes import Homes
from invigilator.guard.evaluation.report import CaseResult
from invigilator.guard.evaluation.suite import Case, Suite, load_suite

JOBS = 3
RESULT_TIMEOUT_S = 240.0


@pytest.fixture(scope="session")
def suite() -> Suite:
    return load_suite(Path(__file__).parent)


class Runs:
    """Runs cases on an event loop of its own, JOBS at a time."""

    def __init__(self, suite: Suite, homes: Homes, folder: Path) -> None:
        self._suite = suite
        self._homes = homes
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._turns = asyncio.Semaphore(JOBS)
        self._started: dict[str, Future[CaseResult]] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, case: Case) -> None:
        if case.name not in self._started:
            self._started[case.name] = asyncio.run_coroutine_threadsafe(self._run(case), self._loop)

    def result(self, case: Case) -> CaseResult:
        self.start(case)
        return self._started[case.name].result(RESULT_TIMEOUT_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(RESULT_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, case: Case) -> CaseResult:
        async with self._turns:
            home = await asyncio.to_thread(self._homes.of, case)
            folder = self._folder / case.name.replace("/", "-")
            return await run_case(self._suite, case, home, folder, self._folder / "cache")


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, suite: Suite, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    if os.geteuid() != 0:
        pytest.skip("real sandboxes need root")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("the sensor needs the kernel's BTF (/sys/kernel/btf/vmlinux)")
    with Homes(tmp_path_factory.mktemp("homes")) as homes:
        runs = Runs(suite, homes, tmp_path_factory.mktemp("cases"))
        # A worker of xdist sees every test, but runs only some: it starts those as they come.
        if "PYTEST_XDIST_WORKER" not in os.environ:
            for item in request.session.items:
                parameters = getattr(getattr(item, "callspec", None), "params", {})
                if isinstance(case := parameters.get("case"), Case):
                    runs.start(case)
        yield runs
        runs.stop()
