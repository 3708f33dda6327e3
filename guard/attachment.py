"""One rollout in a cgroup that others made and run: watched and judged, and nothing of it is changed.

Nothing is enforced, the phase is what `guard phase` declares (unknown before), and what was there before the
watch began is not in the record: the report says since when it was watched, and names who was there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, NoReturn

from invigilator.detectors.engine import Engine
from invigilator.ebpf.events import Actor, Phase
from invigilator.guard.facts import Recorder
from invigilator.guard.opening import PHASES, RolloutError, Watch
from invigilator.guard.order import CommandOrder, SandboxOrder
from invigilator.guard.progress import STEP_COMMAND_MAX, Running
from invigilator.guard.rollout import ORDER, Rollout
from invigilator.guard.services import Services
from invigilator.guard.settling import settle
from invigilator.guard.verdict import Course, Evidence
from invigilator.incidents.records import (
    ENFORCEMENT_TIERS,
    Attached,
    Exit,
    PhaseRecord,
    Presence,
    Report,
)
from invigilator.incidents.rows import Step
from invigilator.incidents.stamp import Origin, wall_offset_ns
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox import places
from invigilator.sandbox.base import Mount, SandboxError
from invigilator.sandbox.foreign import ForeignCgroup, Inhabitant, place_here

_log = logging.getLogger("invigilator.attachment")

End = Literal["empty", "removed", "asked"]
SEEN = frozenset({"process", "file", "network", "privilege", "output"})
"""Classes of events that the sensor sees in a cgroup of others'."""
LOOK_S = 0.25
"""How often a cgroup is looked at where the kernel tells of no change."""
MEET_S = 0.002
"""How often who is about to begin a container's first program is looked at: its root is made in some ten
milliseconds before."""
LOOKS_MAX = 100
"""Before Linux 6.9 a thread that cannot be named may fork without end."""
BEFORE_MAX = 100
"""Processes of before the watch that a report names."""
COMMAND_MAX = 256


@dataclass(frozen=True, slots=True)
class Target:
    """What to watch: a cgroup's path. `make`: it is about to be made, and its runtime takes one that is
    there. `phase`: what is declared from the beginning. `container`: its id at Docker's, if it has one."""

    cgroup: str
    make: bool = False
    phase: PhaseName | None = None
    container: str = ""


@dataclass(frozen=True, slots=True)
class _Announced:
    order: CommandOrder
    actor: Actor
    ordinal: int
    at: datetime

    def step(self, phase: str, code: int) -> Step:
        return Step(
            step=self.ordinal,
            step_id=self.order.step_id or "",
            actor=self.actor.name.lower(),
            phase=phase,
            command=[" ".join(self.order.arguments())[:STEP_COMMAND_MAX]],
            started_at=self.at,
            ended_at=datetime.now(UTC),
            exit=Exit(code=code, reason="exited"),
        )


