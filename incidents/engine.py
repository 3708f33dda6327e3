"""ClickHouse behind one small interface: embedded in this process (chDB), or a server by URL.

Never fork after chDB was opened: the child hangs. Start other programs with `subprocess`, other workers with
the spawn method.
"""

from __future__ import annotations

import base64
import contextlib
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver import exceptions as ch

from invigilator.incidents import lock
from invigilator.incidents.scope import literal

DATABASE = "invigilator"
MOST_READERS = 8
"""Sessions kept open for users' queries, one for each set of limits."""

Parameters = Mapping[str, Any]
Settings = Mapping[str, str | int]


class StoreError(Exception):
    """The store refused or failed; the message says what to do."""


class StoreUnavailableError(StoreError):
    """The store is locked, down or out of reach: nothing was lost, try again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query of a user may take: seconds, bytes of memory, rows and bytes of the result."""

    time_s: float = 30.0
    memory_bytes: int = 2 << 30
    rows: int = 100_000
    result_bytes: int = 64 << 20
    filters: str = ""
    """`additional_table_filters`: which rows of which table are left (`scope.setting`)."""


def limit_settings(limits: Limits) -> dict[str, str | int]:
    """The engine's settings for `limits`, read-only and without a way to change them from within the query.

    `readonly` stands last: after it nothing can be set any more.
    """
    return {
        **OUTPUT_SETTINGS,
        **({"additional_table_filters": limits.filters} if limits.filters else {}),
        "max_execution_time": max(1, round(limits.time_s)),
        "timeout_overflow_mode": "throw",
        "max_memory_usage": limits.memory_bytes,
        "max_result_rows": limits.rows,
        "max_result_bytes": limits.result_bytes,
        "result_overflow_mode": "throw",
        "max_threads": 2,
        "max_bytes_before_external_group_by": 0,
        "max_bytes_before_external_sort": 0,
        "max_subquery_depth": 30,
        "max_recursive_cte_evaluation_depth": 1000,
        "max_query_size": 262_144,
        "allow_ddl": 0,
        "readonly": 1,
    }


PARAMETER_LETTERS_MAX = 16_384
QUERY_BYTES_MAX = 64 << 20
"""Of a query of this program's own, with the texts that are inlined in it."""
OUTPUT_SETTINGS: dict[str, str | int] = {
    "output_format_arrow_string_as_string": 0,
    "output_format_arrow_low_cardinality_as_dictionary": 0,
    "output_format_arrow_compression_method": "none",
    "session_timezone": "UTC",
}
"""Strings come as bytes: paths and arguments need not be UTF-8."""


class Engine(Protocol):
    """Commands, inserts and queries; StoreError and StoreUnavailableError as they are."""

    def command(
        self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None
    ) -> None:
        """Run a statement without a result."""

    def insert(self, table: str, columns: list[str], content: bytes, settings: Settings) -> None:
        """Insert an Arrow IPC file, its columns by name."""

    def select(
        self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None
    ) -> pa.Table:
        """Result of a trusted query; strings as binary."""

    def read(self, sql: str, parameters: Parameters | None, limits: Limits) -> pa.Table:
        """Result of a query under `limits`, read-only in the engine's own right."""

    def close(self) -> None:
        """End the connection; the embedded engine's data is free for another process then."""


def connect(target: str | Path) -> Engine:
    """The engine at a folder, or at `http(s)://[user:password@]host[:port][/database]`."""
    text = str(target)
    if text.startswith(("http://", "https://")):
        return Remote(text)
    if "://" in text:
        raise StoreError(f"{text.split('://')[0]}:// is no store: give a folder, or http(s)://host:8123")
    return Embedded(Path(text))


