"""What honest work needs from registries, brought on the host beforehand: the sandbox has no Internet.

Each registry's own client fetches it, once; a cache folder keeps it. Every item is pinned by the suite.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from invigilator.guard.errors import GuardError
from invigilator.guard.evaluation.suite import Fetch

TIMEOUT_S = 180.0


class FetchError(GuardError):
    """A registry or its client is not to be had on this machine."""


def bring(wanted: Fetch, workspace: Path, cache: Path) -> None:
    """Put what `wanted` names into the workspace. `FetchError` where it cannot be had."""
    if wanted.source:
        unpack(_cached(cache, "sdist", wanted.source, _sdist), workspace)
    kinds: tuple[tuple[str, Sequence[str], Callable[[str, Path], None]], ...] = (
        ("wheel", wanted.wheels, _wheel),
        ("deb", wanted.debs, _deb),
        ("npm", wanted.tarballs, _npm),
    )
    for kind, names, client in kinds:
        for name in names:
            target = workspace / wanted.into
            target.mkdir(parents=True, exist_ok=True)
            for file in _cached(cache, kind, name, client).iterdir():
                shutil.copy2(file, target)


def unpack(folder: Path, workspace: Path) -> None:
    """Unpack the one archive in `folder` into the workspace, without its top folder."""
    archive = next(folder.glob("*.tar.*"))
    command = ["tar", "-xf", str(archive), "-C", str(workspace), "--strip-components=1"]
    subprocess.run([*command, "--no-same-owner"], check=True, timeout=TIMEOUT_S)


def _cached(cache: Path, kind: str, name: str, client: Callable[[str, Path], None]) -> Path:
    """The folder of what `client` fetched for `name`; filled at first use, by one process at a time."""
    folder = cache / kind / name.replace("/", "_")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            partial = folder.with_name(f".{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            client(name, partial)
            if not any(partial.iterdir()):
                raise FetchError(f"{kind} {name}: nothing came")
            partial.rename(folder)
    return folder


def _sdist(name: str, target: Path) -> None:
    _client(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", name], target
    )


def _wheel(name: str, target: Path) -> None:
    _client([sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", name], target)


def _deb(name: str, target: Path) -> None:
    _client(["apt-get", "-q", "download", name], target)


def _npm(name: str, target: Path) -> None:
    _client(["npm", "pack", "--silent", name], target)


def _client(command: Sequence[str], target: Path) -> None:
    if shutil.which(command[0]) is None:
        raise FetchError(f"{command[0]} is not on this machine")
    try:
        done = subprocess.run(
            list(command), cwd=target, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{' '.join(command[-1:])}: no answer within {TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise FetchError(f"{command[-1]}: {(done.stderr or done.stdout).strip()[-300:]}")
