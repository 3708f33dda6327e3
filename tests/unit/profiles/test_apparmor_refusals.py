"""Bad rules: an error with the policy's line, and both lines where two contradict; never a rule the less."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from apparmor_asked import needs_parser
from hypothesis import given, settings
from hypothesis import strategies as st

from invigilator.profiles import apparmor, check, library
from invigilator.profiles.apparmor import abi, parser
from invigilator.profiles.errors import PolicyError

HEAD = "version: 1\nname: t\nextends: swe-task\nrequire: [seccomp, apparmor]\n"


def errors(body: str) -> list[str]:
    """The errors of loading a policy, with HEAD before the body (which begins on line 5)."""
    with pytest.raises(PolicyError) as refused:
        library.load_text(HEAD + body, "t.yaml")
    return [str(problem) for problem in refused.value.problems]


EGRESS = "network:\n  egress:\n"
CONTRADICTIONS = [
    (
        "filesystem:\n  files:\n    - {paths: [/a/b], allow: [read]}\n    - {paths: [/a], deny: [read]}\n",
        7,
        8,
    ),
    (
        "filesystem:\n  files:\n    - {paths: [/a], allow: [append]}\n    - {paths: [/a], deny: [write]}\n",
        7,
        8,
    ),
    ("filesystem:\n  files:\n    - paths: [/a]\n      allow: [read]\n      deny: [read]\n", 9, 8),
    ("filesystem:\n  files:\n    - {paths: [/workspace/tests], deny: [write]}\n", 7, 19),
    ("filesystem:\n  files:\n    - {paths: [/grader/x], allow: [read]}\n", 7, 21),
    ("apparmor:\n  raw:\n    - /a r\n    - deny /a rw\n", 7, 8),
    ("apparmor:\n  raw:\n    - mount fstype=proc\n    - deny mount\n", 7, 8),
    ("apparmor:\n  raw: |\n    capability chown,\n    deny capability chown,\n", 7, 8),
    ("apparmor:\n  raw:\n    - /solution/x r\n", 7, 22),
    ("seccomp:\n  raw:\n    - {names: [ptrace]}\n    - {names: [ptrace], errno: ENOSYS}\n", 8, 7),
    ("filesystem:\n  hidden: [/h]\n  protected: {test: [/h/t]}\n", 7, 6),
    (
        EGRESS + "    - {name: a, target: 10.0.0.0/8}\n    - {name: b, action: deny, target: 10.1.0.0/16}\n",
        8,
        7,
    ),
]


@pytest.mark.parametrize(("body", "line", "other"), CONTRADICTIONS)
def test_rules_that_contradict_are_refused_with_both_lines(body: str, line: int, other: int) -> None:
    first = errors(body)[0]
    assert first.startswith(f"t.yaml:{line}:")
    assert f".yaml:{other}:" in first.partition(": ")[2]


@pytest.mark.parametrize(
    "body",
    [
        "filesystem:\n  files:\n    - {paths: [/a], allow: [read]}\n    - {paths: [/a/b], deny: [read]}\n",
        "filesystem:\n  files:\n    - {paths: [/a], allow: [read]}\n    - {paths: [/a], deny: [write]}\n",
        "filesystem:\n  files:\n    - {paths: [/a], allow: [read]}\n"
        "    - {paths: [/a], deny: [read], phases: [verify]}\n",
        "filesystem:\n  files:\n    - {paths: [/workspace/tests/data], deny: [write]}\n",
        "apparmor: {raw: [deny /a w, /a r]}\n",
    ],
)
def test_rules_that_only_narrow_each_other_stand(body: str) -> None:
    library.load_text(HEAD + body, "t.yaml")


RAW = [
    ("/x px", "only `ix` works"),
    ("/x ux", "only `ix` works"),
    ("/x Cx -> other", "only `ix` works"),
    ("change_profile -> other", "keeps its profile"),
    ("include <abstractions/base>", "policy import"),
    ("#include <abstractions/base>", "policy import"),
    ("profile x { /** rwx, }", "not one rule"),
    ("hat x", "hats"),
    ("/a r, /b w", "not one rule"),
    ("nonsense /a r", "no rule of AppArmor"),
    ("/a zz", "no access"),
    ('"/a r', "quote does not close"),
    ("/a{b r", "does not close"),
    ("mount options=(rw", "does not close"),
    ("all", "undo the profile"),
    ("abi <abi/4.0>", "pins the ABI"),
    ("link /a", "no whole link rule"),
    ("/a", "no whole rule"),
]


@pytest.mark.parametrize(("rule", "said"), RAW)
def test_a_raw_rule_that_leaves_or_hides_is_refused(rule: str, said: str) -> None:
    quoted = rule.replace("'", "''")
    first = errors(f"apparmor:\n  raw:\n    - '{quoted}'\n")[0]
    assert first.startswith("t.yaml:7:")
    assert said in first


@pytest.mark.parametrize("tail", ["}", "} profile evil { /** rwx,", "/x r, }\nprofile evil {"])
def test_a_block_of_raw_text_cannot_close_the_profile(tail: str) -> None:
    body = "apparmor:\n  raw: |\n    /a r,\n" + "".join(f"    {row}\n" for row in tail.split("\n"))
    assert errors(body)


def test_a_block_of_raw_text_has_a_line_for_each_rule() -> None:
    loaded = library.load_text(
        f"{HEAD}apparmor:\n  raw: |\n"
        "    # why\n    deny /a w,\n\n    deny mount options=(rw,\n      bind) -> /b/,\n",
        "t.yaml",
    )
    assert loaded.policy.apparmor.raw == ["deny /a w", "deny mount options=(rw, bind) -> /b/"]
    assert [loaded.place(("apparmor", "raw", index)).line for index in (0, 1)] == [8, 10]


PARSER_SAYS = [
    ("capability nosuch", "Invalid capability"),
    ("network bogus stream", "Invalid network entry"),
    ("/a[b r", "character class"),
    ("@{NOSUCH}/x r", "NOSUCH"),
    ("deny mount options=(rw, bogus) -> /b/", "mount options"),
    ("signal set=(nosuch)", "signal"),
]


@needs_parser
@pytest.mark.parametrize(("rule", "said"), PARSER_SAYS)
def test_what_the_parser_refuses_is_said_of_the_policys_line(rule: str, said: str, tmp_path: Path) -> None:
    text = HEAD + f"apparmor:\n  raw:\n    - deny /fine r\n    - '{rule}'\n    - capability sys_ptrace\n"
    loaded = library.load_text(text, "t.yaml")
    with pytest.raises(PolicyError) as refused:
        apparmor.binary(apparmor.compile(loaded, "agent"), tmp_path)
    assert (refused.value.file, refused.value.line) == ("t.yaml", 8)
    assert said in refused.value.message
    assert refused.value.fix
    found = [str(problem) for problem in check.check_loaded(loaded) if problem.severity == "error"]
    assert any(problem.startswith("t.yaml:8:") for problem in found)


@pytest.mark.parametrize("path", [r"/a\x0ab", r"/a\x1b", '/a"b', r"/a\x7f"])
def test_a_name_that_no_profile_can_hold_is_an_error_where_apparmor_is_required(path: str) -> None:
    assert "cannot be put into a profile" in errors(f"filesystem:\n  hidden: ['{path}']\n")[0]
    loaded = library.load_text(f"version: 1\nname: t\nfilesystem:\n  hidden: ['{path}']\n", "t.yaml")
    assert "no sandbox starts on a node with AppArmor" in str(loaded.warnings[0])
    with pytest.raises(PolicyError, match=r"(?s)t\.yaml:4:12: .* cannot be put into a profile"):
        apparmor.compile(loaded, "agent")


def test_what_only_apparmor_enforces_is_a_warning_where_it_is_not_required() -> None:
    bodies = {
        "filesystem: {default_action: deny}": "filesystem.default_action",
        "filesystem: {files: [{paths: [/a], deny: [exec]}]}": "filesystem.files.0",
        "apparmor: {raw: [deny /a r]}": "apparmor.raw.0",
    }
    for body, what in bodies.items():
        loaded = library.load_text(f"version: 1\nname: t\n{body}\n")
        assert any(f"only AppArmor can refuse what {what}" in str(found) for found in loaded.warnings), body
    allowing = library.load_text("version: 1\nname: t\napparmor: {raw: [capability sys_nice]}\n")
    assert not allowing.warnings


def test_a_circle_of_extends_is_refused_with_its_line(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{name}.yaml").write_text(f"version: 1\nname: {name}\nextends: ./{other}.yaml\n")
    with pytest.raises(PolicyError, match=r"a\.yaml → b\.yaml → c\.yaml → a\.yaml") as refused:
        library.load(str(tmp_path / "a.yaml"))
    assert refused.value.line == 3


PIECES = st.sampled_from(
    ["deny ", "audit ", "owner ", "/a", "/b/**", '"', '"/c d"', " r", " rw", " ix", " px", "{", "}", "{a,b}",
     "(", ")", ",", "\n", "#", "\\", "capability ", "chown", "mount", "signal ", "network ", "profile evil ",
     "hat ", "include ", "<abstractions/base>", "link ", "->", "@{PROC}", "@{X}", "[", "]",
     "flags=(unconfined)", "change_profile", "\u202e"]
)  # fmt: skip


@needs_parser
@settings(max_examples=120, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=9), st.booleans())
def test_no_raw_text_makes_another_profile_or_an_unknown_error(pieces: list[str], block: bool) -> None:
    said = "".join(pieces)
    text = json.dumps({"version": 1, "name": "t", "apparmor": {"raw": said if block else [said]}})
    try:
        profile = apparmor.compile(library.load_text(text, "t.yaml"), "agent")
        made = parser.run(profile, None)
    except PolicyError as error:
        assert error.line >= 1
        return
    command = [abi.find(), "--config-file=/dev/null", "-N"]
    named = subprocess.run(
        command, input=profile.text, capture_output=True, text=True, timeout=30, check=True
    )
    assert named.stdout.split() == [profile.name]
    assert made.count(b"profile\x00\x07") == 1
