"""What users' SQL can reach: the store's tables and views, and nothing else, whatever is tried."""

from __future__ import annotations

import re
import socket
import threading
import uuid
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from store_samples import rows

from invigilator.incidents import readonly
from invigilator.incidents.spool import Spool
from invigilator.incidents.sqltext import NotAllowedError
from invigilator.incidents.store import Limits, Store, StoreError

MANY = settings.default.max_examples * 4
TABLES = frozenset({"events", "incidents", "segments"})

READS = [
    "SELECT 'a\\' ; DROP TABLE events; --' AS harmless",
    "SELECT 1",
    "select count() from events where path like '%it''s%' -- why not;",
    "SELECT e.kind, count(*) AS n FROM events AS e GROUP BY e.kind HAVING n > 0 ORDER BY n DESC LIMIT 3;",
    "WITH hot AS (SELECT sandbox_id FROM events WHERE seq IN (1, 2, 3)) SELECT * FROM hot",
    "SELECT a.seq FROM events AS a INNER JOIN events AS b USING (sandbox_id, seq)",
    "SELECT * FROM (SELECT seq FROM events) WHERE seq IN (SELECT seq FROM events WHERE kind = 2)",
    "SELECT quantile(0.5)(seq), uniqExactIf(path, kind = 2), arrayMap(x -> x + 1, [1, 2])[1] FROM events",
    'SELECT CAST(seq AS Nullable(String)), toDateTime64(wall_time, 3), `seq`, "pid" FROM events',
    "SELECT number, 1.5e3, 0x1F, 'a\\'b\\x41', tuple(1, 'x').2 FROM numbers(3)",
    "SELECT sum(seq) "
    "OVER (PARTITION BY kind ORDER BY seq ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM events",
    "SELECT toStartOfInterval(wall_time, INTERVAL 5 MINUTE) AS t, count() FROM events GROUP BY t WITH TOTALS",
    "SELECT x FROM events ARRAY JOIN [1, 2] AS x WHERE seq BETWEEN 1 AND 2 LIMIT 1 BY seq",
    "SELECT 1 UNION ALL (SELECT 2)",
    "SELECT CASE WHEN kind = 2 THEN 'exec' ELSE 'other' END AS k, count() FROM events GROUP BY k",
    "SELECT * EXCEPT (path, text) FROM events LIMIT 1",
    "SELECT count() FROM events WHERE (sandbox_id, seq) IN (SELECT sandbox_id, seq FROM events)",
]

