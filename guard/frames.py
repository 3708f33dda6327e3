"""Lists of the service as data frames: the same columns and types however many rows there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: dict[str, dict[str, str]] = {
    "incidents": {
        **dict.fromkeys(("id", "kind", "channel", "severity", "outcome", "use", "intent"), "str"),
        "confidence": "float64",
        **dict.fromkeys(("phase", "step_id"), "str"),
        **dict.fromkeys(("first_at", "last_at"), "datetime64[us, UTC]"),
        "count": "int64",
        **dict.fromkeys(("summary", "detector_id"), "str"),
        "detector_version": "int64",
        "attack": "object",
        **dict.fromkeys(("monitor_only", "counted"), "bool"),
        "weight": "float64",
        **dict.fromkeys(("sandbox_id", "run_id", "rollout_id"), "str"),
        "attempt": "int64",
        **dict.fromkeys(("review", "reviewer"), "str"),
    },
    "rollouts": {
        **dict.fromkeys(("run_id", "rollout_id"), "str"),
        "attempt": "int64",
        **dict.fromkeys(("sandbox_id", "backend"), "str"),
        "labels": "object",
        "policy": "str",
        **dict.fromkeys(("started_at", "ended_at"), "datetime64[us, UTC]"),
        **dict.fromkeys(("status", "failure"), "str"),
        "exit_code": "Int64",
        "exit_reason": "str",
        "counted_incidents": "int64",
        "value": "float64",
        **dict.fromkeys(("bound", "drop"), "bool"),
    },
}
"""Columns of the lists and their types, the same however many rows there are."""


def framed(key: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows of a list as a data frame that has every column, with its type, without rows too."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=list(COLUMNS[key]))
    for name, kind in COLUMNS[key].items():
        if kind.startswith("datetime"):
            frame[name] = pd.to_datetime(frame[name], utc=True, format="ISO8601").dt.as_unit("us")
        elif kind == "bool":
            frame[name] = frame[name].fillna(False).astype(bool)
        else:
            frame[name] = frame[name].astype(kind)  # type: ignore[call-overload]
    return frame
