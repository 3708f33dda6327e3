"""A corpus keeps a case's events and what is expected of them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from spool_samples import BOX, events

from invigilator.incidents.corpora import loader
from invigilator.incidents.corpora.loader import CaseRecord, CorpusError, ExpectedIncident
from invigilator.incidents.segment import SegmentError
from invigilator.incidents.spool import Spool


def case(summary: str = "overwrites /bin/bash") -> CaseRecord:
    return CaseRecord(
        summary=summary,
        misbehaviour=True,
        method="rename",
        policy="swe-task",
        sandbox_id=BOX,
        wall_offset_ns=5,
        expected=[ExpectedIncident(kind="system_binary_overwrite")],
    )


def test_a_recorded_case_comes_back_and_each_change_is_a_new_version(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    made = [spool.append("events", events(5, BOX, first), BOX) for first in (1, 6)]
    other = spool.append("events", events(3, uuid.uuid4()), None)
    loader.record(tmp_path / "corpus", "base", "bash", case(), [made[1], made[0], other])
    corpus = loader.record(tmp_path / "corpus", "base", "bash", case("again"), made)
    assert (corpus.manifest.name, corpus.manifest.version) == ("base", 2)
    [found] = corpus
    assert found.record == case("again")
    assert found.events().records["seq"].tolist() == list(range(1, 11))
    assert found.events().text("path", 1) == b"/bin/\xff\n"


def test_a_corpus_that_is_none_or_damaged_is_said(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"corpus\.json is missing"):
        loader.load(tmp_path)
    spool = Spool(tmp_path / "spool")
    made = spool.append("events", events(5), BOX)
    corpus = loader.record(tmp_path / "c", "base", "one", case(), [made])
    path = tmp_path / "c" / "one" / made.file_name
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(SegmentError, match="damaged"):
        corpus.case("one").events()
    (tmp_path / "c" / "one" / "case.json").write_text('{"summary": 1}')
    with pytest.raises(CorpusError, match="misbehaviour"):
        corpus.case("one")
    with pytest.raises(CorpusError, match="no name of a case"):
        loader.record(tmp_path / "c", "base", "../x", case(), [])
    (tmp_path / "c" / "corpus.json").write_text('{"format": 9, "name": "x", "version": 1}')
    with pytest.raises(CorpusError, match="format 9"):
        loader.load(tmp_path / "c")
