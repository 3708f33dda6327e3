"""The spool: durable, ordered, bounded, and never half a segment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from spool_samples import BOX, events

from invigilator.incidents import segment
from invigilator.incidents.segment import Segment, SegmentError, SeqRange
from invigilator.incidents.spool import Spool, SpoolError, SpoolFullError
from invigilator.incidents.stamp import Origin, events_with_origin


def test_a_segment_comes_back_as_it_went_in(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    made = spool.append("events", events(3), BOX, origin=Origin("run", "r1", 2, 1_000))
    [found] = spool.pending()
    assert found == made
    assert (found.rows, found.sandbox_id, found.first_seq, found.last_seq) == (3, BOX, 1, 3)
    rows = found.read()
    assert rows["path"].to_pylist() == [b"", b"/bin/\xff\n", b"/etc/'\""]
    assert rows["rollout_id"].to_pylist() == [b"r1"] * 3
    assert rows["wall_time"].cast(pa.int64()).to_pylist() == [1_005, 1_006, 1_007]
    assert set(rows["segment_id"].to_pylist()) == {found.id.bytes}


def test_a_header_survives_the_wire_and_refuses_anything_else(tmp_path: Path) -> None:
    made = Spool(tmp_path).append("events", events(3), BOX)
    assert Segment.from_header(made.header()) == replace(made, path=None)
    assert made.header().isascii() and "\n" not in made.header()
    for bad in ("", "[]", "{}", made.header().replace('"rows": 3', '"rows": "3"')):
        with pytest.raises(SegmentError):
            Segment.from_header(bad)


def test_rows_of_several_sandboxes_share_a_segment_and_their_ranges_are_kept(tmp_path: Path) -> None:
    other = uuid.UUID(int=7)
    both = pa.concat_tables(
        [
            events_with_origin(events(4), Origin("a", "ra")),
            events_with_origin(events(2, other, 9), Origin("b", "rb")),
        ]
    )
    made = Spool(tmp_path).append("events", both, None)
    expected = {BOX: SeqRange(1, 4, 4), other: SeqRange(9, 10, 2)}
    assert made.ranges == expected and segment.read_header(made.path or Path()).ranges == expected
    assert made.read()["rollout_id"].to_pylist() == [b"ra"] * 4 + [b"rb"] * 2


def test_acknowledged_segments_are_gone_and_the_order_outlives_a_restart(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    made = [first.append("events", events(1), BOX) for _ in range(3)]
    first.acknowledge(made[0])
    first.acknowledge(made[0])
    first.close()
    second = Spool(tmp_path)
    later = second.append("events", events(1), BOX)
    assert [s.id for s in second.pending()] == [made[1].id, made[2].id, later.id]
    assert second.node_id == first.node_id


def test_what_was_appended_is_held_until_it_is_acknowledged_or_set_aside(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    sent, refused, kept = (spool.append("events", events(1), BOX) for _ in range(3))
    assert spool.holds([sent.id]) and spool.holds({refused.id, uuid.uuid4()}) and not spool.holds([])
    spool.acknowledge(sent)
    spool.quarantine(refused, "why not")
    assert not spool.holds([sent.id, refused.id]) and spool.holds([sent.id, kept.id])


def test_a_second_process_is_told_who_holds_the_spool(tmp_path: Path) -> None:
    held = Spool(tmp_path)
    with pytest.raises(SpoolError, match=rf"in use by process {os.getpid()} "):
        Spool(tmp_path)
    held.close()
    Spool(tmp_path).close()


def test_a_segment_without_rows_or_with_too_many_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(ValueError, match="1 to"):
        spool.append("events", events(0), BOX)
    with pytest.raises(ValueError, match="1 to"):
        spool.append("steps", pa.table({"a": np.zeros(segment.MAX_ROWS + 1)}), BOX)
    assert spool.pending() == []


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text", "renamed"])
def test_a_damaged_file_is_set_aside_with_a_reason_and_the_others_go_on(tmp_path: Path, damage: str) -> None:
    spool = Spool(tmp_path)
    bad, good = spool.append("events", events(50), BOX), spool.append("events", events(1), BOX)
    spool.close()
    path = tmp_path / bad.file_name
    content = path.read_bytes()
    if damage == "renamed":
        path.rename(tmp_path / bad.file_name.replace("events", "eventz"))
    else:
        flipped = content[:900] + bytes([content[900] ^ 0x55]) + content[901:]
        path.write_bytes(
            {"empty": b"", "cut": content[:500], "flipped": flipped, "text": b"hello" * 99}[damage]
        )
    again = Spool(tmp_path)
    pending = again.pending()
    if damage == "flipped":  # only reading everything can show it
        with pytest.raises(SegmentError, match="damaged"):
            pending[0].read_bytes()
        again.quarantine(pending[0], "its SHA-256 differs")
    assert [s.id for s in again.pending()] == [good.id]
    [(kept, reason)] = again.quarantined()
    assert kept.exists() and reason


def test_a_reader_accepts_its_version_and_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for version in (2, 3, 4, 5):
        monkeypatch.setattr(segment, "RECORD_SCHEMA_VERSION", version)
        spool = Spool(tmp_path)
        written.append(spool.append("steps", pa.table({"x": [version]}), None).id)
        spool.close()
    monkeypatch.setattr(segment, "RECORD_SCHEMA_VERSION", 4)
    reader = Spool(tmp_path)
    assert [s.id for s in reader.pending()] == written[1:3]
    reasons = [reason for _, reason in reader.quarantined()]
    assert len(reasons) == 2 and all("reads 3 and 4" in r for r in reasons)


def test_past_its_bound_the_spool_refuses_and_takes_rows_again_once_drained(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    first = spool.append("events", events(10), BOX)
    spool.max_bytes = first.size_bytes + 100
    with pytest.raises(SpoolFullError, match="guard serve"):
        spool.append("events", events(10), BOX)
    assert [s.id for s in spool.pending()] == [first.id]
    spool.acknowledge(first)
    spool.append("events", events(10), BOX)


def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "invigilator-test", disk], check=True)
    try:
        spool = Spool(disk / "spool")
        noise = pa.table({"x": np.random.default_rng(1).bytes(40_000 * 4)[:40_000].hex().split("f")})
        made = []
        with pytest.raises(SpoolFullError, match="free some"):
            for _ in range(50):
                made.append(spool.append("steps", noise, None))
        assert made, "nothing fitted at all"
        assert [s.id for s in spool.pending()] == [s.id for s in made]
        assert all(s.read().num_rows == noise.num_rows for s in spool.pending())
        assert list(spool.folder.glob("*.part")) == []
        spool.acknowledge(made[0])
        spool.append("steps", noise, None)
        spool.close()
    finally:
        subprocess.run(["umount", disk], check=True)


WRITER = """
import sys, uuid
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from spool_samples import BOX, events
from invigilator.incidents.spool import Spool
spool = Spool(Path(sys.argv[1]))
while True:
    print(spool.append("events", events(2000), BOX).id, flush=True)
"""


def test_a_kill_at_any_moment_loses_nothing_that_append_returned_for(tmp_path: Path) -> None:
    choose = random.Random(7)
    promised: set[str] = set()
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path, Path(__file__).parent], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        promised.add(writer.stdout.readline().strip())
        time.sleep(choose.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        promised.update(line.strip() for line in writer.stdout if line.endswith("\n"))
        writer.wait(10)
        writer.stdout.close()
    spool = Spool(tmp_path)
    pending = spool.pending()
    assert promised <= {str(s.id) for s in pending}
    assert spool.quarantined() == [] and list(tmp_path.glob("*.part")) == []
    assert {s.read().num_rows for s in pending} == {2000}
    assert [s.number for s in pending] == sorted({s.number for s in pending})
