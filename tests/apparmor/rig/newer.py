"""AppArmor's parser of a later Debian, taken from its packages without installing them.

It needs a later C library, which comes along and is its alone. In a mount namespace of a command's own it
stands in the place of the parser that is installed, its rules' files (`abi/4.0` among them) with it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rig.boot import RigError

SUITE = "trixie"
PACKAGES = ("apparmor", "libc6")
FETCH_S = 300.0
PLACE = """
mount --make-rprivate /
mount --bind "$NEWER/etc/apparmor.d" /etc/apparmor.d
mount --bind "$NEWER/apparmor_parser" "$(PATH=$PATH:/usr/sbin command -v apparmor_parser)"
exec "$@"
"""
WRAPPER = """#!/bin/sh
exec {lib}/ld-linux-x86-64.so.2 --library-path {lib} {root}/usr/sbin/apparmor_parser "$@"
"""


def fetch(cache: Path) -> Path:
    """The folder of the unpacked packages, fetched once. RigError where they cannot be had here."""
    folder = cache / f"apparmor-{SUITE}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".newer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "apparmor_parser").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _unpack(folder)
            wrapper = folder / "unfinished"
            wrapper.write_text(WRAPPER.format(lib=folder / "usr/lib/x86_64-linux-gnu", root=folder))
            wrapper.chmod(0o755)
            wrapper.rename(folder / "apparmor_parser")
    return folder


def with_it(folder: Path, command: Sequence[str | Path]) -> list[str]:
    """A command that runs `command` where the newer parser is the one that is installed; for root."""
    words = ["env", f"NEWER={folder}", "unshare", "--mount", "sh", "-ec", PLACE, "sh"]
    return [*words, *map(str, command)]


def _unpack(folder: Path) -> None:
    """By an apt with lists of its own: what this machine installs stays of its own release."""
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (folder / name).mkdir(parents=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    listed = folder / "newer.list"
    listed.write_text(f"deb [signed-by={keys}] {_mirror()} {SUITE} main\n")
    options = {
        "Dir::Etc::SourceList": listed,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run(["apt-get", "-qq", *given, "update"])
    _run(["apt-get", "-qq", *given, "download", *PACKAGES], cwd=folder / "debs")
    for package in (folder / "debs").glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(folder)])
    for name in ("lists", "cache", "debs"):
        shutil.rmtree(folder / name)


def _mirror() -> str:
    """Where this machine has Debian's own packages from."""
    told = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Identifier: Packages"])
    found = re.search(r"^(\S+) Debian$", told, re.MULTILINE)
    if found is None:
        raise RigError("apt has no packages of Debian's: apt-get update, on Debian")
    return found[1]


def _run(command: list[str], cwd: Path | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RigError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise RigError(f"{command[0]} {command[-2:]}: {done.stderr.strip()[-500:]}")
    return done.stdout
