"""Which apparmor_parser is here, and what its language knows."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ABI_FOLDER = Path("/etc/apparmor.d/abi")
ANSWER_S = 10.0
"""Longest wait for the parser's version."""


class ParserMissingError(RuntimeError):
    """Profiles cannot be compiled here."""


@dataclass(frozen=True, slots=True)
class Abi:
    """The feature set that a profile is written for. A newer kernel goes on mediating what this one knew.

    `name`: the file of /etc/apparmor.d/abi. The others: classes of rules that came with 4.0.
    """

    name: str = "3.0"
    userns: bool = False
    io_uring: bool = False
    mqueue: bool = False


OLD = Abi()
"""Debian 12's parser 3.0.8 knows this one; a kernel of any age enforces it."""
NEW = Abi("4.0", userns=True, io_uring=True, mqueue=True)


def find() -> str:
    """apparmor_parser's path. Raises ParserMissingError."""
    found = shutil.which("apparmor_parser", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        raise ParserMissingError("apparmor_parser is missing; install the package apparmor")
    return found


@functools.lru_cache(maxsize=4)
def version(parser: str) -> str:
    """The parser's own version, such as `3.0.8`. Raises ParserMissingError where it does not answer."""
    try:
        said = subprocess.run(
            [parser, "--version"], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ParserMissingError(f"{parser} does not run: {error}") from error
    match = re.search(r"version (\d+(?:\.\d+)+)", said.stdout)
    if match is None:
        raise ParserMissingError(f"{parser} does not say its version")
    return match[1]


def detect() -> Abi:
    """The ABI to write for: the newest of ours that the parser here knows; `OLD` where there is none."""
    try:
        newest = tuple(map(int, version(find()).split(".")[:2])) >= (4, 0)
    except ParserMissingError:
        return OLD
    return NEW if newest and (ABI_FOLDER / NEW.name).is_file() else OLD
