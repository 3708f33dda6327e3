"""Tokens: they end unless said otherwise, are put in each other's place, and every change is on record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from invigilator.guard.api.tokens import Token, TokenFile, parse
from invigilator.guard.cli.main import app, mount
from invigilator.guard.errors import GuardError, NotFoundError
from invigilator.guard.home import Home

DAY_S = 86_400.0
mount()


def guard(home: Home, *words: str) -> Any:
    """A command's result; it must succeed."""
    done = CliRunner().invoke(app, list(words), env={"INVIGILATOR_HOME": str(home.root)})
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def left(home: Home) -> list[dict[str, str]]:
    """What commands left for the audit, in the order of their times."""
    found = [json.loads(path.read_text()) for path in home.audit.iterdir()]
    return sorted(found, key=lambda one: one["at"])


def days_left(token: Token) -> float:
    """Days until a token ends."""
    assert token.expires_at is not None
    return (token.expires_at - time.time()) / DAY_S


@pytest.mark.parametrize(
    ("options", "days"),
    [((), 90.0), (("--ttl", "12h"), 0.5), (("--ttl", "30d"), 30.0), (("--days", "7"), 7.0)],
)
def test_a_token_ends_after_90_days_unless_said_otherwise(
    tmp_path: Path, options: tuple[str, ...], days: float
) -> None:
    home = Home(tmp_path)
    guard(home, "token", "create", "--role", "trainer", "--name", "job", *options)
    (token,) = TokenFile(home.tokens).all()
    assert days - 0.1 < days_left(token) <= days


def test_a_token_without_an_end_has_to_be_asked_for(tmp_path: Path) -> None:
    home = Home(tmp_path)
    guard(home, "token", "create", "--role", "node", "--name", "n1", "--no-expiry")
    (token,) = TokenFile(home.tokens).all()
    assert token.expires_at is None


@pytest.mark.parametrize("ttl", ["", "x", "0d", "-1d", "1e300d", "nand", "infd", "90"])
def test_a_lifetime_that_is_none_is_refused(tmp_path: Path, ttl: str) -> None:
    words = ["token", "create", "--role", "node", "--name", "n", "--ttl", ttl]
    done = CliRunner().invoke(app, words, env={"INVIGILATOR_HOME": str(tmp_path)})
    assert done.exit_code != 0
    assert TokenFile(Home(tmp_path).tokens).all() == []


def test_a_rotated_token_hands_over_within_the_overlap(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens")
    old, old_text = file.create("job", "trainer", 90 * DAY_S, ("alpha",))
    new, new_text = file.rotate(old.id, 90 * DAY_S, 3600.0)
    assert (new.name, new.role, new.projects) == ("job", "trainer", ("alpha",))
    ending = next(token for token in file.all() if token.id == old.id)
    assert 0 < days_left(ending) <= 1 / 24 < days_left(new)
    assert file.find(old_text) is not None and file.find(new_text) is not None
    file.rotate(new.id, None, 0.0)
    assert file.find(new_text) is None


def test_a_rotation_lengthens_no_tokens_life(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens")
    old, _ = file.create("job", "trainer", 60.0)
    file.rotate(old.id, 90 * DAY_S, 3600.0)
    assert next(token for token in file.all() if token.id == old.id).expires_at == old.expires_at


def test_a_token_that_is_not_there_cannot_be_rotated(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        TokenFile(tmp_path / "tokens").rotate("none", None, 0.0)


def test_every_change_of_tokens_is_on_record_without_their_secrets(tmp_path: Path) -> None:
    home = Home(tmp_path)
    words = ("token", "create", "--role", "trainer", "--name", "job", "--project", "alpha")
    text = guard(home, *words).output.strip()
    (first,) = TokenFile(home.tokens).all()
    guard(home, "token", "rotate", first.id, "--overlap", "10m")
    guard(home, "token", "revoke", first.id)
    created, rotated, revoked = left(home)
    assert [one["action"] for one in (created, rotated, revoked)] == [
        "token.create",
        "token.rotate",
        "token.revoke",
    ]
    assert {one["subject"] for one in (created, rotated, revoked)} == {first.id}
    assert json.loads(created["after"])["projects"] == ["alpha"] and created["before"] == ""
    assert json.loads(rotated["before"])["expires_at"] == first.expires_at
    assert revoked["after"] == "" and json.loads(revoked["before"])["name"] == "job"
    everything = json.dumps(left(home))
    assert first.digest not in everything and text.split("_", 2)[2] not in everything


@pytest.mark.parametrize("role", ["node", "admin", "scraper"])
def test_roles_that_belong_to_no_project_are_not_bound(tmp_path: Path, role: str) -> None:
    with pytest.raises(GuardError, match="never bound"):
        TokenFile(tmp_path / "tokens").create("x", role, None, ("alpha",))


def test_a_token_from_before_projects_still_holds(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens")
    token, text = file.create("job", "trainer")
    line = json.loads((tmp_path / "tokens").read_text())
    del line["projects"]
    (tmp_path / "tokens").write_text(json.dumps(line) + "\n")
    found = TokenFile(tmp_path / "tokens").find(text)
    assert found is not None and (found.token_id, found.projects) == (token.id, ())


@pytest.mark.parametrize("projects", [None, "alpha", [1], {"a": 1}, 7, [["a"]]])
def test_a_token_with_damaged_projects_is_no_token(projects: object) -> None:
    token = Token("id", "n", "trainer", "0" * 64)
    line = {"id": token.id, "name": "n", "role": "trainer", "digest": token.digest, "expires_at": None}
    assert parse(json.dumps({**line, "projects": ["a"]})) is not None
    assert parse(json.dumps({**line, "projects": projects})) is None
