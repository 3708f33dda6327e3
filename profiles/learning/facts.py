"""What a recording says, as far as a policy can be learned from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from invigilator.profiles.policy import FileAccess


class Use(NamedTuple):
    """One way in which the agent used a path, and it was let. `path`: canonical, any bytes.

    `folder`: the path is a folder's. `created`: the program made it.
    """

    path: bytes
    access: FileAccess
    folder: bool = False
    created: bool = False


class Connection(NamedTuple):
    """An address (16 bytes, IPv4 mapped) that the agent reached. `protocol`: IPPROTO_*."""

    address: bytes
    port: int
    protocol: int


@dataclass(frozen=True, slots=True)
class Command:
    """A command that was run in a phase. `whole`: no argument was cut, and no credential in it replaced."""

    phase: str
    arguments: tuple[bytes, ...]
    whole: bool


@dataclass
class Recording:
    """The facts of one sandbox. `title` names it in the policy's comments, one line.

    `uses`, `connections`, `binds` (own addresses and ports, 0 where the kernel chose): with how often.
    `names`: asked for by DNS, or named by the recording's policy; `asked`: the former alone. `calls`: kinds
    of privileged calls that were made, by the event's name. `left_out`: reason → what, and how often.
    """

    title: str
    uses: Counter[Use] = field(default_factory=Counter)
    connections: Counter[Connection] = field(default_factory=Counter)
    binds: Counter[Connection] = field(default_factory=Counter)
    names: Counter[bytes] = field(default_factory=Counter)
    asked: set[bytes] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    commands: list[Command] = field(default_factory=list)
    left_out: dict[str, Counter[bytes]] = field(default_factory=dict)

    def leave_out(self, reason: str, what: bytes, count: int = 1) -> None:
        """Say that something recorded is not learned, and why."""
        self.left_out.setdefault(reason, Counter())[what] += count
