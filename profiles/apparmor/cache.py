"""Compiled profiles, kept: one compilation for all sandboxes of a policy, on a kernel, by a parser."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from invigilator.profiles.apparmor import abi, parser
from invigilator.profiles.apparmor.profile import Profile
from invigilator.profiles.filelock import locked

KEPT = 512
"""Binaries kept; the least recently made go first. One has some tens of KiB."""


def binary(profile: Profile, cache: Path, features: Path | None = None) -> bytes:
    """The compiled form of `profile`, made at most once for the same text, parser and kernel features.

    `cache`: a folder of the guard's own, made where it is missing. `features`: a file or folder as the
    kernel's `/sys/kernel/security/apparmor/features`, which is taken where it is there; without any the
    text's ABI decides. Raises PolicyError, ParserMissingError and CompileError as the parser's run does,
    OSError for a folder that cannot be used.
    """
    if features is None and parser.FEATURES.is_dir():
        features = parser.FEATURES
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = cache / f"{key(profile, features)}.bin"
    if (found := _read(path)) is not None:
        return found
    with locked(cache / ".lock"):
        if (found := _read(path)) is not None:
            return found
        made = parser.run(profile, features)
        _write(path, made)
        _forget(cache)
        return made


def key(profile: Profile, features: Path | None) -> str:
    """What a binary depends on, as hex digits."""
    digest = hashlib.sha256(profile.digest.encode())
    found = abi.find()
    state = Path(found).stat()
    digest.update(f"{abi.version(found)} {state.st_size} {state.st_mtime_ns}".encode())
    known = features_digest if features != parser.FEATURES else _kernels_digest
    digest.update(known(features).encode())
    return digest.hexdigest()[:48]


@functools.lru_cache(maxsize=1)
def _kernels_digest(features: Path) -> str:
    """Of the running kernel, whose features change at boot alone: some hundred files."""
    return features_digest(features)


def features_digest(features: Path | None) -> str:
    """A hash of a kernel's feature set: every file's name and content, in order."""
    digest = hashlib.sha256()
    if features is None:
        return digest.hexdigest()
    names = sorted(features.rglob("*")) if features.is_dir() else [features]
    for path in names:
        if path.is_file():
            inside = path.relative_to(features) if features.is_dir() else ""
            digest.update(f"{inside}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _read(path: Path) -> bytes | None:
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return None
    return found if found.startswith(parser.BEGINS) else None


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, also over a crash."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _forget(cache: Path) -> None:
    kept = sorted(cache.glob("*.bin"), key=lambda path: path.stat().st_mtime_ns)
    for path in kept[:-KEPT]:
        path.unlink(missing_ok=True)
    for path in cache.glob("*.tmp"):  # of a writer that died: the lock is ours
        path.unlink(missing_ok=True)
