"""AppArmor's profiles in this kernel: what the tier is, loading, replacing and unloading them.

A profile is named by the hash of its text (`profiles.apparmor`), so all sandboxes of one policy share one,
and a changed policy is another profile: it binds the sandboxes that start after it, and none that runs.
Which agent still needs a profile is told by locks below `LOCKS`: agents of one machine share its kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from invigilator.profiles.apparmor import Layout, ParserMissingError, Profile, binary, compile
from invigilator.profiles.apparmor.parser import CompileError
from invigilator.profiles.errors import PolicyError
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox.base import Became, SandboxError

KERNEL = Path("/sys/kernel/security/apparmor")
"""Where securityfs shows AppArmor (Documentation/admin-guide/LSM/apparmor.rst)."""
PARAMETERS = Path("/sys/module/apparmor/parameters")
LOCKS = Path("/run/invigilator/apparmor")
PARSER_PATH = os.defpath + ":/usr/sbin:/sbin"
IDLE_KEPT = 16
"""Profiles that stay loaded though no sandbox has them: the next of the same policy needs no loading."""

State = Literal["absent", "complain", "enforce"]
Phases = Mapping[PhaseName, str]
"""Phase → name of the profile that its commands enter; empty where the tier is absent."""


Compile = Callable[[Policy, PhaseName, Layout], Profile]
Assemble = Callable[[Profile, Path, Path], bytes]
"""(profile, cache folder, the kernel's features folder) → what the kernel loads."""


@dataclass(frozen=True, slots=True)
class Tier:
    """What AppArmor can do here; `why`: what is in the way, where anything is, and `fix` how it goes away."""

    state: State
    why: str = ""
    fix: str = ""


def tier(kernel: Path | None = None, parameters: Path | None = None, path: str = PARSER_PATH) -> Tier:
    """The tier on this machine, before any profile is loaded. `path`: where the parser is looked for."""
    found = kernel_tier(kernel, parameters)
    if found.state != "absent" and parser(path) is None:
        return Tier("absent", "there is no apparmor_parser", "apt-get install apparmor")
    return found


def parser(path: str = PARSER_PATH) -> str | None:
    """What compiles profiles."""
    return shutil.which("apparmor_parser", path=path)


def kernel_tier(kernel: Path | None = None, parameters: Path | None = None) -> Tier:
    """The kernel's side of the tier."""
    kernel, parameters = kernel or KERNEL, parameters or PARAMETERS
    enabled = _read(parameters / "enabled")
    if enabled is None:
        return Tier("absent", "not in this kernel", "a kernel with AppArmor, as Debian's")
    if enabled != "Y":
        return Tier("absent", "in the kernel, but switched off", "boot with `apparmor=1 lsm=…,apparmor`")
    if not (kernel / ".replace").exists():
        return Tier(
            "absent", "securityfs is not mounted", "mount -t securityfs securityfs /sys/kernel/security"
        )
    if not os.access(kernel / ".replace", os.W_OK):
        return Tier("absent", "profiles cannot be loaded", "root with CAP_MAC_ADMIN")
    mode = _read(parameters / "mode")
    if mode == "complain":
        return Tier(
            "complain",
            "the kernel's mode is complain: it refuses nothing",
            f"echo enforce >{parameters}/mode",
        )
    if mode not in (None, "enforce", "kill"):
        return Tier("absent", f"the kernel's mode is {mode}", f"echo enforce >{parameters}/mode")
    return Tier("enforce")


def modes(kernel: Path | None = None) -> dict[str, str]:
    """Loaded profiles and their modes, as the kernel tells them."""
    found = {}
    for line in (_read((kernel or KERNEL) / "profiles") or "").splitlines():
        name, _, mode = line.rpartition(" (")
        found[name] = mode.rstrip(")")
    return found


class Profiles:
    """The profiles of one agent. Thread-safe."""

    def __init__(self, cache: Path, compile_: Compile = compile, assemble: Assemble = binary) -> None:
        """`cache`: where compiled profiles are kept."""
        self._cache = cache
        self._compile, self._assemble = compile_, assemble
        self._lock = threading.Lock()
        self._known: dict[str, dict[PhaseName, Profile]] = {}
        self._loaded: dict[str, int] = {}
        self._users: Counter[str] = Counter()
        self._idle: dict[str, None] = {}
        self._swapped: dict[str, int] = {}
        self._firsts: dict[str, str] = {}

    def take(self, policy: Policy, layout: Layout | None = None) -> Phases:
        """The profiles that a sandbox of this policy enters, loaded; to be given back. `layout`: its root's.

        Empty where the tier is absent. `SandboxError` where the kernel or its parser refuses one.
        """
        if tier().state == "absent":
            return {}
        with self._lock:
            compiled = self._compiled(policy, layout or Layout())
            for profile in {one.name: one for one in compiled.values()}.values():
                self._load(profile)
            chosen = {phase: self._current(one.name) for phase, one in compiled.items()}
            for name in set(chosen.values()):
                self._users[name] += 1
                self._idle.pop(name, None)
            return chosen

    def give_back(self, phases: Phases) -> None:
        """A sandbox has no process any more."""
        with self._lock:
            for name in set(phases.values()):
                self._users[name] -= 1
                if self._users[name] <= 0:
                    del self._users[name]
                    self._idle[name] = None
            while len(self._idle) > IDLE_KEPT:
                self._unload(next(iter(self._idle)))

    def swap(self, running: Phases, policy: Policy, layout: Layout | None = None) -> None:
        """Put another policy in force on sandboxes that run: their profiles keep their names and get its
        rules, between two of their system calls. All sandboxes that share the profiles are meant.
        `SandboxError` where that cannot be done."""
        with self._lock:
            others = self._compiled(policy, layout or Layout())
            wanted: dict[str, Profile] = {}
            for phase, name in running.items():
                if wanted.setdefault(name, others[phase]).name != others[phase].name:
                    raise SandboxError(
                        f"policy {policy.name} tells phases apart that share a profile: start a new sandbox"
                    )
            for name, other in wanted.items():
                self._write(_named(other, name))
                # The next sandbox of the first policy needs a profile of its own again.
                first = self._firsts.get(name, name)
                if self._current(first) == name:
                    self._swapped[first] = self._swapped.get(first, 0) + 1

    def change(
        self, running: Phases, old: Policy, new: Policy, layout: Layout | None = None
    ) -> tuple[Became, Phases]:
        """Put another policy in force for one sandbox: what became of it, and the profiles that its commands
        enter from now on. Those are others, to be given back too, where the old cannot get the new rules:
        other sandboxes are in them, or phases share one that the new policy tells apart."""
        with self._lock:
            before, after = (self._compiled(one, layout or Layout()) for one in (old, new))
            if all(before[phase].name == after[phase].name for phase in running):
                return "unchanged", running
            alone = all(self._users[name] == 1 and self._is_ours(name) for name in set(running.values()))
        if alone and _fits(running, after):
            self.swap(running, new, layout)
            return "changed", running
        return "new commands only", self.take(new, layout)

    def _is_ours(self, name: str) -> bool:
        """Whether no other agent of this machine holds a profile."""
        lock = self._loaded.get(name)
        if lock is None:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return True

    def observed(self, phases: Phases) -> State:
        """What is in force for a sandbox with these profiles: the weakest of them, as the kernel tells it."""
        now = tier().state
        if now == "absent" or not phases:
            return "absent"
        told = modes()
        found = {told.get(name) for name in phases.values()}
        if not found <= {"enforce", "kill", "complain"}:
            return "absent"
        return "complain" if "complain" in found or now == "complain" else "enforce"

    def sweep(self) -> None:
        """Unload what agents that died left loaded."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            for name in os.listdir(LOCKS):  # noqa: PTH208 (names are what is wanted)
                if name not in self._loaded:
                    _let_go(name, os.open(LOCKS / name, os.O_RDONLY | os.O_CLOEXEC))

    def close(self) -> None:
        """Unload what no other agent needs and no process is in."""
        with self._lock:
            self._users.clear()
            for name in list(self._loaded):
                self._unload(name)

    def _compiled(self, policy: Policy, layout: Layout) -> dict[PhaseName, Profile]:
        key = f"{policy.model_dump_json()} {layout}"
        if key not in self._known:
            if len(self._known) >= IDLE_KEPT:
                self._known.clear()
            phases: Sequence[PhaseName] = get_args(PhaseName)
            try:
                self._known[key] = {phase: self._compile(policy, phase, layout) for phase in phases}
            except (PolicyError, ParserMissingError) as error:
                raise SandboxError(f"no AppArmor profile: {error}") from error
        return self._known[key]

    def _current(self, name: str) -> str:
        return f"{name}.{self._swapped[name]}" if name in self._swapped else name

    def _load(self, profile: Profile) -> None:
        name = self._current(profile.name)
        if name in self._loaded:
            return
        lock = _shared_lock(name)
        try:
            self._write(_named(profile, name))
        except BaseException:
            os.close(lock)
            raise
        self._loaded[name] = lock
        self._firsts[name] = profile.name
        self._idle[name] = None

    def _write(self, profile: Profile) -> None:
        try:
            made = self._assemble(profile, self._cache, KERNEL / "features")
        except (PolicyError, ParserMissingError, CompileError) as error:
            raise SandboxError(f"no AppArmor profile: {error}") from error
        try:
            # One write is one load; the kernel takes all of it or nothing (policy.c, aa_replace_profiles).
            fd = os.open(KERNEL / ".replace", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, made)
            finally:
                os.close(fd)
        except OSError as error:
            raise SandboxError(f"the kernel refuses the profile {profile.name}: {error.strerror}") from error

    def _unload(self, name: str) -> None:
        """Forget a profile, and unload it where nobody else holds it: who is in a profile that goes would be
        in none."""
        self._idle.pop(name, None)
        self._firsts.pop(name, None)
        lock = self._loaded.pop(name, None)
        if lock is None:
            return
        _let_go(name, lock)


def _fits(running: Phases, others: Mapping[PhaseName, Profile]) -> bool:
    """Whether phases that share a profile shall share one."""
    wanted: dict[str, str] = {}
    return all(
        wanted.setdefault(name, others[phase].name) == others[phase].name for phase, name in running.items()
    )


def _named(profile: Profile, name: str) -> Profile:
    """The same rules by another name."""
    if name == profile.name:
        return profile
    text = profile.text.replace(f'"{profile.name}"', f'"{name}"')
    return replace(profile, name=name, text=text, digest=hashlib.sha256(text.encode()).hexdigest())


def _let_go(name: str, lock: int) -> None:
    """Close a profile's lock, and unload the profile where nobody else has it."""
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if name not in _labels():
            with contextlib.suppress(FileNotFoundError):
                (KERNEL / ".remove").write_bytes(name.encode() + b"\0")
            (LOCKS / name).unlink(missing_ok=True)
    os.close(lock)


def _shared_lock(name: str) -> int:
    """A descriptor that holds a profile for this agent."""
    LOCKS.mkdir(parents=True, exist_ok=True)
    while True:
        fd = os.open(LOCKS / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), (LOCKS / name).stat()):
                return fd
        os.close(fd)  # whoever unloaded it meanwhile took the file away


def _labels() -> set[str]:
    """Profiles that processes of this machine are in."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        label = _read(process / "attr/apparmor/current") or _read(process / "attr/current")
        if label:
            found.update(part.rpartition(" (")[0] or part for part in label.split("//&"))
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text().rstrip("\n\0")
    except OSError:
        return None