ATTACKS = [
    # statements
    "",
    ";",
    "INSERT INTO events (seq) VALUES (1)",
    "DROP TABLE events",
    "SET readonly = 0",
    "USE system",
    "SHOW TABLES",
    "SHOW GRANTS",
    "DESCRIBE TABLE file('/etc/passwd', 'LineAsString')",
    "EXPLAIN SELECT 1",
    "KILL QUERY WHERE 1",
    "SYSTEM SHUTDOWN",
    "CREATE TABLE x ENGINE = Memory AS SELECT 1",
    "BACKUP TABLE events TO File('/tmp/x')",
    "EXECUTE AS default SELECT 1",
    "SELECT 1; DROP TABLE events",
    "SELECT 1;;SELECT 2",
    "SELECT 1) ; DROP TABLE events --",
    "SELECT 1) UNION ALL (SELECT 2",
    "SELECT 1 /* /* */ */ ; DROP TABLE events",
    "SELECT 1 /* unclosed",
    "SELECT 'unclosed",
    "SELECT 1 # comment\n; DROP TABLE events",
    "WITH x AS (INSERT INTO events (seq) VALUES (1)) SELECT 1",
    # files and the net
    "SELECT file('/etc/passwd')",
    "SELECT FILE('/etc/passwd')",
    "SELECT `file`('/etc/passwd')",
    "SELECT \"file\"('/etc/passwd')",
    "SELECT file /* x */ ('/etc/passwd')",
    "SELECT file\n(\n'/etc/passwd')",
    "SELECT * FROM file('/etc/passwd', 'LineAsString')",
    "SELECT * FROM `file`('/etc/passwd', 'LineAsString')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM `/etc/passwd`",
    "SELECT * FROM default.`/etc/passwd`",
    "SELECT * FROM fileCluster('default', '/etc/passwd')",
    "SELECT * FROM filesystem('/etc')",
    "SELECT * FROM url('http://127.0.0.1:{port}/', 'LineAsString')",
    "SELECT * FROM urlCluster('default', 'http://127.0.0.1:{port}/', 'LineAsString')",
    "SELECT * FROM s3('http://127.0.0.1:{port}/a/b', 'CSV')",
    "SELECT * FROM remote('127.0.0.1:{port}', system.one)",
    "SELECT * FROM remoteSecure('127.0.0.1:{port}', system.one)",
    "SELECT * FROM mysql('127.0.0.1:{port}', 'a', 'b', 'c', 'd')",
    "SELECT * FROM postgresql('127.0.0.1:{port}', 'a', 'b', 'c', 'd')",
    "SELECT * FROM redis('127.0.0.1:{port}', 'k', 'k String')",
    "SELECT * FROM mongodb('127.0.0.1:{port}', 'a', 'b', 'c', 'd', 'x String')",
    "SELECT * FROM jdbc('jdbc:x', 'y')",
    "SELECT * FROM sqlite('/tmp/x.db', 't')",
    "SELECT * FROM executable('id', 'LineAsString', 'x String')",
    "SELECT * FROM python('secret')",
    "SELECT * FROM Python(secret)",
    "SELECT * FROM secret",
    "SELECT chdb('x')",
    "SELECT * FROM eval('1')",
    "SELECT aiGenerate('x')",
    "SELECT 1 INTO OUTFILE '{outfile}'",
    "SELECT * FROM (SELECT 1 INTO OUTFILE '{outfile}')",
    "SELECT 1 FORMAT CSV",
    # the server and other tables
    "SELECT * FROM system.tables",
    "SELECT * FROM system . tables",
    "SELECT * FROM `system`.`query_log`",
    'SELECT * FROM "system"."processes"',
    "SELECT * FROM /**/ system /**/ . /**/ tables",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM INFORMATION_SCHEMA.TABLES",
    "SELECT * FROM default.x",
    "SELECT * FROM migrations2",
    "SELECT * FROM events, system.tables",
    "SELECT * FROM events JOIN system.tables ON 1",
    "SELECT * FROM events AS e LEFT JOIN (SELECT 1 AS x) AS y ON 1 = 1, system.one",
    "SELECT * FROM events CROSS JOIN system.one",
    "SELECT * FROM events ARRAY JOIN [1] AS x JOIN system.one ON 1",
    "SELECT * FROM (system.one)",
    "SELECT * FROM ((SELECT 1), system.one)",
    "SELECT 1 WHERE 1 IN system.one",
    "SELECT 1 WHERE 1 GLOBAL NOT IN system.one",
    "SELECT in(0, system.one)",
    "SELECT NOT in(0, system.one)",
    "SELECT 0 IN (system.one)",
    "SELECT `in`(0, system.one)",
    "SELECT globalIn(0, system.one)",
    "SELECT notNullIn(0, system.one)",
    "SELECT (SELECT count() FROM system.tables)",
    "WITH x AS (SELECT * FROM system.tables) SELECT * FROM x",
    "WITH system AS (SELECT 1 AS one) SELECT * FROM system.tables",
    "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x FROM system.one, t) SELECT * FROM t",
    "SELECT * FROM merge('system', '.*')",
    "SELECT * FROM merge('.*')",
    "SELECT * FROM cluster('default', system.one)",
    "SELECT * FROM clusterAllReplicas('default', system.one)",
    "SELECT * FROM view(SELECT * FROM system.tables)",
    "SELECT * FROM viewExplain('EXPLAIN', '', (SELECT 1))",
    "SELECT * FROM loop(system.one)",
    "SELECT * FROM mergeTreeIndex('invigilator', 'events')",
    "SELECT * FROM dictionary('x')",
    "SELECT * FROM input('x String')",
    "SELECT * FROM format(CSV, '1')",
    "SELECT * FROM generateRandom('x String')",
    "SELECT * FROM fuzzJSON(x)",
    "SELECT dictGet('x', 'y', 1)",
    "SELECT joinGet('system.tables', 'x', 1)",
    "SELECT hasColumnInTable('system', 'tables', 'name')",
    "SELECT getSetting('readonly')",
    "SELECT getServerSetting('x')",
    "SELECT getMacro('x')",
    "SELECT hostName(), currentUser(), serverUUID()",
    "SELECT queryID()",
    "SELECT sleep(3)",
    "SELECT sleepEachRow(3) FROM events",
    "SELECT addressToLine(1)",
    "SELECT logTrace('x')",
    "SELECT __getScalar('x')",
    "SELECT catboostEvaluate('/etc/passwd', 1)",
    "SELECT showCertificate()",
    "SELECT zookeeperSessionUptime()",
    "SELECT @@version",
    # settings and limits
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT * FROM (SELECT 1 SETTINGS max_execution_time = 0)",
    "SELECT 1 settings max_memory_usage = 0",
    "SELECT 1 Settings/**/x = 1",
    # ways round the judge
    "SELECT * APPLY(file)",
    "SELECT COLUMNS('x') APPLY file FROM events",
    "SELECT * FROM events APPLY toString",
    "SELECT * FROM {t:Identifier}",
    "SELECT {f:Identifier}('/etc/passwd')",
    "SELECT $$a$$",
    "SELECT $x$' ; DROP TABLE events; '$x$",
    "SELECT `a\\` , file('/etc/passwd') AS `b`",
    'SELECT "a\\" , file(\'/etc/passwd\') AS "b"',
    "SELECT \"a`, file('/etc/passwd') AS `b\"",
    "SELECT 1 AS `x``y`",
    "SELECT\u00a01",
    "SELECT ﬁle('/etc/passwd')",
    "SELECT 1\x00; DROP TABLE events",
    "SELECT '\x00' FROM file('x')",
    "SELECT <!-- x --> 1",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT 1" + " " * 70_000,
]


