"""Names in profiles match themselves and nothing else, by the automaton that the parser makes of them."""

from __future__ import annotations

import re

import pytest
from apparmor_asked import needs_parser, of_rules
from hypothesis import given, settings
from hypothesis import strategies as st

from invigilator.profiles.apparmor import names

pytestmark = needs_parser

FORBIDDEN = {0x22, 0x7F, *range(0x20)}
PLAIN = sorted(set(range(1, 256)) - FORBIDDEN - {0x2F})
TRICKY = list(b"\\x41{}[]*?^@,- #'019af~!")
BYTE = st.one_of(st.sampled_from(TRICKY), st.sampled_from(PLAIN))
PART = st.lists(BYTE, min_size=1, max_size=5).map(bytes).filter(lambda part: part not in (b".", b".."))
PATH = st.lists(PART, min_size=1, max_size=3).map(lambda parts: b"/" + b"/".join(parts))


def below(path: bytes, top: bytes) -> bool:
    return (path.rstrip(b"/") + b"/").startswith(top + b"/")


def neighbours(path: bytes, byte: int, at: int) -> list[bytes]:
    """Paths that differ from `path` in one byte, by one more, by one less."""
    at = 1 + at % max(len(path) - 1, 1)
    return [
        path[:at] + bytes([byte]) + path[at + 1 :],
        path[:at] + bytes([byte]) + path[at:],
        path[:at] + path[at + 1 :],
        path + b"/",
        path + b"/in/side",
        path + bytes([byte]),
    ]


@settings(max_examples=80, deadline=None)
@given(PATH, st.sampled_from(PLAIN), st.integers(0, 40))
def test_any_name_matches_itself_and_no_neighbour(path: bytes, byte: int, at: int) -> None:
    asked = of_rules(f"{names.quoted(names.literal(path))} r")
    assert "r" in asked.permissions(path).allowed
    for other in neighbours(path, byte, at):
        assert ("r" in asked.permissions(other).allowed) == (other == path)


@settings(max_examples=80, deadline=None)
@given(PATH, st.lists(PATH, max_size=3), st.sampled_from(PLAIN), st.integers(0, 40))
def test_a_folder_without_what_is_spared_is_exactly_that(
    path: bytes, inside: list[bytes], byte: int, at: int
) -> None:
    spared = [path + one for one in inside]
    asked = of_rules(f"{names.quoted(names.territory(path, spared))} r")
    for one in (path, *spared):
        for probe in (one, *neighbours(one, byte, at)):
            if b"//" in probe or probe[-2:] == b"//":
                continue
            expected = below(probe, path) and not any(below(probe, other) for other in spared)
            assert ("r" in asked.permissions(probe).allowed) == expected, probe


def test_the_whole_root_can_be_held_without_a_folder() -> None:
    asked = of_rules(f"{names.quoted(names.territory(b'/', [b'/usr/lib']))} r")
    for path in (b"/", b"/etc/passwd", b"/usr", b"/usr/", b"/usr/li", b"/usr/libx", b"/u"):
        assert "r" in asked.permissions(path).allowed, path
    for path in (b"/usr/lib", b"/usr/lib/", b"/usr/lib/x/y"):
        assert "r" not in asked.permissions(path).allowed, path


@pytest.mark.parametrize("byte", sorted(FORBIDDEN - {0}))
def test_a_quote_or_a_control_character_is_refused(byte: int) -> None:
    with pytest.raises(names.NameRefusedError):
        names.literal(b"/a" + bytes([byte]) + b"b")


def test_the_trap_that_is_avoided_a_quote_closes_the_name_and_adds_a_rule() -> None:
    """Written into the text as it stands, this name would compile, and allow what it names."""
    name = '/a" r, "/etc/shadow'
    assert "w" in of_rules(f'"{name}" rw').permissions(b"/etc/shadow").allowed
    with pytest.raises(names.NameRefusedError, match="a quote"):
        names.literal(name.encode())


@pytest.mark.parametrize(
    ("raw", "meant", "instead"),
    [
        ("/a[bc]", b"/a[bc]", b"/ab"),
        ("/a{b,c}", b"/a{b,c}", b"/ab"),
        ("/a*", b"/a*", b"/ax"),
        ("/a?", b"/a?", b"/ax"),
    ],
)
def test_the_traps_that_are_avoided_quoting_alone_leaves_patterns(
    raw: str, meant: bytes, instead: bytes
) -> None:
    quoted_only = of_rules(f'"{raw}" r')
    assert "r" in quoted_only.permissions(instead).allowed
    escaped = of_rules(f"{names.quoted(names.literal(meant))} r")
    assert "r" in escaped.permissions(meant).allowed
    assert "r" not in escaped.permissions(instead).allowed


def test_a_pattern_is_ascii_on_one_line() -> None:
    pattern = names.literal(bytes(sorted({0x2F, *PLAIN})))
    assert re.fullmatch(r"[ -~]+", pattern)
    assert '"' not in pattern


def test_python3_apparmors_own_file_rule_does_not_escape() -> None:
    """Why its rule classes do not write our names (facts of this project)."""
    file = pytest.importorskip("apparmor.rule.file", reason="python3-apparmor is missing: apt-get install it")
    rule = file.FileRule("/a[bc]", "r", None, file.FileRule.ALL, owner=False)
    assert rule.get_clean() == "/a[bc] r,"
