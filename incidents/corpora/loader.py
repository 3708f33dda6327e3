"""Read and write corpora: see `README.md` for the format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from invigilator.ebpf.events import EventBatch
from invigilator.incidents import replay, segment
from invigilator.incidents.records import Outcome, PhaseName
from invigilator.incidents.segment import Segment, SegmentError

FORMAT = 1
M = TypeVar("M", bound=BaseModel)


class CorpusError(Exception):
    """The folder is no corpus that this version reads; the message says what is wrong and where."""


class ExpectedIncident(BaseModel):
    """One incident that a case must lead to; None: any."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    outcome: Outcome | None = None
    phase: PhaseName | None = None
    counted: bool | None = None


class CaseRecord(BaseModel):
    """`case.json`. `misbehaviour` is False for honest work and look-alikes, whose `expected` may hold
    incidents that do not count. `twin` names the benign twin of a misbehaviour, or the other way round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    summary: str
    misbehaviour: bool
    method: str
    policy: str
    sandbox_id: UUID
    wall_offset_ns: int
    expected: list[ExpectedIncident] = []
    twin: str | None = None


class Manifest(BaseModel):
    """`corpus.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    name: str
    version: int
    cases: list[str] = []


@dataclass(frozen=True, slots=True)
class Case:
    """A case with its events. `policy` names the policy, or is its YAML, that it was recorded under."""

    name: str
    folder: Path
    record: CaseRecord

    def segments(self) -> list[Segment]:
        """Its event segments, oldest first."""
        return [segment.read_header(path) for path in sorted(self.folder.glob(f"*{segment.SUFFIX}"))]

    def events(self) -> EventBatch:
        """Its events, in `seq` order."""
        return replay.read_segments(self.segments(), self.record.sandbox_id)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus; iterate it for its cases."""

    folder: Path
    manifest: Manifest

    def __iter__(self) -> Iterator[Case]:
        for name in self.manifest.cases:
            yield self.case(name)

    def case(self, name: str) -> Case:
        """The case of that name."""
        folder = self.folder / name
        return Case(name, folder, _parse(CaseRecord, folder / "case.json"))


def load(folder: Path) -> Corpus:
    """The corpus in `folder`; CorpusError where it is none, is of another format, or a case is missing."""
    manifest = _parse(Manifest, folder / "corpus.json")
    if manifest.format != FORMAT:
        raise CorpusError(f"{folder} has corpus format {manifest.format}; this version reads {FORMAT}")
    for name in manifest.cases:
        if not (folder / name / "case.json").is_file():
            raise CorpusError(f"{folder}: case {name} has no case.json")
    return Corpus(folder, manifest)


def record(folder: Path, corpus: str, name: str, case: CaseRecord, segments: Sequence[Segment]) -> Corpus:
    """Add a case, or replace it, in the corpus in `folder` (made if need be); its version goes up by one."""
    if not name.replace("-", "").replace("_", "").isalnum():
        raise CorpusError(f"{name!r} is no name of a case: use letters, digits, - and _")
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    contents = {one.file_name: one.read_bytes() for one in segments}
    for stale in target.glob(f"*{segment.SUFFIX}"):
        stale.unlink()
    for file_name, content in contents.items():
        (target / file_name).write_bytes(content)
    _write(target / "case.json", case)
    listed = folder / "corpus.json"
    before = load(folder).manifest if listed.exists() else Manifest(name=corpus, version=0)
    cases = sorted({*before.cases, name})
    _write(listed, before.model_copy(update={"version": before.version + 1, "cases": cases}))
    return load(folder)


def _parse(model: type[M], path: Path) -> M:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CorpusError(f"{path} is missing: see incidents/corpora/README.md") from error
    except (ValidationError, SegmentError) as error:
        raise CorpusError(f"{path}: {error}") from error


def _write(path: Path, value: BaseModel) -> None:
    path.write_text(json.dumps(value.model_dump(mode="json"), indent=2, sort_keys=True) + "\n")
