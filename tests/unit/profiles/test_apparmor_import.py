"""An existing profile as a policy: what it allowed and refused, by the automata of both; hostile texts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from apparmor_asked import automaton, needs_parser, of_rules
from hypothesis import given, settings
from hypothesis import strategies as st

from invigilator.profiles import library
from invigilator.profiles.apparmor import globs, names
from invigilator.profiles.apparmor.importing import Imported, import_profile
from invigilator.profiles.errors import PolicyError
from invigilator.profiles.library import Loaded


def imported(text: str, folder: Path, **more: object) -> tuple[Imported, Loaded]:
    """What a profile's text becomes, and the policy loaded."""
    file = folder / "profile"
    file.write_text(text)
    found = import_profile(file, base=folder, **more)  # type: ignore[arg-type]
    return found, library.load_text(found.text, "imported.yaml")


PROFILE = r"""# A tool.
abi <abi/3.0>,
include <tunables/mine>

profile tool /usr/bin/tool flags=(attach_disconnected) {
  include <abstractions/mine>
  @{DATA}/** rw,
  /opt/tool/bin/* rix,
  "/opt/my files/" r,
  /usr/bin/helper Px,
  owner /home/*/.tool rw,
  deny /data/one/secret rw,
  capability net_admin chown,
  network inet stream,
  network packet raw,
  signal (send) peer=other,
  change_profile -> other,
  profile inner {
    /** rwx,
  }
}
"""


@pytest.fixture
def tool(tmp_path: Path) -> tuple[Imported, Loaded]:
    (tmp_path / "tunables").mkdir()
    (tmp_path / "abstractions").mkdir()
    (tmp_path / "tunables" / "mine").write_text("@{DATA} = /data/one\n@{DATA} += /data/two\n")
    (tmp_path / "abstractions" / "mine").write_text("/etc/hosts r,\n/etc/x#y r, # comment\n")
    return imported(PROFILE, tmp_path)


def test_each_rule_is_accounted_for(tool: tuple[Imported, Loaded]) -> None:
    fates = {(note.rule, note.fate) for note in tool[0].notes}
    assert ("@{DATA}/** rw", "policy") in fates
    assert ("/etc/hosts r", "policy") in fates
    assert ("/opt/tool/bin/* rix", "raw") in fates
    assert ("owner /home/*/.tool rw", "raw") in fates
    assert ("network inet stream", "given") in fates
    assert ("network packet raw", "raw") in fates
    assert ("change_profile -> other", "left out") in fates
    assert ("profile inner", "left out") in fates
    helper = next(note for note in tool[0].notes if "helper" in note.rule)
    assert "`Px` became `ix`" in helper.why
    assert [note.place.line for note in tool[0].notes if note.rule == "network packet raw"] == [15]


def test_the_policy_says_what_the_profile_said(tool: tuple[Imported, Loaded]) -> None:
    policy = tool[1].policy
    allowed = {path: rule.allow for rule in policy.filesystem.files if rule.allow for path in rule.paths}
    denied = {path: rule.deny for rule in policy.filesystem.files if rule.deny for path in rule.paths}
    assert policy.filesystem.default_action == "deny"
    assert allowed["/data/one"] == allowed["/data/two"] == ["read", "write"]
    assert allowed["/etc/hosts"] == ["read"]
    assert allowed["/usr/bin/helper"] == ["exec"]
    assert denied == {"/data/one/secret": ["read", "write"]}
    assert "capability net_admin" in policy.apparmor.raw
    assert "apparmor" in policy.require


