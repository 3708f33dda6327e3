"""When a disk's limit was used up, by what the kernel counts; which disk a file lies on."""

from __future__ import annotations

from pathlib import Path

import pytest

from invigilator.profiles.limits import IoValues
from invigilator.sandbox import disks
from invigilator.sandbox.diskuse import DiskUse, counts_v1, counts_v2

MIB = 1 << 20
WRITE = ("7:1", "write_bytes_per_s")


def test_counts_of_v1_and_v2_are_the_same() -> None:
    serviced = "7:1 Read 3\n7:1 Write 4\n7:1 Sync 7\n7:1 Total 7\nTotal 7\n"
    service_bytes = "7:1 Read 30\n7:1 Write 40\n7:1 Discard 0\nTotal 70\n"
    stat = "7:1 rbytes=30 wbytes=40 rios=3 wios=4 dbytes=0 dios=0\n254:0\n"
    wanted = {
        ("7:1", "read_bytes_per_s"): 30,
        ("7:1", "write_bytes_per_s"): 40,
        ("7:1", "read_ops_per_s"): 3,
        ("7:1", "write_ops_per_s"): 4,
    }
    assert counts_v1(serviced, service_bytes) == wanted
    assert counts_v2(stat) == wanted
    assert counts_v1("", "") == counts_v2("") == {}


def test_a_look_tells_of_nine_tenths_of_a_limit() -> None:
    use = DiskUse(IoValues(write_bytes_per_s=MIB), since_s=100.0)
    use.look(110.0, {WRITE: 8 * MIB})
    assert use.hits == 0
    use.look(120.0, {WRITE: 17 * MIB})
    assert (use.hits, use.maximum) == (1, MIB)
    use.look(130.0, {WRITE: 17 * MIB})
    assert use.hits == 1
    use.look(140.0, {WRITE: 27 * MIB})
    assert use.hits == 2


def test_a_look_too_soon_is_put_together_with_the_next() -> None:
    use = DiskUse(IoValues(write_bytes_per_s=MIB), since_s=0.0)
    use.look(0.5, {WRITE: MIB})
    assert use.hits == 0
    use.look(10.0, {WRITE: MIB})
    assert use.hits == 0, "a short peak"
    use.look(12.0, {WRITE: 3 * MIB})
    assert use.hits == 1


def test_what_is_not_limited_is_never_used_up() -> None:
    use = DiskUse(IoValues(read_ops_per_s=5), since_s=0.0)
    use.look(10.0, {WRITE: 1 << 40, ("7:1", "read_ops_per_s"): 44})
    assert use.hits == 0
    use.look(20.0, {("7:1", "read_ops_per_s"): 89})
    assert (use.hits, use.maximum) == (1, 5)


def test_a_partition_is_limited_by_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "devices" / "sda"
    (disk / "sda2").mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (disk / "uevent").write_text("MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n")
    (disk / "sda2" / "partition").write_text("2\n")
    (disk / "sda2" / "dev").write_text("8:2\n")
    block = tmp_path / "block"
    block.mkdir()
    (block / "8:2").symlink_to(disk / "sda2")
    (block / "8:0").symlink_to(disk)
    monkeypatch.setattr(disks, "_BLOCK", block)
    assert disks._whole("8:2") == disks._whole("8:0") == disks.Disk("8:0", "/dev/sda")
    assert disks._whole("0:43") is None


def test_files_in_memory_lie_on_no_disk_and_others_may_be_unknown() -> None:
    assert disks.below(["/dev/shm"]) == ((), True)
    assert disks.below(["/proc"]) == ((), False)
    assert disks.Disks.of([], ["/proc"], []).complete is False
    assert disks.Disks.of([], ["/dev/shm"], []) == disks.Disks()
