"""An agent dies between a verdict's storing and its telling: the report on the death is the later one."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path

from invigilator.guard.failed import failed_report
from invigilator.guard.keep import Keeper
from invigilator.guard.order import SandboxOrder
from invigilator.incidents.spool import Spool
from invigilator.profiles import library


def test_the_report_on_the_death_goes_over_a_verdict_that_nobody_was_told(tmp_path: Path) -> None:
    spool, marks, box = Spool(tmp_path / "spool"), tmp_path / "marks", str(uuid.uuid4())
    marks.mkdir()
    order = SandboxOrder(policy=library.load("base"), rollout_id="r")
    keeper = Keeper(spool, marks)
    keeper.keep(order, failed_report(order, "stands for a verdict", sandbox_id=box), 0)
    mark = {
        "sandbox_id": box,
        "started_at": datetime.now(UTC).isoformat(),
        "order": order.model_dump(mode="json"),
    }
    (marks / "m.json").write_text(json.dumps(mark))
    assert keeper.recover() == 1 and not list(marks.iterdir())
    for table in ("penalties", "rollouts", "sandboxes", "coverage"):
        told, died = [one.read()["revision"].to_pylist() for one in spool.pending() if one.table == table]
        assert max(told) < min(died), table
    spool.close()
