"""What is said of AppArmor in every state that a machine can be in, and how its records are read."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from invigilator.sandbox import apparmor, audit


def machine(folder: Path, enabled: str | None = "Y", mode: str = "enforce", *, mounted: bool = True) -> Path:
    """Files as sysfs and securityfs show them."""
    if enabled is not None:
        (folder / "parameters").mkdir()
        (folder / "parameters/enabled").write_text(enabled + "\n")
        (folder / "parameters/mode").write_text(mode)
    if mounted:
        (folder / "kernel").mkdir()
        (folder / "kernel/.replace").touch()
    return folder


def tier(folder: Path, path: str = apparmor.PARSER_PATH) -> apparmor.Tier:
    return apparmor.tier(folder / "kernel", folder / "parameters", path)


@pytest.fixture
def with_parser(tmp_path: Path) -> str:
    tool = tmp_path / "bin/apparmor_parser"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return str(tool.parent)


def test_in_force(tmp_path: Path, with_parser: str) -> None:
    assert tier(machine(tmp_path), with_parser) == apparmor.Tier("enforce")


def test_not_in_the_kernel(tmp_path: Path, with_parser: str) -> None:
    found = tier(machine(tmp_path, None, mounted=False), with_parser)
    assert (found.state, found.why) == ("absent", "not in this kernel")


def test_in_the_kernel_but_switched_off(tmp_path: Path, with_parser: str) -> None:
    found = tier(machine(tmp_path, "N", mounted=False), with_parser)
    assert found.state == "absent"
    assert "switched off" in found.why
    assert "apparmor=1" in found.fix


def test_securityfs_is_not_mounted(tmp_path: Path, with_parser: str) -> None:
    found = tier(machine(tmp_path, mounted=False), with_parser)
    assert (found.state, found.fix.split()[0]) == ("absent", "mount")


def test_the_kernel_complains_only(tmp_path: Path, with_parser: str) -> None:
    found = tier(machine(tmp_path, mode="complain"), with_parser)
    assert found.state == "complain"
    assert "refuses nothing" in found.why


def test_the_kernel_leaves_everything_unconfined(tmp_path: Path, with_parser: str) -> None:
    assert tier(machine(tmp_path, mode="unconfined"), with_parser).state == "absent"


def test_no_parser(tmp_path: Path) -> None:
    found = tier(machine(tmp_path), str(tmp_path))
    assert (found.state, found.fix) == ("absent", "apt-get install apparmor")


DENIED = (
    b'audit(1700000000.123:45): apparmor="DENIED" operation="open" profile="invigilator-00" name=%s pid=77'
    b' comm="cat" requested_mask="r" denied_mask="r" fsuid=0 ouid=0'
)


def test_a_record_tells_what_was_refused() -> None:
    found = audit.parse(1400, DENIED % b'"/grader/a"', 3)
    assert found is not None
    assert (found.tier, found.allowed, found.pid, found.count) == ("apparmor", False, 77, 3)
    assert (found.operation, found.name) == ("open", b"/grader/a")
    assert found.time_ns == 1_700_000_000_123_000_000


@pytest.mark.parametrize("name", [b'/a b"c', b"/\xff\n", b'/x" apparmor="ALLOWED', b"/caf\xc3\xa9"])
def test_any_name_is_read_as_it_is(name: bytes) -> None:
    """The kernel writes what could be taken for syntax as hex digits (audit_log_n_untrustedstring)."""
    found = audit.parse(1400, DENIED % name.hex().upper().encode())
    assert found is not None
    assert (found.name, found.allowed) == (name, False)


def test_records_are_read_as_the_library_of_apparmor_reads_them() -> None:
    library = pytest.importorskip("LibAppArmor", reason="python3-libapparmor is not installed")
    text = DENIED % b"2F612062"
    theirs = library.parse_record("type=AVC msg=" + text.decode())
    ours = audit.parse(1400, text)
    assert ours is not None
    assert (theirs.operation, theirs.name.encode(), theirs.pid) == (ours.operation, ours.name, ours.pid)
    assert theirs.denied_mask.encode() == ours.fields["denied_mask"]


def test_complaints_are_no_refusals_and_other_records_are_nothing() -> None:
    for verdict in (b"ALLOWED", b"AUDIT"):
        told = audit.parse(1400, (DENIED % b'"/a"').replace(b"DENIED", verdict))
        assert told is not None
        assert told.allowed
    assert audit.parse(1400, (DENIED % b'"/a"').replace(b"DENIED", b"STATUS")) is None
    assert audit.parse(1300, DENIED % b'"/a"') is None


def test_a_filters_refusal_names_the_call() -> None:
    text = (
        b'audit(1.5:1): auid=0 uid=0 gid=0 ses=1 subj=invigilator-00 pid=9 comm=2229 exe="/bin/a" sig=0'
        b" arch=c000003e syscall=321 compat=0 ip=0x1 code=0x50000"
    )
    found = audit.parse(1326, text)
    assert found is not None
    assert (found.tier, found.pid, found.fields["syscall"], found.fields["comm"]) == (
        "seccomp", 9, b"321", b'")',
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="audit is root's to read")
def test_a_mark_comes_back_behind_what_was_before_it() -> None:
    try:
        reader = audit.AuditReader()
    except audit.UnavailableError as why:
        pytest.skip(str(why))
    poller = select.poll()
    poller.register(reader)
    try:
        before = reader.lost()
        reader.set_mark(7)
        for _ in range(100):
            poller.poll(100)
            reader.read()
            if reader.mark:
                break
        assert reader.mark == 7
        assert reader.lost() == before == 0
    finally:
        reader.close()
