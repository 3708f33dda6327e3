"""Whatever is killed, full or down: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_samples import rows
from store_server import Server

from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store, StoreError, StoreUnavailableError

BOX = uuid.uuid4()
SEGMENTS, ROWS = 40, 3000

SHIPPER = """
import sys
from pathlib import Path
from invigilator.incidents import segment
from invigilator.incidents.store import Store
store = Store.open(sys.argv[1])
store.migrate()
print("open", flush=True)
for path in sorted(Path(sys.argv[2]).glob("*.arrow")):
    header = segment.read_header(path)
    store.ingest(header.read_bytes(), header.header())
    path.unlink()
    print(header.id, flush=True)
print("done", flush=True)
store.close()
"""


@pytest.fixture
def spooled(tmp_path: Path) -> Path:
    spool = Spool(tmp_path / "spool")
    for i in range(SEGMENTS):
        spool.append("events", rows(ROWS, BOX, 1 + i * ROWS), BOX)
    spool.close()
    return spool.folder


def check_exact(target: str) -> None:
    """Every event once, in the table, in the roll-up and in the ledger."""
    store = Store.open(target)
    store.migrate()
    found = store.query(
        "SELECT count() AS n, uniqExact(seq) AS seqs, max(seq) AS last FROM events"
    ).to_pylist()
    assert found == [{"n": SEGMENTS * ROWS, "seqs": SEGMENTS * ROWS, "last": SEGMENTS * ROWS}]
    assert store.query("SELECT count() AS n FROM events_readable")["n"][0].as_py() == SEGMENTS * ROWS
    assert store.query("SELECT sum(events) AS n FROM activity_readable")["n"][0].as_py() == SEGMENTS * ROWS
    ledger = store.query("SELECT uniqExact(segment_id) AS ids, count() AS n FROM segments").to_pylist()
    assert ledger == [{"ids": SEGMENTS, "n": SEGMENTS}]
    store.close()


def first_line(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"


@pytest.mark.parametrize("kind", ["chdb", "server"])
def test_the_process_that_ingests_is_killed_again_and_again(
    kind: str,
    spooled: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    child: Callable[..., subprocess.Popen[str]],
) -> None:
    choose = random.Random(11)
    server: Server | None = request.getfixturevalue("shared_server") if kind == "server" else None
    target = f"{server.url}/t_{uuid.uuid4().hex}" if server else str(tmp_path / "store")
    for _ in range(8):
        shipper = child(SHIPPER, target, spooled)
        first_line(shipper)
        time.sleep(choose.uniform(0.0, 0.15))
        shipper.send_signal(signal.SIGKILL)
        shipper.wait(10)
    assert any(spooled.glob("*.arrow")), "the kills came too late to mean anything"
    last = child(SHIPPER, target, spooled)
    output, _ = last.communicate(timeout=60)
    assert output.endswith("done\n"), output
    check_exact(target)


def test_the_server_is_killed_again_and_again(spooled: Path, own_server: Server) -> None:
    choose = random.Random(5)
    spool = Spool(spooled)
    kills = 0
    store = Store.open(own_server.url)
    store.migrate()
    deadline = time.monotonic() + 60
    while spool.pending():
        assert time.monotonic() < deadline
        if kills < 4 and choose.random() < 0.15:
            os.kill(own_server.process.pid, signal.SIGKILL) if own_server.process else None
            kills += 1
        one = spool.pending()[0]
        try:
            store.ingest(one.read_bytes(), one.header())
            spool.acknowledge(one)
        except StoreUnavailableError:
            own_server.kill()
            own_server.start()
    assert kills == 4
    check_exact(own_server.url)


def test_a_server_that_is_down_is_said_and_served_again_once_it_is_back(
    own_server: Server, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool")
    store = Store.open(own_server.url)
    store.migrate()
    made = spool.append("events", rows(10, BOX), BOX)
    own_server.kill()
    with pytest.raises(
        StoreUnavailableError, match=r"http://127\.0\.0\.1:\d+ cannot be reached: Connection refused: "
    ):
        store.ingest(made.read_bytes(), made.header())
    own_server.start()
    assert not store.ingest(made.read_bytes(), made.header()).duplicate
    assert store.ingest(made.read_bytes(), made.header()).duplicate
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "invigilator-test", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


FILL = """
import sys, uuid
from pathlib import Path
from store_samples import rows
from store_server import Server
from invigilator.incidents.spool import Spool
from invigilator.incidents.store import Store, StoreError, StoreUnavailableError
disk, spool = Path(sys.argv[1]), Spool(Path(sys.argv[2]))
box = uuid.uuid4()
store = Store.open(disk / "store")
store.migrate()
made = [spool.append("events", rows(5000, box, 1 + i * 5000), box) for i in range(6)]
store.ingest(made[0].read_bytes(), made[0].header())
ballast = disk / "ballast"
with ballast.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
try:
    store.ingest(made[1].read_bytes(), made[1].header())
    print("TAKEN")
except StoreUnavailableError as error:
    print("REFUSED", error)
ballast.unlink()
for one in made:
    store.ingest(one.read_bytes(), one.header())
print(store.query("SELECT count() AS n, uniqExact(seq) AS s FROM events").to_pylist())
print(store.query("SELECT sum(events) AS n FROM activity_readable").to_pylist())
store.close()
"""


def test_a_full_disk_is_said_and_the_segment_is_taken_once_there_is_room(
    small_disk: Path, tmp_path: Path, child: Callable[..., subprocess.Popen[str]]
) -> None:
    output, _ = child(FILL, small_disk, tmp_path / "spool").communicate(timeout=60)
    lines = output.splitlines()
    assert lines[0].startswith("REFUSED") and "space" in lines[0], output
    assert lines[1:] == ["[{'n': 30000, 's': 30000}]", "[{'n': 30000}]"], output


def test_a_failed_insert_leaves_nothing_half_done(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    store.migrate()
    made = Spool(tmp_path / "spool").append("events", rows(10, BOX), BOX)
    store._engine.command("DROP VIEW activity_feed")
    store._engine.command(
        "CREATE MATERIALIZED VIEW activity_feed TO activity "
        "AS SELECT sandbox_id, throwIf(1) AS kind FROM events"
    )
    with pytest.raises(StoreError):
        store.ingest(made.read_bytes(), made.header())
    store._engine.command("DROP VIEW activity_feed")
    assert not list((tmp_path / "store").glob("incoming-*"))
    store.ingest(made.read_bytes(), made.header())
    assert store.query("SELECT count() AS n FROM events")["n"].to_pylist() == [10]
    store.close()
