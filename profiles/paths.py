"""Paths as policies write them and as the kernel sees them.

In a policy a path is text, taken literally: `*`, `[`, `{`, spaces and quotes are themselves. The backslash is
the one escape, for names that are not UTF-8: `\\xNN` is the byte NN, `\\\\` a backslash.
"""

from __future__ import annotations

import re
from functools import lru_cache

PATH_MAX = 4096
"""Longest path in bytes, its final NUL counted (linux/limits.h)."""

ALIASES: tuple[tuple[bytes, bytes], ...] = (
    (b"/bin", b"/usr/bin"),
    (b"/sbin", b"/usr/sbin"),
    (b"/lib", b"/usr/lib"),
    (b"/lib32", b"/usr/lib32"),
    (b"/lib64", b"/usr/lib64"),
    (b"/libx32", b"/usr/libx32"),
    (b"/var/run", b"/run"),
    (b"/var/lock", b"/run/lock"),
)
"""Links that distributions ship (merged /usr, FHS 3.0 /var/run), and where they lead."""

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|\\|)")
_PROC_ROOT = re.compile(rb"/proc/(?:self|thread-self|[0-9]+)(?:/task/[0-9]+)?/root(?=/|\Z)")
_ALIAS_HEADS = frozenset(alias[1:].split(b"/")[0] for alias, _ in ALIASES)


@lru_cache(maxsize=4096)
def to_bytes(path: str) -> bytes:
    """The bytes that a policy's path stands for. ValueError, with what to write, where it stands for none."""
    if not path.startswith("/"):
        raise ValueError(f"`{path}` is not absolute; write it from / on, as the sandbox sees it")
    raw = _ESCAPE.sub(_unescape, path.encode("utf-8"))
    if b"\0" in raw:
        raise ValueError("a path cannot hold a NUL byte; remove it")
    if len(raw) >= PATH_MAX:
        raise ValueError(f"the path has {len(raw)} bytes; the kernel takes at most {PATH_MAX - 1}")
    parts = raw.split(b"/")
    if b".." in parts or b"." in parts:
        raise ValueError(f"`{path}` holds `.` or `..`; write where it leads")
    return b"/" + b"/".join(part for part in parts if part)


def to_text(path: bytes) -> str:
    """The text by which a policy names `path`; inverse of `to_bytes`."""
    escaped = path.replace(b"\\", b"\\\\").decode("utf-8", "surrogateescape")
    return "".join(f"\\x{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in escaped)


def canonical(path: bytes) -> bytes:
    """`path` without /proc/self/root, doubled slashes, `.`, `..` and the distribution's links.

    Purely by its text. The kernel's own path of an object needs none of it but the links; what a process
    *said* may need all.
    """
    if path.startswith(b"/proc/"):
        while match := _PROC_ROOT.match(path):
            path = path[match.end() :] or b"/"
    if b"//" in path or b"/." in path or path.endswith(b"/"):
        path = _collapse(path)
    if path[1:].split(b"/", 1)[0] in _ALIAS_HEADS:
        path = _follow(path)
    return path


def spellings(path: bytes) -> tuple[bytes, ...]:
    """A canonical path, and where its object lies in a root that has folders where the links are usual."""
    others = [
        alias + path[len(target) :]
        for alias, target in ALIASES
        if path == target or path.startswith(target + b"/")
    ]
    return (path, *others)


def _follow(path: bytes) -> bytes:
    for alias, target in ALIASES:
        if path == alias or path.startswith(alias + b"/"):
            return target + path[len(alias) :]
    return path


def _collapse(path: bytes) -> bytes:
    kept: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            del kept[-1:]
        elif part not in (b"", b"."):
            kept.append(part)
    return b"/" + b"/".join(kept)


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if not code:
        raise ValueError(
            "a backslash in a path starts an escape; write `\\\\` for a backslash, `\\xNN` for a byte"
        )
    return code if code == b"\\" else bytes([int(code[1:], 16)])
