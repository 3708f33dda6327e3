"""The kernel's audit records, read where they come and refused where they do not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from invigilator.sandbox.audit import AuditReader
from invigilator.sandbox.base import UnavailableError


@pytest.fixture
def reader() -> Iterator[AuditReader]:
    try:
        opened = AuditReader()
    except UnavailableError as error:
        pytest.skip(f"no audit record was read: {error}")
    yield opened
    opened.close()


def test_a_mark_comes_back_to_who_set_it_and_means_nothing_to_others(reader: AuditReader) -> None:
    other = AuditReader()
    try:
        before = other.mark
        reader.set_mark(reader.mark + 5)
        own, wanted = reader.mark, reader.mark + 5
        while reader.mark < wanted:
            reader.read()
        # What the one has met, the other has, and takes for nobody's.
        other.set_mark(before + 1)
        while other.mark < before + 1:
            other.read()
        assert (reader.mark, other.mark) == (own + 5, before + 1)
    finally:
        other.close()


def test_where_records_do_not_come_the_reader_says_so(reader: AuditReader) -> None:
    script = "from invigilator.sandbox import audit; audit.HEARD_S = 0.5; audit.AuditReader()"
    command = ["unshare", "--net", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, env={**os.environ})
    assert done.returncode != 0
    assert b"UnavailableError" in done.stderr, done.stderr
