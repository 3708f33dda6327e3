"""The room's door: which sandboxes are watched, and the events that they made.

One `Sensor` a machine, in one process, used by one thread at a time (a lock holds others off). Events come in
`seq` order per sandbox; a gap is passed over only once the kernel has counted it as loss.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .build import BuildError, object_file
from .events import EVENT, STRING_FIELDS, Actor, EventBatch, EventClass, Kind, Phase, Records, Tier
from .layout import KINDS, LOSS_REASONS, MAX_SLOTS, REGISTRATION, SLOT, STREAM, TAKEN
from .loader import Kernel, LoadError, check_layout, kernel_has
from .network import KEY, VALUE, NetRule, compile_rules
from .order import SlotOrder
from .ring import STRING_RECORD, Ring, Waker
from .strings import Mount, StringTable

TRACING = (
    "dispatch on_fork on_exec on_exit on_attach on_cgroup_mkdir on_cgroup_rmdir on_sock_state on_signal"
).split()
FILTERS = (
    "filter_connect4 filter_connect6 filter_sendmsg4 filter_sendmsg6 filter_socket filter_egress".split()
)

MOST_EVENTS = 1 << 18
"""Events of one ring that one drain takes at most."""
NAP_S = 0.01
"""How long a reader sleeps when the kernel does not wake it: the latency of a quiet machine."""
EPOCH_STRINGS = 1 << 18
"""Live strings after which the kernel is told to send those still in use again, and the old are forgotten."""
EPOCH_GRACE_S = 2.0
QUARANTINE_S = 0.05
"""How long a freed slot rests, so that events under way cannot be taken for its next sandbox's."""
MISSED_EVERY_S = 0.05
"""How long the kernel's count of skipped runs is taken for current."""
TTY_DEV = 0x00500000
EMIT_TRIES = 50


class SensorUnavailable(Exception):
    """This machine cannot run the sensor; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of a sandbox's events: `produced` numbers given, `lost` of them never came, by (class name,
    reason). `strings_lost`: events that came without one of their strings. `unattributed`: losses on this
    machine since the sandbox was registered that cannot be charged to any one: every sandbox is then partial."""

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
    rulesets: dict[Phase, int] = field(default_factory=dict)


