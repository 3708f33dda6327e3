"""A policy learned from a rollout, in force in AppArmor: the same work is let, the rest refused."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from test_together import Course, Node, node, play

from invigilator.guard import learning
from invigilator.profiles import library
from invigilator.profiles.learning import learn
from invigilator.profiles.policy import Policy

__all__ = ["node"]
WORK = """
import os, subprocess, tempfile
for _ in range(12):
    handle, name = tempfile.mkstemp(prefix="job-", dir="/tmp")
    os.write(handle, b"x")
    os.close(handle)
    os.rename(name, name + ".done")
for one in [tempfile.mkdtemp(prefix="dir-", dir="/tmp") for _ in range(12)]:
    open(one + "/a", "w").write("a")
    os.link(one + "/a", one + "/b")
    os.symlink("a", one + "/c")
    os.listdir(one)
open("/workspace/out", "w").write(open("/etc/passwd").read())
with open("/tmp/run.sh", "w") as file:
    file.write("#!/bin/sh\\necho ran\\n")
os.chmod("/tmp/run.sh", 0o755)
subprocess.run(["/tmp/run.sh"], check=True)
print("worked")
"""
# With `dir` named, Python does not try the folder by a file with a name of chance alone. Of twelve names of
# chance, that seven look like words happens twice in a million times.
SCRIPT = f"cat >work.py <<'END'\n{WORK}\nEND\npython3 work.py"


def facts(node: Node, course: Course) -> learning.Recording:
    """As from a store, which this node has none of."""

    def raw_events(sandbox_id: str) -> Iterator[pa.Table]:
        wanted = bytes.fromhex(sandbox_id.replace("-", ""))
        tables = [one.read() for one in node.spool.pending() if one.table == "events"]
        mine = [
            table.filter(pc.equal(table["sandbox_id"], pa.scalar(wanted, pa.binary(16)))) for table in tables
        ]
        yield pa.concat_tables(mine).sort_by("seq")

    return learning.recording(cast(Any, SimpleNamespace(raw_events=raw_events)), course.report)


@pytest.fixture(scope="module")
def learned(node: Node) -> Policy:
    course = play(node, "swe-task", {"work": SCRIPT})
    assert "worked" in course.said["work"], course.said
    text = learn([facts(node, course)], library.load("swe-task"), name="learned", extends="swe-task").text
    print(text)
    return library.load_text(text).policy


def test_what_was_recorded_runs_again_without_a_denial(node: Node, learned: Policy) -> None:
    course = again(node, learned, {"work": SCRIPT})
    assert "ran" in course.said["work"] and "worked" in course.said["work"], course.said
    assert not course.denials(), [(row["path"], row["text"]) for row in course.denials()]


@pytest.mark.parametrize(
    "script",
    [
        "cat /etc/group",
        "echo x >>/etc/passwd",
        "echo x >/tmp/other",
        "cp /usr/bin/true /tmp/own && /tmp/own",
        "ls /etc",
        "ln /etc/passwd /tmp/dir-aaaaaaaa",
        "cat /grader/tests.py",
    ],
)
def test_what_was_not_recorded_is_refused(node: Node, learned: Policy, script: str) -> None:
    course = again(node, learned, {"attack": f"{script} && echo it worked"})
    assert "it worked" not in course.said["attack"]
    assert "denied" in course.said["attack"].lower() or course.denials(), course.said


def again(node: Node, policy: Policy, scripts: dict[str, str]) -> Course:
    """A rollout under the learned policy."""
    fields = {name: getattr(policy, name) for name in type(policy).model_fields}
    return play(node, "swe-task", scripts, **fields)
