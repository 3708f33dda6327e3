"""AppArmor, seccomp, cgroup limits and the sensor in one kernel: what is refused is in the record."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from battery import PLANTED, TOOL, only, policy_of

from invigilator.ebpf.events import EventClass, Kind, Tier
from invigilator.ebpf.sensor import Sensor
from invigilator.guard import backends, refusals
from invigilator.guard.home import Home
from invigilator.guard.keep import Keeper
from invigilator.guard.order import CommandOrder, SandboxOrder
from invigilator.guard.pipeline import Pipeline
from invigilator.guard.rollout import Rollout
from invigilator.guard.services import Services
from invigilator.guard.ship import Shipper
from invigilator.incidents.records import Report
from invigilator.incidents.spool import Spool

HOME = Path("/var/lib/invigilator")


class Unshipped:
    """In the place of the shipper: this node has no store, and the spool is read instead."""

    def wake(self) -> None:
        """Nothing waits."""

    def wait_for(self, segments: Sequence[Any], timeout_s: float) -> bool:
        """Nothing will come."""
        return False


@dataclass
class Node:
    """An agent's parts, in this process."""

    services: Services
    spool: Spool

    def events(self, report: Report) -> list[dict[str, Any]]:
        """A sandbox's events, by seq."""
        rows = [
            row
            for segment in self.spool.pending()
            if segment.table == "events"
            for row in segment.read().to_pylist()
        ]
        wanted = report.sandbox_id.replace("-", "")
        found = [row for row in rows if _hex(row["sandbox_id"]) == wanted]
        return sorted(found, key=lambda row: int(row["seq"]))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _hex(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value).replace("-", "")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    home = Home.locate(HOME)
    home.make()
    sensor = Sensor.open(bulk_bytes=8 << 20, precious_bytes=4 << 20, string_bytes=4 << 20)
    spool = Spool(home.spool, node_id=home.node_id())
    pipeline = Pipeline(sensor, spool, lambda: None)
    reader = refusals.open_here(sensor)
    assert reader.claimed
    pipeline.beside(reader.step)
    kinds = backends.load(home)
    shipper = cast(Shipper, Unshipped())
    services = Services(home, sensor, pipeline, shipper, Keeper(spool, home.rollouts), kinds, reader)
    for backend in kinds.values():
        if (folder := backend.parent_cgroup()) is not None:
            sensor.attach_network(folder)
    pipeline.start()
    yield Node(services, spool)
    for backend in kinds.values():
        backend.close()
    pipeline.stop()
    reader.close()
    sensor.close()
    spool.close()


@dataclass
class Course:
    """A rollout that has ended."""

    report: Report
    events: list[dict[str, Any]]
    said: dict[str, str] = field(default_factory=dict)

    def denials(self, **fields: Any) -> list[dict[str, Any]]:
        """Events of kind DENIAL with these fields."""
        found = [row for row in self.events if row["kind"] in (int(Kind.DENIAL), "DENIAL", "denial")]
        return [row for row in found if all(row[name] == value for name, value in fields.items())]

    def joined(self, denial: dict[str, Any]) -> dict[str, Any]:
        """The event of the call that was refused."""
        found = [row for row in self.events if row["seq"] == denial["a1"]]
        same = [row for row in self.events if row["pid"] == denial["pid"]]
        shown = [
            [row[name] for name in ("seq", "kind", "result", "path", "path2", "time_ns")] for row in same
        ]
        assert found, "\n".join(map(str, (denial, *shown)))
        return found[0]


def play(node: Node, policy: str, scripts: dict[str, str], **more: Any) -> Course:
    """One rollout of some commands."""
    order = SandboxOrder(policy=policy_of(policy).model_copy(update=more), rollout_id=os.urandom(4).hex())
    rollout = Rollout(node.services, order)
    said = {}
    rollout.open()
    try:
        for path, content in PLANTED.items():
            rollout.write_file(path, content, 0o644)
        rollout.write_file("/usr/local/bin/raw", TOOL.read_bytes(), 0o755)
        for name, script in scripts.items():
            out, into = os.pipe()
            null = os.open("/dev/null", os.O_RDWR)
            running = rollout.execute(CommandOrder(command=script, timeout_s=120), null, into, into)
            os.close(into)
            with os.fdopen(out, "rb") as stream:
                said[name] = stream.read().decode(errors="replace")
            rollout.wait(running)
            os.close(null)
        report = rollout.verdict()
    finally:
        rollout.close()
    return Course(report, node.events(report), said)


