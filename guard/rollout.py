"""One guarded rollout, start to verdict. Blocking; one sandbox; its methods may be called from any thread."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from invigilator.detectors.engine import Engine
from invigilator.ebpf.events import Actor, Phase
from invigilator.ebpf.network import NetRule
from invigilator.ebpf.sensor import Loss
from invigilator.guard import canary
from invigilator.guard.errors import GuardError
from invigilator.guard.facts import Recorder, Survivor
from invigilator.guard.failed import failed_report
from invigilator.guard.gitfacts import future_commits
from invigilator.guard.home import write_atomically
from invigilator.guard.order import CommandOrder, CommandResult, SandboxOrder
from invigilator.guard.pipeline import Watched
from invigilator.guard.progress import Progress, Running
from invigilator.guard.services import Services
from invigilator.guard.verdict import Course, Evidence, judge, lost_by_class
from invigilator.incidents.records import Incident, Report
from invigilator.incidents.spool import SpoolError
from invigilator.incidents.stamp import Origin, wall_offset_ns
from invigilator.profiles import network
from invigilator.profiles.policy import Limits, PhaseName
from invigilator.sandbox.base import CanaryFile, ExitStatus, LimitHit, Sandbox, SandboxSpec, Streams

_log = logging.getLogger("invigilator.rollout")

PHASES: Mapping[PhaseName, Phase] = {"setup": Phase.SETUP, "agent": Phase.AGENT, "verify": Phase.VERIFY}
ORDER: Sequence[PhaseName] = ("setup", "agent", "verify")
TIMEOUT_CODE = 124
SETTLE_TIMEOUT_S = 60.0
"""For the last events to be read, stored and judged; past that the rollout has failed."""
SHIP_WAIT_S = 10.0
"""For the store to catch up, where it takes anything; the verdict does not depend on it."""


class RolloutError(GuardError):
    """The rollout cannot do what was asked; the sandbox is not to blame."""


class Rollout:
    """One sandbox from `open` to `close`, its phases, commands and verdict."""

    def __init__(self, services: Services, order: SandboxOrder) -> None:
        self.order = order
        self.sandbox_id = uuid.uuid4()
        self._services = services
        self._lock = threading.RLock()
        self._progress = Progress()
        self._canaries = canary.draw(order.policy.filesystem.canaries)
        self._sandbox: Sandbox | None = None
        self._slot: int | None = None
        self._watched: Watched | None = None
        self._recorder: Recorder | None = None
        self._phase: PhaseName | None = None
        self._steps = 0
        self._report: Report | None = None
        self._kept = False
        self._closed = False

    @property
    def enforcement(self) -> Mapping[str, str]:
        """What is in force, tier by tier."""
        return self._box.enforcement()

    @property
    def judged(self) -> bool:
        """Whether there is a verdict, or there cannot be one any more."""
        return self._report is not None or self._closed

    def open(self) -> None:
        """Make the sandbox and arm the sensor; on any error nothing is left behind."""
        try:
            self._mark()
            self._make()
        except BaseException as error:
            self._report_unopened(str(error))
            self.close()
            raise

    def begin(self, phase: PhaseName) -> None:
        """End the present phase and begin `phase`; phases go setup, agent, verify, and never back."""
        with self._lock:
            self._require_open()
            if self._phase is not None and ORDER.index(phase) <= ORDER.index(self._phase):
                raise RolloutError(
                    f"phase {phase} cannot follow phase {self._phase}", fix="phases never go back"
                )
            survivors, kept = self._end_phase(phase)
            self._phase = phase
            self._facts.phase = PHASES[phase]
            self._facts.phase_edge(begins=True)
            self._facts.survivors(survivors, ended=not kept)
            self._progress.phase_begins(phase)

    def execute(self, order: CommandOrder, stdin: int, stdout: int, stderr: int) -> Running:
        """Start a command in the present phase (agent, where none has begun); the descriptors stay the
        caller's, to be kept open until `wait` has returned."""
        with self._lock:
            self._require_open()
            if self._phase is None:
                self.begin("agent")
            assert self._phase is not None and self._slot is not None
            name = order.actor_in(self._phase)
            actor, slot = Actor[name.upper()], self._slot
            ordinal = self._next_step(order, actor)
            self._services.sensor.set_step(slot, ordinal, actor)
            process = self._box.execute(
                order.arguments(),
                phase=self._phase,
                streams=Streams(stdin, stdout, stderr, order.tty, order.rows, order.columns),
                cwd=order.cwd,
                environment={**self.order.environment, **order.environment},
                output_limit_bytes=max(0, self._limits.output_bytes - self._progress.output_bytes),
                actor=name,
                on_streams=lambda streams: self._record_streams(slot, streams),
            )
            return Running(order, process, self._phase, actor, ordinal)

    def wait(self, running: Running) -> CommandResult:
        """Wait for a command's end."""
        status = running.process.wait(running.order.timeout_s)
        with self._lock:
            reason = "limit" if self._progress.expired and status.reason == "signalled" else status.reason
            result = CommandResult(
                code=TIMEOUT_CODE if reason == "timeout" else status.code,
                reason=reason,
                output_bytes=status.output_bytes,
                output_cut=status.output_cut,
            )
            self._progress.command_ends(running, result)
            if self._report is None and not self._closed:
                self._tell_end(running, result, status)
            return result

    def expire(self) -> None:
        """The sandbox's time to live is over: end its processes."""
        with self._lock:
            if self._closed or self._report is not None:
                return
            self._progress.expired = True
            ttl = int(self._limits.ttl_s)
            self._facts.limits([LimitHit("ttl", ttl, ttl)])
            self._box.end_processes()

    def write_file(self, path: str, content: bytes, mode: int) -> None:
        """Put a file into the sandbox."""
        with self._lock:
            self._require_open()
            self._box.write_file(path, content, mode)

    def read_file(self, path: str) -> bytes:
        """Take a file out of the sandbox; also after the verdict, until `close`."""
        return self._box.read_file(path)

    def fail(self, why: str) -> None:
        """Something other than the agent failed: the report will say so. The first word stands."""
        self._progress.failure = self._progress.failure or why

    def verdict(self) -> Report:
        """End the rollout and judge it; asked again, it answers the same."""
        with self._lock:
            if self._report is None:
                self._report = self._conclude()
            return self._report

    def close(self) -> None:
        """Remove every trace of the sandbox. Idempotent."""
        with self._lock:
            if self._closed:
                return
            if self._sandbox is not None:
                self._attempt("the sandbox could not be removed", self._sandbox.remove)
            self._closed = True
            if self._slot is not None:
                self._services.pipeline.detach(self._slot)
                self._services.sensor.unregister(self._slot)
            if self._kept:
                self._mark_file.unlink(missing_ok=True)

    @property
    def _limits(self) -> Limits:
        return self.order.policy.limits

    @property
    def _box(self) -> Sandbox:
        if self._sandbox is None or self._closed:
            raise RolloutError("the sandbox is gone")
        return self._sandbox

    @property
    def _facts(self) -> Recorder:
        assert self._recorder is not None
        return self._recorder

    @property
    def _mark_file(self) -> Path:
        return self._services.home.rollouts / f"{self.sandbox_id}.json"

    def _report_unopened(self, why: str) -> None:
        """The trainer must learn that this rollout failed, and was no rollout of reward 0."""
        report = failed_report(
            self.order, why, sandbox_id=str(self.sandbox_id), started_at=self._progress.started_at
        )
        try:
            self._services.keeper.keep(self.order, report, wall_offset_ns())
            self._kept = True
        except Exception:
            _log.exception("the failure of rollout %s could not be kept", self.order.rollout_id)
        self._services.shipper.wake()

    def _require_open(self) -> None:
        if self._closed or self._report is not None:
            raise RolloutError("the rollout has ended", fix="begin another")
        if self._progress.expired:
            raise RolloutError(f"the sandbox's time to live ({self._limits.ttl_s:g} s) is over")

    def _mark(self) -> None:
        """Leave a record from which the next agent reports this rollout as failed, if this one dies."""
        record = {
            "sandbox_id": str(self.sandbox_id),
            "started_at": self._progress.started_at.isoformat(),
            "order": self.order.model_dump(mode="json"),
        }
        write_atomically(self._mark_file, json.dumps(record).encode(), 0o600)

    def _make(self) -> None:
        order = self.order
        backend = self._services.backends.get(order.backend)
        if backend is None:
            names = ", ".join(sorted(self._services.backends))
            raise RolloutError(f"there is no backend {order.backend!r} here", fix=f"use one of: {names}")
        self._sandbox = backend.prepare(
            SandboxSpec(
                sandbox_id=self.sandbox_id,
                policy=order.policy,
                workspace=Path(order.workspace) if order.workspace else None,
                root=Path(order.root) if order.root else None,
                owner_uid=order.owner_uid,
                owner_gid=order.owner_gid,
                canaries=[CanaryFile(one.path, one.content) for one in self._canaries],
                environment=order.environment,
            )
        )
        self._watch(self._sandbox)
        self._sandbox.start()
        self._require_tiers(self._sandbox.enforcement())
        self._record_beginning(self._sandbox)

    def _watch(self, sandbox: Sandbox) -> None:
        """Tell the sensor and the pipeline of the sandbox before any process is in it."""
        order, sensor = self.order, self._services.sensor
        offset = wall_offset_ns()
        engine = Engine(order.policy, self.sandbox_id, offset)
        origin = Origin(order.run_id or "", order.rollout_id, order.attempt, offset)
        cgroups = {number: PHASES[phase] for phase, number in sandbox.cgroups().items()}
        self._slot = sensor.register(self.sandbox_id, cgroups)
        self._watched = self._services.pipeline.attach(self._slot, self.sandbox_id, engine, origin)
        self._recorder = Recorder(sensor, self._slot, order.policy)

    def _require_tiers(self, enforcement: Mapping[str, str]) -> None:
        missing = [tier for tier in self.order.policy.require if enforcement.get(tier) != "enforce"]
        if missing and self.order.policy.mode == "enforce":
            raise RolloutError(
                f"policy {self.order.policy.name} requires {', '.join(missing)}, which is not in force here",
                fix="`guard doctor` says why; or take it out of the policy's `require`",
            )

    def _record_beginning(self, sandbox: Sandbox) -> None:
        assert self._slot is not None
        sensor, policy = self._services.sensor, self.order.policy
        mounts = list(sandbox.mounts())
        sensor.set_mounts(self._slot, [(m.dev, m.fs_root, m.mount_point) for m in mounts])
        for name, phase in PHASES.items():
            rules = network.compile(policy, name)
            sensor.set_network(self._slot, phase, rules.default_allow, [NetRule(*r) for r in rules.rules])
        sensor.arm(self._slot)
        self._facts.canaries_planted(self._canaries, sandbox.identity)
        if self.order.workspace:
            commits = future_commits(Path(self.order.workspace))
            self._facts.future_commits(commits, policy.filesystem.workspace[0])

    def _record_streams(self, slot: int, streams: Sequence[int]) -> None:
        for descriptor in streams:
            self._services.sensor.set_stream(slot, descriptor)

    def _next_step(self, order: CommandOrder, actor: Actor) -> int:
        if order.step_id is None:
            return 0
        self._steps += 1
        self._facts.step_begins(self._steps, order.step_id, actor)
        return self._steps

    def _tell_end(self, running: Running, result: CommandResult, status: ExitStatus) -> None:
        if running.order.step_id is not None:
            self._facts.step_ends(running.ordinal, running.order.step_id, running.actor, result.code)
        if status.output_cut:
            maximum = self._limits.output_bytes
            self._facts.limits([LimitHit("output", self._progress.output_bytes, maximum)])
        self._facts.limits(self._box.limits_hit())

    def _end_phase(self, following: PhaseName | None) -> tuple[Sequence[Survivor], bool]:
        """End the present phase: its survivors, and whether they are kept in `following`."""
        if self._phase is None:
            return [], True
        ended, box = self._phase, self._box
        rules = self.order.policy.phases.get(following) if following else None
        kept = rules is not None and rules.survivors == "keep"
        pids = box.survivors(following) if following else []
        survivors = [Survivor.of(pid, PHASES[ended]) for pid in pids]
        if not kept:
            box.end_processes(ended)
        self._facts.limits(box.limits_hit())
        if self._slot is not None:
            self._services.sensor.flush(self._slot, PHASES[ended])
        self._facts.phase_edge(begins=False)
        self._facts.differences(box)
        if ended == "agent":
            self._facts.canaries_in_submission(box, self._canaries)
        self._progress.phase_ends()
        return survivors, kept

    def _conclude(self) -> Report:
        assert self._watched is not None and self._slot is not None
        box, watched, progress = self._box, self._watched, self._progress
        self._attempt("the last phase could not be ended", lambda: self._end_phase(None))
        self._attempt("the sandbox's processes could not be ended", box.end_processes)
        evidence = self._settle(self._slot, watched)
        if self.order.copy_back and self.order.workspace:
            self._attempt("the workspace could not be copied back", box.copy_back)
        course = Course(str(self.sandbox_id), progress, box.enforcement())
        report = judge(self.order, course, evidence)
        try:
            segments = self._services.keeper.keep(
                self.order, report, watched.origin.wall_offset_ns or 0, progress.steps
            )
        except SpoolError as error:
            # Handed out as failed now; the mark that stays makes the next agent store that.
            self.fail(str(error))
            return judge(self.order, course, evidence)
        self._kept = True
        self._services.shipper.wait_for(segments, SHIP_WAIT_S)
        return report

    def _settle(self, slot: int, watched: Watched) -> Evidence:
        """Wait for the last event, tell of losses, let the store catch up."""
        sensor, pipeline = self._services.sensor, self._services.pipeline
        self._facts.sensor_losses(sensor.loss(slot))
        final = pipeline.settle(slot, SETTLE_TIMEOUT_S)
        if not final:
            self.fail(pipeline.trouble or "the sandbox's events could not be read to their end")
        loss = sensor.loss(slot)
        incidents = self._judge(watched, loss)
        self._services.shipper.wait_for(watched.segments, SHIP_WAIT_S)
        return Evidence(
            incidents=incidents,
            final=final,
            loss=loss,
            stored=watched.stored_rows,
            shipped=watched.shipped_rows,
            watermark=sensor.drained_to(slot),
            unjudged=watched.broken,
        )

    def _judge(self, watched: Watched, loss: Loss) -> Sequence[Incident]:
        """The engine's last word; where it has none, the evidence says why."""
        try:
            watched.engine.feed_loss(lost_by_class(loss), loss.produced)
            watched.engine.finish()
            return watched.engine.incidents()
        except Exception as error:
            _log.exception("sandbox %s could not be judged", self.sandbox_id)
            watched.broken = watched.broken or f"its events could not be judged: {error}"
            return []

    def _attempt(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            _log.exception("sandbox %s: %s", self.sandbox_id, what)
            self.fail(f"{what}: {error}")
