"""The process backend: namespaces, cgroups, a copy-on-write root, and nothing of the host's to hold on to."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from invigilator.profiles import limits as limit_compiler
from invigilator.profiles import seccomp
from invigilator.profiles.policy import PhaseName
from invigilator.sandbox import (
    build,
    changes,
    confinement,
    files,
    hidden,
    masks,
    network,
    recipe,
    root,
    workspace,
)
from invigilator.sandbox.base import (
    Actor,
    Backend,
    Change,
    LimitHit,
    Mount,
    Process,
    Sandbox,
    SandboxError,
    SandboxSpec,
    Streams,
)
from invigilator.sandbox.cgroups import Cgroups, SandboxCgroups
from invigilator.sandbox.commands import Command, make_ends
from invigilator.sandbox.ids import COUNT, FIRST, Ids
from invigilator.sandbox.launching import Handles, Launcher
from invigilator.sandbox.layer import Layer, Layers
from invigilator.sandbox.mounts import mount_table
from invigilator.sandbox.spec import Op, Slot, Specification


@dataclass(slots=True)
class Machinery:
    """What the sandboxes of one agent share."""

    home: Path
    launcher: Launcher
    cgroups: Cgroups
    ids: Ids
    layers: Layers
    roots: root.Roots
    links: network.Links

    @property
    def stage(self) -> Path:
        """An empty folder to build upon, in private mount namespaces only."""
        return self.home / "sandboxes"


class ProcessBackend(Backend):
    """Sandboxes as processes of this machine's kernel."""

    name = "process"

    def __init__(self, home: Path, *, own: Sequence[Path] = (), stock: int = 4) -> None:
        """`home`: the state folder. `own`: what of the guard's must never enter, beside the state and this
        package. `stock`: how many writable layers to keep ready."""
        self._home = home.absolute()
        (self._home / "sandboxes").mkdir(parents=True, exist_ok=True)
        binary = build.launcher(self._home / "roots")
        cgroups = Cgroups()
        package = Path(__file__).resolve().parent.parent
        guarded = [self._home, package, *own]
        launcher = Launcher(binary, cgroups.folders)
        self._shared = Machinery(
            self._home,
            launcher,
            cgroups,
            Ids(),
            Layers(self._home / "sandboxes", stock),
            root.Roots(self._home / "roots", guarded),
            network.Links(launcher),
        )

    @property
    def launcher(self) -> Launcher:
        """The zygote."""
        return self._shared.launcher

    def prepare(self, spec: SandboxSpec) -> ProcessSandbox:
        """See the contract."""
        return ProcessSandbox(spec, self._shared)

    def sweep(self) -> int:
        """See the contract."""
        return self._shared.cgroups.sweep()

    def parent_cgroup(self) -> Path:
        """See the contract."""
        return self._shared.cgroups.folders[0]

    def close(self) -> None:
        """End every sandbox and the zygote."""
        self._shared.launcher.close()
        self._shared.links.close()
        self._shared.layers.close()
        self._shared.roots.close()
        self._shared.ids.close()
        self._shared.cgroups.close()


@dataclass(slots=True)
class Stopwatch:
    """Seconds of each step of a sandbox's making and unmaking, by name."""

    steps: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.steps[name] = self.steps.get(name, 0.0) + time.perf_counter() - began