@needs_parser
def test_both_profiles_answer_the_same_of_files(tool: tuple[Imported, Loaded]) -> None:
    theirs = of_rules(
        "/data/{one,two}/** rw",
        "/opt/tool/bin/* rix",
        '"/opt/my files/" r',
        "/usr/bin/helper ix",
        "/etc/hosts r",
        "/etc/x#y r",
        "deny /data/one/secret rw",
    )
    ours = automaton(tool[1])
    for path in (
        b"/data/one/x", b"/data/two/x/y", b"/data/three", b"/data/one/secret", b"/opt/tool/bin/a",
        b"/opt/tool/bin/a/b", b"/opt/my files/", b"/opt/my files/x", b"/usr/bin/helper", b"/usr/bin/bash",
        b"/etc/hosts", b"/etc/x#y", b"/etc/shadow", b"/home/u/.bashrc", b"/root/x",
    ):  # fmt: skip
        assert ours.permissions(path).allowed == theirs.permissions(path).allowed, path


@needs_parser
def test_a_profile_that_allows_all_files_becomes_denials(tmp_path: Path) -> None:
    text = 'profile all {\n  file,\n  deny /usr/** w,\n  deny "/my stuff/**" w,\n  deny @{PROC}/kcore r,\n}\n'
    (tmp_path / "t").write_text("@{PROC} = /proc/\n")
    _, loaded = imported("include <t>\n" + text, tmp_path)
    assert loaded.policy.filesystem.default_action == "allow"
    ours = automaton(loaded)
    assert "w" not in ours.permissions(b"/usr/bin/x").allowed
    assert "w" not in ours.permissions(b"/my stuff/x").allowed
    assert "r" not in ours.permissions(b"/proc/kcore").allowed
    assert set("rwx") <= ours.permissions(b"/etc/x").allowed


def test_complain_becomes_observe(tmp_path: Path) -> None:
    assert imported("profile c flags=(complain) {\n /a r,\n}\n", tmp_path)[1].policy.mode == "observe"


def test_which_of_several_profiles_must_be_said(tmp_path: Path) -> None:
    text = "profile one {\n /a r,\n}\n/usr/bin/two {\n /b r,\n}\n"
    with pytest.raises(PolicyError, match="several profiles: one, /usr/bin/two; name one: --profile"):
        imported(text, tmp_path)
    assert imported(text, tmp_path, profile="/usr/bin/two")[1].policy.name == "usr-bin-two"
    with pytest.raises(PolicyError, match="no profile `three`; it holds: one, /usr/bin/two"):
        imported(text, tmp_path, profile="three")


HOSTILE = [
    ("profile x {\n /a r,\n", 1, "does not close"),
    ("/a r,\n}\n", 2, "closes nothing"),
    ('profile x {\n "/a r,\n}\n', 2, "quote does not close"),
    ("profile x {\n /a r\n}\n", 2, "end each rule with a comma"),
    ("profile x {\n include <x/../../../../etc/passwd>\n}\n", 2, "lies outside"),
    ('profile x {\n include "/etc/shadow"\n}\n', 2, "lies outside"),
    ("profile x {\n include <no/such>\n}\n", 2, "not there to include"),
    ("profile x {\n @{NOSUCH}/x r,\n}\n", 2, "`@{NOSUCH}` has no value"),
    ("@{A} = @{A}/x\nprofile x {\n @{A} r,\n}\n", 3, "more than"),
    ("@{A} = 1 2 3 4\nprofile x {\n /@{A}@{A}@{A}@{A} r,\n}\n", 3, "more than"),
    ("profile x {\n if defined $x {\n /a r,\n}\n}\n", 2, "conditions"),
    ("profile x {\n gibberish here,\n}\n", 2, "no rule of AppArmor"),
    ("profile x {\n /a\x1b[2J r,\n}\n", 2, "control characters"),
    ("nothing,\n", 1, "no profile in this file"),
    ("", 1, "no profile in this file"),
]


@pytest.mark.parametrize(("text", "line", "said"), HOSTILE)
def test_a_text_that_cannot_be_read_is_an_error_with_its_line(
    text: str, line: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError) as refused:
        imported(text, tmp_path)
    assert said in str(refused.value)
    assert refused.value.line == line


