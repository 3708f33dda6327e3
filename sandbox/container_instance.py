"""One sandbox of the container backend: a container of Docker's that holds only a pause, and the guard's
commands.

Docker makes the root, the namespaces and the container's limits. Commands come from the guard's launcher: it
clones each into the cgroup of its phase, which is the guard's own and was registered before the container
started, then enters the container's namespaces. So the first instruction of the first command is watched,
whatever Docker's cgroup driver does, and streams, steps, phases and limits are those of the process backend.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import replace

from invigilator.profiles import limits as limit_compiler
from invigilator.profiles.policy import Policy
from invigilator.sandbox import confinement, hidden, masks, network, root
from invigilator.sandbox.base import Became, PutNetwork, SandboxError, SandboxSpec, UnavailableError
from invigilator.sandbox.container_recipe import Furnishing
from invigilator.sandbox.engine import PAUSE, Container, Engine, Image, Wanted
from invigilator.sandbox.launching import Handles
from invigilator.sandbox.machinery import Machinery
from invigilator.sandbox.pause import pause
from invigilator.sandbox.running import RunningSandbox
from invigilator.sandbox.spec import Slot


class ContainerSandbox(RunningSandbox):
    """One sandbox, from the creation of its container to its removal."""

    def __init__(self, spec: SandboxSpec, shared: Machinery, engine: Engine) -> None:
        self._engine = engine
        self._container: Container | None = None
        self._image: Image | None = None
        super().__init__(spec, shared)

    def change(self, policy: Policy, put: PutNetwork) -> Mapping[str, Became]:
        """See the contract: the container's own limits and network are Docker's."""
        raise UnavailableError("the policy of a container that runs is not changed: start a new one")

    def remove(self) -> None:
        """See the contract."""
        init = self._handles.fds.get(Slot.INIT)
        if init is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(init, signal.SIGKILL)
        try:
            super().remove()
        finally:
            if self._container is not None:
                self._engine.remove(self._container.id)
                self._container = None

    def _prepare(self) -> None:
        spec, shared = self.spec, self._shared
        if spec.image is None:
            raise SandboxError("the container backend needs an image: give --image")
        confinement.require_filters(spec.policy)
        limits = limit_compiler.compile(spec.policy)
        with self._watch.step("image"):
            self._image = self._engine.image(spec.image)
            self.spec = replace(spec, environment={**self._image.environment, **spec.environment})
        with self._watch.step("network"):
            self._outside.needs = network.needs(spec.policy)
            self.hosts = self._outside.needs.hosts
        with self._watch.step("profiles"):
            self._profiles = shared.profiles.take(spec.policy)
        self._range = shared.ids.take()
        with self._watch.step("cgroups"):
            self._cgroups = shared.cgroups.make(str(spec.sandbox_id), limits)
        with self._watch.step("layer"):
            self._workspace_lower = self._choose_workspace()
            self._layer = shared.layers.take(limits)
        with self._watch.step("create"):
            self._container = self._engine.create(
                Wanted(
                    name=str(spec.sandbox_id),
                    image=self._image,
                    hostname=spec.hostname,
                    pause=pause(shared.home / "roots"),
                    # An id that no command has: who has a process's ids may change its resource limits.
                    owner=self._stranger,
                    limits=limits,
                    agent=shared.cgroups.agent,
                    home=shared.home,
                    profile=self._profiles.get("agent"),
                )
            )
        self._lowers = [root.Lower("root", "/", self._container.lowers, self._container.upper)]
        self._limit_disks()
        hidden.hide(self._layer.fd, self._all_lowers, masks.hidden(spec.policy), self._first_id)

    def _make(self) -> Handles:
        assert self._container is not None and self._layer is not None
        pid = self._engine.start(self._container)
        init = os.pidfd_open(pid)
        try:
            handles = self._shared.launcher.run(self._furnishing.specification(), [init, self._layer.fd])
        except BaseException:
            os.close(init)
            raise
        handles.fds[Slot.INIT] = init
        handles.fds[Slot.NET] = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):  # where the pause was mounted
            os.unlink(PAUSE.lstrip("/"), dir_fd=handles[Slot.ROOT])
        return handles

    def _name_hosts(self) -> None:
        """Docker mounts the file over the root's; it is written where it is."""
        assert self._container is not None
        with self._engine.hosts_file(self._container).open("ab") as file:
            file.write(network.host_rows(self._outside.needs))

    def _name_resolver(self) -> None:
        assert self._container is not None
        self._engine.resolv_file(self._container).write_bytes(network.RESOLV_CONF)

    @property
    def _furnishing(self) -> Furnishing:
        spec = self.spec
        return Furnishing(
            stage=self._shared.stage,
            workspace=self._workspace_lower if spec.workspace else None,
            owner=(spec.owner_uid, spec.owner_gid),
            folders=(self._folder, *dict.fromkeys(spec.policy.filesystem.workspace), self._point),
            covered=PAUSE,
            nested_users=spec.policy.syscalls.userns == "allow",
            split=masks.needed(spec.policy),
        )

    @property
    def _all_lowers(self) -> list[root.Lower]:
        return [*self._lowers, *([self._workspace_lower] if self.spec.workspace else [])]

    @property
    def _folder(self) -> str:
        """The workspace where one was given, else where the image's commands begin."""
        assert self._image is not None
        return self._point if self.spec.workspace else self._image.folder or self._point

    @property
    def _stranger(self) -> int:
        """The range is claimed, and no container has its ids."""
        return self._range
