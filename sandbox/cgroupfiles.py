"""Files and folders of cgroups, read and written."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from invigilator.sandbox.base import SandboxError, UnavailableError
from invigilator.sandbox.hierarchies import CONTROLLERS, DISKS_V2

EMPTY_TIMEOUT_S = 10.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0001, 0.005


def made_in(folder: Path, name: str) -> Path:
    """A new folder in another."""
    made = Path(f"{folder}/{name}")
    made.mkdir()
    return made


def pass_on(folder: Path, controllers: frozenset[str]) -> None:
    """What is below a v2 folder may use these controllers; `UnavailableError` where it may not."""
    words = " ".join(f"+{name}" for name in (*CONTROLLERS, DISKS_V2) if name in controllers)
    try:
        (folder / "cgroup.subtree_control").write_text(words)
    except OSError as error:
        raise UnavailableError(f"cannot pass controllers on from {folder}: {error.strerror}") from error


def write_limits(folder: Path, files: Mapping[str, str]) -> None:
    """Limits by file; without those of swap where the kernel counts none."""
    for name, value in files.items():
        file = f"{folder}/{name}"
        try:
            write(file, value)
        except FileNotFoundError:
            if name not in ("memory.memsw.limit_in_bytes", "memory.swap.max", "memory.oom.group"):
                raise UnavailableError(f"no {file}: the kernel cannot limit that") from None
        except OSError as error:
            raise SandboxError(f"cannot limit the sandbox: {file} ← {value}: {error.strerror}") from error


def write(file: str, text: str) -> None:
    """One value, at once."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def read(file: Path) -> str:
    """A file's text; nothing where there is none."""
    with contextlib.suppress(OSError):
        return file.read_text()
    return ""


def counter(file: Path, name: str) -> int:
    """The number behind a name; 0 where there is none."""
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def kill(folder: Path) -> None:
    """Kill all that is in a v2 folder and below."""
    try:
        write(f"{folder}/cgroup.kill", "1")
    except FileNotFoundError:
        if folder.exists():  # before Linux 5.14
            kill_one_by_one(folder)


def kill_one_by_one(folder: Path) -> None:
    """As `kill`; what is born meanwhile may live."""
    for inner in [folder, *below(folder)]:
        for word in (inner / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), 9)


def removed(folder: Path) -> bool:
    """Whether it is gone, now that it was told to go."""
    try:
        os.rmdir(folder)  # noqa: PTH106
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def below(folder: Path) -> Iterator[Path]:
    """All folders below one, children first."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from below(Path(entry.path))
                yield Path(entry.path)


def await_frozen(leaves: Sequence[Path]) -> None:
    """Until nothing runs in v2 folders that were told to freeze; `SandboxError` where something does."""
    deadline, pause_s = time.monotonic() + EMPTY_TIMEOUT_S, SHORTEST_PAUSE_S
    while moving := [leaf for leaf in leaves if not _stands(leaf)]:
        if time.monotonic() > deadline:
            raise SandboxError(f"processes of {moving[0]} cannot be halted")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _stands(leaf: Path) -> bool:
    events = leaf / "cgroup.events"
    return bool(counter(events, "frozen")) or not counter(events, "populated")


def children(folder: Path) -> list[Path]:
    """The folders in one; none where it is gone."""
    with contextlib.suppress(OSError):
        return [one for one in folder.iterdir() if one.is_dir()]
    return []
