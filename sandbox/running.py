"""A sandbox while it runs, whatever it is made of: namespaces, cgroups and a root that a backend prepares."""

from __future__ import annotations

import abc
import contextlib
import os
import select
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from invigilator.profiles.apparmor import Layout
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox import (
    apparmor,
    changing,
    confinement,
    disks,
    files,
    root,
    workspace,
)
from invigilator.sandbox.base import (
    Actor,
    Became,
    Change,
    LimitHit,
    Mount,
    NameEvents,
    Pinned,
    Process,
    PutNetwork,
    Sandbox,
    SandboxError,
    SandboxSpec,
    Streams,
)
from invigilator.sandbox.cgroups import SandboxCgroups
from invigilator.sandbox.commands import Command
from invigilator.sandbox.content import Content
from invigilator.sandbox.cover import Cover
from invigilator.sandbox.dying import is_dying
from invigilator.sandbox.entering import Order, launch
from invigilator.sandbox.ids import COUNT, FIRST
from invigilator.sandbox.launching import Handles, telling
from invigilator.sandbox.layer import Layer
from invigilator.sandbox.machinery import Machinery, Stopwatch
from invigilator.sandbox.mounts import mount_table, without_covers
from invigilator.sandbox.outside import Outside
from invigilator.sandbox.spec import Slot


