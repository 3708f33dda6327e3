"""Text that is no policy, or means harm: refused with a PolicyError, soon, and never otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from invigilator.profiles import library
from invigilator.profiles.errors import PolicyError

MANY = settings.default.max_examples * 2
HEAD = "version: 1\nname: mine\n"


@pytest.mark.parametrize("kind", ["folder", "fifo", "latin1", "huge", "missing"])
def test_what_is_no_policy_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p.yaml"
    makers = {
        "folder": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
        "latin1": lambda: path.write_bytes(b"version: 1\nname: \xff\n"),
        "huge": lambda: path.write_bytes(b"#" * (1 << 20)),
        "missing": lambda: None,
    }
    says = {
        "folder": "no regular file",
        "fifo": "no regular file",
        "latin1": "not UTF-8",
        "huge": "longer than",
        "missing": "cannot be read",
    }
    makers[kind]()
    with pytest.raises(PolicyError, match=says[kind]):
        library.load(str(path))


def test_a_refused_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in (f"{tmp_path}/", f"{tmp_path}/gone.yaml", f"{tmp_path}/a\0b.yaml"):
        with pytest.raises(PolicyError):
            library.load(name)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


BOMBS: dict[str, Callable[[int], str]] = {
    "lists in lists": lambda n: "[" * 60 * n,
    "mappings in mappings": lambda n: "{a: " * 15 * n,
    "entries in entries": lambda n: "- " * 30 * n,
    "keys in keys": lambda n: "? " * 30 * n,
    "a long list": lambda n: "a: [" + "1," * 30 * n,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_and_a_larger_one_costs_no_more_than_in_proportion(
    bomb: str, lines_run: Callable[[Callable[[], object]], int]
) -> None:
    def refused(size: int) -> None:
        with pytest.raises(PolicyError):
            library.load_text(BOMBS[bomb](size))

    refused(1)  # what is made once is made
    assert lines_run(lambda: refused(1000)) < 6 * lines_run(lambda: refused(250))


def test_the_parents_entries_cannot_be_doubled_level_by_level(tmp_path: Path) -> None:
    (tmp_path / "p0.yaml").write_text("version: 1\nname: p\nsyscalls: {deny: [bpf]}\n")
    for level in range(1, 8):
        body = f"extends: ./p{level - 1}.yaml\nsyscalls: {{deny: [{'..., ' * 1000}x]}}\n"
        (tmp_path / f"p{level}.yaml").write_text("version: 1\nname: p\n" + body)
    with pytest.raises(PolicyError, match="stands here twice"):
        library.load(str(tmp_path / "p7.yaml"))


WORDS = [
    *["version: 1", "name: x", "extends: base", "limits:", "  memory: 2GiB", "network:", "  egress: ["],
    *["filesystem:", "  protected:", "    test: [/t]", "phases:", "]", "{", "}", "- ", "...", "&a", "*a"],
    *["!!int", "|", ">", "? ", ": ", "\\xff", '"', "'", "#", "\t", "\ufeff", "%YAML 1.1", "---", "<<: {}"],
    *["9" * 30, "1e400", "~", "penalty: {reward_range: [0, 1], weights: {reward_forge: 9e99}}"],
]


@settings(max_examples=MANY)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=12), st.sampled_from(["\n", " ", ""]))
def test_any_text_is_a_policy_or_a_policy_error(words: list[str], joint: str) -> None:
    for text in (joint.join(words), HEAD + joint.join(words)):
        try:
            library.load_text(text)
        except PolicyError as error:
            assert error.message
            assert error.problems


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("..."),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "filesystem",
    "network",
    "limits",
    "syscalls",
    "phases",
    "detectors",
    "penalty",
    "mode",
    "require",
    "extends",
]
INNER = [
    "workspace",
    "protected",
    "egress",
    "memory",
    "deny",
    "setup",
    "thresholds",
    "reward_range",
    "weights",
    "test",
]


@given(
    st.dictionaries(
        st.sampled_from(KEYS), st.dictionaries(st.sampled_from(INNER), VALUES, max_size=3) | VALUES
    )
)
def test_any_value_at_any_key_is_a_policy_or_a_policy_error(tree: dict[str, object]) -> None:
    text = HEAD + (yaml.safe_dump(tree, allow_unicode=True) if tree else "")
    try:
        library.load_text(text)
    except PolicyError as error:
        assert error.message


TEXTS = {name: library.read(name) for name in library.list_names()}
EDIT = st.tuples(st.integers(0, 10_000), st.integers(0, 12), st.sampled_from(WORDS) | st.text(max_size=3))


@settings(max_examples=MANY)
@given(st.sampled_from(sorted(TEXTS)), st.lists(EDIT, min_size=1, max_size=3))
def test_a_damaged_policy_is_a_policy_or_a_policy_error_within_the_file(
    name: str, edits: list[tuple[int, int, str]]
) -> None:
    text = TEXTS[name]
    for where, length, inserted in edits:
        at = where % len(text)
        text = text[:at] + inserted + text[at + length :]
    try:
        library.load_text(text)
    except PolicyError as error:
        lines = text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + 2
        assert all(
            0 <= problem.place.line <= lines
            for problem in error.problems
            if problem.place.file == "policy.yaml"
        )