class ProcessSandbox(Sandbox):
    """One sandbox. `timings`: seconds by step."""

    def __init__(self, spec: SandboxSpec, shared: Machinery) -> None:
        self.spec = spec
        self._shared = shared
        self._watch = Stopwatch()
        self._handles = Handles({})
        self._commands: list[Command] = []
        self._layer: Layer | None = None
        self._cgroups: SandboxCgroups | None = None
        self._first_id = 0
        self._link: network.Link | None = None
        self._removed = False
        self._masks: masks.Masks | None = None
        self.skipped: Sequence[str] = ()
        """What `copy_back` left behind, each with the reason."""
        self._baseline: dict[bytes, changes.State] = {}
        try:
            self._prepare()
        except BaseException:
            self.remove()
            raise

    @property
    def timings(self) -> Mapping[str, float]:
        """Seconds of each step so far."""
        return self._watch.steps

    @property
    def init_pid(self) -> int:
        """Process id of the sandbox's init in this process's pid namespace."""
        for line in Path(f"/proc/self/fdinfo/{self._handle(Slot.INIT)}").read_text().splitlines():
            if line.startswith("Pid:"):
                return int(line.split()[1])
        raise SandboxError("the sandbox is gone")

    def cgroups(self) -> Mapping[PhaseName, int]:
        """See the contract."""
        return self._groups.identities()

    def start(self) -> None:
        """See the contract."""
        with self._watch.step("start"):
            specification = self._recipe.specification()
            init = os.open(self._groups.v2 / "init", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                assert self._layer is not None
                self._handles = self._shared.launcher.start(specification, init, [self._layer.fd])
            finally:
                os.close(init)
        if self._network.link:
            with self._watch.step("link"):
                number = (self._first_id - FIRST) // COUNT
                self._link = self._shared.links.make(number, self._handle(Slot.NET), self._network)
        self._masks = masks.Masks(self.spec.policy, self._first_id)
        with self._watch.step("plant"):
            self._plant()

    def mounts(self) -> Sequence[Mount]:
        """See the contract."""
        return mount_table(self.init_pid)

    def enforcement(self) -> Mapping[str, str]:
        """See the contract."""
        return confinement.enforcement(self.spec.policy, self._groups, self._shared.cgroups.hierarchies)

    def execute(
        self,
        command: Sequence[str | bytes],
        *,
        phase: PhaseName,
        streams: Streams,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        output_limit_bytes: int | None = None,
        actor: Actor = "agent",
        on_streams: Callable[[Sequence[int]], None] | None = None,
    ) -> Process:
        """See the contract."""
        if not command:
            raise SandboxError("an empty command")
        self._handle(Slot.INIT)
        platform = actor == "platform" or phase == "verify"
        if self._masks and phase == "agent" and Slot.MASKED in self._handles.fds:
            self._masks.apply(self._shared, self._handles)
        if self._masks and phase == "verify":
            self._masks.lift(self._handles)
        spec = self._command_spec(command, phase, streams, cwd, environment, output_limit_bytes, platform)
        mount = self._handles.fds.get(Slot.MOUNT if platform else Slot.MASKED, self._handle(Slot.INIT))
        with self._watch.step("execute"):
            return self._launch(spec, os.fsdecode(command[0]), phase, streams, mount, on_streams)

    def survivors(self, phase: PhaseName) -> Sequence[int]:
        """See the contract."""
        return [
            pid for other in self._groups.leaves if other != phase for pid in self._groups.processes(other)
        ]

    def end_processes(self, phase: PhaseName | None = None) -> None:
        """See the contract."""
        for each in [phase] if phase else list(self._groups.leaves):
            self._groups.kill(each)

    def changes(self, under: Sequence[str]) -> Iterator[Change]:
        """See the contract."""
        assert self._layer is not None
        walk = changes.Walk(self._root, self._first_id, self._baseline)
        owner = (self.spec.owner_uid, self.spec.owner_gid) if self.spec.owner_uid else None
        found = changes.differences(self._layer.fd, walk, self._all_lowers, under, owner)
        made = self._masks.made if self._masks else frozenset()
        return (one for one in found if one.change != "added" or one.path not in made)

    def limits_hit(self) -> Sequence[LimitHit]:
        """See the contract."""
        hits = self._groups.limits_hit()
        if self._layer is not None and self._layer.fd >= 0:
            size, free, inodes, free_inodes = self._layer.usage()
            if free < max(4096, size // 200) or (inodes and free_inodes < 8):
                hits.append(LimitHit("disk", size - free, self.spec.policy.limits.disk_bytes))
        return hits

    def write_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """See the contract."""
        files.write_file(self._root, path, content, stat.S_IMODE(mode), self._first_id)
        if self._masks:
            self._masks.renew(self._shared, self._handles)

    def read_file(self, path: str, limit_bytes: int = 64 << 20) -> bytes:
        """See the contract."""
        return files.read_file(self._root, path, limit_bytes)

    def copy_back(self) -> None:
        """See the contract."""
        assert self._layer is not None
        if self.spec.workspace is None:
            return
        self.skipped = workspace.copy_back(
            self._layer.fd, self._root, self._workspace_lower, self.spec.owner_uid, self.spec.owner_gid
        )

    def remove(self) -> None:
        """See the contract."""
        if self._removed:
            return
        with self._watch.step("remove"):
            for command in self._commands:
                command.close()
            if self._cgroups is not None:
                self._cgroups.remove(self._handles.fds.get(Slot.INIT))
            self._handles.close()
            if self._link is not None:
                self._shared.links.remove(self._link)
            if self._layer is not None:
                self._shared.layers.discard(self._layer)
            if self._first_id:
                self._shared.ids.give_back(self._first_id)
        self._removed = True

    @property
    def _groups(self) -> SandboxCgroups:
        if self._cgroups is None or self._removed:
            raise SandboxError("the sandbox is gone")
        return self._cgroups

    @property
    def _root(self) -> int:
        return self._handle(Slot.ROOT)

    @property
    def _all_lowers(self) -> list[root.Lower]:
        return [*self._lowers, self._workspace_lower]

    @property
    def _point(self) -> str:
        return (
            self.spec.policy.filesystem.workspace[0]
            if self.spec.policy.filesystem.workspace
            else "/workspace"
        )

    def _handle(self, slot: Slot) -> int:
        if slot not in self._handles.fds or self._removed:
            raise SandboxError("the sandbox is gone, or not yet started")
        return self._handles[slot]

    def _prepare(self) -> None:
        spec, shared = self.spec, self._shared
        limits = limit_compiler.compile(spec.policy)
        with self._watch.step("root"):
            self._lowers = self._choose_root()
            self._workspace_lower: root.Lower = self._choose_workspace()
        with self._watch.step("network"):
            self._network = network.needs(spec.policy)
        with self._watch.step("ids"):
            self._first_id = shared.ids.take()
        with self._watch.step("cgroups"):
            self._cgroups = shared.cgroups.make(str(spec.sandbox_id), limits)
        with self._watch.step("layer"):
            self._layer = shared.layers.take(limits)
            self._layer.own(self._first_id)
            hidden.hide(self._layer.fd, self._all_lowers, masks.hidden(spec.policy), self._first_id)
        self._recipe = recipe.Recipe(
            stage=shared.stage,
            first_id=self._first_id,
            lowers=self._lowers,
            workspace=self._workspace_lower,
            workspace_point=self._point,
            workspace_maps=recipe.workspace_maps(spec.owner_uid, spec.owner_gid, self._first_id)
            if spec.workspace
            else None,
            folders=spec.policy.filesystem.workspace[1:],
            nested_users=spec.policy.syscalls.userns == "allow",
            split=masks.needed(spec.policy),
            shm_bytes=limits.memory_bytes // 4,
            hostname=spec.hostname,
        )

    def _choose_root(self) -> list[root.Lower]:
        if self.spec.root is None:
            return self._shared.roots.default()
        folder = root.check_folder(self.spec.root, self._shared.home, "root")
        return [root.Lower("root", "/", (folder,))]

    def _choose_workspace(self) -> root.Lower:
        folders: tuple[Path, ...] = ()
        if self.spec.workspace is not None:
            folders = (root.check_folder(self.spec.workspace, self._shared.home, "workspace"),)
            workspace.check_access(folders[0], self.spec.owner_uid, self.spec.owner_gid)
        return root.Lower("workspace", self._point, folders)

    def _plant(self) -> None:
        if self._network.hosts:
            known = self.read_file("/etc/hosts").decode()
            rows = [f"{one} {name}\n" for name, some in self._network.hosts.items() for one in some]
            files.write_file(
                self._root, "/etc/hosts", (known + "".join(rows)).encode(), 0o644, self._first_id
            )
        for canary in self.spec.canaries:
            masks.plant(self._root, canary, self._first_id)
        assert self._layer is not None
        self._baseline = changes.snapshot(self._layer.fd, self._all_lowers)

    def _command_spec(
        self,
        command: Sequence[str | bytes],
        phase: PhaseName,
        streams: Streams,
        cwd: str | None,
        environment: Mapping[str, str] | None,
        output_limit: int | None,
        platform: bool,
    ) -> Specification:
        spec = Specification()
        for word in command:
            spec.add(Op.ARGUMENT, _no_nul(word))
        variables = recipe.environment({**self.spec.environment, **(environment or {})}, cwd or self._point)
        if streams.tty:
            variables.setdefault("TERM", os.environ.get("TERM", "xterm-256color"))
        for name, value in variables.items():
            spec.add(Op.ENVIRONMENT, _no_nul(f"{name}={value}"))
        spec.add(Op.CWD, _no_nul(cwd or self._point))
        spec.add(Op.SECCOMP, seccomp.compile(self.spec.policy, phase))
        spec.add(
            Op.SETTINGS,
            confinement.capabilities(platform),
            -1 if output_limit is None else output_limit,
            int(streams.tty),
            streams.rows,
            streams.columns,
            len(self._groups.v1),
        )
        return spec

    def _launch(
        self,
        spec: Specification,
        name: str,
        phase: PhaseName,
        streams: Streams,
        mount: int,
        on_streams: Callable[[Sequence[int]], None] | None,
    ) -> Command:
        groups = self._groups
        ends = make_ends(streams, self._handle(Slot.PTS), self._first_id)
        opened = [os.open(groups.leaves[phase], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            opened += [os.open(folder / "tasks", os.O_WRONLY | os.O_CLOEXEC) for folder in groups.v1.values()]
            if on_streams:
                on_streams(ends.recorded)
            fds = [
                self._handle(Slot.INIT), self._handle(Slot.USER), mount, opened[0],
                streams.stdin, streams.stdout, streams.stderr, *ends.child, *ends.ours, *opened[1:],
            ]  # fmt: skip
            control = self._shared.launcher.execute(spec, fds)
        finally:
            ends.close()
            for fd in opened:
                os.close(fd)
        command = Command(control, name, lambda number: self._signal_all(phase, number), groups.oom_kills)
        self._commands.append(command)
        if command.refusal:
            with contextlib.suppress(OSError):
                os.write(streams.stderr, f"guard: {command.refusal}\n".encode(errors="replace"))
        return command

    def _signal_all(self, phase: PhaseName, number: int) -> None:
        if number == signal.SIGKILL:
            self._groups.kill(phase)
            return
        for pid in self._groups.processes(phase):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _no_nul(word: str | bytes) -> bytes:
    raw = os.fsencode(word)
    if b"\0" in raw:
        raise SandboxError("a NUL byte in the command, its environment or its folder")
    return raw
