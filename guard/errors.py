"""The one family of errors that a person or a script meets, each with what to do about it."""

from __future__ import annotations


class GuardError(Exception):
    """What is wrong, where, and what to do. `exit_code` is the command's exit status for it."""

    exit_code = 1

    def __init__(self, problem: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.problem}" if self.where else self.problem]
        return "; ".join([*parts, self.fix] if self.fix else parts)


class NotFoundError(GuardError):
    """No such rollout, incident, policy or file."""


class RefusedError(GuardError):
    """The service understood and says no: role, query, or content."""


class MissingError(GuardError):
    """This machine lacks what the command needs: root, BTF, a package."""

    exit_code = 3


class UnreachableError(GuardError):
    """A service that the command needs does not answer, or its store is down."""

    exit_code = 4
