"""/v1/sql and /v1/queries: read-only SQL under limits, and the named queries."""

from __future__ import annotations

import io
import re
import time
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from invigilator.guard.api.access import Caller, needs
from invigilator.guard.api.gate import StoreGate
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import plain
from invigilator.guard.api.rollouts import ARROW_STREAM, arrow_bytes
from invigilator.incidents import queries
from invigilator.incidents.store import Limits, Store, StoreError, StoreUnavailableError

router = APIRouter(prefix="/v1", tags=["sql"])
STORE_PREFIX = re.compile(r"^the store .*?: Code: \d+\. DB::Exception: ")
Analyst = Annotated[Caller, Depends(needs("sql"))]


class Statement(BaseModel):
    """One SELECT, and values for its `{name:Type}` parameters."""

    model_config = ConfigDict(extra="forbid")

    query: Annotated[str, Field(max_length=65_536)]
    parameters: dict[str, Any] = {}


class Named(BaseModel):
    """Values for a named query's parameters."""

    model_config = ConfigDict(extra="forbid")

    parameters: dict[str, str] = {}


@router.post("/sql", response_class=Response)
async def sql(request: Request, caller: Analyst, statement: Statement) -> Response:
    """The result of a SELECT over the tables and views; nothing else can be read, and nothing written.

    As JSON (`columns`, `rows`), or, by the Accept header, as `text/csv` or as an Arrow stream. At most 30 s
    (`guard serve --query-time`), 100,000 rows, 64 MiB; a query past that is refused, not cut.
    """
    return await run(request, statement.query, statement.parameters)


@router.get("/queries")
async def catalogue(caller: Analyst) -> dict[str, list[dict[str, Any]]]:
    """The named queries, with their parameters and their SQL to copy and change."""
    found = [
        {
            "name": query.name,
            "summary": query.summary,
            "parameters": [
                {"name": one.name, "type": one.type, "default": one.default, "meaning": one.meaning}
                for one in query.parameters
            ],
            "sql": query.sql,
        }
        for query in queries.catalogue().values()
    ]
    return {"queries": found}


@router.post("/queries/{name}", response_class=Response)
async def named(request: Request, caller: Analyst, name: str, given: Named) -> Response:
    """The result of a named query, as of /v1/sql."""
    if name not in queries.catalogue():
        raise ProblemError(404, "no-such-query", f"there is no query {name!r}", fix="see `guard queries`")
    query = queries.find(name)
    try:
        bound = query.bind(given.parameters)
    except StoreError as error:
        raise ProblemError(422, "invalid-request", str(error)) from error
    return await run(request, query.sql, bound)


async def run(request: Request, query: str, parameters: dict[str, Any]) -> Response:
    """A query's result in the form that the request accepts; 422 where it is refused."""
    gate: StoreGate = request.app.state.gate
    limits: Limits = request.app.state.limits
    accept = request.headers.get("accept", "")

    def work(store: Store) -> Response:
        began_s = time.monotonic()
        table = store.query(query, parameters, limits=limits)
        return render(table, accept, time.monotonic() - began_s)

    try:
        return await gate.run(work, lane="sql")
    except StoreUnavailableError:
        raise
    except StoreError as error:
        raise ProblemError(422, "query-refused", said_of_query(str(error))) from error


def said_of_query(text: str) -> str:
    """What the store says of a query, without what is said of the store itself."""
    return STORE_PREFIX.sub("", text)


def render(table: pa.Table, accept: str, elapsed_s: float) -> Response:
    """A table as Arrow, CSV or JSON."""
    if ARROW_STREAM in accept:
        return Response(arrow_bytes(table), media_type=ARROW_STREAM)
    if "text/csv" in accept:
        return Response(csv_bytes(table), media_type="text/csv; charset=utf-8")
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    values = [column.to_pylist(maps_as_pydicts="lossy") for column in table.columns]
    rows = [[plain(value) for value in row] for row in zip(*values, strict=True)]
    return JSONResponse(
        {"columns": columns, "rows": rows, "row_count": table.num_rows, "elapsed_s": round(elapsed_s, 6)}
    )


def csv_bytes(table: pa.Table) -> bytes:
    """A table as CSV; lists, maps and bytes become text."""
    flat = [
        pa.array([None if value is None else str(plain(value)) for value in column.to_pylist()], pa.string())
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type)
        else column
        for column in table.columns
    ]
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(flat, names=table.column_names), sink)
    return sink.getvalue()
