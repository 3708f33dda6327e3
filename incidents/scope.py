"""What a reader who is bound to projects may see: rows of rollouts whose label `project` is one of theirs.

The engine itself leaves out all other rows, in every table that is read, also below views, subqueries and
joins (ClickHouse's setting `additional_table_filters`): no statement has to be written with projects in mind,
and none can forget them. A user's query cannot change the setting, as its session is read-only by then and
SETTINGS is no word of a user's query (`readonly`). Where labels are not known yet (the sandbox still runs),
nothing is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

BY_BOX = ("rollouts", "penalties", "incidents", "steps", "coverage", "events", "activity", "activity_feed")
"""Tables whose rows name their sandbox."""
NEVER = ("audit", "falco_alerts", "forgotten")
"""Tables whose rows name no sandbox, or are no bound reader's at all."""
OPEN = ("policies", "detectors")
"""Tables of what judged, not of what was done: they belong to no project."""
OPERATORS_OWN = ("segments", "migrations")
"""Tables that are read by this program's own statements about anybody's rows, and by no bound user."""


def filters(projects: Sequence[str], *, of_users: bool) -> dict[str, str]:
    """Table → condition that its rows have to meet. `of_users`: for a query that a user wrote."""
    named = ", ".join(map(literal, projects))
    mine = f"labels['project'] IN ({named})"
    boxes = f"sandbox_id IN (SELECT sandbox_id FROM sandboxes WHERE {mine})"
    found = {"sandboxes": mine, **dict.fromkeys(BY_BOX, boxes), **dict.fromkeys(NEVER, "0")}
    found["reviews"] = f"incident_id IN (SELECT incident_id FROM incidents WHERE {boxes})"
    found["deliveries"] = f"(run_id, rollout_id) IN (SELECT run_id, rollout_id FROM sandboxes WHERE {mine})"
    return found | dict.fromkeys(OPERATORS_OWN, "0") if of_users else found


def setting(conditions: dict[str, str]) -> str:
    """Conditions as the value of `additional_table_filters`; "" for none."""
    if not conditions:
        return ""
    pairs = ", ".join(f"{literal(table)}: {literal(condition)}" for table, condition in conditions.items())
    return f"{{{pairs}}}"


def literal(text: str) -> str:
    """A text as SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
