"""Compile the launcher once, and keep the binary as long as its sources and compiler stay the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from pathlib import Path

from invigilator.sandbox.base import UnavailableError

SOURCES = Path(__file__).resolve().parent / "launcher"
FLAGS = ("-static", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-s")
COMPILE_TIMEOUT_S = 900.0
"""It takes a second; a machine that is busy with all else may take minutes, and is not at fault."""


def launcher(cache: Path, compiler: str = "gcc") -> Path:
    """The launcher's binary below folder `cache`, compiled where it is missing.

    `UnavailableError` where there is no compiler or it fails.
    """
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(" ".join((compiler, *FLAGS)).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    binary = cache / f"launcher-{digest.hexdigest()[:16]}"
    if not binary.exists():
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        _compile(compiler, [source for source in sources if source.suffix == ".c"], binary)
    return binary


def _compile(compiler: str, sources: list[Path], binary: Path) -> None:
    if shutil.which(compiler) is None:
        raise UnavailableError(f"no {compiler} to compile the launcher with: apt-get install gcc libc6-dev")
    unfinished = binary.with_name(f".{binary.name}.{os.getpid()}.{threading.get_ident()}")
    command = [compiler, *FLAGS, "-o", str(unfinished), *map(str, sources)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        unfinished.unlink(missing_ok=True)
        raise UnavailableError(
            f"{compiler} did not compile the launcher in {COMPILE_TIMEOUT_S:g} s: end what keeps this machine"
            " busy, and run it again"
        ) from error
    if done.returncode != 0:
        raise UnavailableError(
            f"the launcher does not compile: {done.stderr.decode(errors='replace')[-2000:]}"
        )
    unfinished.chmod(0o500)
    unfinished.replace(binary)
