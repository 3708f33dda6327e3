"""The contract that every backend honours.

A backend prepares a sandbox, which changes nothing that a command could notice but makes its cgroups, so that
the sensor can be told of them; then starts it, runs commands in it phase by phase, compares its writable
layer, and removes every trace of it. Errors are `SandboxError`; its message says what to do.
"""

from __future__ import annotations

import abc
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from invigilator.profiles.network import NetRule
from invigilator.profiles.policy import PhaseName, Policy

Actor = Literal["agent", "platform"]
"""Whose command it is: the platform's sees the paths that the policy denies to the agent."""


class SandboxError(Exception):
    """The sandbox could not be made, entered or removed: an infrastructure failure, never the agent's."""


class UnavailableError(SandboxError):
    """This machine cannot run the backend; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class CanaryFile:
    """A canary to plant: absolute path inside the sandbox, and content."""

    path: str
    content: bytes


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to make. `workspace` is a host folder (None: an empty one); `root` a host folder for `--root`;
    `image` what a container is made from."""

    sandbox_id: uuid.UUID
    policy: Policy
    workspace: Path | None = None
    root: Path | None = None
    image: str | None = None
    owner_uid: int = 0
    owner_gid: int = 0
    canaries: Sequence[CanaryFile] = ()
    hostname: str = "sandbox"
    environment: Mapping[str, str] = field(default_factory=dict)


class Mount(NamedTuple):
    """One mount of the sandbox as the kernel names it: superblock device (major << 20 | minor, the kernel's
    `s_dev`), the folder of that file system that is mounted, and where it is mounted in the sandbox."""

    dev: int
    fs_root: bytes
    mount_point: bytes


@dataclass(frozen=True, slots=True)
class Streams:
    """Where a command's standard streams end on the host: descriptors that the caller keeps open until
    `Process.wait` returns. With `tty`, all three are one pseudo-terminal of the guard's, copied to them."""

    stdin: int
    stdout: int
    stderr: int
    tty: bool = False
    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """`code` as a shell would say it (128 + signal; 126, 127 where it could not be executed).

    `output_error`: the errno with which a stream took no more of the output (0: none; nor is EPIPE one).
    """

    code: int
    signal: int = 0
    reason: Literal["exited", "signalled", "timeout", "oom", "limit"] = "exited"
    output_bytes: int = 0
    output_cut: bool = False
    output_error: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One difference of the writable layer against what the sandbox began with: path inside the sandbox,
    what changed, size in bytes, and the object as the kernel would name it where it exists."""

    path: bytes
    change: Literal["added", "modified", "removed", "metadata"]
    size: int = 0
    mode: int = 0
    ino: int = 0


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A limit that was reached. `value` is how often, of memory (kills), pids (forks refused), cpu (periods
    in which the sandbox was held back) and io (looks that found a disk's limit used up since the last); of
    output, disk and ttl how much, in the limit's unit."""

    limit: Literal["output", "disk", "memory", "pids", "cpu", "io", "ttl", "names", "questions"]
    value: int
    maximum: int


@dataclass(frozen=True, slots=True)
class NameEvents:
    """What becomes of names that a sandbox asks for, as who watches it wants to know; any thread calls.

    `pin`: put an address's rules (16 bytes; in order) in force in a phase, before the call returns.
    `refused`: a name was not handed out in a phase, by a rule's name. `limit`: more was asked than is
    answered.
    """

    pin: Callable[[PhaseName, bytes, Sequence[NetRule]], None]
    refused: Callable[[PhaseName, str, str], None]
    limit: Callable[[LimitHit], None]


Pinned = Mapping[PhaseName, Mapping[bytes, Sequence[NetRule]]]
"""Phase → address that a name led to (16 bytes) → its rules, in order."""
PutNetwork = Callable[[Pinned], None]
"""Put another policy's rules of the network in force in the kernel, with the addresses of names that stay."""

Became = Literal["changed", "unchanged", "new commands only", "not changed"]
"""What became of a tier under another policy. `new commands only`: what runs keeps the old one."""


class Process(abc.ABC):
    """One command running in a sandbox. `pid` is its process id in the host's namespace."""

    pid: int

    @abc.abstractmethod
    def wait(self, timeout_s: float | None = None) -> ExitStatus:
        """Wait for its end; on timeout end the whole command (TERM, then KILL) with reason `timeout`."""

    @abc.abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to the command's foreground process group."""

    @abc.abstractmethod
    def resize(self, rows: int, columns: int) -> None:
        """Tell the pseudo-terminal its size; nothing without one."""


