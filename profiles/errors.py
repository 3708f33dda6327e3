"""What is wrong with a policy, where, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a policy file; `line` and `column` count from 1, 0 where the file as a whole is meant."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `fix` says what to write instead; it may be empty for a warning."""

    place: Place
    message: str
    fix: str = ""
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.place}: {self.message}; {self.fix}" if self.fix else f"{self.place}: {self.message}"


class PolicyError(ValueError):
    """A policy that is refused. `problems` has every error found; the attributes are those of the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        self.file = first.place.file
        self.line = first.place.line
        self.column = first.place.column
        self.message = first.message
        self.fix = first.fix
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def at(cls, place: Place, message: str, fix: str) -> PolicyError:
        """An error with one problem."""
        return cls([Problem(place, message, fix)])
