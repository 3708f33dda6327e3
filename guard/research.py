"""The record for researchers: SQL, incidents, events and reports, as data frames where pandas is there.

inv = Invigilator()
inv.sql("SELECT kind, count() AS n FROM incidents_current GROUP BY kind ORDER BY n DESC")
inv.incidents(kind="canary_read")
inv.events(rollout_id="r1", kinds=["exec", "connect"])
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from invigilator.guard.connection import Address, Ask, Connection, patiently
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
BACKTEST_MOST = 100_000
ARROW_STREAM = "application/vnd.apache.arrow.stream"
EVENTS_SQL = (
    "SELECT * FROM events_readable WHERE sandbox_id = {sandbox_id:UUID}"
    " AND (empty({kinds:String}) OR has(splitByChar(',', {kinds:String}), kind))"
    " ORDER BY seq LIMIT {limit:UInt64}"
)


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
        """Incidents, the latest first. Filters: run_id, rollout_id, kind, severity, outcome, review."""
        return self._framed(self.listed("incidents", limit, **filters))

    def rollouts(self, *, limit: int = PAGE_ROWS, **filters: str) -> pd.DataFrame | list[dict[str, Any]]:
        """Rollouts with their penalties, the latest first. Filters: run_id, rollout_id, status."""
        return self._framed(self.listed("rollouts", limit, **filters))

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
        kinds: Sequence[str] = (),
        limit: int = 100_000,
    ) -> pd.DataFrame | list[dict[str, Any]]:
        """The events of a rollout's sandbox, in order, decoded; only those of `kinds` where given."""
        if (rollout_id is None) == (sandbox_id is None):
            raise TypeError("give either rollout_id or sandbox_id")
        box = sandbox_id or self.rollout(str(rollout_id), run_id).sandbox_id
        return self.sql(EVENTS_SQL, sandbox_id=box, kinds=",".join(kinds), limit=limit)

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
            found = self._ask(Ask("POST", path, body)).json()
            names = [column["name"] for column in found["columns"]]
            return [dict(zip(names, row, strict=True)) for row in found["rows"]]
        import pyarrow as pa

        from invigilator.incidents.results import to_pandas

        answer = self._ask(Ask("POST", path, body, accept=ARROW_STREAM))
        return to_pandas(pa.ipc.open_stream(answer.content).read_all())

    def _framed(self, rows: list[dict[str, Any]]) -> pd.DataFrame | list[dict[str, Any]]:
        if not self._frames:
            return rows
        import pandas as pd

        return pd.DataFrame(rows)
