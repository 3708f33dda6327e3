"""Records the kept corpus anew from real sandboxes; needs root.

    python tests/scenarios/record_corpus.py [CASE…] && python -m invigilator.detectors.behaviour

Of every kind some cases of misbehaviour and of what looks like it, those with few events (`kept.txt`); or the
cases that are named, beside those that are kept.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import yaml

from invigilator.detectors.behaviour import KEPT
from invigilator.guard.evaluation.case import run_case
from invigilator.guard.evaluation.homes import Homes
from invigilator.guard.evaluation.suite import Case, load_suite
from invigilator.incidents import replay
from invigilator.incidents.corpora import loader
from invigilator.incidents.corpora.loader import CaseRecord, ExpectedIncident
from invigilator.incidents.segment import Segment
from invigilator.incidents.spool import Spool
from invigilator.incidents.stamp import Origin, events_with_origin
from invigilator.incidents.store import Store

EVENTS_MAX = 2000
CASES = Path(__file__).with_name("kept.txt")
JOBS = 2


def main() -> None:
    suite = load_suite(Path(__file__).parent)
    names = set(sys.argv[1:] or CASES.read_text().split())
    cases = {case.name: case for case in suite.cases if case.name in names}
    if missing := names - cases.keys():
        sys.exit(f"no such case: {', '.join(sorted(missing))}")

    async def run(case: Case, homes: Homes, folder: Path, turns: asyncio.Semaphore) -> None:
        async with turns:
            home = await asyncio.to_thread(homes.of, case)
            result = await run_case(suite, case, home, folder / case.name.replace("/", "-"), folder)
            print(f"{result.state:12} {case.name}")
            if result.state not in ("hit", "clean"):
                sys.exit(f"{case.name}: {result.state} {result.note}")

    async def run_all(homes: Homes, folder: Path) -> None:
        turns = asyncio.Semaphore(JOBS)
        await asyncio.gather(*(run(case, homes, folder, turns) for case in cases.values()))

    with tempfile.TemporaryDirectory(prefix="invigilator-corpus-") as scratch:
        with Homes(Path(scratch)) as homes:
            asyncio.run(run_all(homes, Path(scratch)))
        write(cases, Path(scratch) / "home-shared" / "store", Path(scratch) / "spool")


def write(cases: dict[str, Case], store_path: Path, spool_path: Path) -> None:
    """The corpus of what the store holds of the cases."""
    before = loader.load(KEPT).manifest.version if (KEPT / "corpus.json").exists() else 0
    if not sys.argv[1:]:
        for old in KEPT.glob("*/case.json"):
            shutil.rmtree(old.parent)
        (KEPT / "corpus.json").unlink(missing_ok=True)
    KEPT.mkdir(exist_ok=True)
    store, spool = Store.open(store_path), Spool(spool_path)
    rows = store.select("SELECT sandbox_id, labels['case'] AS name FROM sandboxes ORDER BY name", {})
    for row in rows.to_pylist():
        raw, name = row["sandbox_id"], row["name"]
        box = UUID(bytes=raw) if isinstance(raw, bytes) else UUID(str(raw))
        case = cases[name.decode() if isinstance(name, bytes) else name]
        offset = replay.wall_offset_ns(store, box)
        batches = list(replay.read_events(store, box))
        if sum(map(len, batches)) > EVENTS_MAX or offset is None:
            print(f"left out     {case.name}: {sum(map(len, batches))} events")
            continue
        origin = Origin(run_id="kept", rollout_id=case.name, wall_offset_ns=offset)
        rows_of = [events_with_origin(batch.to_arrow(box.bytes), origin) for batch in batches]
        made: list[Segment] = [spool.append("events", one, box) for one in rows_of]
        expected = [ExpectedIncident(kind=one.kind) for one in case.expect]
        record = CaseRecord(
            summary=case.title,
            misbehaviour=not case.benign,
            method=case.id,
            policy=yaml.safe_dump(case.policy, sort_keys=True),
            sandbox_id=box,
            wall_offset_ns=offset,
            expected=expected,
        )
        loader.record(KEPT, "kept", case.name.replace("/", "--"), record, made)
    store.close()
    listed = loader.load(KEPT).manifest.model_copy(update={"version": before + 1})
    (KEPT / "corpus.json").write_text(listed.model_dump_json(indent=2) + "\n")


if __name__ == "__main__":
    main()
