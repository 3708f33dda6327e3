"""One sandbox of the process backend: namespaces of its own, and a copy-on-write root."""

from __future__ import annotations

import os

from invigilator.profiles import limits as limit_compiler
from invigilator.sandbox import apparmor, confinement, files, hidden, layouts, masks, network, recipe, root
from invigilator.sandbox.launching import Handles
from invigilator.sandbox.running import RunningSandbox


class ProcessSandbox(RunningSandbox):
    """One sandbox of the process backend."""

    def _prepare(self) -> None:
        spec, shared = self.spec, self._shared
        confinement.require_filters(spec.policy)
        limits = limit_compiler.compile(spec.policy)
        with self._watch.step("root"):
            self._lowers = self._choose_root()
            self._workspace_lower: root.Lower = self._choose_workspace()
        with self._watch.step("network"):
            self._outside.needs = network.needs(spec.policy)
            self.hosts = self._outside.needs.hosts
        with self._watch.step("profiles"):
            if apparmor.tier().state != "absent":
                self._layout = layouts.layout(spec.policy, self._lowers)
                self._profiles = shared.profiles.take(spec.policy, self._layout)
        with self._watch.step("ids"):
            self._first_id = self._range = shared.ids.take()
        with self._watch.step("cgroups"):
            self._cgroups = shared.cgroups.make(str(spec.sandbox_id), limits)
        with self._watch.step("layer"):
            self._layer = shared.layers.take(limits)
            self._layer.own(self._first_id)
            hidden.hide(self._layer.fd, self._all_lowers, masks.hidden(spec.policy), self._first_id)
        self._limit_disks()
        self._recipe = recipe.Recipe(
            stage=shared.stage,
            lowers=tuple(self._lowers),
            workspace=self._workspace_lower,
            workspace_point=self._point,
            workspace_maps=recipe.workspace_maps(spec.owner_uid, spec.owner_gid) if spec.workspace else None,
            folders=tuple(spec.policy.filesystem.workspace[1:]),
            nested_users=spec.policy.syscalls.userns == "allow",
            split=masks.needed(spec.policy),
            shm_bytes=limits.memory_bytes // 4,
            hostname=spec.hostname,
        )

    def _make(self) -> Handles:
        """The namespaces with all that is in them, and init."""
        specification = self._recipe.specification(self._first_id)
        init = os.open(self._groups.init, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            assert self._layer is not None
            return self._shared.launcher.start(specification, init, [self._layer.fd])
        finally:
            os.close(init)

    def _choose_root(self) -> list[root.Lower]:
        if self.spec.root is None:
            return self._shared.roots.default()
        folder = root.check_folder(self.spec.root, self._shared.home, "root")
        return [root.Lower("root", "/", (folder,))]

    def _name_resolver(self) -> None:
        files.write_file(self._root, "/etc/resolv.conf", network.RESOLV_CONF, 0o644, self._first_id)

    def _name_hosts(self) -> None:
        known = self.read_file("/etc/hosts")
        rows = network.host_rows(self._outside.needs)
        files.write_file(self._root, "/etc/hosts", known + rows, 0o644, self._first_id)
