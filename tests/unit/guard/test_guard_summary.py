"""What a person reads at the end of `guard run`: why a penalty is what it is, and how phases ended."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from invigilator.guard import summary
from invigilator.guard.failed import failed_report
from invigilator.guard.order import SandboxOrder
from invigilator.incidents.records import DetectorRef, Exit, Incident, Penalty, PhaseRecord, Report
from invigilator.profiles import library

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ORDER = SandboxOrder(policy=library.load("swe-task"), rollout_id="r")


def incident(kind: str, outcome: str = "success", *, weight: float = 0.0, counted: bool = False) -> Incident:
    return Incident(
        id=uuid.uuid4().hex,
        kind=kind,
        channel="tamper",
        severity="critical",
        outcome=outcome,
        confidence=0.9,
        phase="agent",
        step_id="call-7",
        first_at=NOW,
        last_at=NOW,
        count=2,
        summary="Changed files of the system: /usr/bin/bash (2 events).",
        evidence=[],
        detector=DetectorRef(id=kind, version=1),
        weight=weight,
        counted=counted,
    )


def report(
    incidents: list[Incident], value: float | None = 0.0, phases: tuple[PhaseRecord, ...] = ()
) -> Report:
    plain = failed_report(ORDER, "", sandbox_id=str(uuid.UUID(int=1)))
    penalty = Penalty(value=value, drop=value is None)
    return plain.model_copy(
        update={
            "failure": None,
            "status": "final",
            "incidents": incidents,
            "penalty": penalty,
            "phases": phases,
        }
    )


def printed(found: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    summary.show(found, None, None)
    return capsys.readouterr().err


def test_incidents_that_cost_nothing_say_why(capsys, monkeypatch):
    found = report([incident("system_binary_overwrite"), incident("reward_forge", "denied", weight=2.0)])
    text = printed(found, capsys, monkeypatch)
    assert "weighs 0 under policy swe-task (penalty.weights): system_binary_overwrite\n" in text
    assert "not counted, as only tried or not sure enough: reward_forge (denied)\n" in text


def test_an_unknown_penalty_is_not_explained_as_nothing(capsys, monkeypatch):
    text = printed(report([incident("system_binary_overwrite")], None), capsys, monkeypatch)
    assert "penalty unknown" in text and "weighs 0" not in text


def test_the_longest_kind_stays_whole_on_a_narrow_terminal(capsys, monkeypatch):
    text = printed(report([incident("system_binary_overwrite", "success")]), capsys, monkeypatch)
    assert "system_binary_overwrite │ success │ agent call-7 │" in text


@pytest.mark.parametrize(
    "name, code, reason, line",
    [
        ("agent", 124, "timeout", "guard: the command ran out of time and was ended (exit status 124)"),
        ("agent", 137, "oom", "guard: the command ran out of memory (exit status 137)"),
        ("verify", 1, "exited", "guard: verify ended (exit status 1)"),
        ("setup", 0, "exited", "guard: setup ended (exit status 0)"),
    ],
)
def test_what_the_exit_status_does_not_say_is_said(name, code, reason, line, capsys, monkeypatch):
    phase = PhaseRecord(name=name, exit=Exit(code=code, reason=reason), started_at=NOW, ended_at=NOW)
    assert line in printed(report([], phases=(phase,)), capsys, monkeypatch).splitlines()


def test_a_command_that_ends_by_itself_needs_no_line(capsys, monkeypatch):
    phase = PhaseRecord(name="agent", exit=Exit(code=3, reason="exited"), started_at=NOW, ended_at=NOW)
    assert "the command" not in printed(report([], phases=(phase,)), capsys, monkeypatch)
