"""What the end of an attack says of a policy."""

from __future__ import annotations

from typing import Any

import pytest

from invigilator.guard import attacks, proving
from invigilator.guard.attacks import Attack
from invigilator.guard.box import Result
from invigilator.profiles import library

ATTACK = Attack("read", "reads it", "cat it", ("mount", "apparmor"))
IN_FORCE = frozenset({"apparmor", "capabilities"})


def ended(code: int, reason: Any = "exited") -> Result:
    return Result(code, b"", b"", reason, False)


@pytest.mark.parametrize(
    ("attack", "control", "state"),
    [
        (ended(1), ended(0), "proven"),
        (ended(0), ended(0), "failed"),
        (ended(137, "signalled"), ended(0), "proven"),
        (ended(127), ended(0), "not shown"),
        (ended(1), ended(1), "not shown"),
        (ended(124, "timeout"), ended(0), "not shown"),
        (ended(137, "oom"), ended(0), "not shown"),
        (ended(137, "limit"), ended(0), "not shown"),
    ],
)
def test_only_an_attack_that_ends_by_itself_proves_anything(
    attack: Result, control: Result, state: str
) -> None:
    assert proving._row(ATTACK, attack, control, IN_FORCE).state == state


def test_a_tier_that_is_not_in_force_is_proven_nothing_of() -> None:
    row = proving._row(ATTACK, ended(1), ended(0), frozenset({"capabilities"}))
    assert (row.state, row.tier) == ("not shown", "mount/apparmor")


def test_files_that_no_rule_names_are_tried_where_the_policy_denies_them() -> None:
    head = "version: 1\nname: t\nextends: swe-task\nrequire: [..., apparmor]\n"
    one = 'filesystem:\n  default_action: deny\n  files:\n    - {allow: [read], paths: ["/etc/hosts"]}\n'
    found = {one.id for one in attacks.on_unnamed(library.load_text(head + one).policy)}
    assert found == {"read /etc/shells", "write /etc/attack", "write /tmp/attack"}
    assert not list(attacks.on_unnamed(library.load("swe-task")))
