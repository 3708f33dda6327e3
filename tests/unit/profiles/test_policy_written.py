"""A policy that is printed whole reads as the same policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from invigilator.profiles import library
from invigilator.profiles.canonical import policy_versions
from invigilator.profiles.policy import Policy
from invigilator.profiles.written import written

FULL = r"""
version: 1
name: full
mode: observe
require: [seccomp, cgroup, io]
filesystem:
  hidden: [/platform, '/a "b"\x0a\xff']
  protected: {test: [/workspace/tests], own: {paths: [/own], read: watch, write: deny}}
  canaries: [{under: /grader, channel: answer}]
  default_action: allow
  files: [{paths: [/opt], deny: [exec, mmap], phases: [setup, agent]}]
network:
  egress:
  - {name: web, target: "*.example.org", ports: [80, 443]}
  - {name: all, action: deny, target: "2000::/3", protocol: any}
  default_bind: deny
  bind: [{name: own, addresses: [127.0.0.1], ports: [0]}]
limits: {memory: 1500MB, cpus: 0.5, disk: 1B, ttl: 1.5min, io: {read: 1MiB/s, write_ops: 20/s}}
syscalls: {extent_exchange: deny, deny: []}
apparmor: {raw: ["deny /x r"]}
seccomp:
  raw: [{names: [socket], errno: EACCES, args: [{index: 0, op: SCMP_CMP_MASKED_EQ, value: 1, value_two: 1}]}]
phases:
  setup: {network: {default_action: allow}, survivors: keep}
  verify: {protected: {test: {write: deny}}, syscalls: {userns: allow}}
detectors: {monitor_only: [service_scan], thresholds: {service_scan: {targets: 7, window: 500ms}}}
penalty: {reward_range: [0, 0.5], cap: 3.5, weights: {service_scan: 0.25}}
"""


def read_back(policy: Policy, folder: Path) -> Policy:
    file = folder / "back.yaml"
    file.write_text(yaml.safe_dump(written(policy)))
    return library.load(str(file))


@pytest.mark.parametrize("name", library.list_names())
def test_the_librarys_read_back_as_they_are(name: str, tmp_path: Path) -> None:
    policy = library.load(name)
    back = read_back(policy, tmp_path)
    assert back == policy
    assert policy_versions(back) == policy_versions(policy)


def test_one_that_says_everything_reads_back_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "full.yaml").write_text(FULL)
    policy = library.load(str(tmp_path / "full.yaml"))
    assert read_back(policy, tmp_path) == policy
    unlike = {
        key for key, value in policy.model_dump().items() if value == Policy(name="x").model_dump()[key]
    }
    assert unlike == {"version"}
