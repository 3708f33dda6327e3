"""An agent without a kernel: recorded sandboxes, many at once, through the real spool, shipper and keeper.

    python replaying.py HOME LOG STOP SEED [PLAN]

Does what `guard agent` does from ring to store, in its order: recover, mark, spool, judge, keep, unmark,
ship. Each line of LOG is on disk before what follows happens: `begin`, `ack` once a segment was acknowledged
by the spool, `done` once a verdict was. It begins rollouts until STOP exists, or those of PLAN (JSON:
[[rollout, attempt], …]).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from invigilator.detectors.behaviour import KEPT
from invigilator.detectors.engine import Engine
from invigilator.ebpf.events import EventBatch
from invigilator.ebpf.sensor import Loss
from invigilator.guard.home import Home, write_atomically
from invigilator.guard.keep import Keeper
from invigilator.guard.order import SandboxOrder
from invigilator.guard.progress import Progress
from invigilator.guard.ship import Shipper
from invigilator.guard.verdict import Course, Evidence, judge
from invigilator.incidents.corpora import loader
from invigilator.incidents.records import Report
from invigilator.incidents.segment import Segment
from invigilator.incidents.spool import Spool, SpoolError, SpoolFullError
from invigilator.incidents.stamp import Origin, events_with_origin
from invigilator.profiles import library

AT_ONCE = 4
PIECE = 200
"""Events a segment, about; each rollout's are cut at places of its own."""
WAITING_MOST = 200
RUN = "faults"
NAMESPACE = uuid.UUID("8e2f6d3c-6c3e-4f8e-9d5e-3f1b7a1f0d11")


def sandbox_of(rollout: str, attempt: int) -> uuid.UUID:
    """The sandbox of a rollout's attempt: the same in a disturbed run and in an undisturbed one."""
    return uuid.uuid5(NAMESPACE, f"{rollout}/{attempt}")


def case_of(rollout: str) -> str:
    """The recorded case that a rollout repeats."""
    return rollout.rpartition("~")[0]


def order_of(case: loader.Case, rollout: str, attempt: int) -> SandboxOrder:
    """What a client would have asked for."""
    text = case.record.policy
    policy = library.load_text(text).policy if "\n" in text else library.load(text)
    return SandboxOrder(policy=policy, rollout_id=rollout, run_id=RUN, attempt=attempt)


def verdict_of(
    case: loader.Case, order: SandboxOrder, box: uuid.UUID, engine: Engine, progress: Progress
) -> Report:
    """The verdict of an engine that was fed all of a case's events."""
    seqs = case.events().records["seq"]
    last = int(seqs[-1])
    engine.feed_loss({}, last)
    engine.finish()
    evidence = Evidence(engine.incidents(), True, Loss(last, 0), len(seqs), len(seqs), last)
    return judge(order, Course(str(box), progress, {}), evidence)


def verdict_at_once(corpus: loader.Corpus, rollout: str, attempt: int) -> tuple[Report, int]:
    """The verdict on an attempt to which nothing happens, and its wall offset: judged in one piece, here."""
    case, box = corpus.case(case_of(rollout)), sandbox_of(rollout, attempt)
    order = order_of(case, rollout, attempt)
    engine = Engine(order.policy, box, case.record.wall_offset_ns)
    engine.feed(case.events())
    return verdict_of(case, order, box, engine, Progress()), case.record.wall_offset_ns


