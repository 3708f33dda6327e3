"""One guarded rollout, start to verdict. Blocking; one sandbox; its methods may be called from any thread."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from invigilator.ebpf.events import Actor
from invigilator.guard import bytecode, canary
from invigilator.guard.changing import change
from invigilator.guard.errors import GuardError
from invigilator.guard.facts import Recorder, Survivor
from invigilator.guard.failed import failed_report
from invigilator.guard.folders import require_same
from invigilator.guard.home import write_atomically
from invigilator.guard.leftovers import GRACE_S, leftovers
from invigilator.guard.opening import PHASES, RolloutError, Watch, arm, prepare, watch
from invigilator.guard.order import CommandOrder, CommandResult, SandboxOrder
from invigilator.guard.progress import Progress, Running
from invigilator.guard.services import Services
from invigilator.guard.settling import SHIP_WAIT_S, settle
from invigilator.guard.verdict import Course, Evidence, judge
from invigilator.incidents.records import PolicyChange, Report
from invigilator.incidents.spool import SpoolError
from invigilator.incidents.stamp import wall_offset_ns
from invigilator.profiles.policy import Limits, PhaseName, Policy
from invigilator.sandbox.base import ExitStatus, LimitHit, Sandbox, SandboxError, Streams

_log = logging.getLogger("invigilator.rollout")

ORDER: Sequence[PhaseName] = ("setup", "agent", "verify")
TIMEOUT_CODE = 124


class Rollout:
    """One sandbox from `open` to `close`, its phases, commands and verdict."""

    def __init__(self, services: Services, order: SandboxOrder) -> None:
        self.order = order
        self.sandbox_id = uuid.uuid4()
        self._services = services
        self._lock = threading.RLock()
        self._progress = Progress()
        self._policy = order.policy
        self._changes: list[PolicyChange] = []
        self._canaries = canary.draw(order.policy.filesystem.canaries)
        self._sandbox: Sandbox | None = None
        self._watch: Watch | None = None
        self._phase: PhaseName | None = None
        self._opened = False
        self._by_another = False
        self._steps = 0
        self._report: Report | None = None
        self._closed = False

    @property
    def enforcement(self) -> Mapping[str, str]:
        """What is in force, tier by tier."""
        return self._box.enforcement()

    @property
    def judged(self) -> bool:
        """Whether there is a verdict, or there cannot be one any more."""
        return self._report is not None or self._closed

    @property
    def live(self) -> bool:
        """Whether commands can run in it."""
        return self._opened and not self.judged

    def require_phase(self) -> None:
        """A RolloutError where no phase has begun: only who began the rollout has one begun by a command."""
        if self._phase is None:
            raise RolloutError(
                "no phase of the rollout has begun", fix="wait for it, or `guard phase` begins one"
            )

    def open(self) -> None:
        """Make the sandbox and arm the sensor; on any error nothing is left behind."""
        try:
            self._mark()
            require_same(self.order)
            self._sandbox = prepare(self._services, self.order, self.sandbox_id, self._canaries)
            self._watch = watch(self._services, self.order, self._sandbox)
            self._sandbox.start()
            arm(self._services, self.order, self._sandbox, self._watch, self._canaries)
            self._opened = True
        except BaseException as error:
            self._report_unopened(str(error))
            self.close()
            raise

    def begin(self, phase: PhaseName, *, by_another: bool = False) -> None:
        """End the present phase and begin `phase`; phases go setup, agent, verify, and never back.

        `by_another`: by a client that did not begin the rollout. Who did comes to the same phase later, and
        finds it begun.
        """
        with self._lock:
            self._require_open()
            if phase == self._phase and self._by_another and not by_another:
                return
            if phase == self._phase:
                raise RolloutError(f"phase {phase} has begun already")
            if self._phase is not None and ORDER.index(phase) <= ORDER.index(self._phase):
                raise RolloutError(
                    f"phase {phase} cannot follow phase {self._phase}", fix="phases never go back"
                )
            survivors, kept = self._end_phase(phase)
            self._phase, self._by_another = phase, by_another
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
            assert self._phase is not None
            name = order.actor_in(self._phase)
            actor = Actor[name.upper()]
            ordinal = self._next_step(order, actor)
            self._services.sensor.set_step(self._watching.slot, ordinal, actor)
            process = self._box.execute(
                order.arguments(),
                phase=self._phase,
                streams=Streams(stdin, stdout, stderr, order.tty, order.rows, order.columns),
                cwd=order.cwd,
                environment={**self.order.environment, **order.environment},
                output_limit_bytes=max(0, self._limits.output_bytes - self._progress.output_bytes),
                actor=name,
                on_streams=self._record_streams,
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
                output_error=status.output_error,
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

    def change_policy(self, policy: Policy) -> PolicyChange:
        """Put another policy in force on what runs: what it does from then on is judged by it."""
        with self._lock:
            self._require_open()
            self._services.keeper.keep_policy(policy)
            try:
                changed = change(self._services, self._box, self._watching, self._policy, policy)
            except (GuardError, SandboxError):
                raise
            except Exception as error:
                self.fail(f"its policy could be changed in part only: {error}")
                raise
            self._policy = policy
            self._changes.append(changed)
            return changed

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
            if self._watch is not None:
                self._watch.end(self._services)

    @property
    def _limits(self) -> Limits:
        return self._policy.limits

    @property
    def _box(self) -> Sandbox:
        if self._sandbox is None or self._closed:
            raise RolloutError("the sandbox is gone")
        return self._sandbox

    @property
    def _watching(self) -> Watch:
        if self._watch is None:
            raise RolloutError("the sandbox is gone")
        return self._watch

    @property
    def _facts(self) -> Recorder:
        return self._watching.facts

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
            self._unmark()
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

    def _unmark(self) -> None:
        """The verdict is on disk and about to be told: from now on the next agent must not contradict it."""
        self._mark_file.unlink(missing_ok=True)

    def _record_streams(self, streams: Sequence[int]) -> None:
        for descriptor in streams:
            self._services.sensor.set_stream(self._watching.slot, descriptor)

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
        survivors: Sequence[Survivor] = []
        if following:
            grace_s = GRACE_S if ended == "agent" and not kept else 0.0
            survivors = leftovers(lambda: box.survivors(following), PHASES[ended], grace_s)
        if not kept:
            box.end_processes(ended)
        self._facts.limits(box.limits_hit())
        self._services.sensor.flush(self._watching.slot, PHASES[ended])
        self._facts.phase_edge(begins=False)
        caches = self._facts.differences(box)
        if ended == "agent":
            self._facts.canaries_in_submission(box, self._canaries)
            if following and self._policy.mode == "enforce":
                bytecode.drop(box, caches)
        self._progress.phase_ends()
        return survivors, kept

    def _conclude(self) -> Report:
        course, evidence = self._finish()
        report = self._judged(course, evidence)
        try:
            offset = self._watching.watched.origin.wall_offset_ns or 0
            segments = self._services.keeper.keep(self.order, report, offset, course.progress.steps)
        except SpoolError as error:
            # Handed out as failed now; the mark that stays makes the next agent store that.
            self.fail(str(error))
            return self._judged(course, evidence)
        self._services.shipper.wait_for(segments, SHIP_WAIT_S)
        self._unmark()
        return report

    def _finish(self) -> tuple[Course, Evidence]:
        """End all that runs: how it went, and what there is to judge it by."""
        box, watching, progress = self._box, self._watching, self._progress
        if not box.alive:
            self.fail("the sandbox's init was killed, and every command with it")
        self._attempt("the last phase could not be ended", lambda: self._end_phase(None))
        self._attempt("the sandbox's processes could not be ended", box.end_processes)
        evidence = settle(self._services, watching, self.fail)
        if self.order.copy_back and self.order.workspace:
            self._attempt("the workspace could not be copied back", box.copy_back)
        course = Course(
            str(self.sandbox_id), progress, box.enforcement(), self._changes, [*watching.later.values()]
        )
        return course, evidence

    def _judged(self, course: Course, evidence: Evidence) -> Report:
        return judge(self.order, course, evidence)

    def _attempt(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            _log.exception("sandbox %s: %s", self.sandbox_id, what)
            self.fail(f"{what}: {error}")
