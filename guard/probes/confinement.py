"""What can confine a sandbox here: seccomp, cgroup limits, namespaces, disks, AppArmor, other backends."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from invigilator.guard.probes import cgroup
from invigilator.guard.probes.finding import Finding, State
from invigilator.sandbox.apparmor import kernel_tier, parser
from invigilator.sandbox.audit import AuditReader
from invigilator.sandbox.base import UnavailableError

PR_GET_SECCOMP = 21
SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
SECCOMP_GET_ACTION_AVAIL = 2
SECCOMP_RET_ERRNO = 0x00050000
SECCOMP_RET_USER_NOTIF = 0x7FC00000
SYS_OPEN_TREE = 428
OPEN_TREE_CLONE = 1
AT_FDCWD = -100
COMMAND_TIMEOUT_S = 5.0
DOCKER_TIMEOUT_S = 5.0
STATES: dict[str, State] = {"enforce": "yes", "complain": "partly", "absent": "no"}
_libc = ctypes.CDLL(None, use_errno=True)


def findings() -> Iterator[Finding]:
    """Everything that confines, tier by tier."""
    yield from seccomp()
    yield from cgroup.findings()
    yield from namespaces()
    yield from disks()
    yield from apparmor()
    yield from backends()


def seccomp() -> Iterator[Finding]:
    """Filters, and whether a refusal can be told to a listener."""
    number = SYS_SECCOMP.get(platform.machine())
    for name, action, gives, needed in (
        ("filter", SECCOMP_RET_ERRNO, "system calls refused with an errno", True),
        ("user notification", SECCOMP_RET_USER_NOTIF, "refused calls told to the agent", False),
    ):
        word = ctypes.c_uint32(action)
        known = number is not None
        works = known and _libc.syscall(number, SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(word)) == 0
        state: State = "yes" if works else "no" if known else "unknown"
        detail = "available" if works else "the kernel has no such action"
        fix = "" if works else "a kernel with CONFIG_SECCOMP_FILTER=y"
        yield Finding("seccomp", name, state, detail, gives, fix, needed)


def namespaces() -> Iterator[Finding]:
    """User and network namespaces, made for a moment, and mounts with mapped owners."""
    limit = Path("/proc/sys/user/max_user_namespaces")
    allowed = limit.exists() and int(limit.read_text()) > 0
    yield tried("user namespace", ["unshare", "--user", "true"], "root that is nobody outside", needed=True,
                fix="" if allowed else "sysctl user.max_user_namespaces=65536")  # fmt: skip
    for name, option, gives in (
        ("mount namespace", "--mount", "a sandbox's own file tree"),
        ("pid namespace", "--pid", "a sandbox's own processes"),
        ("network namespace", "--net", "a sandbox without a link"),
    ):
        yield tried(name, ["unshare", option, "--fork", "true"], gives, needed=True)
    overlay = "overlay" in filesystems()
    found = "in the kernel" if overlay else "not in the kernel"
    yield Finding(
        "namespaces", "overlayfs", "yes" if overlay else "no", found,
        "copy-on-write roots", "" if overlay else "modprobe overlay", needed=True,
    )  # fmt: skip
    yield idmapped()


def idmapped() -> Finding:
    """Mounts whose owners are mapped, as the lower layer of an overlay (Linux 5.19)."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    tree = _libc.syscall(SYS_OPEN_TREE, AT_FDCWD, b"/", OPEN_TREE_CLONE | os.O_CLOEXEC)
    if tree >= 0:
        os.close(tree)
    new_enough = release >= (5, 19)
    works = new_enough and tree >= 0
    state: State = "yes" if works else "unknown" if new_enough and os.geteuid() else "no"
    detail = f"Linux {platform.release()}" + ("" if tree >= 0 else ", open_tree is refused")
    fix = "" if works else "run as root" if os.geteuid() else "kernel ≥ 5.19 and CAP_SYS_ADMIN"
    return Finding(
        "namespaces", "idmapped overlay", state, detail, "root that owns its own system", fix, True
    )


