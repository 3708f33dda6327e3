"""How `guard serve` gives up what it does not need: root, private folders of the host, new privileges."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from invigilator.guard.errors import GuardError

CLONE_NEWNS = 0x00020000
MS_NOSUID_NODEV = 2 | 4
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19
PR_SET_NO_NEW_PRIVS = 38
PR_SET_DUMPABLE = 4
_libc = ctypes.CDLL(None, use_errno=True)


def hand_over(path: Path, uid: int, *, folder: bool = True) -> None:
    """Make `path` and, as root, give it (with all that is in it) to `uid`, and to nobody else."""
    if folder:
        path.mkdir(mode=0o700, exist_ok=True)
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    if os.getuid() != 0:
        return
    path.chmod(0o700 if folder else 0o600)
    if path.stat().st_uid == uid:
        return
    os.chown(path, uid, uid, follow_symlinks=False)
    for inside in path.rglob("*") if folder else ():
        os.chown(inside, uid, uid, follow_symlinks=False)


def drop(uid: int) -> None:
    """As root: become `uid` with no groups and no capabilities, for all threads and for good."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(0o077)
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def seclude(home: Path, uid: int) -> None:
    """Let `uid` reach the home and the program although they may lie below a closed folder such as /root.

    As root, and only where a folder above them is closed to others: in a mount namespace of this process
    alone, the closed folder is covered by an empty one in which only the home and the program appear, at
    their own paths. Call it while the process has one thread: a namespace is a thread's.
    """
    if os.getuid() != 0:
        return
    needed = reachable_paths(home)
    tops = closed_tops(needed)
    if not tops:
        return
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("a mount namespace is a thread's, and there are several already")
    if _libc.unshare(CLONE_NEWNS) != 0:
        fix = "move INVIGILATOR_HOME and the program to folders that others may enter (chmod o+x)"
        raise GuardError(f"user {uid} of guard serve cannot enter it", where=str(tops[0]), fix=fix)
    mount("none", "/", "", MS_REC | MS_SLAVE)
    while tops:
        for top in tops:
            cover(top, outermost(path for path in needed if top in path.parents))
        # A path that is needed may hold a closed folder that holds another one.
        tops = closed_tops(needed)


def reachable_paths(home: Path) -> list[Path]:
    """The home, the program's modules and the interpreter."""
    wanted: set[Path] = {home.resolve(), Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    wanted |= {Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir()}
    wanted |= set(package_folders())
    return sorted(wanted)


def package_folders() -> Iterable[Path]:
    """The folders that hold the package's rooms: in a checkout they are links to elsewhere."""
    import invigilator

    for root in invigilator.__path__:
        for room in Path(root).iterdir():
            if room.is_dir():
                yield room.resolve()


def outermost(paths: Iterable[Path]) -> list[Path]:
    """The paths that lie in no other of them."""
    found = set(paths)
    return sorted(path for path in found if not any(other in path.parents for other in found))


def closed_tops(needed: Iterable[Path]) -> list[Path]:
    """The outermost folders above `needed` that others may not enter."""
    return outermost(folder for path in needed for folder in closed_folders(path))


def closed_folders(path: Path) -> list[Path]:
    """The folders above `path` that others may not enter, outermost first."""
    above = reversed(path.parents)
    return [folder for folder in above if not folder.stat().st_mode & 0o001]


def cover(top: Path, needed: list[Path]) -> None:
    """Mount an empty folder over `top`, with `needed` in it."""
    handles = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in needed]
    mount("tmpfs", str(top), "tmpfs", MS_NOSUID_NODEV, "mode=0755,size=1m")
    for path, handle in handles:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{handle}", str(path), "", MS_BIND | MS_REC)
        os.close(handle)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2); OSError where it fails."""
    done = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, data.encode())
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)