class Embedded:
    """chDB in this process, its data in `folder/chdb`; one process at a time, the lock says which."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = lock.acquire(folder / "lock", f"the store {folder}")
        except lock.LockedError as error:
            raise StoreUnavailableError(str(error)) from error
        except OSError as error:
            raise StoreError(f"the store {folder} cannot be opened: {error.strerror}") from error
        self._clients: list[Any] = []
        try:
            for stale in folder.glob("incoming-*"):
                stale.unlink()
            self._writer = self._connect()
            self._writer.command(f"CREATE DATABASE IF NOT EXISTS {DATABASE} ENGINE = Atomic")
            self._use_database(self._writer)
        except BaseException:
            self.close()
            raise
        self._readers: dict[Limits, Any] = {}

    def command(
        self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None
    ) -> None:
        with self._renewing_writer():
            self._writer.command(sql, parameters=parameters, settings=dict(settings or {}))

    def insert(self, table: str, columns: list[str], content: bytes, settings: Settings) -> None:
        # The client's own way goes through the system's temporary folder, which may be small or shared.
        incoming = self._folder / f"incoming-{uuid.uuid4().hex}"
        try:
            incoming.write_bytes(content)
            clause = ", ".join(f"{name} = {_setting(value)}" for name, value in settings.items())
            source = f"FROM INFILE {literal(str(incoming))} SETTINGS {clause} FORMAT Arrow"
            self.command(f"INSERT INTO {table} ({', '.join(columns)}) {source}")
        except OSError as error:
            raise StoreUnavailableError(
                f"the store {self._folder} takes nothing: {error.strerror}"
            ) from error
        finally:
            incoming.unlink(missing_ok=True)

    def select(
        self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None
    ) -> pa.Table:
        sql, parameters = inlined(sql, parameters)
        with self._renewing_writer():
            return _arrow(self._writer.raw_query(sql, parameters, dict(settings or {}), fmt="ArrowStream"))

    def read(self, sql: str, parameters: Parameters | None, limits: Limits) -> pa.Table:
        try:
            with _errors(f"the store {self._folder}"):
                return _arrow(self._reader(limits).raw_query(sql, parameters, fmt="ArrowStream"))
        except StoreError:
            self._drop_reader(limits)
            raise

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._lock.release()

    @contextlib.contextmanager
    def _renewing_writer(self) -> Iterator[None]:
        """After some failures (memory, seen with chDB 26.9) a session answers the *next* query wrongly: none
        is used again after a failure."""
        try:
            with _errors(f"the store {self._folder}"):
                yield
        except StoreError:
            failed, self._writer = self._writer, self._connect()
            self._use_database(self._writer)
            self._clients.remove(failed)
            failed.close()
            raise

    def _connect(self) -> Any:
        with _errors(f"the store {self._folder}"):
            client = clickhouse_connect.get_client(interface="chdb", path=str(self._folder / "chdb"))
        self._clients.append(client)
        return client

    def _use_database(self, client: Any) -> None:
        client.command(f"USE {DATABASE}")
        for name, value in {**OUTPUT_SETTINGS, "max_query_size": QUERY_BYTES_MAX}.items():
            client.command(f"SET {name} = {_setting(value)}")

    def _reader(self, limits: Limits) -> Any:
        """A session that is read-only for good: once `readonly` is set, nothing in it can be changed."""
        if limits not in self._readers:
            if len(self._readers) >= MOST_READERS:
                self._drop_reader(next(iter(self._readers)))
            client = self._connect()
            self._use_database(client)
            for name, value in limit_settings(limits).items():
                client.command(f"SET {name} = {_setting(value)}")
            self._readers[limits] = client
        return self._readers[limits]

    def _drop_reader(self, limits: Limits) -> None:
        client = self._readers.pop(limits, None)
        if client is not None:
            self._clients.remove(client)
            client.close()


class Remote:
    """A ClickHouse server over HTTP."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._name = f"the store {parts.scheme}://{parts.hostname}:{parts.port or 8123}"
        self._database = parts.path.strip("/") or DATABASE
        if not self._database.isidentifier():
            raise StoreError(f"{self._name}: {self._database!r} is no database name")
        where: dict[str, Any] = {
            "host": parts.hostname or "localhost",
            "port": parts.port or (8443 if parts.scheme == "https" else 8123),
            "username": unquote(parts.username or "default"),
            "password": unquote(parts.password or ""),
            "secure": parts.scheme == "https",
        }
        with _errors(self._name):
            self._client: Any = clickhouse_connect.get_client(
                **where, autogenerate_session_id=False, connect_timeout=5, send_receive_timeout=120
            )
            # To ask first needs no right to make databases, which a node's user should not have.
            if not self._client.query(
                f"SELECT 1 FROM system.databases WHERE name = '{self._database}'"
            ).result_rows:
                self._client.command(f"CREATE DATABASE IF NOT EXISTS {self._database} ENGINE = Atomic")
            self._client.database = self._database

    def command(
        self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None
    ) -> None:
        with _errors(self._name):
            self._client.command(sql, parameters=parameters, settings=dict(settings or {}))

    def insert(self, table: str, columns: list[str], content: bytes, settings: Settings) -> None:
        with _errors(self._name):
            self._client.raw_insert(table, columns, content, dict(settings), fmt="Arrow")

    def select(
        self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None
    ) -> pa.Table:
        sql, parameters = inlined(sql, parameters)
        given = {**OUTPUT_SETTINGS, "max_query_size": QUERY_BYTES_MAX, **(settings or {})}
        with _errors(self._name):
            return _arrow(self._client.raw_query(sql, parameters, given, fmt="ArrowStream"))

    def read(self, sql: str, parameters: Parameters | None, limits: Limits) -> pa.Table:
        with _errors(self._name):
            return _arrow(self._client.raw_query(sql, parameters, limit_settings(limits), fmt="ArrowStream"))

    def close(self) -> None:
        self._client.close()


def inlined(sql: str, parameters: Parameters | None) -> tuple[str, Parameters | None]:
    """The statement with its large texts in it, in base64, and the parameters that are left: a server takes
    128 KiB of a parameter at most, and a client escapes one letter by letter."""
    large = {
        name: value
        for name, value in (parameters or {}).items()
        if isinstance(value, str) and len(value) > PARAMETER_LETTERS_MAX
    }
    if not large:
        return sql, parameters
    for name, value in large.items():
        text = base64.b64encode(value.encode()).decode()
        sql = sql.replace(f"{{{name}:String}}", f"base64Decode('{text}')")
    return sql, {name: value for name, value in (parameters or {}).items() if name not in large}


def _arrow(raw: bytes) -> pa.Table:
    return pa.ipc.open_stream(raw).read_all() if raw else pa.table({})


def _setting(value: str | int) -> str:
    return str(value) if isinstance(value, int) else literal(value)


@contextlib.contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except (ch.OperationalError, ch.StreamFailureError, ConnectionError, TimeoutError) as error:
        fix = "start it, or name another in INVIGILATOR_STORE"
        raise StoreUnavailableError(f"{what} cannot be reached: {_reason(error)}: {fix}") from error
    except ch.Error as error:
        text = _first_line(error)
        if "NOT_ENOUGH_SPACE" in text or "No space left" in text:
            raise StoreUnavailableError(
                f"{what} has no disk space left: free some; nothing is lost"
            ) from error
        raise StoreError(f"{what}: {text}") from error


def _reason(error: BaseException) -> str:
    """What the kernel or the resolver said, out of what three libraries wrapped it in."""
    said = re.findall(r"\[Errno -?\d+\] ([^()<>\[\]:'\"]+)", str(error))
    return str(said[-1]).strip() if said else _first_line(error)


def _first_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text.split(" (version ")[0][:1000]
