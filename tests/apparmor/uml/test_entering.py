"""Profiles loaded, entered, replaced and unloaded by the sandbox's own code, with hand-written ones."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from uml_boxes import Box

from invigilator.profiles.apparmor import Layout, Profile
from invigilator.profiles.policy import Limits, PhaseName, Policy
from invigilator.sandbox import apparmor
from invigilator.sandbox.base import Pinned, SandboxError, SandboxSpec
from invigilator.sandbox.process import ProcessBackend

BODY = (
    "file, capability, network, unix, signal, ptrace, mount, umount,"
    " audit deny /workspace/{word}* wl, audit deny /workspace/always* wl,"
)
SWAPS = 10


def write(policy: Policy, phase: PhaseName, layout: Layout) -> Profile:
    """A profile that denies writing to /workspace/POLICY-PHASE*; in verify another one than before."""
    word = f"{policy.name}-{'verify' if phase == 'verify' else 'agent'}"
    body = BODY.replace("{word}", word)
    name = f"hand-{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    mode = ",complain" if policy.mode == "observe" else ""
    head = f'profile "{name}" flags=(attach_disconnected,mediate_deleted{mode})'
    text = f"abi <abi/3.0>,\n{head} {{ {body} }}\n"
    return Profile(name, text, hashlib.sha256(text.encode()).hexdigest(), {})


def name_of(phase: PhaseName) -> str:
    return write(Policy(name="one"), phase, Layout()).name


def assemble(profile: Profile, folder: Path, features: Path) -> bytes:
    return _assembled(profile.text, features)


@cache
def _assembled(text: str, features: Path) -> bytes:
    command = ["apparmor_parser", "-Q", "-K", "-S", "-M", str(features)]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout


@pytest.fixture
def profiles(backend: ProcessBackend, tmp_path: Path) -> Iterator[apparmor.Profiles]:
    shared = backend._shared
    before, shared.profiles = shared.profiles, apparmor.Profiles(tmp_path, write, assemble)
    yield shared.profiles
    shared.profiles.close()
    shared.profiles = before


@pytest.fixture
def box(profiles: apparmor.Profiles, backend: ProcessBackend) -> Iterator[Box]:
    yield from a_box(backend, Policy(name="one"))


def a_box(backend: ProcessBackend, policy: Policy) -> Iterator[Box]:
    made = backend.prepare(SandboxSpec(uuid.uuid4(), policy))
    try:
        made.start()
        yield Box(made)
    finally:
        made.remove()


def unchanged(_: Pinned) -> None:
    raise AssertionError("the network's rules are the same")


def test_the_tier_is_in_force_here() -> None:
    assert apparmor.tier() == apparmor.Tier("enforce")


def test_a_command_is_in_its_profile_from_its_first_instruction(box: Box) -> None:
    found = box.run("cat", "/proc/self/attr/apparmor/current")
    assert found.text == f"{name_of('agent')} (enforce)\n"


def test_root_inside_and_its_children_are_bound(box: Box) -> None:
    refused = box.sh("id -u; sh -c 'echo x > one-agent-file'; echo $?; echo y > other && cat other")
    assert refused.text.splitlines()[0] == "0"
    assert "Permission denied" in refused.text
    assert refused.text.endswith("y\n")


def test_each_phase_enters_its_own(box: Box) -> None:
    box.sh("echo x > one-verify-file")
    assert "Permission denied" in box.sh("echo x > one-agent-file").text
    assert box.sh("echo x > one-agent-file", phase="verify").code == 0
    assert "Permission denied" in box.sh("echo x > one-verify-file", phase="verify").text


def test_what_is_in_force_is_told(box: Box) -> None:
    assert box.sandbox.enforcement()["apparmor"] == "enforce"


def test_complain_mode_blocks_nothing_and_says_so(
    profiles: apparmor.Profiles, backend: ProcessBackend
) -> None:
    for box in a_box(backend, Policy(name="one", mode="observe")):
        assert box.sh("echo x > one-agent-file && cat one-agent-file").text == "x\n"
        assert box.sandbox.enforcement()["apparmor"] == "complain"


def test_a_profile_that_went_ends_no_guard_but_starts_no_command(box: Box) -> None:
    name = name_of("agent")
    (apparmor.KERNEL / ".remove").write_bytes(name.encode() + b"\0")
    with pytest.raises(SandboxError, match="refuses its AppArmor profile"):
        box.run("true")
    assert box.sandbox.enforcement()["apparmor"] == "absent"


def test_a_changed_policy_binds_the_next_sandbox_and_not_a_running_one(
    profiles: apparmor.Profiles, box: Box, backend: ProcessBackend
) -> None:
    for other in a_box(backend, Policy(name="two")):
        assert other.sh("echo x > one-agent-file").code == 0
        assert "Permission denied" in other.sh("echo x > two-agent-file").text
        assert box.sh("echo x > two-agent-file").code == 0
        assert "Permission denied" in box.sh("echo x > one-agent-file").text


def test_a_running_one_changes_where_asked_and_the_next_of_the_first_policy_does_not(
    profiles: apparmor.Profiles, box: Box, backend: ProcessBackend
) -> None:
    loop = (
        "exec 2>&1; until echo x > two-agent-file; do sleep 0.05; done; echo free; touch started;"
        "while echo x > two-agent-file; do sleep 0.05; done; echo bound"
    )
    told: list[str] = []
    runner = threading.Thread(target=lambda: told.append(box.sh(loop, timeout_s=30).text))
    runner.start()
    while box.run("test", "-e", "started").code:
        pass
    assert box.sandbox.change(Policy(name="two"), unchanged)["apparmor"] == "changed"
    runner.join(30)
    assert told[0].startswith("free\n")
    assert told[0].endswith("bound\n")
    assert box.sh("echo x > one-agent-file").code == 0
    for later in a_box(backend, Policy(name="one")):
        assert "Permission denied" in later.sh("echo x > one-agent-file").text
        assert later.sh("echo x > two-agent-file").code == 0


def test_while_profiles_are_swapped_nothing_slips_through_that_both_deny(
    profiles: apparmor.Profiles, box: Box
) -> None:
    """One load after another, beside a process that tries without a pause."""
    tries = (
        "exec 2>/dev/null; touch started; tried=0 slipped=0; until [ -e swapped ]; do tried=$((tried + 1));"
        " if echo x > always; then slipped=$((slipped + 1)); fi; done; echo $tried $slipped"
    )
    told: list[str] = []
    runner = threading.Thread(target=lambda: told.append(box.sh(tries, timeout_s=600).text))
    runner.start()
    while box.run("test", "-e", "started").code:
        pass
    before = name_of("agent")
    for number in range(SWAPS):
        became = box.sandbox.change(Policy(name=("two", "one")[number % 2]), unchanged)
        assert became["apparmor"] == "changed"
        assert apparmor.modes()[before] == "enforce"
    box.sh("touch swapped")
    runner.join(600)
    tried, slipped = map(int, told[0].split())
    assert tried > SWAPS
    assert slipped == 0


def test_where_another_sandbox_has_the_profile_too_new_commands_alone_are_bound(
    profiles: apparmor.Profiles, box: Box, backend: ProcessBackend
) -> None:
    first = name_of("agent")
    for other in a_box(backend, Policy(name="one")):
        assert box.sandbox.change(Policy(name="two"), unchanged)["apparmor"] == "new commands only"
        assert "Permission denied" in box.sh("echo x > two-agent-file").text
        assert box.sh("echo x > one-agent-file").code == 0
        assert "Permission denied" in other.sh("echo x > one-agent-file").text
        assert other.sh("echo x > two-agent-file").code == 0
    assert first in apparmor.modes()
    assert box.sandbox.enforcement()["apparmor"] == "enforce"


def test_the_same_rules_again_change_nothing(profiles: apparmor.Profiles, box: Box) -> None:
    before = _revisions(name_of("agent"))
    tiers = box.sandbox.change(Policy(name="one", limits=Limits(pids=99)), unchanged)
    assert (tiers["apparmor"], tiers["cgroup"]) == ("unchanged", "changed")
    assert _revisions(name_of("agent")) == before
    assert "Permission denied" in box.sh("echo x > one-agent-file").text
    assert (box.sandbox._groups.limited / "pids.max").read_text() == "99\n"


def test_profiles_are_shared_and_loaded_once(profiles: apparmor.Profiles, backend: ProcessBackend) -> None:
    names = profiles.take(Policy(name="one"))
    revisions, loaded = _revisions(names["agent"]), len(apparmor.modes())
    for _ in range(999):
        assert profiles.take(Policy(name="one")) == names
    assert names["setup"] == names["agent"] != names["verify"]
    assert (_revisions(names["agent"]), len(apparmor.modes())) == (revisions, loaded)
    for _ in range(1000):
        profiles.give_back(names)


def test_unused_profiles_are_unloaded_and_used_ones_are_not(
    profiles: apparmor.Profiles, backend: ProcessBackend, tmp_path: Path
) -> None:
    another = apparmor.Profiles(tmp_path, write, assemble)
    names = profiles.take(Policy(name="one"))
    assert another.take(Policy(name="one")) == names
    profiles.give_back(names)
    profiles.close()
    assert names["agent"] in apparmor.modes()
    another.give_back(names)
    another.close()
    assert names["agent"] not in apparmor.modes()


def test_what_a_dead_agent_left_loaded_is_swept(profiles: apparmor.Profiles, tmp_path: Path) -> None:
    dead = apparmor.Profiles(tmp_path, write, assemble)
    names = dead.take(Policy(name="one"))
    profiles.sweep()
    assert set(names.values()) <= set(apparmor.modes())
    for lock in dead._loaded.values():  # as its end closes them
        os.close(lock)
    dead._loaded.clear()
    profiles.sweep()
    assert not set(names.values()) & set(apparmor.modes())


def _revisions(name: str) -> list[str]:
    found = [path for path in (apparmor.KERNEL / "policy/profiles").iterdir() if path.name.startswith(name)]
    return [f"{path.name} {path.stat().st_mtime_ns}" for path in found]
