"""Serials → strings: mount tables, redaction, forgetting."""

from __future__ import annotations

import numpy as np
import pytest

from invigilator.ebpf.events import EVENT, EventBatch, Flag, Records
from invigilator.ebpf.redact import redact
from invigilator.ebpf.strings import (
    ROLE_ARGV,
    ROLE_JOINED,
    ROLE_OBJECT,
    ROLE_SAID,
    SERIALS,
    Mount,
    MountTable,
    StringTable,
)


def events(*paths: int) -> Records:
    records = np.zeros(len(paths), EVENT)
    records["path"] = paths
    return records


def resolve(table: StringTable, records: Records) -> EventBatch:
    places = table.places(records)
    return table.localise(records, places, table.missing(places))


def test_serials_become_codes_of_the_batch() -> None:
    table = StringTable()
    for serial in range(1, 6):
        table.add(serial, 1, 0, ROLE_SAID, b"s%d" % serial)
    batch = resolve(table, events(5, 0, 2, 5))
    assert [batch.text("path", row) for row in range(4)] == [b"s5", b"", b"s2", b"s5"]
    assert batch.strings == [b"", b"s2", b"s5"]


def test_what_has_not_arrived_is_missing_then_flagged() -> None:
    table = StringTable()
    table.add(1, 1, 0, ROLE_SAID, b"one")
    records = events(1, 2, 999999)
    missing = table.missing(table.places(records))
    assert missing is not None and missing.tolist() == [False, True, True]
    batch = resolve(table, records)
    assert batch.records["path"].tolist() == [1, 0, 0]
    assert (batch.records["flags"] & int(Flag.STRING_LOST)).tolist() == [0, 512, 512]


def test_own_strings_and_kernel_strings_share_a_batch() -> None:
    table = StringTable()
    table.add(1, 1, 0, ROLE_SAID, b"kernel")
    own = table.add_own(b"own")
    assert own >= SERIALS
    batch = resolve(table, events(own, 1, own))
    assert [batch.text("path", row) for row in range(3)] == [b"own", b"kernel", b"own"]
    table.drop_own([own])
    assert len(table) == 1


def test_old_strings_are_forgotten_and_memory_stays_flat() -> None:
    table = StringTable()
    serial = 1
    for _ in range(5):
        for _ in range(10000):
            table.add(serial, 1, 0, ROLE_SAID, b"%d" % serial)
            serial += 1
        table.drop_before(serial - 100)
        assert len(table) == 100
        batch = resolve(table, events(serial - 1, serial - 100, serial - 101))
        assert batch.text("path", 0) == b"%d" % (serial - 1)
        assert batch.text("path", 1) == b"%d" % (serial - 100)
        assert batch.records["flags"][2] & int(Flag.STRING_LOST)
    assert len(table._present) < 50000


def test_serials_may_wrap() -> None:
    table = StringTable()
    table._base = SERIALS - 2
    table.add(SERIALS - 1, 1, 0, ROLE_SAID, b"last")
    table.add(1, 1, 0, ROLE_SAID, b"first again")
    batch = resolve(table, events(SERIALS - 1, 1))
    assert [batch.text("path", row) for row in range(2)] == [b"last", b"first again"]


MOUNTS = [
    Mount(5, b"/", b"/"),
    Mount(5, b"/srv/box", b"/workspace"),
    Mount(7, b"/", b"/usr"),
    Mount(9, b"/only/this", b"/etc/file"),
]


@pytest.mark.parametrize(
    ("dev", "path", "inside"),
    [
        (5, b"/srv/box", b"/workspace"),
        (5, b"/srv/box/a", b"/workspace/a"),
        (5, b"/srv/boxes", b"/srv/boxes"),
        (5, b"/", b"/"),
        (7, b"/bin/sh", b"/usr/bin/sh"),
        (7, b"/", b"/usr"),
        (9, b"/only/this", b"/etc/file"),
        (9, b"/other", b"/other"),
        (11, b"/x", b"/x"),
    ],
)
def test_mount_table_maps_by_the_longest_root(dev: int, path: bytes, inside: bytes) -> None:
    assert MountTable(MOUNTS).map(dev, path) == inside


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"/srv/box\0x", b"/workspace/x"),
        (b"/srv\0box/x", b"/srv/box/x"),
        (b"/srv/box\0../x", b"/x"),
        (b"/\0/etc//passwd/.", b"/etc/passwd"),
        (b"/\0../../..", b"/"),
    ],
)
def test_what_was_said_is_joined_to_the_mapped_folder(raw: bytes, path: bytes) -> None:
    table = StringTable()
    table.set_mounts(1, MOUNTS)
    table.add(1, 1, 5, ROLE_JOINED, raw)
    table.add(2, 2, 5, ROLE_OBJECT, b"/srv/box/x")
    batch = resolve(table, events(1, 2))
    assert batch.text("path", 0) == path
    assert batch.text("path", 1) == b"/srv/box/x"  # another sandbox's mounts do not count


SECRETS = [
    (b"aws\0AKIAIOSFODNN7EXAMPLE", b"aws\0[redacted]"),
    (b"git\0clone\0https://u:hunter2@h/x", b"git\0clone\0https://u:[redacted]@h/x"),
    (b"x\0--password\0hunter2", b"x\0--password\0[redacted]"),
    (b"x\0--db-password=hunter2\0y", b"x\0--db-password=[redacted]\0y"),
    (b"env\0API_KEY=abc\0cmd", b"env\0API_KEY=[redacted]\0cmd"),
    (b"curl\0-H\0Authorization: Bearer abc.def", b"curl\0-H\0Authorization: Bearer [redacted]"),
    (b"curl\0-H\0authorization: token ghp_" + b"a" * 36, b"curl\0-H\0authorization: token [redacted]"),
    (b"e\0sk-proj-" + b"A1" * 20, b"e\0[redacted]"),
    (b'c\0-d\0{"password": "hunter2"}', b'c\0-d\0{"password": "[redacted]"}'),
]


@pytest.mark.parametrize(("raw", "clean"), SECRETS)
def test_credentials_are_redacted(raw: bytes, clean: bytes) -> None:
    assert redact(raw) == clean
    table = StringTable()
    table.add(1, 1, 0, ROLE_ARGV, raw)
    records = np.zeros(1, EVENT)
    records["text"] = 1
    batch = resolve(table, records)
    assert batch.text("text", 0) == clean
    assert batch.records["flags"][0] == int(Flag.REDACTED)


@pytest.mark.parametrize(
    "plain",
    [
        b"grep\0-r\0password\0.",
        b"pytest\0tests/test_token.py",
        b"ls\0--all\0skeleton-of-things",
        b"python\0-c\0print(1)\0",
        b"tokenize\0--fast",
        b"ssh\0host:path",
    ],
)
def test_ordinary_arguments_are_left_alone(plain: bytes) -> None:
    assert redact(plain) is plain
