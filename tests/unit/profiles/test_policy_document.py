"""Every example of docs/policy.md is what it says it is."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from invigilator.profiles import library
from invigilator.profiles.errors import PolicyError
from invigilator.profiles.policy import CLASS_DEFAULTS

DOCUMENT = Path(__file__).parents[3] / "docs" / "policy.md"
TEXT = DOCUMENT.read_text()
BLOCKS = [(m[1], m[2]) for m in re.finditer(r"^```([a-z ]+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)]
POLICIES = [text for kind, text in BLOCKS if kind == "yaml"]
ANSWERED = [
    (text, BLOCKS[i + 1]) for i, (kind, text) in enumerate(BLOCKS) if kind in ("yaml refused", "python")
]


def test_the_document_has_examples() -> None:
    assert len(POLICIES) >= 10
    assert len(ANSWERED) >= 3


@pytest.mark.parametrize("text", POLICIES)
def test_an_example_is_a_policy_without_warnings(text: str) -> None:
    if not text.startswith("version:"):
        text = f"version: 1\nname: example\nextends: base\n{text}"
    assert library.load_text(text).warnings == ()


@pytest.mark.parametrize(("text", "answer"), ANSWERED)
def test_an_example_is_answered_as_shown(text: str, answer: tuple[str, str]) -> None:
    kind, expected = answer
    assert kind == "text"
    if text.startswith("version:"):
        with pytest.raises(PolicyError) as caught:
            library.load_text(text, "my-task.yaml")
        assert str(caught.value) + "\n" == expected
    else:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, str(DOCUMENT), "exec"), {})
        assert printed.getvalue() == expected


def test_the_tables_list_every_policy_and_every_class_with_its_defaults() -> None:
    for name in library.list_names():
        assert f"| `{name}` |" in TEXT
    for name, (read, write) in CLASS_DEFAULTS.items():
        assert f"| `{name}` | {read} | {write} |" in TEXT
