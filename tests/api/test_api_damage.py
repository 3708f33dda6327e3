"""A file of tokens that is damaged: the sound ones hold, nothing else does, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from invigilator.guard.api.tokens import TokenFile
from invigilator.guard.errors import GuardError

DAMAGE = [
    "\0" * 40,
    "{",
    "[]",
    "5",
    "null",
    "[" * 100_000,
    '{"id": "a", "name": "b", "role": "trainer", "digest": "c"}',
    '{"id": "x", "name": "b", "role": "root", "digest": "%s", "expires_at": null}' % ("0" * 64),
    '{"id": "x", "name": "b", "role": "admin", "digest": "%s"}' % ("0" * 64),
    '{"id": "x", "name": "b", "role": "admin", "digest": "", "expires_at": null}',
    '{"id": "x", "name": "b", "role": "admin", "digest": "%s", "expires_at": "never"}' % ("0" * 64),
    '{"id": ["x"], "name": "b", "role": "admin", "digest": "%s", "expires_at": null}' % ("0" * 64),
    '{"id": "x", "name": "b", "role": ["admin"], "digest": "%s", "expires_at": null}' % ("0" * 64),
    "\udcff\udcfe",
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda text: repr(text[:60]))
def test_a_damaged_line_opens_no_door_shuts_none_and_is_not_lost(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tokens"
    _, good = TokenFile(path).create("job", "trainer")
    before = path.read_bytes() + damage.encode("utf-8", "surrogateescape") + b"\n"
    path.write_bytes(before)
    tokens = TokenFile(path)
    caller = tokens.find(good)
    assert caller is not None and caller.role == "trainer"
    for guess in ("", "inv_x_", "inv_x_secret", "inv__", f"{good}x"):
        assert tokens.find(guess) is None
    for change in (tokens.all, lambda: tokens.create("new", "admin"), lambda: tokens.revoke("x")):
        with pytest.raises(GuardError, match=r"line 2.*damaged.*take these lines out"):
            change()
    assert path.read_bytes() == before
    path.write_bytes(before.splitlines(keepends=True)[0])
    assert tokens.find(good) is not None
    assert len(tokens.all()) == 1


def test_a_truncated_file_keeps_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    made = [TokenFile(path).create(name, "node")[1] for name in ("a", "b", "c")]
    path.write_bytes(path.read_bytes()[:-30])
    assert [TokenFile(path).find(text) is not None for text in made] == [True, True, False]


def test_a_token_whose_end_was_changed_to_nothing_ends_nothing_early(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    _, text = TokenFile(path).create("job", "trainer", ttl_s=-1.0)
    kept = json.loads(path.read_text())
    assert TokenFile(path).find(text) is None
    del kept["expires_at"]
    path.write_text(json.dumps(kept) + "\n")
    assert TokenFile(path).find(text) is None


def test_a_folder_in_its_place_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    assert TokenFile(tmp_path / "tokens").find("inv_a_b") is None