class Sandbox(abc.ABC):
    """One sandbox, from `Backend.prepare` to `remove`."""

    spec: SandboxSpec
    on_mounts: Callable[[Sequence[Mount]], None] | None = None
    """Called with `mounts()` when masks have changed it: before the command that is to meet them starts."""
    hosts: Mapping[str, Sequence[str]] = MappingProxyType({})
    """What the policy's names led to when the sandbox was prepared: its rules are made of these addresses."""

    def on_names(self, events: NameEvents) -> None:  # noqa: B027 (a backend may resolve no names)
        """Tell `events` of names from now on; before the first command."""

    @abc.abstractmethod
    def cgroups(self) -> Mapping[PhaseName, int]:
        """Cgroup v2 id of each phase's leaf; known once prepared, before any process is in them."""

    @abc.abstractmethod
    def start(self) -> None:
        """Namespaces, file systems, limits, and the init process; no command yet."""

    @abc.abstractmethod
    def mounts(self) -> Sequence[Mount]:
        """The mounts after `start`, with those that only the agent sees; longest mount point first."""

    @abc.abstractmethod
    def enforcement(self) -> Mapping[str, str]:
        """Tier → `enforce`, `complain`, `absent` or `off`: what is in force, as observed, not as intended."""

    @property
    def alive(self) -> bool:
        """Whether the sandbox itself still runs. Nothing inside can end it: where it does not, the machine
        failed, whatever its commands' exit statuses say."""
        return True

    def identity(self, path: str) -> tuple[int, int]:
        """(device as the kernel names it, inode number) of an object in the sandbox, no link followed; zeros
        where that is unknown."""
        return (0, 0)

    @abc.abstractmethod
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
        """Start a command in the phase's leaf cgroup; `SandboxError` where the sandbox is gone.

        `on_streams` is called just before the start with descriptors of the objects that its output goes to
        (pipes, or the terminal), valid during the call: what the sensor counts output by.
        """

    @abc.abstractmethod
    def survivors(self, phase: PhaseName) -> Sequence[int]:
        """Host pids of processes that are in another phase's leaf than `phase`. One that was killed, or ends
        of itself, is none of them, however long its death takes."""

    @abc.abstractmethod
    def end_processes(self, phase: PhaseName | None = None) -> None:
        """Kill every process of a phase's leaf (None: of all), and wait until the leaf is empty."""

    @abc.abstractmethod
    def changes(self, under: Sequence[str]) -> Iterator[Change]:
        """Differences of the writable layer at or below the given in-sandbox paths."""

    @abc.abstractmethod
    def limits_hit(self) -> Sequence[LimitHit]:
        """Limits reached so far."""

    @abc.abstractmethod
    def write_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Put a file into the sandbox, never through a symbolic link out of it."""

    @abc.abstractmethod
    def read_file(self, path: str, limit_bytes: int = 64 << 20) -> bytes:
        """Take a regular file out of the sandbox, never through a symbolic link out of it."""

    def read_beginning(self, path: str, limit_bytes: int) -> bytes:
        """As `read_file`, at most `limit_bytes` from the file's beginning, however large it is."""
        return self.read_file(path, limit_bytes)

    def remove_file(self, path: bytes) -> None:
        """Remove what has this name in the sandbox, no folder, through no symbolic link."""
        raise UnavailableError("this backend removes no files")

    def change(self, policy: Policy, put: PutNetwork) -> Mapping[str, Became]:
        """Put another policy in force on the sandbox while it runs: what became of each tier. Its network's
        rules by phase are the sensor's: where they differ `put` is called once, with `hosts` as they are by
        then, and no name is handed out meanwhile. `SandboxError`, with nothing changed, where the sandbox
        cannot be what the policy needs."""
        raise UnavailableError("this backend changes no sandbox that runs: start a new one")

    @abc.abstractmethod
    def copy_back(self) -> None:
        """Bring the workspace's changes to the host folder as its owner, without setuid bits, devices or
        foreign attributes, never through a symbolic link out of it."""

    @abc.abstractmethod
    def remove(self) -> None:
        """End everything and remove every trace: processes, mounts, cgroups, links, layers. Idempotent."""


class Backend(abc.ABC):
    """One kind of sandbox."""

    name: str

    @abc.abstractmethod
    def prepare(self, spec: SandboxSpec) -> Sandbox:
        """Cgroups, ids and layers; no process yet. `UnavailableError` where this machine cannot."""

    @abc.abstractmethod
    def sweep(self) -> int:
        """Remove what sandboxes of dead agents left behind; the number of sandboxes removed."""

    def parent_cgroup(self) -> Path | None:
        """The cgroup v2 folder that all of its sandboxes are below; None where they have none here."""
        return None

    def close(self) -> None:  # noqa: B027 (a backend may hold nothing)
        """End every sandbox and give up what the backend holds."""
