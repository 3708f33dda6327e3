"""A node's metrics as Prometheus's text: its agent's, which listens on no network, and its service's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from invigilator.guard.daemons import examine
from invigilator.guard.home import Home
from invigilator.guard.research import Invigilator

AGENT = {
    "rollouts": ("agent_rollouts", "Rollouts that run"),
    "waiting_segments": ("agent_spool_segments", "Segments that the store has not acknowledged"),
    "waiting_bytes": ("agent_spool_bytes", "Bytes of these"),
}
"""Of the agent's status: the metric and its help."""
TROUBLE = {"spool_trouble": "spool", "ship_trouble": "ship"}


def collect(home: Home) -> str:
    """Metrics of the agent, and after them those of the service where it runs."""
    found = examine(home)
    text = agent_metrics(found["agent"])
    if found["serve"].get("running"):
        with Invigilator(home=home.root) as service:
            text += service.metrics()
    return text


def agent_metrics(status: Mapping[str, Any]) -> str:
    """The agent's, of its status."""
    lines = gauge("agent_up", "Whether the agent runs", {"": float(bool(status.get("running")))})
    if status.get("running"):
        for name, (metric, text) in AGENT.items():
            lines += gauge(metric, text, {"": float(status.get(name) or 0)})
        troubles = {f'{{what="{what}"}}': float(bool(status.get(name))) for name, what in TROUBLE.items()}
        lines += gauge("agent_trouble", "Whether the spool takes, or the store is sent, nothing", troubles)
    return "".join(f"{line}\n" for line in lines)


def gauge(name: str, text: str, values: Mapping[str, float]) -> list[str]:
    """The lines of one metric; the values by their labels as text."""
    head = [f"# HELP invigilator_{name} {text}", f"# TYPE invigilator_{name} gauge"]
    return head + [f"invigilator_{name}{labels} {value:g}" for labels, value in values.items()]
