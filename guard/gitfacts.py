"""What a workspace's git stores hold that is no ancestor of HEAD, asked before the agent's first instruction.

Whoever filled the workspace wrote its configuration too, so git runs as the workspace's owner, reads no
configuration but the repository's, and may neither fetch nor start a program.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 15.0
COMMITS_MAX = 4096
"""Commits told of one repository; those that a ref names come first."""

_SAFE = (
    "git",
    "--no-pager",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "protocol.allow=never",
    "-c",
    "core.commitGraph=false",
)
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
}


OBJECTS_MAX = 8192
"""Trees and blobs told of one repository; those of the oldest future commits come first."""


@dataclass(frozen=True, slots=True)
class FutureObjects:
    """Trees and blobs that only future commits of a repository hold; hex ids."""

    repository: bytes
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FutureCommit:
    """A commit that the workspace holds and that is no ancestor of HEAD: the repository's folder relative to
    the workspace, the commit's hex id, and the refs that point at it."""

    repository: bytes
    commit: str
    refs: tuple[bytes, ...] = ()


def future_commits(workspace: Path) -> list[FutureCommit]:
    """The future commits of the repositories at, and directly below, `workspace`.

    A repository that git cannot read in `TIMEOUT_S` tells nothing; so does a machine without git.
    """
    found: list[FutureCommit] = []
    for folder in _repositories(workspace):
        try:
            found += _future_of(folder, os.fsencode(folder.relative_to(workspace)))
        except (OSError, subprocess.SubprocessError):
            continue
    return found


def future_objects(workspace: Path, commits: Sequence[FutureCommit]) -> list[FutureObjects]:
    """The trees and blobs that only the future `commits` hold, by repository; nothing where git fails."""
    found = []
    for name in dict.fromkeys(commit.repository for commit in commits):
        own = [commit.commit for commit in commits if commit.repository == name]
        try:
            ids = _objects_of(workspace / os.fsdecode(name), own)
        except (OSError, subprocess.SubprocessError):
            continue
        found.append(FutureObjects(name, tuple(ids)))
    return found


def _objects_of(folder: Path, commits: list[str]) -> list[str]:
    ask = _Asker(folder, time.monotonic() + TIMEOUT_S)
    born = ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}") is not None
    words = [*commits, *(["^HEAD"] if born else [])]
    listed = ask(
        "rev-list", "--objects", "--reverse", "--ignore-missing", "--stdin", said="\n".join(words).encode()
    )
    known = set(commits)
    ids = (line[:64].split(b" ", 1)[0].decode() for line in _lines(listed))
    return [one for one in ids if one not in known][:OBJECTS_MAX]


def _repositories(workspace: Path) -> list[Path]:
    children = sorted(c for c in workspace.iterdir() if c.is_dir() and not c.is_symlink())
    return [folder for folder in (workspace, *children) if (folder / ".git").exists()]


def _future_of(folder: Path, name: bytes) -> list[FutureCommit]:
    ask = _Asker(folder, time.monotonic() + TIMEOUT_S)
    born = ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}") is not None
    not_head = ["--not", "HEAD"] if born else []
    reachable = _lines(ask("rev-list", "--all", "--reflog", *not_head))
    past = set(_lines(ask("rev-list", "HEAD"))) if born else set()
    stored = ask(
        "cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objecttype) %(objectname)"
    )
    commits = {line[7:] for line in _lines(stored) if line.startswith(b"commit ")}
    refs = _refs(ask("for-each-ref", "--format=%(objectname) %(*objectname) %(refname)"))
    future = (commits - past) | set(reachable)
    ordered = sorted(future, key=lambda commit: (commit not in refs, commit))
    return [FutureCommit(name, c.decode(), tuple(refs.get(c, ()))) for c in ordered[:COMMITS_MAX]]


def _refs(listing: bytes | None) -> dict[bytes, list[bytes]]:
    refs: dict[bytes, list[bytes]] = {}
    for line in _lines(listing):
        target, peeled, name = line.split(b" ", 2)
        refs.setdefault(peeled or target, []).append(name)
    return refs


def _lines(listing: bytes | None) -> list[bytes]:
    return listing.splitlines() if listing else []


class _Asker:
    """git on one repository, until a deadline, as the owner of its store."""

    def __init__(self, folder: Path, deadline: float) -> None:
        self._folder = folder
        self._deadline = deadline
        self._owner = (folder / ".git").lstat()

    def __call__(self, *arguments: str, said: bytes = b"") -> bytes | None:
        """git's output, given `said` on its standard input; None where it failed."""
        owner = self._owner if os.geteuid() == 0 and self._owner.st_uid != 0 else None
        done = subprocess.run(
            [*_SAFE, "--git-dir", ".git", *arguments],
            input=said,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env=_ENVIRONMENT,
            timeout=max(0.1, self._deadline - time.monotonic()),
            check=False,
            user=owner.st_uid if owner else None,
            group=owner.st_gid if owner else None,
            extra_groups=() if owner else None,
        )
        return done.stdout if done.returncode == 0 else None
