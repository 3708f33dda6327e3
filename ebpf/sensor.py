"""The room's door: which sandboxes are watched, and the events that they made.

One `Sensor` a machine, in one process, used by one thread at a time (a lock holds others off). Events come in
`seq` order per sandbox; a gap is passed over only once the kernel has counted it as loss.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .build import BuildError, object_file
from .events import EVENT, Actor, EventBatch, EventClass, Kind, Phase, Tier
from .layout import ADOPTING, LOSS_REASONS, MAX_SLOTS, REGISTRATION, STREAM, TAKEN
from .loader import Kernel, LoadError
from .network import NetRule
from .order import SlotOrder
from .reader import Reader
from .rulesets import Rulesets
from .start import FILTERS, TRACING, WHERE_FOUND, SensorUnavailable, map_slots, prepare, require
from .streams import stream_objects
from .strings import Mount

__all__ = ["Loss", "NetRule", "Sensor", "SensorUnavailable"]

NAP_S = 0.01
LONGEST_NAP_S = 0.25
"""How long a reader sleeps that the kernel does not wake: each time twice as long while nothing comes. An
agent's fact, or a ring that fills, wakes it."""
QUARANTINE_S = 0.05
"""How long a freed slot rests, so that events under way cannot be taken for its next sandbox's."""
MISSED_EVERY_S = 0.05
"""How long the kernel's count of skipped runs is taken for current."""
EMIT_TRIES = 50
NO_PINS: Mapping[bytes, Sequence[NetRule]] = {}


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of a sandbox's events.

    `produced`: numbers given; `lost`: those of them that never came, so that produced = handed out + lost.
    `lost_by`: (class name, reason) → count: `ring_full`, `own_rate` (the sandbox would have filled the ring
    by itself: its own flood) and `vanished` are lost events; `string` (an event came without one of its
    strings, as in `strings_lost`) and `storage` (a process or cgroup could not be followed) are no events,
    but blind spots.
    `unattributed`: losses on this machine since the sandbox was registered that nobody can be charged with:
    every sandbox is then partial.
    """

    produced: int
    lost: int
    lost_by: Mapping[tuple[str, str], int] = field(default_factory=dict)
    strings_lost: int = 0
    unattributed: int = 0


@dataclass(slots=True)
class _Registered:
    sandbox_id: uuid.UUID
    registration: int
    cgroups: dict[int, Phase]
    order: SlotOrder
    unattributed_before: int
    streams: list[bytes] = field(default_factory=list)
    watched: list[bytes] = field(default_factory=list)
    rulesets: dict[Phase, tuple[int, ...]] = field(default_factory=dict)


class Sensor:
    """Kernel programs, their maps, and the reader of their rings."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self._kernel = kernel
        self._lock = threading.RLock()
        self._slots = map_slots(kernel)
        self._reader = Reader(kernel, sizes, self._slots, self._order)
        self._table = self._reader.table
        self._rulesets = Rulesets(kernel, self._table)
        self._unattributed = kernel.variable(".bss", "unattributed", np.uint64)
        self._stacks = kernel.variable(".bss", "stacks", np.uint32)
        self._registered: dict[int, _Registered] = {}
        self._ended: dict[int, _Registered] = {}
        self._free: deque[tuple[float, int]] = deque((0.0, slot) for slot in range(1, MAX_SLOTS))
        self._registrations = 0
        self._spoken: deque[int] = deque()
        self._missed = 0
        self._missed_until = 0.0
        self._nap = NAP_S

    @classmethod
    def open(
        cls,
        *,
        bulk_bytes: int = 32 << 20,
        precious_bytes: int = 8 << 20,
        string_bytes: int = 8 << 20,
    ) -> Sensor:
        """Compile if need be, load, check and attach. Sizes are powers of two.

        `SensorUnavailable` says what is missing.
        """
        require()
        sizes = {"bulk": bulk_bytes, "precious": precious_bytes, "strings": string_bytes}
        try:
            kernel = Kernel(object_file())
            try:
                prepare(kernel, sizes)
                return cls(kernel, sizes)
            except BaseException:
                kernel.close()
                raise
        except (BuildError, LoadError) as failure:
            raise SensorUnavailable(str(failure)) from failure

    def register(self, sandbox_id: uuid.UUID, cgroups: Mapping[int, Phase]) -> int:
        """Watch a sandbox: cgroup v2 ids of its leaves and their phases, before any process is in them.

        Returns its slot. Nothing is recorded until `arm`.
        """
        with self._lock:
            slot = self._take_slot()
            self._registrations += 1
            row = self._slots[slot : slot + 1]
            row.view(np.uint8)[:] = 0
            row["registration"] = self._registrations
            order = SlotOrder()
            self._registered[slot] = _Registered(
                sandbox_id, self._registrations, dict(cgroups), order, self._unattributed_now()
            )
            try:
                self._scope(slot, cgroups, drop=False)
            except LoadError:
                self.unregister(slot)
                raise
            return slot

    def include(self, slot: int, cgroups: Mapping[int, Phase]) -> None:
        """Further cgroups of a sandbox that is watched; those that are its own already stay so."""
        with self._lock:
            self._scope(slot, cgroups, drop=False)
            self._registered[slot].cgroups.update(cgroups)

    def adopt(self, slot: int) -> int:
        """Follow all threads in the sandbox's cgroups as if they had entered; how many are new."""
        with self._lock:
            wanted = self._kernel.variable(".bss", "adopting", ADOPTING)
            actor = self._slots["next_actor"][slot]
            wanted[0] = (slot, self._registered_number(slot), actor, 0)
            self._kernel.walk("adopt")
            return int(wanted[0]["followed"])

    def followed(self) -> int:
        """How many living threads of all sandboxes are followed."""
        return int(self._stacks.sum())

    def declare(self, slot: int, phase: Phase) -> None:
        """From now on all processes of the sandbox are in `phase`, whatever their cgroups' is."""
        self._slots["declared"][slot] = int(phase)

    def halt(self, slot: int) -> None:
        """Record no more of what the sandbox does; what was recorded is still handed out."""
        with self._lock:
            self._slots["armed"][slot] = 0
            self._slots["registration"][slot] = 0
        time.sleep(QUARANTINE_S)

    def hold(self, slot: int) -> None:
        """Hand out nothing of the sandbox before its mounts are set: its paths would not be known."""
        with self._lock:
            self._registered[slot].order.held = True
            self._table.defer(slot)

    def set_mounts(self, slot: int, mounts: Sequence[tuple[int, bytes, bytes]]) -> None:
        """The sandbox's mounts: (s_dev as the kernel numbers it, folder of that file system, mount point)."""
        with self._lock:
            self._registered[slot].order.held = False
            self._table.set_mounts(slot, [Mount(*mount) for mount in mounts])

    def arm(self, slot: int) -> None:
        """From now on an exec in the sandbox's cgroups begins to be followed."""
        self._slots["armed"][slot] = 1

    def set_step(self, slot: int, step: int, actor: Actor) -> None:
        """Step and actor of the next processes that enter; descendants inherit them."""
        self._slots["next_step"][slot] = step
        self._slots["next_actor"][slot] = int(actor)

    def set_stream(self, slot: int, fd: int) -> None:
        """A recorded stream, by any descriptor of its pipe or terminal: what is written there is OUTPUT."""
        with self._lock:
            for dev, ino in stream_objects(fd):
                self._add_object("streams", self._registered[slot].streams, slot, dev, ino)

    def watch(self, slot: int, dev: int, ino: int) -> None:
        """Tell the first read through each open description of an object (kernel's device and inode)."""
        with self._lock:
            self._add_object("watched", self._registered[slot].watched, slot, dev, ino)
            self._slots["watches"][slot] += 1

    def attach_network(self, cgroup: Path) -> list[int]:
        """Put the network filters on a parent v2 cgroup, once for all below it; returns handles to detach."""
        fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return [self._kernel.attach_cgroup(program, fd) for program in FILTERS]
        except LoadError as failure:
            raise SensorUnavailable(str(failure)) from failure
        finally:
            os.close(fd)

    def detach_network(self, handles: Sequence[int]) -> None:
        """Undo `attach_network`."""
        for handle in handles:
            self._kernel.detach(handle)

    def set_network(
        self,
        slot: int,
        phase: Phase,
        default_allow: bool,
        rules: Sequence[NetRule],
        *,
        loopback: bool = True,
        default_bind: bool = True,
        binds: Sequence[NetRule] = (),
        own: bool = False,
        pins: Mapping[bytes, Sequence[NetRule]] = NO_PINS,
    ) -> None:
        """Enforce rules in a phase; the first that matches decides. Equal rules of several sandboxes are kept
        once. `loopback`: the sandbox's own may be spoken to (not where it shares the host's network).

        `binds` are rules for the own addresses and ports that a socket may be bound to, `default_bind` what
        holds where none matches. A port that the kernel is to choose is 0. `own`: kept for this phase of this
        sandbox alone, so that `pin` can add to them; `pins` are in force from the first packet on, and of
        former ones none stays.
        """
        with self._lock:
            entry = self._registered[slot]
            numbers = self._rulesets.use_all((rules, binds) if binds else (rules,), own=own)
            try:
                for address, about in pins.items():
                    self._rulesets.pin(numbers[0], address, about)
            except Exception:
                for number in numbers:
                    self._rulesets.release(number)
                raise
            previous = entry.rulesets.get(phase, ())
            entry.rulesets[phase] = numbers
            setting = self._slots["net"][slot, int(phase)]
            setting["ruleset"] = numbers[0]
            setting["binds"] = numbers[1] if binds else 0
            setting["default_allow"] = default_allow
            setting["default_bind"] = default_bind
            setting["loopback"] = loopback
            setting["enforce"] = 1
            for number in previous:
                self._rulesets.release(number)

    def pin(self, slot: int, phase: Phase, address: bytes, rules: Sequence[NetRule]) -> None:
        """From now on these rules, in order, decide about one address (16 bytes, IPv4 mapped) in a phase
        whose rules are the sandbox's `own`. One map update; `RuleError` where they are too many."""
        with self._lock:
            self._rulesets.pin(self._registered[slot].rulesets[phase][0], address, rules)

    def emit(
        self,
        slot: int,
        kind: Kind,
        *,
        path: bytes = b"",
        path2: bytes = b"",
        text: bytes = b"",
        **fields: int,
    ) -> None:
        """Put a fact of the agent's into the record; the kernel gives it its `seq` and time.

        `fields` are fields of EVENT; `class` (as `class_`) is SENSOR and `tiers` is AGENT unless given;
        `address` is the number that its 16 bytes are.
        """
        with self._lock:
            record = np.zeros(1, EVENT)
            record["nr"] = 0xFFFF
            record["tiers"] = int(Tier.AGENT)
            record["class"] = int(EventClass.SENSOR)
            address = fields.pop("address", 0)
            record["address"] = np.frombuffer(address.to_bytes(16, "big"), np.uint8)
            for name, value in fields.items():
                record[name.rstrip("_")] = value
            record["slot"], record["kind"] = slot, int(kind)
            for name, words in (("path", path), ("path2", path2), ("text", text)):
                serial = self._table.add_own(words)
                record[name] = serial
                if serial:
                    self._spoken.append(serial)
            for _ in range(EMIT_TRIES):
                if self._kernel.run("control_emit", record) == 0:
                    return
                self._reader.pull()
            raise LoadError(0, f"the event ring stays full: {kind.name} could not be recorded")

    def drain(self, timeout_s: float = 0.0, *, gather_s: float = 0.0) -> EventBatch:
        """Events since the last drain, in `seq` order per sandbox; waits up to `timeout_s`, or until `nudge`,
        for some.

        `gather_s`: how long to let events gather before looking, unless a ring fills or `nudge` comes: a
        batch costs as much as hundreds of events, so a busy sandbox's should not be taken one by one.
        """
        deadline = time.monotonic() + timeout_s
        if gather_s and self._reader.sleep(gather_s):
            deadline = 0.0
        while True:
            with self._lock:
                batch = self._drain()
            left = deadline - time.monotonic()
            if len(batch) or left <= 0:
                self._nap = NAP_S if len(batch) else self._nap
                return batch
            if self._reader.sleep(min(left, self._nap)):
                deadline = 0.0
            self._nap = NAP_S if self._reader.waiting() else min(2 * self._nap, LONGEST_NAP_S)

    def nudge(self) -> None:
        """Let a `drain` that waits, or the next one, return at once; from any thread."""
        self._reader.nudge()

    def loss(self, slot: int) -> Loss:
        """What was produced and lost so far; after `unregister` the last figures, until reuse of the slot."""
        with self._lock:
            entry = self._registered.get(slot) or self._ended[slot]
            lost = self._slots["lost"][slot]
            by = {
                (EventClass(kind).name.lower(), reason): int(lost[kind, column])
                for column, reason in enumerate(LOSS_REASONS)
                for kind in range(len(EventClass))
                if lost[kind, column]
            }
            vanished = entry.order.vanished
            if vanished:
                by["sensor", "vanished"] = vanished
            return Loss(
                produced=int(self._slots["seq"][slot]),
                lost=int(lost[:, :2].sum()) + vanished,
                lost_by=by,
                strings_lost=int(lost[:, 2].sum()),
                unattributed=self._unattributed_now() - entry.unattributed_before,
            )

    def drained_to(self, slot: int) -> int:
        """Watermark: the highest `seq` up to which every event was handed out or is known to be lost."""
        with self._lock:
            entry = self._registered.get(slot) or self._ended[slot]
            lost = int(self._slots["lost"][slot, :, :2].sum())
            produced = int(self._slots["seq"][slot])
            return entry.order.watermark(produced, lost, self._reader.holds(slot))

    def flush(self, slot: int, phase: Phase = Phase.UNKNOWN) -> None:
        """Put what the OUTPUT and FILE_BYTES sums still hold into the record, as of `phase`."""
        with self._lock:
            taken = np.zeros(1, TAKEN)
            taken["slot"] = slot
            self._kernel.run("control_take", taken)
            for kind, name in ((Kind.OUTPUT, "output"), (Kind.FILE_BYTES, "file")):
                a0, a1, a2 = (int(taken[f"{name}_{part}"][0]) for part in ("bytes", "writes", "total"))
                if a1:
                    self.emit(
                        slot,
                        kind,
                        a0=a0,
                        a1=a1,
                        a2=a2,
                        class_=int(EventClass.OUTPUT),
                        tiers=int(Tier.TRACEPOINT),
                        phase=int(phase),
                        origin_phase=int(phase),
                    )

    def renew_strings(self) -> None:
        """Forget old strings soon; the sensor does so by itself once many are held."""
        with self._lock:
            self._reader.renew_strings()

    def unregister(self, slot: int) -> None:
        """Watch the sandbox no more. Events already made are still drained; the slot is used again later."""
        with self._lock:
            self._slots["armed"][slot] = 0
            self._slots["registration"][slot] = 0
            self._scope(slot, self._registered[slot].cgroups, drop=True)
            entry = self._registered.pop(slot)
            entry.order.held = False
            for key in entry.streams:
                self._kernel.delete("streams", key)
            for key in entry.watched:
                self._kernel.delete("watched", key)
            for number in (number for numbers in entry.rulesets.values() for number in numbers):
                self._rulesets.release(number)
            self._reader.pull()
            self._ended[slot] = entry
            self._free.append((time.monotonic() + QUARANTINE_S, slot))

    def close(self) -> None:
        """Detach and unload the kernel programs; what was not drained is gone."""
        with self._lock:
            self._reader.close()
            self._kernel.close()

    def __enter__(self) -> Sensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drain(self) -> EventBatch:
        spoken = len(self._spoken)
        batch = self._reader.drain()
        # A fact's strings serve one event, which came out with this drain or is held until a later one.
        if spoken and not self._reader.waiting():
            self._table.drop_own(self._spoken.popleft() for _ in range(spoken))
        return batch

    def _order(self, slot: int) -> SlotOrder | None:
        entry = self._registered.get(slot) or self._ended.get(slot)
        return entry.order if entry else None

    def _take_slot(self) -> int:
        due, slot = self._free[0] if self._free else (0.0, 0)
        if not self._free:
            raise LoadError(0, f"{MAX_SLOTS - 1} sandboxes are watched already: unregister some first")
        self._free.popleft()
        if self._ended.pop(slot, None) is not None:
            time.sleep(max(0.0, due - time.monotonic()))
            self._reader.pull()
            self._table.forget_slot(slot)
        return slot

    def _scope(self, slot: int, cgroups: Mapping[int, Phase], *, drop: bool) -> None:
        wanted = list(cgroups.items())
        room = REGISTRATION["at"].shape[0]
        for start in range(0, len(wanted), room):
            part = wanted[start : start + room]
            context = np.zeros(1, REGISTRATION)
            context["slot"], context["registration"] = slot, self._registered_number(slot)
            context["count"], context["drop"] = len(part), drop
            for place, (cgroup, phase) in enumerate(part):
                context["at"][0, place] = (cgroup, int(phase), 0)
            self._kernel.run("control_scope", context)
            if context["failed"][0] and not drop:
                raise LoadError(0, f"cgroups {[c for c, _ in part]} are watched already or too many are")

    def _registered_number(self, slot: int) -> int:
        entry = self._registered.get(slot)
        return entry.registration if entry else 0

    def _add_object(self, name: str, kept: list[bytes], slot: int, dev: int, ino: int) -> None:
        key = np.array([(slot, dev, ino)], STREAM).tobytes()
        self._kernel.update(name, key, (1).to_bytes(4, "little"))
        kept.append(key)

    def _unattributed_now(self) -> int:
        now = time.monotonic()
        if now >= self._missed_until:
            self._missed = self._kernel.missed((*TRACING, *WHERE_FOUND))
            self._missed_until = now + MISSED_EVERY_S
        return int(self._unattributed[0]) + self._missed
