"""The SDK for harnesses that do not use asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from invigilator.guard.sdk import Command, Result, Sandbox
from invigilator.incidents.records import PolicyChange, Report
from invigilator.profiles.policy import PhaseName, Policy

T = TypeVar("T")


class SyncSandbox:
    """`Sandbox` without `await`: the same methods, which block. Its event loop has a thread of its own."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox", daemon=True)

    @classmethod
    def create(cls, **options: Any) -> SyncSandbox:
        """A sandbox to be entered with `with`; the options of `Sandbox.create`."""
        return cls(Sandbox.create(**options))

    def __enter__(self) -> SyncSandbox:
        self._thread.start()
        try:
            self._run(self._box.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._box.__aexit__())
        finally:
            self._stop()

    @property
    def rollout_id(self) -> str:
        """The rollout's id, given or generated."""
        return self._box.rollout_id

    @property
    def sandbox_id(self) -> str:
        """The sandbox's UUID."""
        return self._box.sandbox_id

    @property
    def enforcement(self) -> dict[str, str]:
        """What is in force, tier by tier."""
        return self._box.enforcement

    def exec(self, command: Command, **options: Any) -> Result:
        """Run a command and wait for its end; the options of `Sandbox.exec`."""
        return self._run(self._box.exec(command, **options))

    def phase(self, name: PhaseName) -> None:
        """End the present phase and begin another."""
        self._run(self._box.phase(name))

    def change_policy(self, policy: Policy) -> PolicyChange:
        """Put another policy in force on what runs."""
        return self._run(self._box.change_policy(policy))

    def write_file(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Put a file into the sandbox."""
        self._run(self._box.write_file(path, content, mode=mode))

    def read_file(self, path: str) -> bytes:
        """Take a regular file out of the sandbox."""
        return self._run(self._box.read_file(path))

    def verdict(self, *, failure: str | None = None) -> Report:
        """End the rollout, and judge it."""
        return self._run(self._box.verdict(failure=failure))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # An interrupted caller (Ctrl-C) must not leave the command running.
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
