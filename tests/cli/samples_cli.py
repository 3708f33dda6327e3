"""Rollouts that the command's tests look at."""

from __future__ import annotations

from pathlib import Path

from serving import Service, incident, report, ship_report

from invigilator.incidents.records import Penalty

HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b1m[bold]b[/bold]:smile: \u202egnp.exe\r\n\tend"
INCIDENT = "0123456789abcdef0123456789abcdef"


def fill(service: Service, folder: Path) -> None:
    """Ship them."""
    bad = incident("system_binary_overwrite", id=INCIDENT, summary=HOSTILE, evidence=[{"path": HOSTILE}])
    ship_report(service, report("good"), folder)
    ship_report(service, report("bad", [bad]), folder)
    ship_report(service, report(HOSTILE, [incident("reward_forge")], run_id="run-2"), folder)
    ship_report(service, report("partly", status="partial", penalty=Penalty(value=None)), folder)