class RunningSandbox(Sandbox):
    """One sandbox, from its cgroups to its removal. `timings`: seconds by step."""

    _content: Content
    _lowers: Sequence[root.Lower]
    _workspace_lower: root.Lower

    def __init__(self, spec: SandboxSpec, shared: Machinery) -> None:
        self.spec = spec
        self._shared = shared
        self._watch = Stopwatch()
        self._handles = Handles({})
        self._commands: list[Command] = []
        self._layer: Layer | None = None
        self._cgroups: SandboxCgroups | None = None
        self._range = 0
        self._first_id = 0
        self._removed = False
        self._cover: Cover | None = None
        self.skipped: Sequence[str] = ()
        """What `copy_back` left behind, each with the reason."""
        self._profiles: apparmor.Phases = {}
        self._former: list[apparmor.Phases] = []
        self._layout: Layout | None = None
        self._outside = Outside(
            shared,
            namespace=lambda: self._handle(Slot.NET),
            number=lambda: (self._range - FIRST) // COUNT,
            name_server=lambda: self._name_resolver(),
        )
        try:
            with telling("make the sandbox"):
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

    @property
    def alive(self) -> bool:
        """See the contract."""
        poller = select.poll()
        poller.register(self._handle(Slot.INIT), select.POLLIN)
        # A killed init takes its processes along first, and is told as ended only after them.
        return not poller.poll(0) and not is_dying(self.init_pid)

    def cgroups(self) -> Mapping[PhaseName, int]:
        """See the contract."""
        return self._groups.identities()

    def start(self) -> None:
        """See the contract."""
        with telling("start the sandbox"):
            self._start()

    def _start(self) -> None:
        with self._watch.step("start"):
            self._handles = self._make()
        self._watch.steps.update((f"start: {name}", spent) for name, spent in self._handles.spent.items())
        with self._watch.step("link"):
            self._outside.join()
        with self._watch.step("resolver"):
            self._outside.name(self.spec.policy)
        self._cover = Cover(
            self.spec.policy,
            self._first_id,
            self._stranger,
            self._shared,
            self._handles,
            self._groups,
            self._tell_mounts,
        )
        assert self._layer is not None
        with self._watch.step("plant"):
            if self._outside.needs.hosts:
                self._name_hosts()
            self._content = Content(self.spec, self._layer, self._root, self._all_lowers, self._first_id)

    def mounts(self) -> Sequence[Mount]:
        """See the contract."""
        plain = without_covers(mount_table(self.init_pid))
        masked = self._cover.mounts if self._cover else ()
        if not masked:
            return plain
        both = dict.fromkeys([*plain, *masked])
        return sorted(both, key=lambda mount: len(mount.mount_point), reverse=True)

    def identity(self, path: str) -> tuple[int, int]:
        """See the contract. A file of an overlay has the same inode number for stat(2) as in the kernel."""
        raw = os.fsencode(path)
        ino = os.stat(raw.lstrip(b"/"), dir_fd=self._root, follow_symlinks=False).st_ino
        holding = [m for m in mount_table(self.init_pid) if raw.startswith(m.mount_point.rstrip(b"/") + b"/")]
        return (holding[0].dev if holding else 0, ino)

    def enforcement(self) -> Mapping[str, str]:
        """See the contract."""
        hierarchies = self._shared.cgroups.hierarchies
        outside = self._outside
        found = confinement.enforcement(
            self.spec.policy, self._groups, hierarchies, linked=outside.needs.link, named=outside.named
        )
        return {**found, "apparmor": self._shared.profiles.observed(self._profiles)}

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
        self._handle(Slot.INIT)
        platform = actor == "platform" or phase == "verify"
        if self._cover is not None:
            with self._watch.step("masks"):
                self._cover.before_command(phase, platform=platform)
        self._outside.begin(phase)
        order = Order(command, phase, streams, cwd or self._folder, platform, output_limit_bytes, on_streams)
        variables = {**self.spec.environment, **(environment or {})}
        mount = self._handles.fds.get(Slot.MOUNT if platform else Slot.MASKED, self._handle(Slot.INIT))
        with self._watch.step("execute"):
            control = launch(
                order, variables, self.spec.policy, self._shared.launcher, self._handles, mount, self._groups,
                self._first_id, self._profiles.get("verify" if platform else phase),
            )  # fmt: skip
            started = Command(
                control, order.name, partial(self._groups.signal, phase), self._groups.oom_kills
            )
        self._commands = [one for one in self._commands if not one.ended]
        self._commands.append(started)
        if started.refusal:
            with contextlib.suppress(OSError):
                os.write(streams.stderr, f"guard: {started.refusal}\n".encode(errors="replace"))
        return started

    def on_names(self, events: NameEvents) -> None:
        """See the contract."""
        self._outside.tell(events)

    def survivors(self, phase: PhaseName) -> Sequence[int]:
        """See the contract."""
        others = [other for other in self._groups.leaves if other != phase]
        return [pid for other in others for pid in self._groups.processes(other) if not is_dying(pid)]

    def end_processes(self, phase: PhaseName | None = None) -> None:
        """See the contract."""
        for each in [phase] if phase else list(self._groups.leaves):
            self._groups.kill(each)

    def changes(self, under: Sequence[str]) -> Iterator[Change]:
        """See the contract."""
        return self._content.changes(self._root, under, self._cover.made if self._cover else frozenset())

    def limits_hit(self) -> Sequence[LimitHit]:
        """See the contract."""
        hits = self._groups.limits_hit()
        full = self._layer.full() if self._layer is not None else None
        return hits if full is None else [*hits, LimitHit("disk", full, self.spec.policy.limits.disk_bytes)]

    def write_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """See the contract."""
        with self._cover.writing(path) if self._cover else contextlib.nullcontext():
            files.write_file(self._root, path, content, stat.S_IMODE(mode), self._first_id)

    def read_file(self, path: str, limit_bytes: int = 64 << 20) -> bytes:
        """See the contract."""
        return files.read_file(self._root, path, limit_bytes)

    def read_beginning(self, path: str, limit_bytes: int) -> bytes:
        """See the contract."""
        return files.read_beginning(self._root, path, limit_bytes)

    def remove_file(self, path: bytes) -> None:
        """See the contract."""
        files.remove_file(self._root, path)

    def change(self, policy: Policy, put: PutNetwork) -> Mapping[str, Became]:
        """See the contract."""
        self._handle(Slot.INIT)
        running = changing.Running(
            self._shared,
            self._groups,
            self._outside,
            self._profiles,
            self._layout,
            self.spec.policy,
        )  # fmt: skip

        def put_known(pins: Pinned) -> None:
            self.hosts = self._outside.needs.hosts
            put(pins)

        changed = changing.change(running, policy, put_known)
        if changed.profiles is not self._profiles:
            self._former.append(self._profiles)
            self._profiles = changed.profiles
        self.spec = replace(self.spec, policy=policy)
        return changed.tiers

    def copy_back(self) -> None:
        """See the contract."""
        if self.spec.workspace is None:
            return
        if self._cover is not None:
            self._cover.withdraw(self._point)
        self.skipped = self._content.copy_back(self._root, self._workspace_lower)

    def remove(self) -> None:
        """See the contract."""
        if self._removed:
            return
        with self._watch.step("remove"):
            for command in self._commands:
                command.close()
            self._handles.close(but=Slot.INIT)  # what follows may need descriptors where there are no more
            if self._cgroups is not None:
                self._cgroups.remove(self._handles.fds.get(Slot.INIT))
            self._handles.close()
            self._outside.close()
            if self._layer is not None:
                self._shared.layers.discard(self._layer)
            if self._range:
                self._shared.ids.give_back(self._range)
            for phases in (self._profiles, *self._former):
                self._shared.profiles.give_back(phases)
        self._removed = True

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Cgroups, ids, layers: all that a sandbox has before it starts."""

    @abc.abstractmethod
    def _make(self) -> Handles:
        """The namespaces with all that is in them, and init."""

    @abc.abstractmethod
    def _name_resolver(self) -> None:
        """Its programs ask the guard's resolver for names."""

    @abc.abstractmethod
    def _name_hosts(self) -> None:
        """Its programs know the policy's names without asking."""

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

    @property
    def _folder(self) -> str:
        """Where commands begin."""
        return self._point

    @property
    def _stranger(self) -> int:
        """A host id that the sandbox does not have."""
        return 0

    def _handle(self, slot: Slot) -> int:
        if slot not in self._handles.fds or self._removed:
            raise SandboxError("the sandbox is gone, or not yet started")
        return self._handles[slot]

    def _limit_disks(self) -> None:
        """The disks that its files lie on: those of its layer, and of what is below."""
        assert self._layer is not None
        if not self._groups.limits.io:
            return
        found = disks.Disks.of(
            written=[lower.foreign for lower in self._all_lowers if lower.foreign is not None],
            read=[folder for lower in self._all_lowers for folder in lower.folders],
            devices=[self._layer.device.path] if self._layer.device is not None else [],
        )
        self._shared.cgroups.limit_disks(self._groups, found)

    def _choose_workspace(self) -> root.Lower:
        folders: tuple[Path, ...] = ()
        if self.spec.workspace is not None:
            folders = (root.check_folder(self.spec.workspace, self._shared.home, "workspace"),)
            workspace.check_access(folders[0], self.spec.owner_uid, self.spec.owner_gid)
        return root.Lower("workspace", self._point, folders)

    def _tell_mounts(self) -> None:
        if self.on_mounts:
            self.on_mounts(self.mounts())