def test_includes_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("include <two>\n")
    (tmp_path / "two").write_text("/a r,\ninclude <one>\n")
    with pytest.raises(PolicyError, match="too many includes"):
        imported("profile x {\n  include <one>\n}\n", tmp_path)


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "profile"
    file.write_bytes(b"profile x {\n  /\xff r,\n}\n")
    with pytest.raises(PolicyError, match="not UTF-8") as refused:
        import_profile(file, base=tmp_path)
    assert refused.value.line == 2
    file.write_bytes(b"#" * (2 << 20))
    with pytest.raises(PolicyError, match="longer than"):
        import_profile(file, base=tmp_path)
    with pytest.raises(PolicyError, match="cannot be read"):
        import_profile(tmp_path / "none", base=tmp_path)


WORDS = st.sampled_from(
    ["profile x {", "}", "/a r,", "deny", "/b/** rw,", '"', ",", "@{A}", "@{A} = /x", "include <profile>",
     "\n", "{", "(", "#", "capability chown,", "link /a -> /b,", "\\", "owner", "mount,", "/x{a,b} rix,",
     "hat y {", "file,", "\t", "é"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=14))
def test_any_text_is_a_policy_or_an_error_of_a_line(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            _, loaded = imported(" ".join(words), Path(folder))
        except PolicyError as error:
            assert error.problems
        else:
            assert loaded.policy.name


PATTERN = st.sampled_from(
    ["/", "a", "b", "*", "**", "?", "[ab]", "[^a]", "{a,b}", "{,c}", "\\*", ".", "\\xff"]
)
NAME = st.sampled_from([b"/", b"a", b"b", b"c", b"*", b".", b"\xff", b"ab"])


@needs_parser
@settings(max_examples=150, deadline=None)
@given(st.lists(PATTERN, max_size=6), st.lists(NAME, max_size=7))
def test_a_pattern_means_here_what_it_means_to_the_parser(pattern: list[str], path: list[bytes]) -> None:
    said, asked = "/x" + "".join(pattern), b"/x" + b"".join(path)
    if "//" in said or b"//" in asked:
        return
    found = globs.matcher(said)
    assert found is not None
    expected = "r" in of_rules(f"{said} r").permissions(asked).allowed
    assert (found.fullmatch(asked) is not None) == expected


TOP = st.sampled_from(["/data", "/data/a", "/opt", "/opt/x y", "/srv/[z]"])
ENDING = st.sampled_from(["", "/**", "/*", "{,/**}", "/{a,b}", "/", "/c*"])
LETTERS_OF = st.sampled_from(["r", "rw", "w", "a", "rix", "mr", "rk", "wk", "rwl"])


def written(top: str, ending: str) -> str:
    """A path as profiles write it."""
    return f'"{names.literal(top.encode())}{ending}"'


@needs_parser
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), TOP, ENDING, LETTERS_OF), min_size=1, max_size=6),
    st.lists(st.sampled_from([b"", b"/a", b"/b", b"/c", b"/cd", b"/a/b", b"x"]), min_size=1, max_size=4),
)
def test_any_profile_of_files_answers_as_its_policy(
    said: list[tuple[bool, str, str, str]], endings: list[bytes]
) -> None:
    rules, wider = [], []
    for denying, top, ending, letters in said:
        kept = letters.replace("ix", "x") if denying else letters
        meant = names.BELOW if ending in ("", "/**", "{,/**}") else ending  # as the import's notes say
        rules.append(f"{'deny ' if denying else ''}{written(top, ending)} {kept}")
        wider.append(f"{'deny ' if denying else ''}{written(top, meant)} {kept}")
    with tempfile.TemporaryDirectory() as folder:
        text = "profile t {\n" + "".join(f"  {rule},\n" for rule in rules) + "}\n"
        _, loaded = imported(text, Path(folder))
    theirs, ours = of_rules(*wider), automaton(loaded)
    for _, top, _, _ in said:
        for path in [top.encode() + ending for ending in endings]:
            expected = theirs.permissions(path).allowed - {"l"}
            assert ours.permissions(path).allowed - {"l"} == expected, (rules, path)
