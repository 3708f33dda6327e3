"""Where no system call can be refused, no sandbox is begun that a policy promises refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from invigilator.profiles.policy import Policy, Syscalls
from invigilator.sandbox import confinement
from invigilator.sandbox.base import UnavailableError

NEW = Policy(name="p", syscalls=Syscalls(deny=["acct", "swapon", "swapoff"]))
"""Of which no filter has been made before: those are kept."""


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seccomp", None)
    with pytest.raises(UnavailableError, match=r"no system call can be refused here: .* python3-seccomp"):
        confinement.require_filters(NEW)


def test_a_kernel_without_filters_runs_what_is_only_observed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(confinement, "KERNEL", tmp_path / "seccomp")
    with pytest.raises(UnavailableError, match=r"no seccomp filters: .* `mode: observe`"):
        confinement.require_filters(Policy(name="p"))
    confinement.require_filters(Policy(name="p", mode="observe"))
    (tmp_path / "seccomp").mkdir()
    confinement.require_filters(Policy(name="p"))
