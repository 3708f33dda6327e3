"""Rules of files and calls in a policy: explained, compared, and in the versions only where they are used."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import jsonschema
import pytest

from invigilator.profiles import canonical, capabilities, diff, explain, library, schema, seccomp, source
from invigilator.profiles.errors import PolicyError

MINE = """version: 1
name: mine
extends: swe-task
require: [seccomp, apparmor]
filesystem:
  default_action: deny
  files:
    - {paths: [/etc], allow: [read, lock]}
    - {paths: [/etc/shadow], deny: [read]}
    - {paths: [/opt/tool], allow: [exec, read]}
apparmor:
  raw:
    - deny /etc/ssl/*.key r
    - /srv/data/** r
seccomp:
  raw:
    - {names: [ptrace], errno: EACCES}
    - {names: [personality], args: [{index: 0, op: SCMP_CMP_MASKED_EQ, value: 262144, value_two: 262144}]}
phases:
  verify: {seccomp: {raw: []}, apparmor: {raw: [...]}}
"""


@pytest.fixture
def mine() -> library.Loaded:
    return library.load_text(MINE, "mine.yaml")


EXPLAINED = [
    ("read", "/etc/passwd", "allowed", 8, "tracepoint"),
    ("append", "/etc/passwd", "denied", 6, "apparmor"),
    ("read", "/etc/shadow", "denied", 9, "apparmor"),
    ("exec", "/opt/tool/run", "allowed", 10, "tracepoint"),
    ("mmap", "/opt/tool/run", "allowed", 10, "tracepoint"),
    ("mmap", "/etc/x", "denied", 6, "apparmor"),
    ("read", "/etc/ssl/a.key", "denied", 13, "apparmor"),
    ("read", "/srv/data/x", "allowed", 14, "tracepoint"),
    ("write", "/srv/data/x", "denied", 6, "apparmor"),
    ("read", "/dev/null", "allowed", 6, "tracepoint"),
    ("syscall", "ptrace", "denied", 17, "seccomp"),
    ("syscall", "personality", "denied", 18, "seccomp"),
]


@pytest.mark.parametrize(("action", "target", "verdict", "line", "tier"), EXPLAINED)
def test_explain_names_the_rule_its_line_and_its_tier(
    mine: library.Loaded, action: explain.Action, target: str, verdict: str, line: int, tier: str
) -> None:
    found = explain.explain(mine, "agent", action, target)
    assert (found.verdict, found.place.line, found.tier) == (verdict, line, tier), str(found)
    assert found.place.file == "mine.yaml"
    assert found.enforced


def test_explain_names_apparmor_beneath_the_mount() -> None:
    loaded = library.load_with_places("swe-task")
    bare = explain.explain(loaded, "agent", "read", "/solution/x")
    assert (bare.tier, bare.also) == ("mount", ("apparmor where a node has it",))
    node = explain.explain(loaded, "agent", "read", "/solution/x", tiers={*explain.BASE_TIERS, "apparmor"})
    assert node.also == ("apparmor",)
    assert str(node).endswith("tier mount, and apparmor")


def test_a_rule_that_nothing_enforces_says_so() -> None:
    loaded = library.load_text("version: 1\nname: t\nfilesystem: {files: [{paths: [/a], deny: [exec]}]}\n")
    found = explain.explain(loaded, "agent", "exec", "/a/b")
    assert not found.enforced
    assert "it needs apparmor" in str(found)
    assert explain.explain(loaded, "setup", "exec", "/a/b").verdict == "allowed"


def test_capabilities_are_explained() -> None:
    body = "apparmor: {raw: [deny capability chown, deny /x r]}\nsyscalls: {userns: allow}\n"
    loaded = library.load_text(f"version: 1\nname: t\nrequire: [apparmor]\n{body}")
    said = {
        name: explain.explain(loaded, "agent", "capability", name)
        for name in ("CAP_CHOWN", "setuid", "sys_admin", "sys_module")
    }
    assert (said["CAP_CHOWN"].verdict, said["CAP_CHOWN"].tier, said["CAP_CHOWN"].place.line) == (
        "denied",
        "apparmor",
        4,
    )
    assert said["setuid"].verdict == "allowed"
    assert said["sys_admin"].verdict == "allowed"
    assert said["sys_admin"].place.line == 5
    assert (said["sys_module"].verdict, said["sys_module"].also) == ("denied", ("apparmor",))
    assert said["sys_module"].enforced
    with pytest.raises(ValueError, match="no capability `sys_magic`"):
        explain.explain(loaded, "agent", "capability", "sys_magic")


SOCKETS = [
    ("deny network", ["192.0.2.1:80", "192.0.2.1:80/udp", "[2001:db8::1]:80", "a.org:80"]),
    ("deny network inet", ["192.0.2.1:80", "192.0.2.1:80/udp", "a.org:80"]),
    ("deny network inet6 stream", ["[2001:db8::1]:80", "a.org:80"]),
    ("deny network dgram", ["192.0.2.1:80/udp"]),
    ("deny network inet tcp", ["192.0.2.1:80", "a.org:80"]),
    ("deny network raw", []),
    ("deny network netlink", []),
    ("network inet stream", []),
]


@pytest.mark.parametrize(("rule", "refused"), SOCKETS)
def test_a_socket_that_apparmor_refuses_is_explained_by_its_rule(rule: str, refused: list[str]) -> None:
    body = f"network: {{default_action: allow}}\napparmor:\n  raw:\n    - {rule}\n"
    loaded = library.load_text(f"version: 1\nname: t\nrequire: [apparmor]\n{body}", "t.yaml")
    for target in ("192.0.2.1:80", "192.0.2.1:80/udp", "[2001:db8::1]:80", "a.org:80"):
        found = explain.explain(loaded, "agent", "connect", target)
        if target not in refused:
            assert (found.verdict, found.tier) == ("allowed", "cgroup"), str(found)
            continue
        assert (found.verdict, found.tier, str(found.place)) == ("denied", "apparmor", "t.yaml:7:7"), target
        assert found.rule == f"apparmor.raw: {rule}"
    bound = explain.explain(loaded, "agent", "bind", "192.0.2.1:0")
    assert (bound.verdict == "denied") == ("192.0.2.1:80" in refused)


CALLS = [
    ("deny ptrace", "ptrace", "denied", "apparmor"),
    ("deny ptrace", "process_vm_readv", "denied", "apparmor"),
    ("deny signal", "tgkill", "denied", "apparmor"),
    ("deny mount", "mount", "denied", "apparmor"),
    ("deny ptrace (trace) peer=x", "ptrace", "allowed", "seccomp"),
    ("deny unix (create) type=dgram", "socketpair", "allowed", "seccomp"),
]


@pytest.mark.parametrize(("rule", "call", "verdict", "tier"), CALLS)
def test_a_call_that_apparmor_refuses_is_explained_by_its_rule(
    rule: str, call: str, verdict: str, tier: str
) -> None:
    body = f"apparmor:\n  raw:\n    - {rule}\n    - /x r\n"
    loaded = library.load_text(f"version: 1\nname: t\nrequire: [apparmor]\n{body}", "t.yaml")
    found = explain.explain(loaded, "agent", "syscall", call)
    assert (found.verdict, found.tier) == (verdict, tier), str(found)
    assert (f"by apparmor.raw: {rule} (t.yaml:6:7)" in str(found)) == (verdict == "denied")
    assert (f"AppArmor may refuse it by `{rule}` (t.yaml:6:7)" in found.note) == (verdict == "allowed")
    assert explain.explain(loaded, "agent", "syscall", "getpid").note == ""


def test_what_the_network_refuses_is_explained_by_its_own_rule_first() -> None:
    loaded = library.load_text("version: 1\nname: t\napparmor: {raw: [deny network]}\n")
    assert explain.explain(loaded, "agent", "connect", "192.0.2.1:80").tier == "network"
    bare = explain.explain(loaded, "agent", "connect", "127.0.0.1:80")
    assert (bare.verdict, bare.enforced) == ("denied", False)
    assert "it needs apparmor" in str(bare)


def test_every_capability_of_the_kernel_is_known() -> None:
    header = Path("/usr/include/linux/capability.h").read_text()
    named = {word.lower() for word in re.findall(r"#define CAP_(\w+)\s+\d+", header)}
    assert named == capabilities.KNOWN


def test_a_condition_of_a_call_is_told(mine: library.Loaded) -> None:
    assert "only with argument 0 & 0x40000 == 0x40000" in str(
        explain.explain(mine, "agent", "syscall", "personality")
    )
    assert explain.explain(mine, "verify", "syscall", "ptrace").verdict == "allowed"


def test_a_phases_raw_rules_stand_for_the_policys_where_it_says_so(mine: library.Loaded) -> None:
    rules = mine.policy.phases["verify"]
    assert rules.seccomp is not None
    assert rules.seccomp.raw == []
    assert rules.apparmor is not None
    assert rules.apparmor.raw == mine.policy.apparmor.raw


def test_diff_says_it_in_words(mine: library.Loaded) -> None:
    said = [str(change) for change in diff.diff(library.load("swe-task"), mine.policy)]
    assert "- what AppArmor's rule `deny /etc/ssl/*.key r` names" in said
    assert "+ what AppArmor's rule `/srv/data/** r` names" in said
    assert "- system call ptrace (EACCES), in phases setup and agent" in said
    assert any(text.startswith("- system call personality where argument 0 & 0x40000 ==") for text in said)
    nothing = "read, write, append, exec, link, lock, mmap files that nothing names"
    assert f"- {nothing}: refused (was allowed), in phase agent" in said
    back = [str(change) for change in diff.diff(mine.policy, library.load("swe-task"))]
    assert f"+ {nothing}: allowed (was refused), in phase agent" in back
    assert diff.diff(mine.policy, mine.policy) == []


def test_what_a_policy_does_not_use_is_in_no_version() -> None:
    for name in library.list_names():
        confinement, detection, _ = canonical.parts(library.load(name))
        keys = {"mode", "require", "filesystem", "network", "limits", "syscalls", "phases"}
        assert set(confinement) == keys
        assert set(confinement["filesystem"]) == {"workspace", "submission", "hidden", "protected"}
        assert set(detection["filesystem"]) == {*confinement["filesystem"], "canaries"}
        for phase in (*confinement["phases"].values(), *detection["phases"].values()):
            assert set(phase) == {"network", "syscalls", "protected", "survivors"}


@pytest.mark.parametrize(
    "body",
    [
        "filesystem: {default_action: deny}",
        "filesystem: {files: [{paths: [/a], deny: [exec]}]}",
        "apparmor: {raw: [deny /a r]}",
        "seccomp: {raw: [{names: [ptrace]}]}",
        "phases: {agent: {apparmor: {raw: [deny /a r]}}}",
        "phases: {agent: {seccomp: {raw: [{names: [ptrace]}]}}}",
    ],
)
def test_what_it_uses_changes_the_confinement_alone(body: str) -> None:
    phases = "phases: {agent: {}}\n" if body.startswith("phases") else ""
    bare = canonical.policy_versions(library.load_text(f"version: 1\nname: t\n{phases}").policy)
    used = canonical.policy_versions(library.load_text(f"version: 1\nname: t\n{body}\n").policy)
    assert used.confinement != bare.confinement
    assert (used.detection, used.penalty) == (bare.detection, bare.penalty)


def test_the_schema_takes_these_rules_and_refuses_others() -> None:
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    validator.validate(source.plain(source.parse(MINE, "mine.yaml")))
    validator.validate({"version": 1, "name": "t", "apparmor": {"raw": "deny /a r,\n"}})
    for body in (
        {"files": [{"paths": ["/a"], "deny": ["chmod"]}]},
        {"files": [{"paths": []}]},
        {"default_action": "watch"},
    ):
        said = {"version": 1, "name": "t", "filesystem": body}
        assert not validator.is_valid(said), body


REFUSED = [
    ("{names: [ptrace], action: SCMP_ACT_KILL}", "a refused call gets an errno"),
    ("{names: [ptrace], action: SCMP_ACT_ALLOW}", "allowed already"),
    ("{names: [ptrace], errno: ENOTHING}", "is no errno"),
    ("{names: [read]}", "no program starts without `read`"),
    ("{names: []}", "names"),
    ("{names: [ptrace], args: [{index: 6, value: 1}]}", "index"),
]


@pytest.mark.parametrize(("rule", "said"), REFUSED)
def test_a_rule_of_calls_that_cannot_be_is_refused(rule: str, said: str) -> None:
    with pytest.raises(PolicyError) as refused:
        library.load_text(f"version: 1\nname: t\nseccomp:\n  raw:\n    - {rule}\n", "t.yaml")
    assert said in str(refused.value)
    assert refused.value.line == 5


def test_own_rules_of_calls_are_in_the_filter(mine: library.Loaded) -> None:
    found = {refusal.call: refusal for refusal in seccomp.build(mine.policy, "agent").refusals}
    assert found["ptrace"].errno == errno.EACCES
    assert found["ptrace"].where == ("seccomp", "raw", 0)
    assert "personality(argument 0 & 0x40000 == 0x40000)" in found
    assert "ptrace" not in {refusal.call for refusal in seccomp.build(mine.policy, "verify").refusals}