class Log:
    """Lines that are on disk once `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._guard = threading.Lock()

    def write(self, **what: Any) -> None:
        """Add a line; one write, so that a killed process leaves it whole or not at all."""
        with self._guard:
            os.write(self._file, json.dumps(what).encode() + b"\n")
            os.fsync(self._file)


class Replayer:
    """The parts of an agent that need no kernel."""

    def __init__(self, home: Home, log: Path, pieces: int) -> None:
        self.home, self.pieces = home, pieces
        self.log = Log(log)
        self.spool = Spool(home.spool, node_id=home.node_id())
        self.keeper = Keeper(self.spool, home.rollouts)
        self.shipper = Shipper(home, self.spool, lambda _segment: None)
        self.corpus = loader.load(KEPT)
        self.shipper.start()
        self.keeper.recover()
        self.shipper.wake()

    def rollout(self, rollout: str, attempt: int) -> None:
        """One rollout from its mark to its verdict."""
        case = self.corpus.case(case_of(rollout))
        order, box = order_of(case, rollout, attempt), sandbox_of(rollout, attempt)
        self.log.write(what="begin", rollout=rollout, attempt=attempt)
        progress = Progress()
        mark = self.home.rollouts / f"{box}.json"
        began = progress.started_at.isoformat()
        record = {"sandbox_id": str(box), "started_at": began, "order": order.model_dump(mode="json")}
        self._patient(lambda: write_atomically(mark, json.dumps(record).encode(), 0o600))
        offset = case.record.wall_offset_ns
        origin = Origin(RUN, rollout, attempt, offset)
        engine = Engine(order.policy, box, offset)
        for piece in pieces_of(case.events(), self.pieces):
            self._append(piece, box, origin)
            engine.feed(piece)
        report = verdict_of(case, order, box, engine, progress)
        try:
            self.keeper.keep(order, report, offset)
        except SpoolError:
            # As guard/rollout.py: told as failed, and the mark that stays has the next agent store that.
            return
        self.log.write(what="done", rollout=rollout, attempt=attempt)
        mark.unlink(missing_ok=True)
        self.shipper.wake()

    def _append(self, piece: EventBatch, box: uuid.UUID, origin: Origin) -> None:
        while sum(1 for _ in self.home.spool.iterdir()) > WAITING_MOST:
            time.sleep(0.05)
        rows = events_with_origin(piece.to_arrow(box.bytes), origin)
        segment: Segment = self._patient(lambda: self.spool.append("events", rows, box))
        first, last = int(piece.records["seq"][0]), int(piece.records["seq"][-1])
        self.log.write(
            what="ack", sandbox=str(box), segment=str(segment.id), first=first, last=last, rows=len(piece)
        )
        self.shipper.wake()

    def _patient(self, action: Any) -> Any:
        """As the pipeline does: what a full disk does not take now is tried again."""
        while True:
            try:
                return action()
            except (SpoolFullError, OSError):
                time.sleep(0.05)


def pieces_of(events: EventBatch, number: int) -> list[EventBatch]:
    """The events in parts, cut where `number` says; verdicts do not depend on it."""
    choose = random.Random(number)
    cuts = [0]
    while cuts[-1] < len(events):
        cuts.append(min(len(events), cuts[-1] + choose.randrange(1, 2 * PIECE)))
    return [EventBatch(events.records[a:b], events.strings) for a, b in itertools.pairwise(cuts) if b > a]


def read_log(path: Path) -> list[dict[str, Any]]:
    """The log's lines."""
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def work(folder: str, log: str, stop: str, seed: str, plan: str | None = None) -> None:
    """Replay until told to stop, or what the plan says; then wait until all is shipped."""
    replayer = Replayer(Home(Path(folder)), Path(log), int(seed))
    names = replayer.corpus.manifest.cases
    tried: dict[str, int] = {}
    done: set[str] = set()
    for line in read_log(Path(log)):
        if line["what"] == "begin":
            tried[line["rollout"]] = max(line["attempt"], tried.get(line["rollout"], 0))
        elif line["what"] == "done":
            done.add(line["rollout"])
    left: list[tuple[str, int]] = [(name, tried[name] + 1) for name in tried if name not in done]
    if plan is not None:
        left = [(name, attempt) for name, attempt in json.loads(Path(plan).read_text())]
    guard, fresh = threading.Lock(), len(tried)

    def following() -> tuple[str, int] | None:
        nonlocal fresh
        with guard:
            if left:
                return left.pop()
            if plan is not None or Path(stop).exists():
                return None
            fresh += 1
            return f"{names[fresh % len(names)]}~{fresh}", 1

    def lane() -> None:
        while (one := following()) is not None:
            replayer.rollout(*one)

    with ThreadPoolExecutor(AT_ONCE) as lanes:
        for lane_done in [lanes.submit(lane) for _ in range(AT_ONCE)]:
            lane_done.result()
    while replayer.spool.pending():
        replayer.shipper.wake()
        time.sleep(0.05)
    replayer.shipper.stop()
    print("all shipped", flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
