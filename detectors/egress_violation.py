"""Speaking to places that the policy does not allow."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping

import numpy as np

from invigilator.detectors.base import SIGN, Detector, Hits, Intent, Mask, Outcome, Phrases
from invigilator.detectors.context import Context
from invigilator.detectors.destinations import (
    ALLOWED,
    DNS_PORT,
    IPPROTO_UDP,
    REFUSED,
    Rules,
    is_inet,
    is_loopback,
)
from invigilator.detectors.scene import Scene
from invigilator.ebpf.events import EventClass, Kind, NetHook

SPOKE, TRIED = 0.95, 0.7
_NOT_YET = (-errno.EINPROGRESS, -errno.EALREADY, -errno.EINTR, -512)


class EgressViolation(Detector):
    """Where the network refuses, honest programs try too (a resolver, pip): a refused try is a sign, a packet
    that went out is proof."""

    id = kind = "egress_violation"
    version = 1
    channel = "network"
    severity = "high"
    attack = ("T1071", "T1048")
    meaning = (
        "The agent connected or sent to an address and port that the policy's rules do not allow. Refused "
        "and failed tries are signs only. Loopback is the sandbox's own; targets of rules that give a name "
        "are left to the kernel's own refusal."
    )
    phrases = Phrases(
        success="Spoke to addresses outside the policy",
        denied="Was refused addresses outside the policy",
        failed="Tried in vain to reach addresses outside the policy",
    )
    needs = frozenset({EventClass.NETWORK})
    reads = frozenset({Kind.CONNECT, Kind.CONNECT_RESULT, Kind.SEND, Kind.NET_DENIED})

    def __init__(self, context: Context, thresholds: Mapping[str, float]) -> None:
        super().__init__(context, thresholds)
        self._rules = Rules(context.tenures)

    def feed(self, scene: Scene) -> Iterable[Hits]:
        r = scene.r
        denied = scene.kind(Kind.NET_DENIED) & (r["a0"] != NetHook.BIND)
        spoken = scene.kind(Kind.CONNECT, Kind.CONNECT_RESULT, Kind.SEND) & is_inet(r) & ~_says_nothing(scene)
        rows = np.flatnonzero((denied | spoken) & scene.judged)
        if not len(rows):
            return
        verdict = self._rules.decide(scene, rows)
        outside = denied[rows] & (verdict != ALLOWED) | (verdict == REFUSED) & ~is_loopback(r[rows])
        rows = rows[outside]
        if len(rows):
            confidence = np.where(scene.outcome[rows] == Outcome.SUCCESS, SPOKE, TRIED)
            confidence[(r["port"][rows] == DNS_PORT) & (confidence < SPOKE)] = SIGN
            intent = np.where(confidence >= SPOKE, Intent.DELIBERATE, Intent.UNKNOWN).astype(np.uint8)
            yield scene.hits(rows, confidence, intent=intent)


def _says_nothing(scene: Scene) -> Mask:
    """Connects whose result comes later, and those of datagram sockets, which send no packet."""
    r = scene.r
    later = np.isin(r["result"], _NOT_YET)
    datagram = (r["protocol"] == IPPROTO_UDP) & (r["result"] >= 0)
    verdict: Mask = (r["kind"] == Kind.CONNECT) & (later | datagram)
    return verdict
