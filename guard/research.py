"""The record for researchers: SQL, incidents, events and reports, as data frames where pandas is there.

inv = Invigilator()
inv.sql("SELECT kind, count() AS n FROM incidents_current GROUP BY kind ORDER BY n DESC")
inv.incidents(kind="canary_read")
inv.events(rollout_id="r1", kinds=["exec", "connect"])
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import quote

from invigilator.guard.connection import Address, Ask, Connection, patiently
from invigilator.guard.frames import framed
from invigilator.guard.which import When, Which, iso
from invigilator.incidents.records import PolicyVersions, Report

if TYPE_CHECKING:
    from datetime import datetime

    import pandas as pd
    import pyarrow as pa

    from invigilator.guard.backtest import Backtest, Rewards
    from invigilator.profiles.policy import Policy

PATIENCE_S = 15.0
"""How long a store that is being opened, or is busy, is waited for."""
SILENCE_S = 2.0
"""How long one at a URL that does not answer at all is; one on this machine is started again."""
PAGE_ROWS = 1000
NO_BOX = "00000000-0000-0000-0000-000000000000"
BACKTEST_MOST = 100_000
ARROW_STREAM = "application/vnd.apache.arrow.stream"
PIECE_ROWS = 20_000
"""Of events at a time: they fit the service's limits whatever their texts."""
PLACE = {
    "events": ("sandbox_id", "seq"),
    "incidents": ("sandbox_id", "incident_id"),
    "rollouts": ("sandbox_id",),
}
"""What an export is in the order of."""

T = TypeVar("T", bound=Any)


class CutWarning(UserWarning):
    """There is more than the limit let through."""


