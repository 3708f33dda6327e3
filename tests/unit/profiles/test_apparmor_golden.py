"""The library's profiles as documents: a change of policy or compiler shows in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from apparmor_asked import needs_parser, of_rules

from invigilator.profiles.apparmor.document import documents

FOLDER = Path(__file__).parents[3] / "docs" / "profiles"
AGAIN = "run: python -m invigilator.profiles.apparmor.document docs/profiles"


def test_the_documents_are_those_of_the_library() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(documents()), AGAIN


@pytest.mark.parametrize("name", sorted(documents()))
def test_a_document_is_what_the_compiler_writes(name: str) -> None:
    assert (FOLDER / name).read_text() == documents()[name], AGAIN


@needs_parser
@pytest.mark.parametrize("name", sorted(documents()))
def test_every_document_compiles(name: str) -> None:
    body = documents()[name].split("{\n", 1)[1].rsplit("}", 1)[0]
    rules = [row.strip().removesuffix(",") for row in body.splitlines() if row.strip() and "#" not in row[:4]]
    assert "r" in of_rules(*rules).permissions(b"/etc/passwd").allowed
