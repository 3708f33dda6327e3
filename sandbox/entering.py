"""How a command enters a sandbox: what the launcher is told, and which descriptors it gets."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from invigilator.profiles import seccomp
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox import confinement, recipe
from invigilator.sandbox.base import SandboxError, Streams
from invigilator.sandbox.cgroups import SandboxCgroups
from invigilator.sandbox.commands import make_ends
from invigilator.sandbox.launching import Handles, Launcher
from invigilator.sandbox.spec import Op, Slot, Specification


@dataclass(frozen=True, slots=True)
class Order:
    """One command. `platform`: it sees what is denied to the agent's."""

    command: Sequence[str | bytes]
    phase: PhaseName
    streams: Streams
    cwd: str
    platform: bool
    output_limit_bytes: int | None
    on_streams: Callable[[Sequence[int]], None] | None

    @property
    def name(self) -> str:
        """The command's first word."""
        return os.fsdecode(self.command[0])


def launch(
    order: Order,
    variables: Mapping[str, str],
    policy: Policy,
    launcher: Launcher,
    handles: Handles,
    mount: int,
    groups: SandboxCgroups,
    owner: int,
    profile: str | None = None,
) -> socket.socket:
    """Start it; the socket speaks with its pump. `mount`: the mount namespace that it shall see. `profile`:
    the AppArmor profile that its exec enters."""
    if not order.command:
        raise SandboxError("an empty command")
    spec = specification(order, variables, policy, len(groups.v1), profile)
    ends = make_ends(order.streams, handles[Slot.PTS], owner)
    opened: list[int] = []
    try:
        opened.append(os.open(groups.leaves[order.phase], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        for folder in groups.v1.values():
            opened.append(os.open(folder / "tasks", os.O_WRONLY | os.O_CLOEXEC))
        if order.on_streams:
            order.on_streams(ends.recorded)
        streams = order.streams
        fds = [
            handles[Slot.INIT], handles[Slot.USER], mount, opened[0],
            streams.stdin, streams.stdout, streams.stderr, *ends.child, *ends.ours, *opened[1:],
        ]  # fmt: skip
        return launcher.execute(spec, fds)
    except OSError as error:
        raise SandboxError(f"{order.name}: cannot enter the sandbox: {error.strerror}") from error
    finally:
        ends.close()
        for fd in opened:
            os.close(fd)


def specification(
    order: Order, variables: Mapping[str, str], policy: Policy, v1: int, profile: str | None = None
) -> Specification:
    """What the launcher is told; `v1`: how many v1 controllers the command is to join."""
    spec, streams = Specification(), order.streams
    for word in order.command:
        spec.add(Op.ARGUMENT, _no_nul(word))
    everything = recipe.environment(dict(variables), order.cwd)
    if streams.tty:
        everything.setdefault("TERM", os.environ.get("TERM", "xterm-256color"))
    for name, value in everything.items():
        spec.add(Op.ENVIRONMENT, _no_nul(f"{name}={value}"))
    spec.add(Op.CWD, _no_nul(order.cwd))
    spec.add(Op.SECCOMP, seccomp.compile(policy, order.phase))
    if profile is not None:
        spec.add(Op.PROFILE, profile)
    limit = -1 if order.output_limit_bytes is None else order.output_limit_bytes
    capabilities = confinement.capabilities(order.platform)
    spec.add(Op.SETTINGS, capabilities, limit, int(streams.tty), streams.rows, streams.columns, v1)
    return spec


def _no_nul(word: str | bytes) -> bytes:
    raw = os.fsencode(word)
    if b"\0" in raw:
        raise SandboxError("a NUL byte in the command, its environment or its folder")
    return raw
