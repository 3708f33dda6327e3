"""Policies as people write them: every mistake is named with its place and its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from invigilator.profiles import library
from invigilator.profiles.errors import PolicyError
from invigilator.profiles.policy import CLASS_DEFAULTS

HEAD = "version: 1\nname: mine\n"


def refused(text: str) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        library.load_text(text, "mine.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("body", "place", "message", "fix"),
    [
        ("filesytem: {}", (3, 1), "unknown key `filesytem`", "write `filesystem`"),
        ("limits:\n  memry: 2GiB", (4, 3), "unknown key `memry` in `limits`", "write `memory`"),
        ("filesystem:\n  protected:\n    test: {path: [/t]}", (5, 12), "unknown key `path`", "write `paths`"),
        ("phases: {agent: {netwrk: {}}}", (3, 18), "unknown key `netwrk`", "write `network`"),
        (
            "network: {egress: [{name: a, target: b.c, prots: [1]}]}",
            (3, 43),
            "unknown key `prots`",
            "`ports`",
        ),
        ("limits: {memory: 2}", (3, 18), "`2` has no unit", "write for example `2GiB`"),
        ("limits: {memory: 2gib}", (3, 18), "unknown unit `gib`", "write `2GiB`"),
        ("limits: {memory: 2G}", (3, 18), "unknown unit `G`", "write `2GiB`"),
        ("limits: {memory: 10s}", (3, 18), "unknown unit `s`", "2GiB"),
        ("limits: {ttl: 60m}", (3, 15), "unknown unit `m`", "write `60min`"),
        ("limits: {ttl: 60}", (3, 15), "`60` has no unit", "write for example `60s`"),
        ("limits: {ttl: 0s}", (3, 15), "`0s` is no time", "above 0"),
        ("limits: {memory: -1GiB}", (3, 18), "`-1GiB` is no number with a unit", "2GiB"),
        ("limits: {pids: many}", (3, 16), "`many` stands where a whole number", "write a whole number"),
        ("limits: {pids: 0}", (3, 16), "`0` is refused", "greater than or equal to 1"),
        ("limits: {cpus: .nan}", (3, 16), "`.nan` stands where a number", "write a number"),
        ("limits: {cpus: 1e999}", (3, 16), "`inf` is refused", "4096"),
        ("mode: enforced", (3, 7), "`enforced` is not one of", "write `enforce`"),
        ("syscalls: {io_uring: off}", (3, 22), "`off` is not one of", "allow"),
        ("require: seccomp", (3, 10), "`seccomp` stands where a list", "a list"),
        ("filesystem: {workspace: [work]}", (3, 26), "`work` is not absolute", "from / on"),
        ("filesystem: {hidden: [/a/../b]}", (3, 23), "holds `.` or `..`", "where it leads"),
        ("filesystem: {protected: {test: [a]}}", (3, 33), "`a` is not absolute", "from / on"),
        ("filesystem: {hidden: ['/a\\q']}", (3, 23), "backslash", "\\xNN"),
        ("filesystem:\n  hidden:", (4, 3), "`hidden` has no value", "remove the key"),
        ("network: {egress: [{name: a, target: 'a.*.b.c'}]}", (3, 38), "a wildcard is one", "*.example.org"),
        ("network: {egress: [{name: a, target: 10.0.0.1/8}]}", (3, 38), "host bits set", "CIDR"),
        ("network: {egress: [{name: a, target: '::/0'}]}", (3, 38), "holds all of IPv4", "2000::/3"),
        (
            "network: {egress: [{name: a, target: a.b, ports: [70000]}]}",
            (3, 51),
            "`70000` is refused",
            "65535",
        ),
        ("network: {egress: [{target: a.b}]}", (3, 20), "`name` is missing", "add `name"),
        ("penalty: {reward_range: [0]}", (3, 25), "a list is refused", "at least 2"),
        ("penalty: {reward_range: [1, 0]}", (3, 25), "must be above the lowest", "write [0, 1]"),
        ("penalty: {weights: {reward_forge: -1}}", (3, 35), "`-1` is refused", "greater than or equal to 0"),
        (
            "penalty: {weights: {reward_forge: 1.0}}",
            (3, 35),
            "scores 1 - 1 = 0, no less than an honest",
            "above 1",
        ),
        (
            "penalty: {cap: 0.5, weights: {reward_forge: 2.0}}",
            (3, 16),
            "scores 1 - 0.5 = 0.5, no less than an honest failure",
            "a cap above 1",
        ),
        (
            "filesystem: {hidden: [/p], protected: {test: [/p/t]}}",
            (3, 47),
            "`/p/t` is never there: `/p` is hidden",
            "remove one",
        ),
        (
            "filesystem: {protected: {test: [/bin/t], answer: [/usr/bin/t]}}",
            (3, 51),
            "`/usr/bin/t` is in the class `test` already",
            "one of the two",
        ),
        ("filesystem: {protected: {test: [/]}}", (3, 33), "the whole sandbox", "name the folders"),
        ("filesystem: {protected: {hidden: [/p]}}", (3, 34), "no class of its own", "filesystem.hidden"),
        (
            "filesystem: {submission: [/logs/a], protected: {reward: [/logs]}}",
            (3, 27),
            "nothing can be handed in",
            "elsewhere",
        ),
        (
            "network: {egress: [{name: a, target: 10.0.0.0/8}, {name: b, action: deny, target: 10.1.0.0}]}",
            (3, 51),
            "`b` never decides",
            "before `a`",
        ),
        (
            "phases: {verify: {protected: {grader: {read: allow}}}}",
            (3, 39),
            "no class `grader`",
            "give it paths",
        ),
        (
            "detectors: {disabled: [log_flood], monitor_only: [log_flood]}",
            (3, 24),
            "both disabled and",
            "one of",
        ),
        ("detectors: {thresholds: {service_scan: {window: 10 parsecs}}}", (3, 49), "unknown unit", "10s"),
        ("limits: {memory: 1MiB}", (3, 18), "nothing starts in 1048576 bytes", "at least `16MiB`"),
        ("limits: {cpus: 0}", (3, 16), "`0` is refused", "greater than or equal to 0.01"),
        ("syscalls: {deny: [bpf, execve]}", (3, 24), "no program starts without `execve`", "remove it"),
        (
            "phases: {agent: {syscalls: {deny: [read]}}}",
            (3, 36),
            "no program starts without `read`",
            "remove it",
        ),
        ("extends: bass", (3, 10), "no policy `bass`", "write `base`"),
        ("syscalls: {deny: [..., mount]}", (3, 19), "there are none", "remove it"),
        ("name: other", (3, 1), "`name` stands here twice (first in line 2)", "keep one"),
        ("a: *x", (3, 4), "aliases are not read", "write the value out"),
        ("mode: !!python/name:os.system x", (3, 7), "is not read", "remove it"),
        ("mode: &a enforce", (3, 7), "anchors and aliases", "write the value out"),
        ("limits:\n\tpids: 1", (4, 1), "cannot start any token", "spaces"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_its_remedy(
    body: str, place: tuple[int, int], message: str, fix: str
) -> None:
    error = refused(HEAD + body + "\n")
    assert (error.line, error.column) == place, str(error)
    assert message in error.message
    assert fix in error.fix
    assert str(error).startswith(f"mine.yaml:{place[0]}:{place[1]}: ")


def test_every_mistake_of_a_file_is_named_at_once_in_the_order_of_lines() -> None:
    error = refused(
        "version: 1\nname: mine\nlimits: {memory: 2}\nmod: enforce\nnetwork: {default_action: no}\n"
    )
    assert [problem.place.line for problem in error.problems] == [3, 4, 5]


def test_a_name_of_the_library_is_suggested() -> None:
    with pytest.raises(PolicyError, match="write `swe-task`"):
        library.load("swe-tsk")


@pytest.mark.parametrize("name", library.list_names())
def test_the_librarys_policies_load_without_a_warning(name: str) -> None:
    loaded = library.load_with_places(name)
    assert loaded.policy.name == name
    assert loaded.warnings == ()


def test_a_bare_list_takes_the_classs_defaults() -> None:
    body = "filesystem:\n  protected:\n" + "".join(f"    {name}: [/{name}]\n" for name in CLASS_DEFAULTS)
    protected = library.load_text(HEAD + body).policy.filesystem.protected
    assert {name: (item.read, item.write) for name, item in protected.items()} == CLASS_DEFAULTS


def test_an_unknown_class_is_a_warning_and_is_watched() -> None:
    loaded = library.load_text(HEAD + "filesystem: {protected: {graders: [/g]}}\n")
    assert [(problem.severity, problem.fix) for problem in loaded.warnings] == [("warning", "write `grader`")]
    assert loaded.policy.filesystem.protected["graders"].read == "watch"


@pytest.mark.parametrize("key", ["disabled", "monitor_only"])
def test_a_weight_that_is_never_charged_is_not_held_against_a_policy(key: str) -> None:
    body = f"detectors: {{{key}: [reward_forge]}}\npenalty: {{weights: {{reward_forge: 0.5}}}}\n"
    assert library.load_text(HEAD + body).policy.penalty.weights["reward_forge"] == 0.5


def test_a_readable_class_below_an_unreadable_one_is_a_warning() -> None:
    body = "filesystem: {protected: {grader: [/grader], test: [/grader/public]}}\n"
    (warning,) = library.load_text(HEAD + body).warnings
    assert "`/grader/public` may be read, but below `/grader`, which may not" in warning.message


def test_a_class_whose_detectors_are_all_disabled_is_a_warning() -> None:
    body = (
        "filesystem: {protected: {reward: [/r]}}\ndetectors: {disabled: [reward_forge, extent_swap_bypass]}\n"
    )
    (warning,) = library.load_text(HEAD + body).warnings
    assert "every detector that watches the class `reward` is disabled" in warning.message


def test_extends_merges_mappings_replaces_lists_and_spreads_the_parents_entries(tmp_path: Path) -> None:
    parent = "limits: {pids: 5, memory: 1GiB}\nrequire: [seccomp]\nsyscalls: {deny: [bpf]}\n"
    (tmp_path / "parent.yaml").write_text("version: 1\nname: parent\nmode: observe\n" + parent)
    child = "extends: ./parent.yaml\nlimits: {pids: 6}\nrequire: [cgroup]\nsyscalls: {deny: [..., mount]}\n"
    (tmp_path / "child.yaml").write_text("version: 1\nname: child\n" + child)
    policy = library.load(str(tmp_path / "child.yaml"))
    assert (policy.name, policy.mode, policy.require) == ("child", "observe", ["cgroup"])
    assert (policy.limits.pids, policy.limits.memory_bytes) == (6, 1 << 30)
    assert policy.syscalls.deny == ["bpf", "mount"]


def test_an_error_in_a_parent_is_placed_in_the_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text("version: 1\nname: parent\nlimits: {pids: x}\n")
    (tmp_path / "child.yaml").write_text("version: 1\nname: child\nextends: ./parent.yaml\n")
    with pytest.raises(PolicyError) as caught:
        library.load(str(tmp_path / "child.yaml"))
    assert caught.value.file == str(tmp_path / "parent.yaml")
    assert caught.value.line == 3


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    for one, two in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.yaml").write_text(f"version: 1\nname: {one}\nextends: ./{two}.yaml\n")
    with pytest.raises(PolicyError, match=r"goes in a circle: a.yaml → b.yaml → a.yaml"):
        library.load(str(tmp_path / "a.yaml"))


def test_a_phase_says_only_what_differs() -> None:
    egress = "network: {egress: [{name: a, target: 192.0.2.1}]}\n"
    policy = library.load_text(HEAD + egress + "phases: {setup: {network: {default_action: allow}}}\n").policy
    setup = policy.phases["setup"].network
    assert setup is not None
    assert setup.default_action == "allow"
    assert setup.egress == policy.network.egress


def test_thresholds_come_in_si_units() -> None:
    body = "detectors: {thresholds: {service_scan: {targets: 20, window: 10s, rate: 1MiB/s, size: 2kB}}}\n"
    found = library.load_text(HEAD + body).policy.detectors.thresholds
    assert found == {"service_scan": {"targets": 20.0, "window": 10.0, "rate": 1048576.0, "size": 2000.0}}
