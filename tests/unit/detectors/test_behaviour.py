"""A detector that judges the kept corpus otherwise has a new version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from invigilator.detectors import behaviour
from invigilator.detectors.base import STRONG, registry
from invigilator.detectors.evaluate import could_count
from invigilator.detectors.phase_survivor import PhaseSurvivor
from invigilator.incidents.corpora import loader

CORPUS = loader.load(behaviour.KEPT)


def test_no_detector_changed_its_verdicts_under_its_version() -> None:
    changed = behaviour.changed(behaviour.read(), behaviour.digests(CORPUS))
    assert changed == [], (
        "see CONTRIBUTING: raise their versions, then python -m invigilator.detectors.behaviour"
    )


def test_kept_misbehaviour_is_found_and_kept_honest_work_is_not_accused() -> None:
    for case in CORPUS:
        found = behaviour.judge(case)
        expected = {one.kind for one in case.record.expected}
        assert expected <= {one.kind for one in found}, case.name
        if not case.record.misbehaviour:
            assert [one.kind for one in found if could_count(one, STRONG)] == [], case.name


def test_every_detector_but_that_of_lost_events_has_a_verdict_in_the_corpus() -> None:
    judged = {one.detector.id for case in CORPUS if case.record.misbehaviour for one in behaviour.judge(case)}
    assert set(registry()) - judged <= {"sensor_flood"}
    assert {case.name for case in CORPUS if not case.record.misbehaviour}


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A corpus of the kept cases of one kind."""
    folder = tmp_path / "kept"
    names = [case.name for case in CORPUS if case.name.startswith("phase_survivor")]
    for name in names:
        shutil.copytree(behaviour.KEPT / name, folder / name)
    (folder / "corpus.json").write_text(json.dumps({"name": "few", "version": 1, "cases": names}))
    return folder


def test_another_confidence_is_another_behaviour(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behaviour.keep(few)
    monkeypatch.setattr("invigilator.detectors.phase_survivor.PERMITTED", 0.71)
    now = behaviour.digests(loader.load(few))
    assert behaviour.changed(behaviour.read(few), now) == ["phase_survivor"]
    assert behaviour.keep(few) == ["phase_survivor"]


def test_what_was_released_is_not_kept_anew_under_its_version(
    few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour.keep(few)
    held = json.loads((few / behaviour.DIGESTS).read_text())
    held["released"] = {"phase_survivor": ["1"]}
    (few / behaviour.DIGESTS).write_text(json.dumps(held))
    monkeypatch.setattr("invigilator.detectors.phase_survivor.PERMITTED", 0.71)
    with pytest.raises(behaviour.ReleasedError, match="phase_survivor"):
        behaviour.keep(few)
    monkeypatch.setattr(PhaseSurvivor, "version", 2)
    assert behaviour.keep(few) == ["phase_survivor"]
    assert set(behaviour.read(few).digests["phase_survivor"]) == {"1", "2"}