def test_what_researchers_write_is_answered(store: Store, tmp_path: Path) -> None:
    box = uuid.uuid4()
    made = Spool(tmp_path / "spool").append("events", rows(20, box), box)
    store.ingest(made.read_bytes(), made.header())
    for sql in READS:
        assert store.query(sql).num_rows >= 1, sql


@pytest.mark.parametrize("sql", ATTACKS)
def test_the_judge_refuses_every_attack(sql: str) -> None:
    with pytest.raises(NotAllowedError):
        readonly.admit(sql, TABLES)


def test_no_attack_reaches_a_file_an_address_or_a_row(store: Store, tmp_path: Path) -> None:
    secret = "root:x:0"  # a Python object of this name would be read by the engine's replacement scans
    assert secret
    calls: list[bytes] = []
    outfile = tmp_path / "out"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        port = listener.getsockname()[1]
        worker = threading.Thread(target=_accept, args=(listener, calls), daemon=True)
        worker.start()
        before = store.columns()
        for sql in ATTACKS:
            with pytest.raises(StoreError):
                store.query(sql.replace("{port}", str(port)).replace("{outfile}", str(outfile)))
        listener.shutdown(socket.SHUT_RDWR)
        worker.join(5)
    assert calls == [] and not outfile.exists()
    assert store._read_columns() == before


def _accept(listener: socket.socket, calls: list[bytes]) -> None:
    for _ in range(3):
        try:
            connection, _ = listener.accept()
            calls.append(b"called")
            connection.close()
        except OSError:
            return


ENGINE_ATTACKS = [
    "INSERT INTO events (seq) VALUES (1)",
    "DROP TABLE events",
    "SET readonly = 0",
    "SELECT 1 SETTINGS max_execution_time = 100",
    "CREATE TABLE x (a Int8) ENGINE = Memory",
    "SELECT * FROM file('/etc/passwd', 'LineAsString')",
    "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM remote('127.0.0.1:1', system.one)",
    "SELECT * FROM executable('id', 'LineAsString', 'x String')",
    "ALTER TABLE events DELETE WHERE 1",
    "SYSTEM STOP MERGES",
]


def test_the_engine_refuses_these_even_if_the_judge_were_fooled(store: Store) -> None:
    for sql in ENGINE_ATTACKS:
        with pytest.raises(StoreError):
            store._engine.read(sql, None, Limits())


BEYOND = [
    ("SELECT number FROM numbers(1000)", Limits(rows=10), "Limit for result exceeded"),
    (
        "SELECT repeat('x', 1000000) FROM numbers(100)",
        Limits(result_bytes=1 << 20),
        "Limit for result exceeded",
    ),
    ("SELECT repeat('x', 1000000) FROM numbers(100000)", Limits(), "exceeded"),
    ("SELECT uniqExact(number) FROM numbers(100000000)", Limits(memory_bytes=50 << 20), "emory limit"),
    ("SELECT sum(sipHash64(number)) FROM numbers(100000000000)", Limits(time_s=1), "[Tt]imeout exceeded"),
    ("SELECT seq, seq FROM events", Limits(), "two columns"),
]


def test_limits_hold_and_say_so(store: Store) -> None:
    for sql, limits, why in BEYOND:
        with pytest.raises(StoreError, match=why):
            store.query(sql, limits=limits)
    assert store.query("SELECT 1 AS x")["x"].to_pylist() == [1]


def test_parameters_are_values_never_text_of_the_query(store: Store) -> None:
    hostile = "'; DROP TABLE events; -- \\ \n\t ü"
    assert store.query("SELECT {x:String} AS x", {"x": hostile})["x"].to_pylist() == [hostile]


def test_a_quoted_name_ends_no_statement(store: Store) -> None:
    """Judge and engine read it alike: what stands between the quotes is a name, whatever it says."""
    names = ["a;b", "; DROP TABLE events; --", "/* x"]
    columns = ", ".join(f'{at} AS "{name}"' for at, name in enumerate(names))
    assert store.query(f"SELECT {columns}").to_pylist() == [dict(zip(names, range(3), strict=True))]
    assert store.query("SELECT `;` FROM (SELECT 3 AS `;`)").to_pylist() == [{";": 3}]
    assert store.query("SELECT count() AS n FROM events")["n"].to_pylist() == [0]


@given(st.text(max_size=60))
@settings(max_examples=MANY)
def test_a_text_is_written_anew_as_the_text_that_was_meant(text: str) -> None:
    literal = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert readonly.admit(f"SELECT {literal}", TABLES) == f"SELECT {literal}"


@example('";"')
@example("1 AS `;`")
@given(st.text(alphabet="SELECTfromINeventsysm.(),'\"`\\{}[]*/-;#$ \n:=x1", max_size=80))
@settings(max_examples=MANY)
def test_whatever_is_admitted_is_admitted_again_unchanged(tail: str) -> None:
    try:
        once = readonly.admit(f"SELECT {tail}", TABLES)
    except NotAllowedError:
        return
    assert readonly.admit(once, TABLES) == once
    quoted = r"'(?:[^'\\]|\\.)*'|`[^`]*`"
    assert ";" not in re.sub(quoted, "", once, flags=re.DOTALL)