def tried(name: str, command: list[str], gives: str, *, needed: bool = False, fix: str = "") -> Finding:
    """The finding of running a command that exits 0 where it works."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("namespaces", name, "unknown", str(error), gives, "apt-get install util-linux", needed)
    if done.returncode == 0:
        return Finding("namespaces", name, "yes", "made and gone", gives, "", needed)
    why = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"
    return Finding("namespaces", name, "no", why, gives, fix or "run as root", needed)


def filesystems() -> set[str]:
    """File system types that the running kernel knows."""
    return {line.split("\t")[-1] for line in Path("/proc/filesystems").read_text().splitlines()}


def disks() -> Iterator[Finding]:
    """What a writable layer with a limit can lie on."""
    known = filesystems()
    loop = Path("/dev/loop-control").exists()
    for name, kind, tool, package in (
        ("loop ext4", "ext4", "mkfs.ext4", "e2fsprogs"),
        ("loop btrfs", "btrfs", "mkfs.btrfs", "btrfs-progs"),
    ):
        missing = [text for present, text in (
            (loop, "no /dev/loop-control"), (kind in known, f"no {kind} in the kernel"),
            (shutil.which(tool) is not None, f"no {tool}"),
        ) if not present]  # fmt: skip
        fix = f"apt-get install {package}" if missing and loop and kind in known else ""
        detail = ", ".join(missing) or f"loop devices, {kind} and {tool}"
        yield Finding("disk", name, "no" if missing else "yes", detail, "a disk limit that is ENOSPC", fix)
    yield Finding("disk", "tmpfs", "yes" if "tmpfs" in known else "no", "in memory", "small writable layers")


def apparmor() -> Iterator[Finding]:
    """The kernel's side, the compiler's side, and whether refusals can be recorded."""
    found = kernel_tier()
    state = STATES[found.state]
    if os.geteuid() and found.why.startswith("profiles cannot"):
        state = "unknown"
    yield Finding(
        "apparmor", "kernel", state, found.why or "enabled", "path rules that hold against root", found.fix
    )
    compiler = parser()
    yield Finding(
        "apparmor", "parser", "yes" if compiler else "no", compiler or "apparmor_parser is missing",
        "profiles compiled and checked", "" if compiler else "apt-get install apparmor",
    )  # fmt: skip
    yield audit(found.state != "absent")


def audit(used: bool) -> Finding:
    """Whether what AppArmor refuses can be read; `used`: whether it refuses anything here."""
    try:
        AuditReader().close()
    except UnavailableError as error:
        why = "root and CAP_AUDIT_CONTROL, outside containers" if os.geteuid() == 0 else "run as root"
        state: State = "no" if os.geteuid() == 0 else "unknown"
        return Finding("apparmor", "denials", state, str(error), "refusals as events", why)
    detail = "audit records can be read" if used else "audit records can be read, once AppArmor is there"
    return Finding("apparmor", "denials", "yes", detail, "refusals as events")


def backends() -> Iterator[Finding]:
    """What backends beside the process backend would need."""
    yield docker()
    for name, command, gives, package in (
        ("gVisor", "runsc", "containers with a kernel of their own", "runsc"),
        ("QEMU", "qemu-system-x86_64", "virtual machines", "qemu-system-x86"),
    ):
        found = shutil.which(command)
        fix = "" if found else f"apt-get install {package}"
        yield Finding("backends", name, "yes" if found else "no", found or f"no {command}", gives, fix)
    kvm = os.access("/dev/kvm", os.R_OK | os.W_OK)
    detail = "/dev/kvm opens" if kvm else "no /dev/kvm for this user"
    yield Finding("backends", "KVM", "partly" if kvm else "no", detail, "fast virtual machines",
                  "a machine with hardware virtualisation")  # fmt: skip


def docker() -> Finding:
    """Whether Docker's daemon, and what the container backend needs of it, is here."""
    state, detail, fix = docker_state()
    return Finding("backends", "docker", state, detail, "containers (--backend container)", fix)


def docker_state() -> tuple[State, str, str]:
    """(state, what was found, what to do)."""
    if importlib.util.find_spec("docker") is None:
        return "no", "no Docker SDK", "pip install 'invigilator[docker]'"
    from docker import APIClient
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    try:
        found = APIClient(version="auto", timeout=DOCKER_TIMEOUT_S, **kwargs_from_env()).info()
    except DockerException:
        fix = "start it: systemctl start docker" if shutil.which("dockerd") else "apt-get install docker.io"
        return "no", "no daemon answers", f"{fix}, or set DOCKER_HOST"
    detail = f"{found['ServerVersion']}, {found['Driver']}, cgroups by {found['CgroupDriver']}"
    if found["Driver"] != "overlay2":
        return "no", detail, 'daemon.json: "storage-driver": "overlay2"'
    if any(one in ("name=userns", "name=rootless") for one in found.get("SecurityOptions") or ()):
        return "no", f"{detail}, user ids mapped", "a daemon without userns-remap and not rootless"
    return "yes", detail, ""
