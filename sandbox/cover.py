"""What the agent's commands may not see, put in force before each command and each write of the platform's:
masks over what is denied, and the vault for hidden paths that the platform fills while the agent runs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from invigilator.profiles.policy import PhaseName, Policy
from invigilator.profiles.seccomp import syscalls_of
from invigilator.sandbox.base import Mount
from invigilator.sandbox.cgroups import SandboxCgroups
from invigilator.sandbox.launching import Handles
from invigilator.sandbox.masks import Masks, Shared, needed
from invigilator.sandbox.spec import Slot
from invigilator.sandbox.vault import RoomError, Vault


@dataclass(slots=True)
class Cover:
    """That of one sandbox that has started. `owner`: host id of its root; `stranger`: an id that it does not
    have. `tell` is called when the agent's mounts have changed, before a command meets them."""

    policy: Policy
    owner: int
    stranger: int
    shared: Shared
    handles: Handles
    groups: SandboxCgroups
    tell: Callable[[], None]
    _masks: Masks = field(init=False)
    _vault: Vault = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _platform_came: bool = False
    _told: Sequence[Mount] = ()

    def __post_init__(self) -> None:
        self._masks = Masks(self.policy, self.owner, self.stranger)
        self._vault = Vault(self.policy, self.owner)

    @property
    def mounts(self) -> Sequence[Mount]:
        """The mounts of the agent's namespace, once masks are in force."""
        return self._masks.mounts

    @property
    def made(self) -> Set[bytes]:
        """Paths that were made to be covered: no change of the sandbox's."""
        return self._masks.made | self._vault.made

    def before_command(self, phase: PhaseName, *, platform: bool) -> None:
        """A command is about to start."""
        if not needed(self.policy) or phase == "setup":
            return
        with self._lock:
            if phase == "agent":
                self._before_agents(platform=platform)
            elif self.groups.populated("agent"):
                self._secure()
            else:
                self._masks.lift(self.handles)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[None]:
        """The platform puts a file at `path` inside."""
        if not self._masks.applied:
            yield
            return
        raw = b"/" + os.fsencode(path).lstrip(b"/")
        with self._lock:
            if self._vault.concerns(self.handles[Slot.ROOT], raw):
                self._secure_or_be_alone()
            # A file that takes the place of a covered one takes the cover away.
            with self.groups.frozen() if self._masks.covers(raw) else contextlib.nullcontext():
                yield
                self._apply()
            self._tell()

    def withdraw(self, under: str) -> None:
        """The sandbox's processes are gone, and a folder is about to leave it: what was made in it goes."""
        self._vault.withdraw(self.handles[Slot.ROOT], os.fsencode(under))

    def _before_agents(self, *, platform: bool) -> None:
        first = not self._masks.applied
        self._apply()
        self._vault.begin(self.handles[Slot.ROOT])
        self._platform_came |= platform
        if (first and self._held_early) or (self._platform_came and self.groups.populated("agent")):
            self._secure()
        self._tell()

    def _apply(self) -> None:
        """What is denied is put in force, where it is: the agent might move it meanwhile."""
        running = self._masks.applied and self.groups.populated("agent")
        with (
            self.groups.frozen()
            if running and self._masks.missing(self.handles)
            else contextlib.nullcontext()
        ):
            self._masks.apply(self.shared, self.handles)

    @property
    def _held_early(self) -> bool:
        """Whether hidden paths have to be covered before the agent's first command: in a namespace of its own
        it would keep what was not, and what setup left running may be the platform's."""
        nests = syscalls_of(self.policy, "agent").userns == "allow"
        return nests or self.groups.populated("setup")

    def _secure(self) -> None:
        if places := self._vault.pending(self._masks.shut):
            with self.groups.frozen():
                self._vault.secure(self.shared, self.handles, places)
                self._masks.apply(self.shared, self.handles)
            self._tell()
        self._vault.check(self.handles[Slot.ROOT])

    def _secure_or_be_alone(self) -> None:
        try:
            self._secure()
        except RoomError:
            if self.groups.populated("agent"):
                raise

    def _tell(self) -> None:
        if self._masks.mounts is not self._told:
            self._told = self._masks.mounts
            self.tell()
