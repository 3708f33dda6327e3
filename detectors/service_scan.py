"""Looking for reachable services."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

import numpy as np

from invigilator.detectors.base import Detector, Hits, Mask, Outcome, Phrases, Rows, Threshold
from invigilator.detectors.context import Context
from invigilator.detectors.destinations import IPPROTO_UDP, NAMING, Rules, is_inet, targets
from invigilator.detectors.kept import Firsts
from invigilator.detectors.scene import Scene
from invigilator.detectors.windows import dense_where
from invigilator.ebpf.events import EventClass, Kind, NetHook
from invigilator.profiles.network import is_inside

SCANNED = 0.95
TARGETS_MAX = 20_000
"""Different targets kept of one sandbox; a scan of more is told by its first."""
_NAME_LOOK_UP_PORTS = (0, 53)


class ServiceScan(Detector):
    """Different (address, port) pairs within a time, most of which do not answer."""

    id = kind = "service_scan"
    version = 1
    channel = "network"
    severity = "medium"
    attack = ("T1046",)
    meaning = (
        "The agent tried many different addresses or ports in a short time, and most did not answer: by "
        "connect, datagrams or raw packets, on the network or on loopback. One target tried often, servers "
        "that answer (workers, proxies), and targets that the policy's rules declare are no scan."
    )
    phrases = Phrases(
        success="Scanned for services and found some",
        denied="Was refused scanning for services",
        failed="Scanned for services in vain",
    )
    needs = frozenset({EventClass.NETWORK})
    reads = frozenset({Kind.CONNECT, Kind.CONNECT_RESULT, Kind.SEND, Kind.NET_DENIED})
    pattern = True
    phase_bound = False
    thresholds = (
        Threshold("targets", 20, "", "different targets within `window` from which it is a scan"),
        Threshold("window", 10, "s", "time of a fast scan"),
        Threshold("slow_targets", 100, "", "different targets within `slow_window` from which it is a scan"),
        Threshold("slow_window", 900, "s", "time of a slow scan"),
    )

    def __init__(self, context: Context, thresholds: Mapping[str, float]) -> None:
        super().__init__(context, thresholds)
        self._rules = Rules(context.tenures)
        self._targets = Firsts(TARGETS_MAX)
        self._answered = np.zeros(TARGETS_MAX, np.bool_)

    def feed(self, scene: Scene) -> Iterable[Hits]:
        r = scene.r
        rows = np.flatnonzero(self._asks(scene) & scene.judged)
        if len(rows):
            rows = rows[~self._rules.declared(scene, rows)]
            names, which = targets(scene, rows)
            keys = [(address, port) for address, port, _ in names]
            self._targets.add(scene, rows, keys, which)
        answers = scene.kind(Kind.CONNECT, Kind.CONNECT_RESULT) & (r["result"] == 0) & is_inet(r)
        self._hear(scene, np.flatnonzero(answers & (r["protocol"] != IPPROTO_UDP) & scene.judged))
        return ()

    def standing(self) -> Iterable[Hits]:
        n = len(self._targets)
        if not n:
            return
        answered = self._answered[:n]
        scan = self._dense("targets", "window", answered) | self._dense(
            "slow_targets", "slow_window", answered
        )
        if scan.any():
            outcomes = self._targets.outcomes()[scan]
            refused = (outcomes == Outcome.DENIED).sum() * 2 >= len(outcomes)
            outcome = (
                Outcome.SUCCESS if answered[scan].any() else Outcome.DENIED if refused else Outcome.FAILED
            )
            yield from self._targets.hits(scan, np.full(n, SCANNED), np.full(n, outcome, np.uint8))

    def _dense(self, least: str, window: str, answered: Mask) -> Mask:
        """Targets in windows with enough of them, of which at least half did not answer."""
        silent = (~answered).astype(np.float64)
        return dense_where(
            self._targets.records()["time_ns"],
            self.setting[window],
            lambda all_, mute: (all_ >= self.setting[least]) & (mute * 2 >= all_),
            None,
            silent,
        )

    def _hear(self, scene: Scene, rows: Rows) -> None:
        """Targets that answered."""
        if len(rows):
            for address, port, _ in targets(scene, rows)[0]:
                place = self._targets.place((address, port))
                if place is not None:
                    self._answered[place] = True

    def _asks(self, scene: Scene) -> Mask:
        """Events that try a target. A datagram socket's connect asks only inside: name look-ups connect one
        to every address that a name has, to choose among them."""
        r = scene.r
        asks = scene.kind(*NAMING) & is_inet(r)
        asks &= ~((r["kind"] == Kind.NET_DENIED) & (r["a0"] == NetHook.BIND))
        quiet = (r["kind"] == Kind.CONNECT) & (r["protocol"] == IPPROTO_UDP) & asks
        rows = np.flatnonzero(quiet)
        if len(rows):
            names, which = targets(scene, rows)
            real = [port not in _NAME_LOOK_UP_PORTS and _inside(address) for address, port, _ in names]
            asks[rows] = np.array(real, np.bool_)[which]
        verdict: Mask = asks
        return verdict


def _inside(address: bytes) -> bool:
    six = ipaddress.IPv6Address(address)
    return is_inside(six.ipv4_mapped or six)
