"""Peers of the sensor, doing the same job to the same loop: strace, bpftrace, a BCC script.

Each watches opens of one process tree and nothing else. bpftrace needs tracefs, BCC needs kernel headers;
both get them in a mount namespace of their own, so that nothing is mounted on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_TRACEFS = "mount -t tracefs tracefs /sys/kernel/tracing"

_BCC = r"""
import os, sys
from bcc import BPF
program = '''
#include <uapi/linux/ptrace.h>
struct record { u32 pid; int flags; char name[200]; };
BPF_PERF_OUTPUT(events);
TRACEPOINT_PROBE(syscalls, sys_enter_openat) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    if (pid != WATCHED) return 0;
    struct record record = {};
    record.pid = pid;
    record.flags = args->flags;
    bpf_probe_read_user_str(record.name, sizeof(record.name), args->filename);
    events.perf_submit(args, &record, sizeof(record));
    return 0;
}
'''
start, go = os.pipe()
child = os.fork()
if child == 0:
    os.read(start, 1)
    os.execv(sys.argv[1], sys.argv[1:])
bpf = BPF(text=program.replace("WATCHED", str(child)))
bpf["events"].open_perf_buffer(lambda cpu, data, size: None, page_cnt=256)
os.write(go, b"x")
while os.waitpid(child, os.WNOHANG) == (0, 0):
    bpf.perf_buffer_poll(timeout=10)
"""


def strace(command: Sequence[str]) -> list[str]:
    """The command under `strace -f`, opens only; [] where strace is missing."""
    found = shutil.which("strace")
    return [found, "-f", "-qq", "-o", os.devnull, "-e", "trace=openat", *command] if found else []


def bpftrace(command: Sequence[str]) -> list[str]:
    """The command under a one-line bpftrace program that prints each open; [] where bpftrace is missing."""
    found = shutil.which("bpftrace")
    if not found:
        return []
    program = 'tracepoint:syscalls:sys_enter_openat /pid == cpid/ { printf("%s\\n", str(args->filename)); }'
    script = f'{_TRACEFS} && exec "$0" -o /dev/stderr -e "$1" -c "$2" 2>/dev/null'
    return ["unshare", "-m", "sh", "-c", script, found, program, " ".join(command)]


def bcc(command: Sequence[str]) -> list[str]:
    """The command under a BCC script of the same probe; [] where BCC or kernel headers are missing."""
    headers = sorted(Path("/usr/src").glob("linux-headers-*-amd64"))
    if not headers or not _has_bcc():
        return []
    build = headers[-1]
    source = Path(str(build).replace("-amd64", "-common"))
    modules = f"/lib/modules/{os.uname().release}"
    script = (
        f"{_TRACEFS} && mount --bind /sys/kernel/tracing /sys/kernel/debug/tracing 2>/dev/null; "
        f"mkdir -p /lib/modules && mount -t tmpfs tmpfs /lib/modules && mkdir -p {modules} && "
        f"ln -s {build} {modules}/build && ln -s {source} {modules}/source && "
        'exec /usr/bin/python3 -c "$0" "$@" 2>/dev/null'
    )
    return ["unshare", "-m", "sh", "-c", script, _BCC, *command]


def _has_bcc() -> bool:
    probe = subprocess.run(["/usr/bin/python3", "-c", "import bcc"], capture_output=True, check=False)
    return probe.returncode == 0