class Invigilator:
    """Asks the service for the record. Arguments as of `PenaltyClient`; use it in `with`, or close it.

    Tables are pandas data frames where pandas and pyarrow are installed (`frames` False: never), else lists
    of dicts. Bytes that are no UTF-8 are surrogate escapes in frames, `\\xNN` in dicts.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: Path | None = None,
        frames: bool | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        address = Address.locate(url, token, home)
        self._connection = Connection(address)
        self._silence_s = SILENCE_S if address.url else patience_s
        self._patience_s = patience_s
        able = all(importlib.util.find_spec(name) for name in ("pandas", "pyarrow"))
        self._frames = able if frames is None else frames

    def sql(self, query: str, **parameters: Any) -> pd.DataFrame | list[dict[str, Any]]:
        """The result of a SELECT; `parameters` fill its `{name:Type}`. At most 100,000 rows, 30 s."""
        return self._table("/v1/sql", {"query": query, "parameters": parameters})

    def query(self, name: str, **parameters: str) -> pd.DataFrame | list[dict[str, Any]]:
        """The result of a named query (`queries` lists them)."""
        return self._table(f"/v1/queries/{quote(name, safe='')}", {"parameters": parameters})

    def queries(self) -> list[dict[str, Any]]:
        """The named queries: name, summary, parameters, sql."""
        found: list[dict[str, Any]] = self._get("/v1/queries")["queries"]
        return found

    def incidents(self, *, limit: int = PAGE_ROWS, **filters: str) -> pd.DataFrame | list[dict[str, Any]]:
        """Incidents, the latest first, at most `limit` (CutWarning where there are more). Filters: run_id,
        rollout_id, kind, severity, outcome, review."""
        return self._framed("incidents", limit, filters)

    def rollouts(self, *, limit: int = PAGE_ROWS, **filters: str) -> pd.DataFrame | list[dict[str, Any]]:
        """Rollouts with their penalties, the latest first, as `incidents`. Filters: run_id, rollout_id,
        status."""
        return self._framed("rollouts", limit, filters)

    def metrics(self) -> str:
        """The service's metrics, in Prometheus's text format."""
        text: str = self._ask(Ask("GET", "/v1/metrics")).text
        return text

    def incident(self, incident_id: str) -> dict[str, Any]:
        """One incident with its evidence and reviews."""
        return self._get(f"/v1/incidents/{quote(incident_id, safe='')}")

    def review(
        self,
        incident_id: str,
        decision: Literal["confirm", "dismiss", "comment"],
        comment: str = "",
        reviewer: str = "",
    ) -> dict[str, Any]:
        """Decide on an incident. `reviewer` counts only over the Unix socket; else it is the token's name."""
        body = {"decision": decision, "comment": comment, "reviewer": reviewer}
        path = f"/v1/incidents/{quote(incident_id, safe='')}/reviews"
        found: dict[str, Any] = self._ask(Ask("POST", path, body)).json()
        return found

    def rollout(
        self, rollout_id: str, run_id: str | None = None, attempt: int = 0, sandbox_id: str | None = None
    ) -> Report:
        """The report on a rollout's latest attempt, or on `attempt`; of one sandbox where it has several."""
        query = {"attempt": str(attempt)}
        if run_id is not None:
            query["run_id"] = run_id
        if sandbox_id is not None:
            query["sandbox_id"] = sandbox_id
        answer = self._ask(Ask("GET", f"/v1/rollouts/{quote(rollout_id, safe='')}", query=query))
        return Report.model_validate_json(answer.content)

    def events(
        self,
        rollout_id: str | None = None,
        *,
        sandbox_id: str | None = None,
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        since: When | None = None,
        until: When | None = None,
        kinds: Sequence[str] = (),
        refused: bool | None = None,
        limit: int = 100_000,
    ) -> pd.DataFrame | list[dict[str, Any]]:
        """Events, decoded, by sandbox and in order: of a rollout, sandbox, run, or of rollouts with `labels`;
        at most `limit` rows (CutWarning where there are more; `exported` streams them all).

        `since`, `until`: wall time, as a datetime or ISO 8601; `refused`: only calls that failed, or none.
        """
        which = Which(rollout_id, run_id, sandbox_id, labels or {}, since, until, tuple(kinds), refused)
        if not self._frames:
            found = [row for piece in self._pieces(which, limit, self._rows_of) for row in piece]
            return found[:limit]
        from invigilator.incidents.results import joined, to_pandas

        return to_pandas(joined(list(self._pieces(which, limit, self._table_of))).slice(0, limit))

    def exported(
        self,
        subject: Literal["events", "incidents", "rollouts"],
        *,
        run_id: str = "",
        rollout_id: str = "",
        labels: Mapping[str, str] | None = None,
        since: When | None = None,
        until: When | None = None,
        kinds: Sequence[str] = (),
        outcome: str = "",
        rows: int = PIECE_ROWS,
    ) -> Iterator[pa.Table]:
        """The record in bulk, as Arrow tables of at most `rows` rows, by sandbox; at least one, so
        that the columns are known. Needs pyarrow and the right to export; who took it is kept."""
        import pyarrow as pa

        body: dict[str, Any] = {
            "run_id": run_id,
            "rollout_id": rollout_id,
            "labels": dict(labels or {}),
            "kinds": list(kinds),
            "outcome": outcome,
            "rows": rows,
        }
        body |= {name: iso(at) for name, at in (("since", since), ("until", until)) if at is not None}
        first = True
        while True:
            answer = self._ask(Ask("POST", f"/v1/exports/{subject}", body, accept=ARROW_STREAM))
            table = pa.ipc.open_stream(answer.content).read_all()
            if table.num_rows or first:
                yield table
            if not table.num_rows:
                return
            first = False
            last = table.slice(table.num_rows - 1).to_pylist()[0]
            body["after"] = {name: last[name] for name in PLACE[subject]}

    def raw_events(self, sandbox_id: str, after: int = 0) -> Iterator[pa.Table]:
        """The stored events of a sandbox as they were recorded, in order, piece by piece; those `after` a
        `seq`. Needs pyarrow."""
        import pyarrow as pa

        while True:
            query = {"after": str(after)}
            answer = self._ask(
                Ask("GET", f"/v1/sandboxes/{sandbox_id}/events", query=query, accept=ARROW_STREAM)
            )
            table = pa.ipc.open_stream(answer.content).read_all()
            if not table.num_rows:
                return
            after = table["seq"][-1].as_py()
            yield table

    def policy(self, report: Report) -> dict[str, Any]:
        """The full text of the policy that judged a report, as JSON."""
        return self.policy_of(report.policy.versions)

    def policy_of(self, versions: PolicyVersions) -> dict[str, Any]:
        """The full text of a recorded policy by its versions, as JSON."""
        query = versions.model_dump()
        found: dict[str, Any] = self._ask(Ask("GET", "/v1/policies", query=query)).json()["policy"]
        return found

    def backtest(
        self,
        policy: Policy | str | Path,
        *,
        since: str | datetime = "7d",
        run_id: str | None = None,
        rewards: Rewards | str | Path = "reward",
        limit: int = BACKTEST_MOST,
    ) -> Backtest:
        """What the penalty part of `policy` (a name in the library, a file, or a Policy) would have done to
        the rollouts that ended since then, the latest `limit` of them. `rewards`: by rollout id, or by (run,
        rollout); the path of a .csv or .parquet file; or the name of a label that holds them."""
        from invigilator.guard import backtest
        from invigilator.profiles import library
        from invigilator.profiles.policy import Policy

        rules = policy if isinstance(policy, Policy) else library.load(str(policy))
        at = backtest.since_when(since) if isinstance(since, str) else since
        body = {
            "penalty": rules.model_dump(mode="json")["penalty"],
            "since": at.isoformat(),
            "run_id": run_id,
            "limit": limit,
        }
        tried = self._ask(Ask("POST", "/v1/penalties/backtest", body)).json()
        if isinstance(rewards, str | Path):
            is_file = Path(rewards).suffix in (".csv", ".parquet")
            found = backtest.read_rewards(Path(rewards)) if is_file else None
            return backtest.compare(tried, found or backtest.label_rewards(tried, str(rewards)))
        return backtest.compare(tried, rewards)

    def penalties_used(self, incident_id: str = "", run_id: str = "") -> list[dict[str, Any]]:
        """Which training steps used a penalty that says something else by now: of an incident's rollout, or
        of all with an incident that was ever dismissed."""
        query = {"incident_id": incident_id, "run_id": run_id}
        found: list[dict[str, Any]] = self._ask(Ask("GET", "/v1/penalties/used", query=query)).json()["used"]
        return found

    def health(self) -> dict[str, Any]:
        """What the service says of itself; BusyError while its store is down."""
        return self._get("/v1/health")

    def rendered(self, path: str, body: dict[str, Any], accept: str) -> bytes:
        """The service's own rendering of a table: `application/json` or `text/csv`."""
        content: bytes = self._ask(Ask("POST", path, body, accept=accept)).content
        return content

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, ask: Ask) -> Any:
        return self._connection.run(
            patiently(ask, time.monotonic() + self._patience_s, silence_s=self._silence_s)
        )

    def _get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(Ask("GET", path)).json()
        return found

    def forget(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Take a rollout's or a project's rows out of the store, for good (POST /v1/forget); for admins."""
        done: dict[str, Any] = self._ask(Ask("POST", "/v1/forget", dict(order))).json()
        return done

    def retention(self) -> dict[str, int | None]:
        """Table → for how many days its rows are kept; None: for good. For engineers and admins."""
        found: dict[str, int | None] = self._get("/v1/retention")["tables"]
        return found

    def keep(self, table: str, days: int) -> dict[str, int | None]:
        """Keep a table's rows for so many days from now on; for admins. As `retention`, afterwards."""
        path = f"/v1/retention/{quote(table, safe='')}"
        found: dict[str, int | None] = self._ask(Ask("PUT", path, {"days": days})).json()["tables"]
        return found

    def listed(
        self, key: Literal["incidents", "rollouts", "audit"], limit: int, **filters: str
    ) -> list[dict[str, Any]]:
        """The rows of a list as dicts, page by page."""
        rows: list[dict[str, Any]] = []
        while len(rows) < limit:
            wanted = min(PAGE_ROWS, limit - len(rows))
            query = {**filters, "limit": str(wanted), "offset": str(len(rows))}
            page = self._ask(Ask("GET", f"/v1/{key}", query=query)).json()[key]
            rows += page
            if len(page) < wanted:
                break
        return rows

    def _table(self, path: str, body: dict[str, Any]) -> pd.DataFrame | list[dict[str, Any]]:
        if not self._frames:
            return self._rows_of(path, body)
        from invigilator.incidents.results import to_pandas

        return to_pandas(self._table_of(path, body))

    def _table_of(self, path: str, body: dict[str, Any]) -> pa.Table:
        import pyarrow as pa

        answer = self._ask(Ask("POST", path, body, accept=ARROW_STREAM))
        return pa.ipc.open_stream(answer.content).read_all()

    def _pieces(self, which: Which, limit: int, ask: Callable[[str, dict[str, Any]], T]) -> Iterator[T]:
        query, parameters = which.statement()
        place: dict[str, Any] = {"box": NO_BOX, "seq": 0}
        rows = 0
        while True:
            wanted = min(PIECE_ROWS, limit + 1 - rows)
            body = {"query": query, "parameters": {**parameters, **place, "rows": wanted}}
            piece = ask("/v1/sql", body)
            yield piece
            rows += len(piece)
            if rows > limit:
                self._tell_of_cut("events", limit)
            if len(piece) < wanted or rows > limit:
                return
            tail = piece[-1:] if isinstance(piece, list) else piece.slice(len(piece) - 1).to_pylist()
            place = {"box": str(tail[0]["sandbox_id"]), "seq": int(tail[0]["seq"])}

    def _rows_of(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        found = self._ask(Ask("POST", path, body)).json()
        names = [column["name"] for column in found["columns"]]
        return [dict(zip(names, row, strict=True)) for row in found["rows"]]

    def _framed(
        self, key: Literal["incidents", "rollouts"], limit: int, filters: Mapping[str, str]
    ) -> pd.DataFrame | list[dict[str, Any]]:
        rows = self.listed(key, limit + 1, **filters)
        if len(rows) > limit:
            self._tell_of_cut(key, limit)
        if not self._frames:
            return rows[:limit]
        return framed(key, rows[:limit])

    @staticmethod
    def _tell_of_cut(subject: str, limit: int) -> None:
        text = f"there are more than {limit} {subject}: narrow the filters, give limit=, or use exported()"
        warnings.warn(text, CutWarning, stacklevel=4)
