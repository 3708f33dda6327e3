"""Compiles the kernel programs once and keeps the object.

`object_file()` is what the loader calls; `python -m invigilator.ebpf.build` compiles ahead (`make setup`).
The object is named by the hash of the sources, so that a changed source is never run as an old object.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "src"
FLAGS = ("-O2", "-g", "-target", "bpf", "-mcpu=v3", "-D__TARGET_ARCH_x86", "-Wall", "-Werror")
INCLUDES = Path("/usr/include/x86_64-linux-gnu")
COMPILE_TIMEOUT_S = 120


class BuildError(Exception):
    """The kernel programs could not be compiled; the message says what to install or what clang said."""


def object_file(program: str = "sensor") -> Path:
    """Path of the compiled object of `src/PROGRAM.bpf.c`, compiled now where it is not there yet.

    `BuildError` says what is missing.
    """
    name = f"{program}-{_fingerprint()}.o"
    for folder in _folders():
        if (folder / name).is_file():
            return folder / name
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _compile(program, folder / name)
        except OSError:
            continue
    raise BuildError(f"no folder to keep the compiled sensor in: tried {', '.join(map(str, _folders()))}")


def _folders() -> list[Path]:
    return [SOURCES.parent / "build", Path("/var/cache/invigilator")]


def _fingerprint() -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(program: str, target: Path) -> Path:
    clang = shutil.which("clang") or shutil.which("clang-14")
    if clang is None:
        raise BuildError("clang is missing: apt-get install clang libbpf-dev")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:  # clang removes what it fails to write
        made = Path(folder, "made.o")
        command = [clang, *FLAGS, f"-I{INCLUDES}", "-c", str(SOURCES / f"{program}.bpf.c"), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        if done.returncode:
            hint = " (apt-get install libbpf-dev)" if "bpf/bpf_" in done.stderr else ""
            raise BuildError(f"clang could not compile the sensor{hint}: {done.stderr.strip()[:2000]}")
        # A name of its own, then a rename: two that compile at once never see half an object.
        made.replace(target)
    for old in target.parent.glob(f"{program}-*.o"):
        if old != target:
            old.unlink(missing_ok=True)
    return target


if __name__ == "__main__":
    print(object_file())
    print(object_file("floor"))
