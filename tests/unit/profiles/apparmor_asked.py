"""Compiling by the real apparmor_parser and asking what it made."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from invigilator.profiles.apparmor.abi import Abi
from invigilator.profiles.apparmor.automaton import Automaton
from invigilator.profiles.apparmor.parser import run
from invigilator.profiles.apparmor.profile import Layout, compile
from invigilator.profiles.library import Loaded
from invigilator.profiles.policy import PhaseName, Policy

PARSER = shutil.which("apparmor_parser", path="/usr/sbin:/sbin:/usr/bin")
needs_parser = pytest.mark.skipif(PARSER is None, reason="no apparmor_parser: apt-get install apparmor")


def automaton(
    policy: Policy | Loaded, phase: PhaseName = "agent", layout: Layout | None = None, abi: Abi | None = None
) -> Automaton:
    """What the compiled profile of a policy says of files."""
    return Automaton(run(compile(policy, phase, layout, abi=abi), None))


def of_rules(*rules: str) -> Automaton:
    """What a profile of these rules says of files."""
    text = "\n".join(["abi <abi/3.0>,", 'profile "t" {', *(f"  {rule}," for rule in rules), "}", ""])
    done = subprocess.run(
        [str(PARSER), "--config-file=/dev/null", "-Q", "-K", "-S"],
        input=text.encode("utf-8", "surrogateescape"),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, (text, done.stderr.decode("utf-8", "replace"))
    return Automaton(done.stdout)
