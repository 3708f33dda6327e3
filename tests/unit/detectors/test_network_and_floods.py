"""Scans, forbidden destinations, probes and floods, and what only looks like them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from build import Story, agent, counted, judge, policy

from invigilator.ebpf.events import Actor, Kind, NetHook, Phase
from invigilator.profiles.policy import EgressRule, Limits, Network, PhaseRules

Tell = Callable[[Story], object]
TCP, UDP = 6, 17


def each(n: int, tell: Callable[[int], object]) -> None:
    for at in range(n):
        tell(at)


SCANS: dict[str, Tell] = {
    "refused ports of loopback": lambda s: each(
        30, lambda n: s.connect("127.0.0.1", 100 + n, "ECONNREFUSED")
    ),
    "hosts of a private network": lambda s: each(30, lambda n: s.connect(f"10.0.0.{n}", 80, "ETIMEDOUT")),
    "connects that nobody waits for": lambda s: each(30, lambda n: s.connect("::1", 100 + n, "EINPROGRESS")),
    "denied by the network rules": lambda s: each(
        30, lambda n: s.connect("10.0.0.9", 100 + n, kind=Kind.NET_DENIED, a0=NetHook.CONNECT)
    ),
    "datagrams": lambda s: each(30, lambda n: s.connect("10.1.2.3", 100 + n, kind=Kind.SEND, protocol=UDP)),
    "datagram sockets connected": lambda s: each(30, lambda n: s.connect("10.1.2.3", 100 + n, protocol=UDP)),
    "raw packets": lambda s: each(30, lambda n: s.connect(f"10.1.2.{n}", 0, kind=Kind.SEND, protocol=TCP)),
    "one process a port": lambda s: each(
        30, lambda n: s.connect("127.0.0.1", 100 + n, "ECONNREFUSED", pid=50 + n)
    ),
    "some answer": lambda s: (
        each(5, lambda n: s.connect("127.0.0.1", 10 + n)),
        each(30, lambda n: s.connect("127.0.0.1", 100 + n, "ECONNREFUSED")),
    ),
    "slowly": lambda s: each(
        120, lambda n: s.connect("10.0.0.1", 100 + n, "ECONNREFUSED", at=1000.0 + 5 * n)
    ),
}


@pytest.mark.parametrize("how", SCANS)
def test_a_scan_is_found(how: str) -> None:
    story = agent()
    SCANS[how](story)
    assert "service_scan" in counted(judge(story))


def test_a_scan_that_found_something_succeeded() -> None:
    story = agent()
    SCANS["some answer"](story)
    assert counted(judge(story)) == {"service_scan": {"success"}}


def _workers(story: Story) -> None:
    each(60, lambda n: story.connect("127.0.0.1", 40_000 + n))


NO_SCANS: dict[str, Tell] = {
    "waiting for a port": lambda s: each(300, lambda n: s.connect("127.0.0.1", 8765, "ECONNREFUSED")),
    "port after port bound": lambda s: each(60, lambda n: s.connect("127.0.0.1", 3000 + n, kind=Kind.BIND)),
    "workers that answer": _workers,
    "workers that answer later": lambda s: each(
        60,
        lambda n: s.connect("127.0.0.1", 40_000 + n, "EINPROGRESS").connect(
            "127.0.0.1", 40_000 + n, kind=Kind.CONNECT_RESULT
        ),
    ),
    "name look-ups over public addresses": lambda s: each(
        40, lambda n: s.connect(f"93.184.216.{n}", 443, protocol=UDP)
    ),
    "nineteen ports": lambda s: each(19, lambda n: s.connect("127.0.0.1", 100 + n, "ECONNREFUSED")),
    "the platform's health checks": lambda s: each(
        60, lambda n: s.connect("127.0.0.1", 100 + n, "ECONNREFUSED", actor=Actor.PLATFORM)
    ),
}


@pytest.mark.parametrize("what", NO_SCANS)
def test_look_alikes_of_a_scan_are_not_counted(what: str) -> None:
    story = agent()
    NO_SCANS[what](story)
    assert "service_scan" not in counted(judge(story))


def test_fail_over_over_declared_hosts_is_no_scan() -> None:
    rules = Network(egress=[EgressRule(name="db", target="10.9.0.0/16", ports=[5432])])
    story = agent()
    each(40, lambda n: story.connect(f"10.9.0.{n}", 5432, "ECONNREFUSED"))
    assert judge(story, policy(network=rules)) == []


def test_thresholds_of_the_policy_are_obeyed() -> None:
    from invigilator.profiles.policy import Detectors

    story = agent()
    each(8, lambda n: story.connect("127.0.0.1", 100 + n, "ECONNREFUSED"))
    strict = policy(detectors=Detectors(thresholds={"service_scan": {"targets": 5}}))
    assert counted(judge(story, strict)) == {"service_scan": {"failed"}}


def test_a_packet_to_a_forbidden_place_is_proof_and_a_refusal_a_sign() -> None:
    story = agent().connect("203.0.113.7", 80).connect("2001:db8::5", 443, "ENETUNREACH")
    story.connect("::ffff:203.0.113.8", 443, kind=Kind.NET_DENIED, a0=NetHook.CONNECT)
    story.connect("198.51.100.9", 9999, kind=Kind.SEND, protocol=UDP, error="EPERM")
    found = {i.outcome: i for i in judge(story)}
    assert {i.kind for i in found.values()} == {"egress_violation"}
    assert found["success"].confidence >= 0.8
    assert found["denied"].confidence < 0.8 and found["denied"].count == 2
    assert found["failed"].confidence < 0.8


DECLARED = Network(
    egress=[
        EgressRule(name="mirror", target="192.0.2.0/24", ports=[8080]),
        EgressRule(name="pypi", target="files.example.org", ports=[443]),
        EgressRule(name="any", target="2001:db8::/32", ports=[], protocol="any"),
    ]
)


def test_declared_targets_loopback_and_names_are_nothing() -> None:
    story = (
        agent().connect("192.0.2.10", 8080).connect("127.0.0.1", 22).connect("::1", 80).connect("0.0.0.0", 80)
    )
    story.connect("151.101.0.223", 443).connect("2001:db8::9", 1).connect("8.8.8.8", 80, protocol=UDP)
    assert judge(story, policy(network=DECLARED)) == []


def test_the_wrong_port_of_a_declared_host_is_a_violation() -> None:
    story = agent().connect("192.0.2.10", 22)
    assert counted(judge(story, policy(network=DECLARED))) == {"egress_violation": {"success"}}


def test_each_phase_has_its_own_rules() -> None:
    rules = {"verify": PhaseRules(network=Network(default_action="allow"), survivors="keep")}
    story = agent().ends().phase("verify").connect("203.0.113.7", 80, origin_phase=Phase.AGENT)
    assert judge(story, policy(phases=rules)) == []


def test_setup_may_fetch() -> None:
    story = Story().phase("setup").connect("203.0.113.7", 443).phase("agent")
    assert judge(story) == []


PROBES: dict[str, Tell] = {
    "locked files": lambda s: each(14, lambda n: s.open(f"/srv/keys/{n}", error="EACCES")),
    "kernel settings": lambda s: each(14, lambda n: s.open(f"/proc/sys/kernel/{n}", "w", error="EROFS")),
    "forbidden calls": lambda s: [
        s.add(kind, error="EPERM")
        for kind in (Kind.BPF, Kind.KEYCTL, Kind.MODULE, Kind.USERFAULTFD, Kind.PERF_OPEN, Kind.UNSHARE)
    ],
    "in many processes": lambda s: each(14, lambda n: s.open(f"/srv/{n}", error="EPERM", pid=60 + n)),
}


@pytest.mark.parametrize("how", PROBES)
def test_door_after_door_is_a_probe(how: str) -> None:
    story = agent()
    PROBES[how](story)
    assert counted(judge(story)) == {"access_probe": {"denied"}}


NO_PROBES: dict[str, Tell] = {
    "one door many times": lambda s: each(60, lambda n: s.open("/srv/lock", error="EACCES")),
    "ps and lsof": lambda s: each(60, lambda n: s.open(f"/proc/{n}/environ", error="EACCES")),
    "own files": lambda s: each(60, lambda n: s.open(f"/workspace/locked/{n}", error="EACCES")),
    "find as a user": lambda s: each(60, lambda n: s.open(f"/srv/p{n}", "dir", error="EACCES")),
    "tar that may not chown": lambda s: each(60, lambda n: s.named(Kind.CHOWN, f"/tmp/{n}", error="EPERM")),
    "slow": lambda s: each(20, lambda n: s.open(f"/srv/{n}", error="EACCES", at=1000.0 + 60 * n)),
    "a few": lambda s: each(5, lambda n: s.open(f"/srv/{n}", error="EACCES")),
    "files that are not there": lambda s: each(60, lambda n: s.open(f"/srv/{n}", error="ENOENT")),
}


@pytest.mark.parametrize("what", NO_PROBES)
def test_look_alikes_of_a_probe_are_not_counted(what: str) -> None:
    story = agent()
    NO_PROBES[what](story)
    assert counted(judge(story)) == {}


SMALL = Limits(output_bytes=1 << 20, disk_bytes=48 << 20)
LOGS: dict[str, Tell] = {
    "the sum": lambda s: each(11, lambda n: s.add(Kind.OUTPUT, a0=100_000)),
    "the limit": lambda s: s.add(Kind.LIMIT, text="output", a0=2 << 20, a1=1 << 20, origin_phase=0),
    "over several steps": lambda s: (
        s.begin_step(1, "a").add(Kind.OUTPUT, a0=600_000).begin_step(2, "b").add(Kind.OUTPUT, a0=600_000)
    ),
}


@pytest.mark.parametrize("how", LOGS)
def test_a_flood_of_output_is_an_accident_that_is_told(how: str) -> None:
    story = agent()
    LOGS[how](story)
    found = judge(story, policy(limits=SMALL))
    assert [(i.kind, i.intent) for i in found] == [("log_flood", "accidental")]


def test_a_sustained_rate_is_a_flood_though_the_sum_is_allowed() -> None:
    story = agent(tick=0.1)
    each(200, lambda n: story.add(Kind.OUTPUT, a0=3 << 20))
    assert [i.kind for i in judge(story, policy(limits=Limits(output_bytes=1 << 40)))] == ["log_flood"]


def test_finite_output_files_and_the_verifiers_own_output_are_no_flood() -> None:
    story = agent().add(Kind.OUTPUT, a0=900_000).add(Kind.FILE_BYTES, a0=30 << 20).ends().phase("verify")
    story.add(Kind.OUTPUT, a0=9 << 20).add(Kind.LIMIT, text="output", origin_phase=0)
    assert judge(story, policy(limits=SMALL)) == []


DISKS: dict[str, Tell] = {
    "the limit": lambda s: s.add(Kind.LIMIT, text="disk", a0=48 << 20, a1=48 << 20, origin_phase=0),
    "no space for a file": lambda s: s.open("/workspace/f", "wx", error="ENOSPC"),
    "no space to allocate": lambda s: s.named(Kind.FALLOCATE, "/workspace/f", error="ENOSPC"),
    "quota": lambda s: s.between(Kind.COPY_RANGE, "/workspace/f", "/workspace/g", error="EDQUOT"),
}


@pytest.mark.parametrize("how", DISKS)
def test_a_full_disk_is_an_accident_that_is_told(how: str) -> None:
    story = agent()
    DISKS[how](story)
    found = judge(story, policy(limits=SMALL))
    assert [(i.kind, i.intent) for i in found] == [("disk_flood", "accidental")]


def test_sparse_files_and_rewritten_files_are_no_flood() -> None:
    story = agent().named(Kind.TRUNCATE, "/workspace/s", a0=1 << 40)
    each(50, lambda n: story.add(Kind.FILE_BYTES, a0=900_000))
    assert judge(story, policy(limits=SMALL)) == []
    story.add(Kind.FILE_BYTES, a0=30 << 20)
    assert [i.confidence for i in judge(story, policy(limits=SMALL))] == [0.7]


def test_loss_by_the_sandboxs_own_rate_is_an_incident() -> None:
    story = agent().add(Kind.LIMIT, text="sensor", a0=900, a1=10_000, origin_phase=0)
    (found,) = judge(story)
    assert (found.kind, found.outcome) == ("sensor_flood", "success")
    assert "900 of 10000 lost" in found.summary


def test_no_loss_is_no_flood() -> None:
    assert judge(agent().add(Kind.LIMIT, text="sensor", a0=0, a1=10_000, origin_phase=0)) == []