class Attachment(Rollout):
    """A rollout whose sandbox is somebody else's, from `open` to `close`."""

    def __init__(self, services: Services, order: SandboxOrder, target: Target) -> None:
        super().__init__(services, order)
        self._target = target
        self._cgroup: ForeignCgroup | None = None
        self._since = datetime.now(UTC)
        self._before: Sequence[Inhabitant] = ()
        self._holes: set[str] = set()
        self._whole = False
        self._told = 0
        self._entered = False
        self._end: End = "asked"
        self._mounts: Sequence[Mount] = ()
        self._streams: set[tuple[int, int]] = set()
        self._announced: _Announced | None = None

    @property
    def enforcement(self) -> dict[str, str]:
        """Nothing that the guard has set."""
        return dict.fromkeys(ENFORCEMENT_TIERS, "none")

    @property
    def place(self) -> str:
        """The cgroup's path from its hierarchy's root."""
        return self._group.place

    @property
    def whole(self) -> bool:
        """Whether no process was in the cgroup before it was watched."""
        return self._whole

    def open(self) -> None:
        """Begin to watch. RolloutError or SandboxError where that may not or cannot be; of that there is no
        report, since nothing was begun."""
        place = place_here(self._target.cgroup)
        self._require_allowed(place)
        self._cgroup = ForeignCgroup(place, make=self._target.make)
        try:
            self._mark()
            self._begin_watch()
            self._opened = True
        except BaseException:
            self.close()
            self._unmark()
            raise
        if self._whole:
            threading.Thread(target=self._meet, name="meet", daemon=True).start()

    def begin(self, phase: PhaseName, *, by_another: bool = False) -> None:
        """Declare that `phase` has begun; phases go setup, agent, verify, and never back. No process ends."""
        with self._lock:
            self._require_open()
            if self._phase is not None and ORDER.index(phase) <= ORDER.index(self._phase):
                raise RolloutError(
                    f"phase {phase} cannot follow phase {self._phase}", fix="phases never go back"
                )
            self._leave_phase()
            self._declare(phase)

    def wait_end(self) -> End:
        """Wait until nobody is in the cgroup any more, or it is gone, or the verdict was asked for."""
        while not self.judged:
            populated = self._group.populated()
            if populated is None:
                self._end = "removed"
                break
            self._entered = self._entered or populated
            if not populated and (self._entered or self._lived):
                self._end = "empty"
                break
            self._group.wait(LOOK_S, populated)
        return self._end

    @property
    def container(self) -> str:
        """The container's id at Docker's; empty where none is known."""
        return self._target.container

    def announce(self, order: CommandOrder) -> None:
        """Who enters next does so for this order: its actor and step are those of the processes."""
        with self._lock:
            self._require_open()
            if self._announced is not None:
                raise RolloutError("another command is being run in it", fix="wait for its end")
            actor = Actor[order.actor.upper()] if order.actor else self._actor
            ordinal = self._next_step(order, actor)
            self._told += bool(ordinal)
            self._services.sensor.set_step(self._watching.slot, ordinal, actor)
            self._announced = _Announced(order, actor, ordinal, datetime.now(UTC))

    def conclude(self, code: int) -> None:
        """What was announced has ended."""
        with self._lock:
            if (done := self._announced) is None or self.judged:
                return
            self._announced = None
            self._services.sensor.set_step(self._watching.slot, 0, self._actor)
            if done.order.step_id is not None:
                self._told += 1
                self._facts.step_ends(done.ordinal, done.order.step_id, done.actor, code)
                self._progress.steps.append(done.step(self._phase or "unknown", code))

    def require_phase(self) -> None:
        """Commands are refused whatever the phase is."""

    def execute(self, order: CommandOrder, stdin: int, stdout: int, stderr: int) -> Running:
        """Refused: whoever made the container runs its commands."""
        self._refuse()

    def change_policy(self, policy: Policy) -> NoReturn:
        """Refused: no policy is in force."""
        self._refuse()

    def write_file(self, path: str, content: bytes, mode: int) -> None:
        """Refused."""
        self._refuse()

    def read_file(self, path: str) -> bytes:
        """Refused."""
        self._refuse()

    def close(self) -> None:
        """Watch no more. Idempotent."""
        with self._lock:
            if not self._closed:
                super().close()
                if self._cgroup is not None:
                    self._cgroup.close()

    @property
    def _group(self) -> ForeignCgroup:
        if self._cgroup is None:
            raise RolloutError("nothing is watched")
        return self._cgroup

    @property
    def _lived(self) -> bool:
        """Whether anything but the agent's own facts is in the record."""
        return self._services.sensor.loss(self._watching.slot).produced > self._told

    @property
    def _actor(self) -> Actor:
        """Whose what enters is, where nobody says: as `guard run` has it."""
        return Actor.PLATFORM if self._phase in ("setup", "verify") else Actor.AGENT

    def _require_allowed(self, place: str) -> None:
        file = self._services.home.attachable
        try:
            allowed = places.entries(file.read_text()) if file.exists() else places.USUAL
        except places.PlaceError as error:
            raise RolloutError(str(error), where=str(file), fix="write a cgroup's path, as /jobs/") from None
        if not places.is_allowed(place, allowed):
            raise RolloutError(
                f"the cgroup {place} is not one that may be watched on this node: {', '.join(allowed)}",
                fix=f"a line with its parent and a slash in {file} allows others, instead of these",
            )

    def _begin_watch(self) -> None:
        sensor, policy, group = self._services.sensor, self.order.policy, self._group
        offset = wall_offset_ns()
        try:
            slot = sensor.register(self.sandbox_id, {group.identity: Phase.UNKNOWN})
        except OSError as error:
            raise _taken(group, error) from error
        origin = Origin(self.order.run_id or "", self.order.rollout_id, self.order.attempt, offset)
        engine = Engine(policy, self.sandbox_id, offset)
        watched = self._services.pipeline.attach(slot, self.sandbox_id, engine, origin)
        self._watch = Watch(slot, watched, Recorder(sensor, slot, policy))
        sensor.set_step(slot, 0, Actor.AGENT)
        if self._target.phase is not None:
            self._declare(self._target.phase)
        else:
            self._progress.phases.append(PhaseRecord(name="unknown", started_at=datetime.now(UTC)))
        try:
            sensor.include(slot, dict.fromkeys(group.below(), Phase.UNKNOWN))
        except OSError as error:
            raise _taken(group, error) from error
        self._learn_mounts(begun=True)
        self._learn_streams()
        if not self._mounts:
            sensor.hold(slot)
        sensor.arm(slot)
        self._since = datetime.now(UTC)
        self._progress.started_at = self._since
        self._whole = group.populated() is False
        if not self._whole:
            self._before = group.processes()
            self._holes |= SEEN
            self._learn_mounts(begun=True)
            self._give_up_mounts()
            # Those that begin meanwhile are children of who is followed already, or found by the next look.
            for _ in range(LOOKS_MAX):
                if not sensor.adopt(slot):
                    break

    def _declare(self, phase: PhaseName) -> None:
        self._services.sensor.declare(self._watching.slot, PHASES[phase])
        self._phase, self._facts.phase = phase, PHASES[phase]
        if self._announced is None:
            self._services.sensor.set_step(self._watching.slot, 0, self._actor)
        self._edge(begins=True)
        self._progress.phase_begins(phase)

    def _meet(self) -> None:
        """See the container's root and streams before its first program runs; what is late is a hole."""
        try:
            while not self.judged and (populated := self._group.populated()) is not None:
                lived = self._lived
                if not populated and not lived:
                    self._group.wait(LOOK_S, populated)
                    continue
                with self._lock:
                    if self.judged:
                        return
                    self._learn_mounts(begun=lived)
                    self._learn_streams()
                if lived and (self._mounts or not populated):
                    break
                time.sleep(MEET_S)
            if not self._streams:
                self._holes.add("output")
            with self._lock:
                self._give_up_mounts()
        except Exception:
            _log.exception("sandbox %s: its container's beginning could not be seen", self.sandbox_id)
            self._holes |= SEEN

    def _learn_mounts(self, *, begun: bool) -> None:
        mounts = self._group.mounts(any_root=begun)
        if not mounts or mounts == self._mounts:
            return
        self._mounts = mounts
        table = [(one.dev, one.fs_root, one.mount_point) for one in mounts]
        self._services.sensor.set_mounts(self._watching.slot, table)

    def _give_up_mounts(self) -> None:
        """What was seen is handed out, by whatever names: nobody lived long enough to be asked for better."""
        if not self._mounts and not self.judged:
            if self._lived:
                self._holes |= {"process", "file"}
            self._services.sensor.set_mounts(self._watching.slot, [])

    def _learn_streams(self) -> None:
        with self._group.streams() as streams:
            for key, fd in streams.items():
                if key not in self._streams:
                    self._streams.add(key)
                    self._services.sensor.set_stream(self._watching.slot, fd)
                    if self._lived:
                        self._holes.add("output")

    def _leave_phase(self) -> None:
        sensor, slot = self._services.sensor, self._watching.slot
        sensor.flush(slot, self._facts.phase)
        if self._phase is not None:
            self._edge(begins=False)
        self._progress.phase_ends()

    def _edge(self, *, begins: bool) -> None:
        self._told += 1
        self._facts.phase_edge(begins=begins)

    def _finish(self) -> tuple[Course, Evidence]:
        populated = self._group.populated()
        ended = populated is None or (not populated and (self._entered or self._lived))
        if ended and self._end == "asked":
            self._end = "removed" if populated is None else "empty"
        if not ended:
            self._holes |= SEEN
        self._services.sensor.halt(self._watching.slot)
        self._give_up_mounts()
        self._attempt("the last phase could not be ended", self._leave_phase)
        evidence = settle(replace(self._services, denials=None), self._watching, self.fail)
        course = Course(str(self.sandbox_id), self._progress, self.enforcement)
        return course, replace(evidence, holes=frozenset(self._holes))

    def _judged(self, course: Course, evidence: Evidence) -> Report:
        before = [_presence(one) for one in self._before[:BEFORE_MAX]]
        attached = Attached(
            cgroup=self.place, since=self._since, whole=self._whole, before=before, ended=self._end
        )
        return super()._judged(course, evidence).model_copy(update={"attached": attached})

    def _refuse(self) -> NoReturn:
        raise RolloutError(
            "the guard is attached to this container and watches it only: its commands, files and rules are"
            " whoever made it's",
            fix="use the container's own runtime (docker exec); `guard phase` declares the phase",
        )


def _taken(group: ForeignCgroup, error: OSError) -> SandboxError:
    return SandboxError(f"the cgroup {group.place} cannot be watched: {error.strerror or error}")


def _presence(one: Inhabitant) -> Presence:
    ago = time.clock_gettime(time.CLOCK_BOOTTIME) - one.started_s
    return Presence(
        pid=one.pid,
        command=one.command[:COMMAND_MAX],
        started_at=datetime.now(UTC) - timedelta(seconds=ago),
    )
