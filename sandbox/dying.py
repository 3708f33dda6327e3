"""Whether a process is past saving: it will never run an instruction of its own program again.

A cgroup lists a process until its memory is given back, which takes a big one half a second after its death
was sealed. Nothing that is inside can take part in what is read here, nor undo it.
"""

from __future__ import annotations

from pathlib import Path

PF_EXITING = 0x4
PF_SIGNALED = 0x400
"""Flags of a task (include/linux/sched.h): it ends; a signal ended it, whatever is still done about that."""
SIGKILL_BIT = 1 << 8
"""In the masks of proc(5), /proc/PID/status. Any signal that ends a whole process reaches each of its threads
as this one (`complete_signal` in kernel/signal.c), unless it dumps core: then as PF_SIGNALED soon after."""
_STATE, _FLAGS = 0, 6
_GONE = (b"Z", b"X", b"x")
_NOT_THERE = (FileNotFoundError, ProcessLookupError)


def is_dying(pid: int) -> bool:
    """Whether all threads of a process are dying, or it is gone. One whose first thread alone ended lives.

    `OSError` where that cannot be told: not to know is not to have seen it die."""
    process = Path(f"/proc/{pid}")
    if not _is_dying(process):
        return False
    try:
        return all(map(_is_dying, (process / "task").iterdir()))
    except _NOT_THERE:
        return True


def _is_dying(folder: Path) -> bool:
    try:
        # In this order: a thread takes the signal away before it says that it was killed.
        return _is_killed((folder / "status").read_bytes()) or is_ending((folder / "stat").read_bytes())
    except _NOT_THERE:
        return True


def _is_killed(status: bytes) -> bool:
    for line in status.splitlines():
        if line.startswith(b"SigPnd:"):
            return bool(int(line[7:], 16) & SIGKILL_BIT)
    return False


def is_ending(stat: bytes) -> bool:
    """Whether a thread ends, by its /proc/PID/stat; its name in there may be anything."""
    fields = stat.rpartition(b")")[2].split()
    return fields[_STATE] in _GONE or bool(int(fields[_FLAGS]) & (PF_EXITING | PF_SIGNALED))
