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
        self, key: Literal["incidents", "rollouts"], limit: int, **filters: str
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
