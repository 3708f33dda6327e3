"""The table of system call numbers against the kernel's own headers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "ebpf" / "src" / "calls.h"
NAMES = {  # handlers that serve calls of other names say them in a comment
    "umount": "umount2",
    "memfd": "memfd_create",
    "perf_open": "perf_event_open",
    "handle_open": "open_by_handle_at",
    "pidfd_signal": "pidfd_send_signal",
    "io_uring": "io_uring_setup",
    "copy_range": "copy_file_range",
    "old_mmap": "mmap",
}


def numbers(header: str) -> dict[str, int]:
    text = subprocess.run(
        ["gcc", "-E", "-dM", "-x", "c", "-include", header, "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)$", text, re.M)}


def rows() -> list[tuple[str, str, int, int]]:
    found = re.findall(
        r"^\tCALL\((\w+), (\w+), (\w+), (\w+)\)\s*(?:/\* ([\w, ]+) \*/)? *\\?$", SOURCE.read_text(), re.M
    )
    number = {"NONE": 1023}
    return [
        (said or handler, handler, number.get(a) or int(a), number.get(b) or int(b))
        for handler, _, a, b, said in found
    ]


@pytest.mark.parametrize(("table", "header"), [(2, "asm/unistd_64.h"), (3, "asm/unistd_32.h")])
def test_numbers_are_the_kernels(table: int, header: str) -> None:
    known = {number: name for name, number in numbers(header).items()}
    checked = 0
    for row in rows():
        number = row[table]
        if number == 1023 or number not in known:
            continue  # headers may be older than a call
        wanted = {name.strip() for name in str(row[0]).split(",")}
        assert known[number] in wanted | {NAMES.get(str(row[1]), "")}, row
        checked += 1
    assert checked > 80


def test_every_call_that_can_write_a_name_is_in_both_tables() -> None:
    by_name = {name for row in rows() for name in str(row[0]).split(", ")}
    for name in (
        "open",
        "openat",
        "openat2",
        "rename",
        "renameat2",
        "link",
        "unlinkat",
        "symlinkat",
        "connect",
    ):
        row = next(r for r in rows() if r[0] == name)
        assert row[2] != 1023 and row[3] != 1023, row
    assert {"pwritev2", "process_vm_writev", "futimesat"} <= by_name