ATTACKS = {
    "grader": "cat /grader/tests.py",
    "reward": "echo 1 >/logs/verifier/reward.txt",
    "program": "echo x >>/bin/tac",
    "rename": "mv -T /grader /tmp/moved",
    "hostile": 'mkdir -p /logs/verifier; : >"/logs/verifier/a\\" apparmor=x\n"',
    "keyring": "raw keyctl 250 0 -3 1",
    "foreign": "raw socket 41 2 3 1",
}


@pytest.fixture(scope="module")
def attacked(node: Node) -> Course:
    """With the masks off, which would refuse the same before AppArmor is asked."""
    with only(frozenset({"apparmor", "seccomp", "capabilities"})):
        return play(node, "strict", ATTACKS)


def test_every_tier_is_in_force_and_the_record_is_whole(node: Node, attacked: Course) -> None:
    assert attacked.report.failure is None
    assert {name: attacked.report.enforcement[name] for name in ("apparmor", "seccomp", "cgroup")} == {
        "apparmor": "enforce", "seccomp": "enforce", "cgroup": "enforce",
    }  # fmt: skip
    told = node.services.denials
    assert told is not None
    assert attacked.report.coverage["denial"] == "ok", (told._left_out, told._reader.lost(), told._reached)
    assert attacked.report.status == "final"


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/grader/tests.py", "open"),
        ("/logs/verifier/reward.txt", "mknod"),
        ("/usr/bin/tac", "open"),
        ('/logs/verifier/a" apparmor=x\n', "mknod"),
    ],
)
def test_a_refusal_of_apparmor_is_an_event_joined_to_its_call(attacked: Course, path: str, word: str) -> None:
    about = [row for row in attacked.denials() if row["path"] in (path, path.encode())]
    found = [row for row in about if _text(row["text"]).startswith(word)]
    assert found, ([(row["path"], row["text"]) for row in attacked.denials()], attacked.said)
    denial = found[0]
    call = attacked.joined(denial)
    assert call["result"] in (-13, -1), denial
    assert call["pid"] == denial["pid"]
    assert denial["phase"] == call["phase"]


def test_a_refusal_of_seccomp_is_an_event_joined_to_its_call(attacked: Course) -> None:
    found = [row for row in attacked.denials() if "keyctl" in _text(row["text"])]
    assert found, ([(row["path"], row["text"]) for row in attacked.denials()], attacked.said)
    assert int(found[0]["tiers"]) & int(Tier.SECCOMP)
    call = attacked.joined(found[0])
    assert call["result"] == -1


def test_honest_work_has_no_denial(node: Node) -> None:
    work = {
        "git": "git init -q r && cd r && echo x >f && git add f"
        " && git -c user.name=n -c user.email=a@b commit -qm m",
        "python": "python3 -c 'import json, sqlite3, subprocess; subprocess.run([\"true\"], check=True)'",
        "tar": "mkdir d && echo 1 >d/e && tar cf d.tar d && tar tf d.tar",
        "node": "node -e 'console.log(1 + 1)'",
    }
    course = play(node, "swe-task", work)
    assert [phase.exit.code for phase in course.report.phases if phase.exit] == [0], course.said
    assert not course.denials()
    assert course.report.coverage["denial"] == "ok"


def test_a_policy_that_requires_apparmor_starts_here(node: Node) -> None:
    course = play(node, "swe-task", {"true": "true"}, require=["apparmor", "seccomp", "cgroup"])
    assert course.report.failure is None


def test_in_observe_mode_nothing_is_refused_and_the_report_says_complain(node: Node) -> None:
    course = play(node, "swe-task", {"grader": "cat /grader/tests.py"}, mode="observe")
    assert "42" in course.said["grader"]
    assert course.report.enforcement["apparmor"] == "complain"
    assert not course.denials(a2=0)


def test_the_class_of_a_denial_is_its_own(attacked: Course) -> None:
    assert {row["class"] for row in attacked.denials()} <= {int(EventClass.DENIAL), "denial", "DENIAL"}