class Sensor:
    """Kernel programs, their maps, and the reader of their rings."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self._kernel = kernel
        self._lock = threading.RLock()
        self._bulk = Ring(kernel.map_fd("bulk"), sizes["bulk"])
        self._precious = Ring(kernel.map_fd("precious"), sizes["precious"])
        self._strings_ring = Ring(kernel.map_fd("strings"), sizes["strings"])
        self._waker = Waker([self._bulk, self._precious, self._strings_ring])
        self._slots = _map_slots(kernel)
        self._string_seen = self._slots["string_seen"]
        self._seen = self._slots["seen"]
        self._epoch = kernel.variable(".data", "string_epoch", np.uint32)
        self._serial = kernel.variable(".bss", "string_serial", np.uint32)
        self._unattributed = kernel.variable(".bss", "unattributed", np.uint64)
        self._table = StringTable()
        self._registered: dict[int, _Registered] = {}
        self._ended: dict[int, _Registered] = {}
        self._free: deque[tuple[float, int]] = deque((0.0, slot) for slot in range(1, MAX_SLOTS))
        self._registrations = 0
        self._pending = np.empty(0, EVENT)
        self._single_use: set[int] = set()
        self._rulesets: dict[tuple[Any, ...], tuple[int, int, list[bytes]]] = {}
        self._next_ruleset = 1
        self._forget_at: tuple[float, int] | None = None
        self._epoch_serial = 0
        self._missed = 0
        self._missed_until = 0.0

    @classmethod
    def open(
        cls,
        *,
        bulk_bytes: int = 32 << 20,
        precious_bytes: int = 8 << 20,
        string_bytes: int = 8 << 20,
    ) -> Sensor:
        """Compile if need be, load, check and attach. Sizes are powers of two. `SensorUnavailable` otherwise."""
        _require()
        sizes = {"bulk": bulk_bytes, "precious": precious_bytes, "strings": string_bytes}
        try:
            kernel = Kernel(object_file())
            try:
                _prepare(kernel, sizes)
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

    def set_mounts(self, slot: int, mounts: Sequence[tuple[int, bytes, bytes]]) -> None:
        """The sandbox's mounts: (s_dev as the kernel numbers it, folder of that file system, mount point)."""
        with self._lock:
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
            for dev, ino in _stream_objects(fd):
                self._add_object("streams", self._registered[slot].streams, slot, dev, ino)

    def watch(self, slot: int, dev: int, ino: int) -> None:
        """Tell the first read through each open description of an object (kernel's device and inode)."""
        with self._lock:
            self._add_object("watched", self._registered[slot].watched, slot, dev, ino)
            self._slots["watches"][slot] += 1

    def attach_network(self, cgroup: Path) -> list[int]:
        """Put the network filters on a parent v2 cgroup, once for all sandboxes below it; handles to detach."""
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
    ) -> None:
        """Enforce rules in a phase; the first that matches decides. Equal rules of several sandboxes are kept
        once. `loopback`: the sandbox's own may be spoken to (not where it shares the host's network)."""
        with self._lock:
            entry = self._registered[slot]
            previous = entry.rulesets.pop(phase, None)
            number = self._use_ruleset(tuple(rules))
            entry.rulesets[phase] = number
            setting = self._slots["net"][slot, int(phase)]
            setting["ruleset"] = number
            setting["default_allow"] = default_allow
            setting["loopback"] = loopback
            setting["enforce"] = 1
            if previous is not None:
                self._release_ruleset(previous)

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

        `fields` are fields of EVENT; `class` (as `class_`) is SENSOR and `tiers` is AGENT unless given.
        """
        with self._lock:
            record = np.zeros(1, EVENT)
            record["nr"] = 0xFFFF
            record["tiers"] = int(Tier.AGENT)
            record["class"] = int(EventClass.SENSOR)
            for name, value in fields.items():
                record[name.rstrip("_")] = value
            record["slot"], record["kind"] = slot, int(kind)
            for name, words in (("path", path), ("path2", path2), ("text", text)):
                serial = self._table.add_own(words)
                record[name] = serial
                if serial:
                    self._single_use.add(serial)
            for _ in range(EMIT_TRIES):
                if self._kernel.run("control_emit", record) == 0:
                    return
                self._pull()
            raise LoadError(0, f"the event ring stays full: {kind.name} could not be recorded")

    def drain(self, timeout_s: float = 0.0) -> EventBatch:
        """Events since the last drain, in `seq` order per sandbox; waits up to `timeout_s` for some."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                batch = self._drain_now()
            left = deadline - time.monotonic()
            if len(batch) or left <= 0:
                return batch
            self._waker.sleep(min(left, NAP_S))

    def loss(self, slot: int) -> Loss:
        """What was produced and lost so far; the last figures after `unregister` until the slot is used again."""
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
            produced = int(self._slots["seq"][slot])
            held = bool((self._pending["slot"] == slot).any())
            return entry.order.watermark(produced, self._lost(slot), held)

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

    def unregister(self, slot: int) -> None:
        """Watch the sandbox no more. Events already made are still drained; the slot is used again later."""
        with self._lock:
            entry = self._registered.pop(slot)
            self._slots["armed"][slot] = 0
            self._slots["registration"][slot] = 0
            self._scope(slot, entry.cgroups, drop=True)
            for key in entry.streams:
                self._kernel.delete("streams", key)
            for key in entry.watched:
                self._kernel.delete("watched", key)
            for number in entry.rulesets.values():
                self._release_ruleset(number)
            self._pull()
            self._ended[slot] = entry
            self._free.append((time.monotonic() + QUARANTINE_S, slot))

    def close(self) -> None:
        """Detach and unload the kernel programs; what was not drained is gone."""
        with self._lock:
            self._waker.close()
            self._kernel.close()

    def __enter__(self) -> Sensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # reading

    def _drain_now(self) -> EventBatch:
        self._pull()
        self._turn_epoch()
        if not len(self._pending):
            return EventBatch.empty()
        ready = self._ready()
        if not len(ready):
            return EventBatch.empty()
        used = [ready[name] for name in STRING_FIELDS] if self._single_use else []
        spent = {int(s) for column in used for s in np.unique(column)} & self._single_use
        batch = self._table.localise(ready)
        for serial in spent:
            self._table.drop_own(serial)
        self._single_use -= spent
        return batch

    def _pull(self) -> None:
        """Everything out of the rings: events first, so that every string they name is in before they are used."""
        parts = [self._precious.take_events(MOST_EVENTS), self._bulk.take_events(MOST_EVENTS)]
        taken = [part for part in parts if len(part)]
        for part in taken:
            where, counts = np.unique(part["slot"] * KINDS + (part["kind"] % KINDS), return_counts=True)
            self._seen[where // KINDS, where % KINDS] += counts.astype(np.uint32)
        self._take_strings()
        if taken:
            self._pending = np.concatenate([self._pending, *taken]) if len(self._pending) else _joined(taken)

    def _take_strings(self) -> None:
        head = STRING_RECORD.itemsize
        seen: dict[int, int] = {}
        for serial, slot, dev, role, raw in self._strings_ring.take_strings():
            self._table.add(serial, slot, dev, role, raw)
            seen[slot] = seen.get(slot, 0) + len(raw) + head
        for slot, count in seen.items():
            self._string_seen[slot] += count

    def _ready(self) -> Records:
        """Take the events out of `_pending` that may be handed out."""
        pending = _sorted(self._pending)
        slots, starts = np.unique(pending["slot"], return_index=True)
        ends = np.append(starts[1:], len(pending))
        hold = np.zeros(len(pending), np.bool_)
        missing = self._table.unresolved(pending)
        now = time.monotonic()
        for slot, start, end in zip(slots.tolist(), starts.tolist(), ends.tolist(), strict=True):
            entry = self._registered.get(slot) or self._ended.get(slot)
            if entry is None:
                continue
            part = pending["seq"][start:end]
            count = entry.order.ready(part, missing[start:end], self._lost(slot), now)
            hold[start + count : end] = True
        if hold.any():
            self._pending = pending[hold]
            pending = pending[~hold]
            missing = missing[~hold] if len(missing) != len(pending) else missing
        else:
            self._pending = np.empty(0, EVENT)
        if missing.any():
            self._table.blank(pending)
        return pending

    def _lost(self, slot: int) -> int:
        return int(self._slots["lost"][slot, :, :2].sum())

    def _turn_epoch(self) -> None:
        """Let the kernel send live strings again once many are held, and forget the old ones a while later."""
        now = time.monotonic()
        if self._forget_at is not None:
            due, serial = self._forget_at
            if now >= due and not len(self._pending):
                self._table.drop_before(serial)
                self._forget_at = None
        elif (int(self._serial[0]) - self._epoch_serial) % (1 << 32) > EPOCH_STRINGS:
            self._epoch_serial = int(self._serial[0])
            self._forget_at = (now + EPOCH_GRACE_S, (self._epoch_serial + 1) % (1 << 31))
            self._epoch[0] += 1

    # registering

    def _take_slot(self) -> int:
        due, slot = self._free[0] if self._free else (0.0, 0)
        if not self._free:
            raise LoadError(0, f"{MAX_SLOTS - 1} sandboxes are watched already: unregister some first")
        self._free.popleft()
        if self._ended.pop(slot, None) is not None:
            time.sleep(max(0.0, due - time.monotonic()))
            self._pull()
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
            self._missed = self._kernel.missed(TRACING)
            self._missed_until = now + MISSED_EVERY_S
        return int(self._unattributed[0]) + self._missed

    # network

    def _use_ruleset(self, rules: tuple[NetRule, ...]) -> int:
        if rules in self._rulesets:
            number, users, keys = self._rulesets[rules]
            self._rulesets[rules] = (number, users + 1, keys)
            return number
        number = self._next_ruleset
        self._next_ruleset += 1
        names = {name: self._table.add_own(name.encode()) for name in {rule.name for rule in rules}}
        keys = []
        for (prefix, length), indexes in compile_rules(rules).items():
            key = np.zeros(1, KEY)
            key["length"], key["ruleset"] = 32 + length, number
            key["address"] = np.frombuffer(prefix, np.uint8)
            value = np.zeros(1, VALUE)
            value["count"] = len(indexes)
            for place, index in enumerate(indexes):
                rule = rules[index]
                value["at"][0, place] = (
                    rule.port_low, rule.port_high, rule.protocol, rule.allow, 0, names[rule.name]
                )  # fmt: skip
            self._kernel.update("rules", key.tobytes(), value.tobytes())
            keys.append(key.tobytes())
        self._rulesets[rules] = (number, 1, keys)
        return number

    def _release_ruleset(self, number: int) -> None:
        for rules, (own, users, keys) in list(self._rulesets.items()):
            if own != number:
                continue
            if users > 1:
                self._rulesets[rules] = (own, users - 1, keys)
                return
            for key in keys:
                self._kernel.delete("rules", key)
            del self._rulesets[rules]


def _require() -> None:
    if os.geteuid() != 0:
        raise SensorUnavailable("the sensor needs root (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN)")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        raise SensorUnavailable("this kernel has no BTF: it needs CONFIG_DEBUG_INFO_BTF=y")


def _prepare(kernel: Kernel, sizes: Mapping[str, int]) -> None:
    check_layout(kernel, "event", EVENT)
    check_layout(kernel, "slot", SLOT)
    for name, size in sizes.items():
        if size & (size - 1) or size < 4096:
            raise SensorUnavailable(f"ring {name}: {size} bytes is not a power of two of at least 4096")
        kernel.size_map(name, size)
    key = secrets.token_bytes(16)
    kernel.set_constants(
        {
            "sensor_tgid": os.getpid(),
            "bulk_size": sizes["bulk"],
            "precious_size": sizes["precious"],
            "string_size": sizes["strings"],
            "hash_key": [int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")],
            "direct_reads": int(kernel_has("bpf_rdonly_cast")),
        }
    )
    kernel.load()
    for program in TRACING:
        kernel.attach(program)


def _map_slots(kernel: Kernel) -> Records:
    import mmap

    size = SLOT.itemsize * MAX_SLOTS
    memory = mmap.mmap(kernel.map_fd("slots"), (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE)
    return np.frombuffer(memory, SLOT, MAX_SLOTS)


def _sorted(records: Records) -> Records:
    keys = (records["slot"].astype(np.uint64) << np.uint64(48)) | records["seq"]
    if len(keys) < 2 or bool((keys[1:] > keys[:-1]).all()):
        return records
    return records[np.argsort(keys, kind="stable")]


def _joined(parts: list[Records]) -> Records:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _stream_objects(fd: int) -> list[tuple[int, int]]:
    """(device, inode) of a stream as the kernel's programs see it: of a terminal, its far end and /dev/tty."""
    import fcntl
    import stat
    import struct

    status = os.fstat(fd)
    if stat.S_ISCHR(status.st_mode):
        try:
            number = struct.unpack("i", fcntl.ioctl(fd, 0x80045430, b"\0" * 4))[0]  # TIOCGPTN
            status = os.stat(f"/dev/pts/{number}")
        except OSError:
            pass
        return [(_kernel_dev(status.st_dev), status.st_ino), (0, TTY_DEV)]
    return [(_kernel_dev(status.st_dev), status.st_ino)]


def _kernel_dev(dev: int) -> int:
    """stat's device number as the kernel's own `dev_t` (major << 20 | minor)."""
    return os.major(dev) << 20 | os.minor(dev)
