"""Addresses that events name, and what the policy says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from invigilator.detectors.base import Mask, Rows
from invigilator.detectors.scene import Scene
from invigilator.detectors.tenures import Tenures
from invigilator.ebpf.events import Kind, Phase, Records
from invigilator.profiles.network import LOOPBACK, PROTOCOLS, mapped, network_of, port_ranges, target_network
from invigilator.profiles.policy import EgressRule, PhaseName, Policy

AF_INET, AF_INET6 = 2, 10
IPPROTO_TCP, IPPROTO_UDP = 6, 17
DNS_PORT = 53
REFUSED, ALLOWED, UNDECIDED = 0, 1, 2
"""What the rules say; undecided: a rule with a name might allow it, and which addresses the name has is not
in the record."""

_MILDNESS = np.array([0, 2, 1], np.uint8)
"""REFUSED, UNDECIDED, ALLOWED in this order, and back."""
_PHASES: dict[int, PhaseName] = {Phase.AGENT: "agent", Phase.VERIFY: "verify"}
_EVERYWHERE = (b"\0" * 16, b"\0" * 10 + b"\xff\xff" + b"\0" * 4)
"""0.0.0.0 and ::, by which Linux reaches the host itself."""

Words = npt.NDArray[np.uint64]
Verdicts = npt.NDArray[np.uint8]


def halves(r: Records) -> tuple[Words, Words]:
    """The upper and lower 64 bits of each event's address."""
    both = np.ascontiguousarray(r["address"]).view(">u8").astype(np.uint64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def is_inet(r: Records) -> Mask:
    """Whether an event names an IPv4 or IPv6 address."""
    verdict: Mask = np.isin(r["family"], (AF_INET, AF_INET6))
    return verdict


def is_loopback(r: Records) -> Mask:
    """Whether the address is the sandbox's own loopback, or one that leads there."""
    upper, lower = halves(r)
    found = np.zeros(len(r), np.bool_)
    for network in LOOPBACK:
        extra = 96 if network.version == 4 else 0
        prefix = _Prefix.of(mapped(network.network_address), network.prefixlen + extra)
        found |= prefix.holds(upper, lower)
    for raw in _EVERYWHERE:
        found |= _Prefix.of(raw, 128).holds(upper, lower)
    return found


def targets(scene: Scene, rows: Rows) -> tuple[list[tuple[bytes, int, int]], Rows]:
    """The distinct (address, port, protocol) of events, and which of them is each event's."""
    r = scene.r[rows]
    upper, lower = halves(r)
    order = np.lexsort((r["protocol"], r["port"], lower, upper))
    columns = [c[order] for c in (upper, lower, r["port"], r["protocol"])]
    new = np.ones(len(rows), np.bool_)
    if len(rows):
        new[1:] = np.logical_or.reduce([c[1:] != c[:-1] for c in columns])
    which = np.empty(len(rows), np.intp)
    which[order] = np.cumsum(new) - 1
    firsts = r[order[new]]
    names = zip(firsts["address"], firsts["port"].tolist(), firsts["protocol"].tolist(), strict=True)
    return [(address.tobytes(), port, protocol) for address, port, protocol in names], which


class Rules:
    """The egress rules that held at each event, as far as they name addresses."""

    def __init__(self, tenures: Tenures) -> None:
        self._tenures = tenures
        self._known: dict[int, _Rules] = {}

    def decide(self, scene: Scene, rows: Rows) -> Verdicts:
        """What the rules of its phase say of each event's target, shape (n,); where either of two policies
        may have held, what the milder says."""
        found = np.full(len(rows), UNDECIDED, np.uint8)
        for part, rules in self._parts(scene, rows):
            said = [_MILDNESS[one.decide(scene, rows[part])] for one in rules]
            found[part] = _MILDNESS[np.maximum.reduce(said)]
        return found

    def declared(self, scene: Scene, rows: Rows) -> Mask:
        """Whether a rule, not merely the default, allows each event's target."""
        found = np.zeros(len(rows), np.bool_)
        for part, rules in self._parts(scene, rows):
            found[part] = np.logical_or.reduce([one.declared(scene, rows[part]) for one in rules])
        return found

    def _parts(self, scene: Scene, rows: Rows) -> Iterator[tuple[Mask, list[_Rules]]]:
        for part, numbers in self._tenures.parts(scene.r["seq"][rows]):
            yield part, [self._of(number) for number in numbers]

    def _of(self, number: int) -> _Rules:
        if number not in self._known:
            self._known[number] = _Rules(self._tenures.policies[number])
        return self._known[number]


class _Rules:
    """One policy's."""

    def __init__(self, policy: Policy) -> None:
        self._rules = {
            code: (network_of(policy, name).default_action == "allow", network_of(policy, name).egress)
            for code, name in _PHASES.items()
        }

    def decide(self, scene: Scene, rows: Rows) -> Verdicts:
        """What the rules of its phase say of each event's target, shape (n,)."""
        found = np.full(len(rows), UNDECIDED, np.uint8)
        for code, (default, egress) in self._rules.items():
            part = scene.phase[rows] == code
            if part.any():
                found[part] = _decide(scene.r[rows[part]], default, egress)
        return found

    def declared(self, scene: Scene, rows: Rows) -> Mask:
        """Whether a rule, not merely the default, allows each event's target."""
        found = np.zeros(len(rows), np.bool_)
        for code, (_, egress) in self._rules.items():
            part = scene.phase[rows] == code
            if part.any():
                found[part] = _decide(scene.r[rows[part]], False, egress) == ALLOWED
        return found


@dataclass(frozen=True, slots=True)
class _Prefix:
    upper: np.uint64
    lower: np.uint64
    upper_mask: np.uint64
    lower_mask: np.uint64

    @classmethod
    def of(cls, raw: bytes, length: int) -> _Prefix:
        mask = ((1 << length) - 1) << (128 - length)
        value = int.from_bytes(raw, "big") & mask
        low = (1 << 64) - 1
        return cls(
            np.uint64(value >> 64), np.uint64(value & low), np.uint64(mask >> 64), np.uint64(mask & low)
        )

    def holds(self, upper: Words, lower: Words) -> Mask:
        found: Mask = ((upper & self.upper_mask) == self.upper) & ((lower & self.lower_mask) == self.lower)
        return found


def _decide(r: Records, default: bool, egress: list[EgressRule]) -> Verdicts:
    upper, lower = halves(r)
    found = np.full(len(r), ALLOWED if default else REFUSED, np.uint8)
    open_question = np.ones(len(r), np.bool_)
    for rule in egress:
        network = target_network(rule.target)
        ports = np.logical_or.reduce(
            [(r["port"] >= a) & (r["port"] <= b) for a, b in port_ranges(rule.ports)]
        )
        protocol = PROTOCOLS[rule.protocol]
        fits = open_question & ports
        if protocol:
            fits &= (r["protocol"] == protocol) | (r["protocol"] == 0)
        if network is None:
            verdict = UNDECIDED
        else:
            extra = 96 if network.version == 4 else 0
            prefix = _Prefix.of(mapped(network.network_address), network.prefixlen + extra)
            fits &= prefix.holds(upper, lower)
            verdict = ALLOWED if rule.action == "allow" else REFUSED
        found[fits] = verdict
        open_question &= ~fits
    return found


NAMING = (Kind.CONNECT, Kind.SEND, Kind.NET_DENIED)
"""Kinds that name where a packet is to go."""
