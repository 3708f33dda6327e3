"""The agent's metrics, of what it says of itself."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from invigilator.guard.nodemetrics import agent_metrics


def read(text: str) -> dict[str, float]:
    """Name and labels → value, by Prometheus's own parser."""
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_an_agent_that_does_not_run_is_down_and_says_nothing_else() -> None:
    assert read(agent_metrics({"running": False})) == {"invigilator_agent_up": 0.0}


def test_an_agent_s_rollouts_spool_and_troubles_are_told() -> None:
    status = {
        "running": True,
        "rollouts": 3,
        "waiting_segments": 2,
        "waiting_bytes": 10**7,
        "ship_trouble": "no",
    }
    assert read(agent_metrics(status)) == {
        "invigilator_agent_up": 1.0,
        "invigilator_agent_rollouts": 3.0,
        "invigilator_agent_spool_segments": 2.0,
        "invigilator_agent_spool_bytes": 1e7,
        "invigilator_agent_troublespool": 0.0,
        "invigilator_agent_troubleship": 1.0,
    }
