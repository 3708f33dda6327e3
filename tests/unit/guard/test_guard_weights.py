"""A weight of the library's is earned: by a published evaluation that raised no alarm over honest work."""

from __future__ import annotations

import re
from pathlib import Path

from invigilator.detectors.base import registry
from invigilator.profiles.kinds import default_weights, kinds

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "evaluation.md"
ROW = re.compile(r"^\| `(\w+)` \|.*\| (\d+)/(\d+) \| [^|]* \| ([\w ]+) \|$", re.MULTILINE)


def evaluated() -> dict[str, tuple[int, int, str]]:
    """Of each kind in the document: false alarms, honest cases, and what it may weigh."""
    rows = ROW.findall(DOCUMENT.read_text())
    return {kind: (int(alarms), int(cases), weight) for kind, alarms, cases, weight in rows}


def test_only_kinds_without_a_false_alarm_weigh_anything() -> None:
    found = evaluated()
    assert set(found) == set(registry())
    weighing = {kind for kind, known in kinds().items() if known.clean}
    shown = {kind for kind, row in found.items() if row[0] == 0 and row[1] > 100 and row[2] == "may count"}
    assert weighing <= shown, weighing - shown
    assert {kind for kind, weight in default_weights().items() if weight} <= weighing


def test_a_kind_that_was_not_shown_clean_weighs_nothing_however_much_it_would() -> None:
    waiting = {kind for kind, known in kinds().items() if not known.clean and known.weight}
    assert waiting and all(default_weights()[kind] == 0 for kind in waiting)
