"""Limits of disks in a policy: read, compiled, compared, checked, and in the versions only where used."""

from __future__ import annotations

import jsonschema
import pytest

from invigilator.profiles import canonical, diff, library, limits, rules, schema
from invigilator.profiles.errors import PolicyError
from invigilator.profiles.policy import IoLimits, Policy

MIB = 1 << 20
MINE = """version: 1
name: mine
extends: swe-task
require: [seccomp, io]
limits: {io: {read: 100MiB/s, write: 1.5MiB/s, write_ops: 1000/s}}
"""


def said(io: str) -> Policy:
    return library.load_text(f"version: 1\nname: x\nextends: swe-task\nlimits: {{io: {io}}}\n").policy


def test_rates_become_bytes_and_operations_a_second() -> None:
    made = limits.compile(library.load_text(MINE).policy)
    assert made.io == limits.IoValues(100 * MIB, 3 * MIB // 2, None, 1000)
    assert made.io.v2("8:0") == f"8:0 rbps={100 * MIB} wbps={3 * MIB // 2} riops=max wiops=1000"
    assert made.io.v1("8:0") == {
        "blkio.throttle.read_bps_device": f"8:0 {100 * MIB}",
        "blkio.throttle.write_bps_device": f"8:0 {3 * MIB // 2}",
        "blkio.throttle.read_iops_device": "8:0 0",
        "blkio.throttle.write_iops_device": "8:0 1000",
    }


def test_a_child_changes_one_of_them() -> None:
    parent = library.load_text(MINE).policy.limits.io
    assert parent == IoLimits(
        read_bytes_per_s=100 * MIB, write_bytes_per_s=3 * MIB // 2, write_ops_per_s=1000
    )
    assert not limits.compile(library.load("swe-task")).io


@pytest.mark.parametrize(
    ("io", "words"),
    [
        ("{read: 100MiB}", "write `100MiB/s`"),
        ("{read: 100}", "write for example `100MiB/s`"),
        ("{write: 1min/s}", "write for example"),
        ("{read_ops: 2000}", "write `2000/s`"),
        ("{read_ops: 0/s}", "between 1 and"),
        ("{read_ops: 5000000000/s}", "between 1 and"),
        ("{write_ops: 2.5/s}", "write for example `2000/s`"),
        ("{write_opps: 2/s}", "write_ops"),
    ],
)
def test_what_is_no_rate_is_refused_with_what_to_write(io: str, words: str) -> None:
    with pytest.raises(PolicyError) as refused:
        said(io)
    assert words in f"{refused.value}"


def test_the_schema_takes_them_and_nothing_else() -> None:
    checker = jsonschema.Draft202012Validator(schema.json_schema())
    whole = {"version": 1, "name": "x"}
    assert checker.is_valid({**whole, "limits": {"io": {"read": "100MiB/s", "read_ops": "20/s"}}})
    assert not checker.is_valid({**whole, "limits": {"io": {"read": "100MiB"}}})
    assert not checker.is_valid({**whole, "limits": {"io": {"read_ops": 20}}})


def test_versions_stay_where_none_is_set() -> None:
    plain = Policy(name="x")
    limited = plain.model_copy(
        update={"limits": plain.limits.model_copy(update={"io": IoLimits(read_ops_per_s=9)})}
    )
    assert "io" not in canonical.parts(plain)[0]["limits"]
    assert canonical.parts(limited)[0]["limits"]["io"]["read_ops_per_s"] == 9
    before, after = canonical.policy_versions(plain), canonical.policy_versions(limited)
    assert before.confinement != after.confinement
    assert (before.detection, before.penalty) == (after.detection, after.penalty)


def test_a_difference_is_told_in_words() -> None:
    told = [str(one) for one in diff.diff(said("{read: 10MiB/s}"), said("{read: 20MiB/s, write_ops: 50/s}"))]
    assert any("reading of a disk up to 20 MiB a second (was up to 10 MiB a second)" in one for one in told)
    assert any("writes to a disk up to 50 a second (was without limit)" in one for one in told)


def test_a_disk_too_slow_to_work_with_and_an_empty_requirement_are_found() -> None:
    slow = [(one.where, one.severity) for one in rules.findings(said("{write_ops: 2/s, read: 50MiB/s}"))]
    assert (("limits", "io", "write_ops"), "warning") in slow
    assert (("limits", "io", "read"), "warning") not in slow
    empty = Policy(name="x", require=["io"])
    assert [one.where for one in rules.findings(empty) if one.severity == "error"] == [("require", 0)]
