"""Which eBPF programs this kernel loads and attaches: tried with empty ones through libbpf, then closed."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from invigilator.guard.probes import cgroup
from invigilator.guard.probes.cgroup import NEED_ROOT
from invigilator.guard.probes.finding import Finding, Tier

# enum bpf_prog_type and enum bpf_attach_type of <linux/bpf.h>.
PROG_CGROUP_SKB, PROG_CGROUP_SOCK_ADDR, PROG_TRACING, PROG_LSM = 8, 18, 26, 29
CGROUP_INET_EGRESS, CGROUP_INET4_CONNECT, CGROUP_UDP4_SENDMSG = 1, 10, 14
TRACE_RAW_TP, TRACE_FENTRY, LSM_MAC = 23, 24, 27
MAP_RINGBUF = 27
RING_BYTES = 4096

BTF = Path("/sys/kernel/btf/vmlinux")
NEW_KERNEL = "use a kernel ≥ 5.8 built with CONFIG_DEBUG_INFO_BTF=y and CONFIG_BPF_SYSCALL=y"


class ProgramOptions(ctypes.Structure):
    """The head of libbpf's `struct bpf_prog_load_opts`; `sz` says how much of it there is."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_int),
        ("prog_btf_fd", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_ifindex", ctypes.c_uint32),
        ("kern_version", ctypes.c_uint32),
        ("attach_btf_id", ctypes.c_uint32),
    )


class Libbpf:
    """The four calls of libbpf that the probes need; OSError where the library is missing."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libbpf.so.1", use_errno=True)
        silent = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self._print = silent(lambda level, text, arguments: 0)
        self._library.libbpf_set_print(self._print)

    def try_tracing(self, kind: int, attach: int, target: str) -> None:
        """Load and attach an empty program to a BTF-named target; OSError where the kernel refuses."""
        btf_id = self._checked(self._library.libbpf_find_vmlinux_btf_id(target.encode(), attach))
        program = self._load(kind, attach, btf_id, answer=0)
        try:
            os.close(self._checked(self._library.bpf_raw_tracepoint_open(None, program)))
        finally:
            os.close(program)

    def try_cgroup(self, kind: int, attach: int, cgroup: Path) -> None:
        """Load an empty program and attach it to a cgroup for a moment."""
        program = self._load(kind, attach, 0, answer=1)
        folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.close(self._checked(self._library.bpf_link_create(program, folder, attach, None)))
        finally:
            os.close(folder)
            os.close(program)

    def try_ring(self) -> None:
        """Make a ring buffer."""
        os.close(self._checked(self._library.bpf_map_create(MAP_RINGBUF, b"probe", 0, 0, RING_BYTES, None)))

    def _load(self, kind: int, attach: int, btf_id: int, *, answer: int) -> int:
        body = struct.pack("<BBhi", 0xB7, 0, 0, answer) + struct.pack("<BBhi", 0x95, 0, 0, 0)
        options = ProgramOptions(ctypes.sizeof(ProgramOptions), 0, attach, 0, 0, 0, 0, btf_id)
        call = self._library.bpf_prog_load
        return self._checked(call(kind, b"probe", b"GPL", body, ctypes.c_size_t(2), ctypes.byref(options)))

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result


def findings(cgroup_root: Path | None) -> Iterator[Finding]:
    """What of the sensor's tiers works. `cgroup_root`: where the v2 hierarchy is mounted, if it is."""
    btf = BTF.exists()
    yield Finding(
        "tracepoint", "BTF", "yes" if btf else "no", str(BTF) if btf else f"{BTF} is missing",
        "programs that fit this kernel without its headers", "" if btf else NEW_KERNEL, needed=True,
    )  # fmt: skip
    try:
        library = Libbpf()
    except OSError:
        yield Finding(
            "tracepoint", "libbpf", "no", "libbpf.so.1 is missing", "loading eBPF programs",
            "apt-get install libbpf1", needed=True,
        )  # fmt: skip
        return
    yield attempt("tracepoint", "ring buffer", library.try_ring, "events out of the kernel", needed=True)
    for target in ("sys_exit", "sched_process_fork", "sched_process_exec", "sched_process_exit"):
        tracing = partial(library.try_tracing, PROG_TRACING, TRACE_RAW_TP, target)
        yield attempt("tracepoint", f"tp_btf/{target}", tracing, "what processes did", needed=True)
    yield from cgroup_findings(library, cgroup_root)
    yield from upper_findings(library)


def upper_findings(library: Libbpf) -> Iterator[Finding]:
    """Hooks that some kernels refuse."""
    hook = partial(library.try_tracing, PROG_TRACING, TRACE_FENTRY, "security_file_open")
    fix = "a kernel with CONFIG_FUNCTION_TRACER=y that permits it"
    yield attempt("lsm", "fentry", hook, "cheaper hooks than tracepoints", fix=fix)
    guard = partial(library.try_tracing, PROG_LSM, LSM_MAC, "file_open")
    fix = "CONFIG_BPF_LSM=y and `lsm=…,bpf` on the kernel's command line"
    yield attempt("lsm", "BPF LSM", guard, "refusing by object, not by path", fix=fix)


def cgroup_findings(library: Libbpf, cgroup_root: Path | None) -> Iterator[Finding]:
    """Network programs on a cgroup of our own, removed at once."""
    programs = (
        ("cgroup/connect4", PROG_CGROUP_SOCK_ADDR, CGROUP_INET4_CONNECT, "refusing connections"),
        ("cgroup/sendmsg4", PROG_CGROUP_SOCK_ADDR, CGROUP_UDP4_SENDMSG, "refusing datagrams"),
        ("cgroup/skb egress", PROG_CGROUP_SKB, CGROUP_INET_EGRESS, "refusing packets, raw ones too"),
    )
    folder, why, fix = cgroup.own(cgroup_root)
    if folder is None:
        for name, _, _, gives in programs:
            yield Finding("cgroup", name, "unknown", why, gives, fix, needed=True)
        return
    try:
        for name, kind, attach, gives in programs:
            action = partial(library.try_cgroup, kind, attach, folder)
            yield attempt("cgroup", name, action, gives, needed=True)
    finally:
        folder.rmdir()


def attempt(
    tier: Tier,
    name: str,
    action: Callable[[], None],
    gives: str,
    *,
    fix: str = NEW_KERNEL,
    needed: bool = False,
) -> Finding:
    """The finding of trying `action`: it works, or the kernel's errno says why not."""
    try:
        action()
    except OSError as error:
        if os.geteuid() != 0:
            return Finding(tier, name, "unknown", "cannot be tried without root", gives, NEED_ROOT, needed)
        return Finding(tier, name, "no", f"the kernel refuses: {error.strerror}", gives, fix, needed)
    return Finding(tier, name, "yes", "loads and attaches", gives, "", needed)
