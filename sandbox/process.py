"""The process backend: namespaces, cgroups, a copy-on-write root, and nothing of the host's to hold on to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from invigilator.sandbox import (
    apparmor,
    build,
    network,
    root,
)
from invigilator.sandbox.base import (
    Backend,
    SandboxSpec,
)
from invigilator.sandbox.cgroups import Cgroups
from invigilator.sandbox.ids import Ids
from invigilator.sandbox.instance import ProcessSandbox
from invigilator.sandbox.launching import Launcher
from invigilator.sandbox.layer import Layers
from invigilator.sandbox.machinery import Machinery
from invigilator.sandbox.resolver.keeper import Resolver


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
            apparmor.Profiles(self._home / "roots" / "apparmor"),
            Resolver(),
        )

    @property
    def launcher(self) -> Launcher:
        """The zygote."""
        return self._shared.launcher

    @property
    def machinery(self) -> Machinery:
        """What another backend of the same agent shares."""
        return self._shared

    def prepare(self, spec: SandboxSpec) -> ProcessSandbox:
        """See the contract."""
        return ProcessSandbox(spec, self._shared)

    def sweep(self) -> int:
        """See the contract."""
        self._shared.links.sweep()
        self._shared.profiles.sweep()
        return self._shared.cgroups.sweep()

    def parent_cgroup(self) -> Path:
        """See the contract."""
        return self._shared.cgroups.folders[0]

    def cgroup_folders(self) -> Sequence[Path]:
        """This agent's cgroup in each hierarchy, below which its sandboxes have theirs."""
        return self._shared.cgroups.folders

    def close(self) -> None:
        """End every sandbox and the zygote."""
        self._shared.launcher.close()
        self._shared.resolver.close()
        self._shared.links.close()
        self._shared.profiles.close()
        self._shared.layers.close()
        self._shared.roots.close()
        self._shared.ids.close()
        self._shared.cgroups.close()


__all__ = ["ProcessBackend", "ProcessSandbox"]
