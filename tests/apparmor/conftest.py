"""Where the tests of this folder run; see `remote`."""

from __future__ import annotations

import os
import shutil

import pytest
import remote

KEEP = "RIG_KEEP"
"""Set, it leaves what a guest wrote, in the cache folder, to be looked at."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if remote.kernel_of(item) in ("tcg", "systemd"):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    name = remote.kernel_of(item)
    if name is None:
        return None
    remote.run_in_guest(item, name)
    # What the test before left set up for tests of this folder goes, as it does after a test that ran here.
    item.session._setupstate.teardown_exact(nextitem)
    return True


class _Teller:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        remote.tell(self._config, report)


def pytest_configure(config: pytest.Config) -> None:
    if remote.INSIDE in os.environ:
        config.pluginmanager.register(_Teller(config))


def pytest_unconfigure(config: pytest.Config) -> None:
    for guest in config.stash.get(remote.GUESTS, {}).values():
        if guest.out is not None and KEEP not in os.environ:
            shutil.rmtree(guest.out, ignore_errors=True)
