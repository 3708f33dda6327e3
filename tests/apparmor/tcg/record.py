"""In the place of `guard serve`: the record, kept in memory and answered from there.

chDB's library (550 MB) takes an emulated processor longer to open than all that is tested here. What a store
does with segments is tested where there is one.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from invigilator.incidents import segment

REPORTS, SANDBOXES, EVENTS = "/v1/rollouts/", "/v1/sandboxes/", "/events"


class Record:
    """Segments as they came, and what is asked of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, dict[uuid.UUID, pa.Table]] = {}

    def keep(self, content: bytes) -> int:
        """Keep a segment, once; its rows."""
        header, table = segment.decode(content)
        with self._lock:
            self._tables.setdefault(header.table, {})[header.id] = table
        return header.rows

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table, as they came."""
        with self._lock:
            tables = [*self._tables.get(name, {}).values()]
        return [row for table in tables for row in table.to_pylist()]

    def events(self, sandbox: uuid.UUID, after: int) -> bytes:
        """A sandbox's events past `after`, in order, as an Arrow stream."""
        with self._lock:
            tables = [*self._tables.get("events", {}).values()]
        whole = pa.concat_tables([one.replace_schema_metadata(None) for one in tables])
        mine = pc.equal(whole["sandbox_id"], pa.scalar(sandbox.bytes, whole["sandbox_id"].type))
        found = whole.filter(pc.and_(mine, pc.greater(whole["seq"], after))).sort_by("seq")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as writer:
            writer.write_table(found)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    def report(self, rollout: str) -> dict[str, Any] | None:
        """A rollout's report."""
        found = [json.loads(row["report"]) for row in self.rows("rollouts") if row["rollout_id"] == rollout]
        return found[-1] if found else None

    def policy(self, versions: dict[str, str]) -> dict[str, Any] | None:
        """The policy whose parts have these versions."""
        for row in self.rows("policies"):
            if all(row[f"{part}_version"] == version for part, version in versions.items()):
                return {"name": row["name"], "policy": json.loads(row["text"])}
        return None


@contextmanager
def served() -> Iterator[tuple[str, Record]]:
    """(URL, the record) while it is served on a port of the loopback."""
    record = Record()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if urlsplit(self.path).path != "/v1/segments":
                self._answer(404, {"detail": "not here", "fix": ""})
                return
            self._answer(200, {"rows": record.keep(content), "duplicate": False})

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            path, query = unquote(parts.path), dict(parse_qsl(parts.query))
            if path.startswith(SANDBOXES) and path.endswith(EVENTS):
                sandbox = uuid.UUID(path.removeprefix(SANDBOXES).removesuffix(EVENTS))
                self._send(
                    200, "application/vnd.apache.arrow.stream", record.events(sandbox, int(query["after"]))
                )
                return
            found = (
                record.policy(query) if path == "/v1/policies" else record.report(path.removeprefix(REPORTS))
            )
            self._answer(*((200, found) if found else (404, {"detail": f"no {path}", "fix": ""})))

        def _answer(self, status: int, body: object) -> None:
            self._send(status, "application/json", json.dumps(body).encode())

        def _send(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", record
        server.shutdown()
