"""The engineer's questions: explain, diff, check, schema; and limits."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from invigilator.profiles import check, diff, explain, library, limits, schema
from invigilator.profiles.errors import PolicyError
from invigilator.profiles.explain import Action
from invigilator.profiles.policy import Limits, PhaseName, Policy

HEAD = "version: 1\nname: mine\nextends: swe-task\n"


@pytest.mark.parametrize(
    ("phase", "action", "target", "verdict", "rule", "file", "tier"),
    [
        ("agent", "write", "/bin/bash", "watched", "class system_binary", "library/base.yaml", "tracepoint"),
        ("agent", "exec", "/bin/bash", "allowed", "class system_binary", "library/base.yaml", "tracepoint"),
        ("agent", "read", "/grader/key", "denied", "class grader", "library/swe-task.yaml", "mount"),
        ("verify", "read", "/grader/key", "allowed", "class grader", "library/swe-task.yaml", "tracepoint"),
        ("setup", "read", "/platform/x", "denied", "filesystem.hidden", "library/swe-task.yaml", "mount"),
        ("agent", "write", "/workspace/a.py", "allowed", "workspace", "library/swe-task.yaml", "tracepoint"),
        (
            "agent",
            "write",
            "/workspace/tests/t.py",
            "watched",
            "class test",
            "library/swe-task.yaml",
            "tracepoint",
        ),
        ("agent", "read", "/etc/hosts", "allowed", "no class", "default", "tracepoint"),
        ("agent", "connect", "192.0.2.1:80", "denied", "default_action: deny", "library/base.yaml", "cgroup"),
        (
            "setup",
            "connect",
            "a.org:80",
            "allowed",
            "default_action: allow",
            "library/swe-task.yaml",
            "cgroup",
        ),
        ("agent", "connect", "[::1]:80", "allowed", "own loopback", "default", "cgroup"),
        ("agent", "syscall", "bpf", "denied", "syscalls.deny", "library/base.yaml", "seccomp"),
        ("agent", "syscall", "io_uring_enter", "denied", "syscalls.io_uring", "library/base.yaml", "seccomp"),
        ("agent", "syscall", "read", "allowed", "no rule", "library/base.yaml", "seccomp"),
    ],
)
def test_explain_names_the_rule_its_line_and_the_tier(
    phase: PhaseName, action: Action, target: str, verdict: str, rule: str, file: str, tier: str
) -> None:
    answer = explain.explain(library.load_with_places("swe-task"), phase, action, target)
    assert (answer.verdict, answer.place.file, answer.tier) == (verdict, file, tier)
    assert rule in answer.rule
    if file != "default":
        line = (Path(library.FOLDER) / Path(file).name).read_text().splitlines()[answer.place.line - 1]
        assert line.strip()
        assert not line.lstrip().startswith("#")


def test_a_denial_that_nothing_enforces_is_said_to_be_recorded_only() -> None:
    policy = library.load_text(HEAD + "phases: {setup: {protected: {reward: {write: deny}}}}\n")
    bare = explain.explain(policy, "setup", "write", "/logs/verifier/reward.txt")
    assert not bare.enforced
    assert "recorded but not refused: it needs apparmor" in str(bare)
    assert (bare.place.file, bare.place.line) == ("policy.yaml", 4)
    full = explain.explain(policy, "setup", "write", "/logs/verifier/reward.txt", tiers={"apparmor"})
    assert full.enforced
    assert explain.explain(policy, "agent", "write", "/logs/verifier/reward.txt").enforced


def test_explain_of_a_mere_observer_refuses_nothing() -> None:
    loaded = library.load_text(HEAD + "mode: observe\n")
    answer = explain.explain(loaded, "agent", "syscall", "bpf")
    assert (answer.verdict, answer.enforced, answer.note) == ("denied", False, "mode is observe")


def test_explain_looks_names_up_only_when_asked() -> None:
    body = "network: {egress: [{name: files, target: files.example.org, ports: [443]}]}\n"
    loaded = library.load_text(HEAD + body)
    assert explain.explain(loaded, "agent", "connect", "files.example.org:443").verdict == "allowed"
    assert explain.explain(loaded, "agent", "connect", "files.example.org:80").verdict == "denied"
    assert explain.explain(loaded, "agent", "connect", "files.example.org:443/udp").verdict == "denied"
    assert explain.explain(loaded, "agent", "connect", "198.41.0.4:443").verdict == "denied"
    found = explain.explain(loaded, "agent", "connect", "198.41.0.4:443", resolve=lambda _: ["198.41.0.4"])
    assert (found.verdict, found.rule) == ("allowed", "egress rule files")


@pytest.mark.parametrize(
    "target", ["nowhere", "host:", "host:0", "host:99999", "::1:80", "[::1]", "h:1/icmp"]
)
def test_an_endpoint_that_cannot_be_read_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        explain.explain(library.load("base"), "agent", "connect", target)


@pytest.mark.parametrize("name", library.list_names())
def test_a_policy_does_not_differ_from_itself(name: str) -> None:
    assert diff.diff(library.load(name), library.load(name)) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("mode: observe", "+ mode enforce → observe: everything is recorded and nothing refused"),
        ("limits: {memory: 1GiB}", "- memory up to 1 GiB (was 2 GiB)"),
        ("syscalls: {deny: [..., mount]}", "- system call mount"),
        ("syscalls: {io_uring: allow}", "+ io_uring: allow (was deny)"),
        ("phases: {verify: {syscalls: {deny: [..., mount]}}}", "- system call mount, in phase verify"),
        (
            "network: {default_action: allow}",
            "+ reaching what no egress rule names, in phases agent and verify",
        ),
        (
            "network: {egress: [{name: a, target: a.org, ports: [443]}]}",
            "+ connecting to a.org, port 443 (tcp), in phases agent and verify",
        ),
        (
            "filesystem: {protected: {grader: {read: allow}}}",
            "+ read /grader and below: allowed (was refused), in phase agent",
        ),
        ("filesystem: {protected: {test: {write: deny}}}", "- write /workspace/tests and below: refused"),
        ("filesystem: {hidden: [..., /srv]}", "- seeing /srv at all"),
        ("phases: {verify: {survivors: keep}}", "+ a process of an earlier phase lives on, in phase verify"),
        ("detectors: {disabled: [log_flood]}", "~ detector log_flood is disabled"),
        (
            "detectors: {thresholds: {service_scan: {targets: 9}}}",
            "~ threshold service_scan.targets: 9 (was 20)",
        ),
        ("penalty: {weights: {reward_forge: 2.5}}", "~ penalty weights.reward_forge: 2.5 (was 2)"),
        ("require: [..., apparmor]", "- a sandbox starts on a node without apparmor"),
    ],
)
def test_diff_says_in_words_what_changes(body: str, said: str) -> None:
    changes = list(
        map(str, diff.diff(library.load("swe-task"), library.load_text(HEAD + body + "\n").policy))
    )
    assert any(change.startswith(said) for change in changes), changes


def test_diff_says_nothing_of_a_refusal_of_what_was_refused_before() -> None:
    body = "network: {egress: [{name: n, action: deny, target: 10.0.0.0/8, protocol: any}]}\n"
    changes = diff.diff(
        library.load("no-network"), library.load_text(HEAD.replace("swe-task", "no-network") + body).policy
    )
    assert changes == []


def test_check_of_the_library_finds_nothing() -> None:
    for name in library.list_names():
        assert check.check(name) == []


def checked(body: str, detectors: dict[str, check.DetectorFacts] | None = None) -> list[str]:
    return [str(problem) for problem in check.check_loaded(library.load_text(HEAD + body), detectors)]


def test_check_warns_of_refusals_lost_by_replacing_a_list() -> None:
    (warning,) = checked("syscalls: {deny: [bpf]}\n")
    assert warning.startswith(
        "policy.yaml:4:18: this list replaces base's and no longer refuses acct, add_key"
    )
    assert checked("syscalls: {deny: [..., mount]}\n") == []


def test_check_warns_of_weights_that_eval_has_not_shown_clean_and_of_unknown_calls() -> None:
    assert "has not shown it clean" in checked("penalty: {weights: {credential_hunt: 2}}\n")[0]
    assert "knows no system call `mont`" in checked("syscalls: {deny: [..., mont]}\n")[0]


def test_check_knows_the_installed_detectors_thresholds() -> None:
    installed = {"service_scan": check.DetectorFacts("service_scan", frozenset({"targets", "window"}))}
    said = checked("detectors: {thresholds: {service_scan: {target: 3}}}\n", installed)
    assert any("no threshold `target`; write `targets`" in line for line in said)
    assert any("no enabled detector watches the class `reward`" in line for line in said)


def test_check_returns_errors_instead_of_raising(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("version: 2\nname: bad\n")
    (problem,) = check.check(str(file))
    assert (problem.severity, problem.place.line) == ("error", 1)


def test_the_schema_offers_what_the_language_has() -> None:
    found = json.loads(schema.text())
    protected = found["$defs"]["FilesystemForm"]["properties"]["protected"]["properties"]
    assert "system_binary" in protected
    assert found["properties"]["mode"]["enum"] == ["enforce", "observe"]
    assert {"const": "..."} in found["$defs"]["SyscallsForm"]["properties"]["deny"]["items"]["anyOf"]
    assert '"null"' not in schema.text()


VALIDATOR = jsonschema.Draft202012Validator(schema.json_schema())


@pytest.mark.parametrize("name", library.list_names())
def test_the_schema_accepts_the_librarys_policies(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())
    assert list(VALIDATOR.iter_errors(yaml.safe_load(library.read(name)))) == []


@pytest.mark.parametrize(
    "body",
    [
        "foo: 1",
        "limits: {memory: 2}",
        "limits: {memory: 2Gb}",
        "filesystem: {protected: {test: {path: [/t]}}}",
        "filesystem: {hidden: [relative]}",
        "syscalls: {deny: [Mount]}",
        "mode: enforced",
        "extends: ~",
        "network: {egress: [{name: a}]}",
    ],
)
def test_the_schema_underlines_what_the_reader_refuses(body: str) -> None:
    text = f"version: 1\nname: x\n{body}\n"
    assert list(VALIDATOR.iter_errors(yaml.safe_load(text)))
    with pytest.raises(PolicyError):
        library.load_text(text)


def test_limits_become_the_kernels_files() -> None:
    values = limits.compile(
        Policy(name="t", limits=Limits(cpus=1.5, memory_bytes=1 << 30, disk_bytes=1 << 28))
    )
    assert values.v2()["cpu.max"] == "150000 100000"
    assert values.v1()["memory"] == {
        "memory.limit_in_bytes": "1073741824",
        "memory.memsw.limit_in_bytes": "1073741824",
    }
    assert values.disk_in_memory
    assert not limits.compile(library.load("base")).disk_in_memory
