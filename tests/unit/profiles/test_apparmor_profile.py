"""What a policy's profile says, by the automaton that the real parser makes of it."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from apparmor_asked import automaton, needs_parser
from hypothesis import given, settings
from hypothesis import strategies as st

from invigilator.profiles import access, apparmor, library, protected
from invigilator.profiles.apparmor.abi import NEW, OLD
from invigilator.profiles.apparmor.profile import Layout
from invigilator.profiles.apparmor.statements import LETTERS
from invigilator.profiles.errors import PolicyError
from invigilator.profiles.paths import canonical, to_text
from invigilator.profiles.policy import (
    Access,
    FileAccess,
    FileRule,
    Filesystem,
    PhaseName,
    Policy,
    ProtectedClass,
    Syscalls,
)

pytestmark = needs_parser

TOPS = [b"/t", b"/usr/bin", b"/bin", b"/usr", b"/run", b"/var/run"]
PART = st.sampled_from([b"a", b"ab", b"abc", b"b", b"a b", b"[a]", b"\xff", b"{x}"])
PATH = st.builds(
    lambda top, parts: b"/".join([top, *parts]), st.sampled_from(TOPS), st.lists(PART, max_size=3)
)
ACCESS = st.sampled_from(get_args(Access))
KINDS = ["one", "two", "three"]
ACCESSES: tuple[FileAccess, ...] = get_args(FileAccess)

RULE = st.tuples(
    st.lists(PATH, min_size=1, max_size=2), st.booleans(), st.sets(st.sampled_from(ACCESSES), min_size=1)
)
"""Paths, whether it denies, what."""


def policy_of(table: dict[bytes, tuple[Access, Access]], **more: object) -> Policy:
    classes = {
        f"class{index}": ProtectedClass(paths=[to_text(path)], read=read, write=write)
        for index, (path, (read, write)) in enumerate(table.items())
    }
    return Policy(name="t", filesystem=Filesystem(protected=classes, **more))  # type: ignore[arg-type]


def probes(paths: list[bytes]) -> list[bytes]:
    found = [name for path in paths for name in (path, path + b"/", path + b"/in", path + b"x", path[:-1])]
    return [path for path in found if path.startswith(b"/") and not path.endswith(b"//")]


def denies(policy: Policy, phase: PhaseName, wanted: FileAccess, path: bytes) -> bool:
    """What the language says of a path."""
    path = path.rstrip(b"/") or b"/"
    if protected.PathClasses(policy, phase).access(path, access.SIDES[wanted]) == "deny":
        return True
    decision = access.decide(policy, phase, wanted, path)
    return decision is not None and decision.denied


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(PATH.map(canonical), st.tuples(ACCESS, ACCESS), min_size=1, max_size=5))
def test_a_profile_refuses_what_the_classes_deny_and_nothing_else(
    table: dict[bytes, tuple[Access, Access]],
) -> None:
    policy = policy_of(table)
    asked = automaton(policy)
    for path in probes([*table, *(b"/bin" + path[8:] for path in table if path.startswith(b"/usr/bin"))]):
        allowed = asked.permissions(path).allowed
        assert ("r" in allowed) == (not denies(policy, "agent", "read", path)), path
        held = path.endswith(b"/")  # a folder on the way may be held against renaming
        if not held or denies(policy, "agent", "write", path):
            assert ("w" in allowed) == (not denies(policy, "agent", "write", path)), path


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(PATH, min_size=1, max_size=2),
            st.booleans(),
            st.sets(st.sampled_from(ACCESSES), min_size=1),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["allow", "deny"]),
)
def test_rules_of_files_hold_by_kind_of_access(
    said: list[tuple[list[bytes], bool, set[FileAccess]]], default: str
) -> None:
    rules = [
        FileRule(
            paths=[to_text(path) for path in paths],
            allow=[] if denying else sorted(words),
            deny=sorted(words) if denying else [],
        )
        for paths, denying, words in said
    ]
    policy = policy_of({}, files=rules, default_action=default)
    asked = automaton(policy)
    for path in probes([path for paths, _, _ in said for path in paths]):
        if path.endswith(b"/"):
            continue
        allowed = asked.permissions(path).allowed
        for wanted in ACCESSES:
            if wanted != "link":  # of which the kernel asks by pairs
                expected = not denies(policy, "agent", wanted, path)
                assert (LETTERS[wanted] in allowed) == expected, (path, wanted)


@pytest.mark.parametrize("own", [True, False])
def test_no_link_leads_to_what_is_denied_whoever_owns_it(own: bool) -> None:
    asked = automaton(library.load("swe-task"))
    for target in (b"/solution/answer", b"/grader/x", b"/logs/verifier/reward", b"/var/run/harness.sock"):
        assert not asked.link(b"/workspace/mine", target, own=own)
        assert not asked.link(target, b"/workspace/mine", own=own)
    assert asked.link(b"/workspace/a", b"/workspace/b", own=own)
    assert asked.link(b"/usr/lib/git-core/git-add", b"/usr/bin/git", own=own)


def test_the_trap_that_is_avoided_a_link_to_anothers_file_has_no_subset_test() -> None:
    """Without a denial of the pair, what the caller does not own could be linked to and read there."""
    from apparmor_asked import of_rules

    asked = of_rules('"/{,**}" rwlkmix', 'audit deny "/solution{,/,/**}" rwlkmx')
    assert not asked.link(b"/tmp/x", b"/solution/answer", own=True)
    assert asked.link(b"/tmp/x", b"/solution/answer", own=False)


def test_links_under_an_allow_list_never_widen() -> None:
    rules = [
        FileRule(paths=["/data"], allow=["read", "link"]),
        FileRule(paths=["/out"], allow=["read", "write", "link"]),
    ]
    asked = automaton(policy_of({}, files=rules, default_action="deny"))
    for own in (True, False):
        assert asked.link(b"/out/a", b"/out/b", own=own)
        assert asked.link(b"/data/a", b"/out/b", own=own)
        assert not asked.link(b"/out/a", b"/data/b", own=own)
        assert not asked.link(b"/out/a", b"/etc/shadow", own=own)


def test_the_folders_on_the_way_to_a_denied_path_cannot_be_renamed_but_used() -> None:
    asked = automaton(policy_of({b"/a/b/c": ("deny", "deny")}))
    for folder in (b"/a/", b"/a/b/"):
        allowed = asked.permissions(folder).allowed
        assert "w" not in allowed
        assert "r" in allowed
    for path in (b"/a/other", b"/a/b/other", b"/a/b/other/", b"/"):
        assert "w" in asked.permissions(path).allowed


def test_a_workspace_and_a_mount_point_are_not_held_as_nothing_renames_them() -> None:
    policy = policy_of({b"/workspace/x/secret": ("deny", "deny"), b"/mnt/disk/secret": ("deny", "deny")})
    asked = automaton(policy, layout=Layout(pinned=frozenset([b"/mnt"])))
    assert "w" in asked.permissions(b"/workspace/").allowed
    assert "w" in asked.permissions(b"/mnt/").allowed
    assert "w" not in asked.permissions(b"/workspace/x/").allowed
    assert "w" not in asked.permissions(b"/mnt/disk/").allowed


@pytest.mark.parametrize("name", library.list_names())
def test_watched_classes_stay_allowed_and_denied_ones_do_not(name: str) -> None:
    policy = library.load(name)
    asked = automaton(policy)
    for rule in protected.rules(policy):
        for action, letters in (("read", "rxmk"), ("write", "wa")):
            said = protected.PathClasses(policy).access(rule.path, action)  # type: ignore[arg-type]
            for path in (rule.path, rule.path + b"/", rule.path + b"/a/b"):
                allowed = asked.permissions(path).allowed
                assert set(letters).isdisjoint(allowed) if said == "deny" else set(letters) <= allowed


@pytest.mark.parametrize("name", library.list_names())
def test_a_platforms_phase_reads_the_grader_and_writes_the_reward(name: str) -> None:
    for phase in ("setup", "verify"):
        asked = automaton(library.load(name), phase)  # type: ignore[arg-type]
        for path in (b"/grader/tests.py", b"/logs/verifier/reward.txt", b"/usr/bin/pytest", b"/"):
            assert set("rwx") <= asked.permissions(path).allowed
        if name != "base":
            assert "r" not in asked.permissions(b"/platform/x").allowed


def test_both_names_of_a_distributions_link_are_held() -> None:
    policy = policy_of({b"/usr/bin/bash": ("allow", "deny"), b"/run/x.sock": ("deny", "deny")})
    asked = automaton(policy)
    for path in (b"/usr/bin/bash", b"/bin/bash", b"/run/x.sock", b"/var/run/x.sock"):
        assert "w" not in asked.permissions(path).allowed
    whole = automaton(policy_of({b"/usr": ("allow", "deny")}))
    for path in (b"/bin/sh", b"/sbin/init", b"/lib/x.so", b"/lib64/ld.so", b"/usr/share/x"):
        assert "w" not in whole.permissions(path).allowed


def test_a_sandboxs_own_links_are_held_too() -> None:
    layout = Layout(aliases=((b"/opt/grader", b"/grader"),))
    asked = automaton(policy_of({b"/grader": ("deny", "deny")}), layout=layout)
    assert "r" not in asked.permissions(b"/opt/grader/x").allowed


@pytest.mark.parametrize("said", ["/proc/self/root", "/proc/1/root", "/proc/self/task/7/root"])
def test_a_path_through_proc_root_means_the_path_itself(said: str) -> None:
    """The kernel resolves the magic link before AppArmor is asked, which then sees /grader."""
    loaded = library.load_text(
        f"version: 1\nname: t\nfilesystem: {{protected: {{grader: [{said}/grader]}}}}\n"
    )
    assert "r" not in automaton(loaded).permissions(b"/grader/x").allowed


@pytest.mark.parametrize("said", ["/proc/self/cwd/x", "/proc/12/cwd", "/proc/self/exe", "/proc/self/fd/3"])
def test_a_path_that_depends_on_the_process_is_refused(said: str) -> None:
    with pytest.raises(PolicyError, match="depends on the process") as refused:
        library.load_text(f"version: 1\nname: t\nfilesystem: {{protected: {{grader: [{said}]}}}}\n", "t.yaml")
    assert (refused.value.line, refused.value.file) == (3, "t.yaml")


@pytest.mark.parametrize("name", library.list_names())
@pytest.mark.parametrize("phase", get_args(PhaseName))
def test_the_text_is_as_it_must_be(name: str, phase: PhaseName) -> None:
    profile = apparmor.compile(library.load(name), phase, abi=OLD)
    assert profile.text.isascii()
    rows = profile.text.splitlines()
    assert rows[0] == "abi <abi/3.0>,"
    assert f'profile "{profile.name}" flags=(attach_disconnected, mediate_deleted) {{' in rows
    rules = [row.strip() for row in rows if row.startswith("  ") and not row.strip().startswith("#")]
    for rule in rules:
        if "/" in rule:
            assert re.fullmatch(r'(audit deny )?(link )?"[^"]+"( -> "[^"]+",| [rwalkmix]+,)', rule), rule
        assert not re.search(r"\b[pPcCuU]i?x\b", rule)
        assert "deny" not in rule or rule.startswith("audit deny")
    assert not any(rule.startswith(("mount", "umount", "pivot_root", "change_profile")) for rule in rules)


def test_a_profile_is_a_function_of_what_the_policy_says() -> None:
    one = library.load_text("version: 1\nname: one\nextends: swe-task\n").policy
    two = library.load_text("# other\nversion: 1\nname: two\nextends: swe-task\nlimits: {pids: 7}\n").policy
    made = [apparmor.compile(policy, "agent", abi=OLD) for policy in (one, two, one)]
    assert len({(profile.name, profile.text, profile.digest) for profile in made}) == 1
    harder = library.load_text(
        "version: 1\nname: one\nextends: swe-task\nfilesystem: {hidden: [/h]}\n"
    ).policy
    assert apparmor.compile(harder, "agent", abi=OLD).name != made[0].name


def test_phases_that_say_the_same_share_a_profile_and_the_agents_is_another() -> None:
    made = {
        phase: apparmor.compile(library.load("swe-task"), phase, abi=OLD).name
        for phase in get_args(PhaseName)
    }
    assert made["setup"] == made["verify"] != made["agent"]


def test_observe_complains_and_denies_nothing() -> None:
    observing = library.load_text(
        "version: 1\nname: o\nextends: swe-task\nmode: observe\n"
        "apparmor: {raw: ['deny /etc/shadow rwx', deny capability chown]}\n"
    )
    profile = apparmor.compile(observing, "agent", abi=OLD)
    assert profile.complain
    assert "complain)" in profile.text
    assert "deny" not in profile.text
    allowed = automaton(observing).permissions(b"/solution/x")
    assert set("rwx") <= allowed.allowed
    assert set("rwx") <= allowed.audited


def test_a_denial_is_never_quiet() -> None:
    asked = automaton(library.load("swe-task"))
    for path in (b"/solution/x", b"/logs/verifier/r", b"/platform", b"/logs/"):
        assert not asked.permissions(path).quiet


def test_lines_lead_back_to_the_policy() -> None:
    loaded = library.load_text(
        "version: 1\nname: t\nextends: swe-task\nfilesystem:\n  hidden: [/secret]\n"
        "apparmor:\n  raw:\n    - deny /x r\n",
        "t.yaml",
    )
    profile = apparmor.compile(loaded, "agent", abi=OLD)
    rows = profile.text.splitlines()
    places = {rows[number - 1].strip(): str(place) for number, place in profile.sources.items()}
    assert places['audit deny "/secret{,/,/**}" rwlkmx,'] == "t.yaml:5:12"
    assert places["audit deny /x r,"] == "t.yaml:8:7"
    assert places['audit deny "/solution{,/,/**}" rwlkmx,'].startswith("library/swe-task.yaml:")


def test_a_newer_abi_has_rules_for_its_classes_and_an_older_none() -> None:
    calls = Syscalls(userns="allow", io_uring="allow")
    policy = Policy(name="t", syscalls=calls)
    new, old = (apparmor.compile(policy, "agent", abi=abi).text for abi in (NEW, OLD))
    for rule in ("userns,", "io_uring,", "mqueue,"):
        assert f"\n  {rule}\n" in new
        assert f"\n  {rule}\n" not in old
    assert "userns," not in apparmor.compile(Policy(name="t"), "agent", abi=NEW).text
    assert new.startswith("abi <abi/4.0>,")


def test_capabilities_are_those_that_the_sandbox_gives() -> None:
    from invigilator.profiles.capabilities import SANDBOX
    from invigilator.sandbox.confinement import CAPABILITIES

    assert set(SANDBOX) == set(CAPABILITIES)


def test_the_agent_cannot_signal_or_trace_the_platform_and_the_platform_can() -> None:
    agent = apparmor.compile(library.load("swe-task"), "agent", abi=OLD).text
    platform = apparmor.compile(library.load("swe-task"), "verify", abi=OLD).text
    assert 'signal (receive) peer="invigilator-*",' in agent
    assert 'signal (send, receive) peer="invigilator-*",' not in agent
    assert 'signal (send, receive) peer="invigilator-*",' in platform
    assert 'ptrace (read, trace, readby, tracedby) peer="invigilator-*",' in platform
    assert 'ptrace (readby, tracedby) peer="invigilator-*",' in agent


def test_hundreds_of_nested_classes_are_one_profile() -> None:
    table: dict[bytes, tuple[Access, Access]] = {}
    for outer in range(50):
        table[b"/srv/data %d/secret" % outer] = ("deny", "deny")
        for inner in range(5):
            table[b"/srv/data %d/secret/part%d/public" % (outer, inner)] = ("allow", "watch")
    asked = automaton(policy_of(table))
    assert "r" not in asked.permissions(b"/srv/data 49/secret/part4/publi").allowed
    assert set("rw") <= asked.permissions(b"/srv/data 49/secret/part4/public/x").allowed
