"""Who may ask what: a peer of the Unix socket by its user id, everyone else by a bearer token's role."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fastapi import Request

from invigilator.guard.api.problem import ProblemError

Role = Literal["node", "trainer", "researcher", "engineer", "admin", "scraper"]
Right = Literal[
    "ingest", "verdicts", "monitor_only", "sql", "review", "metrics", "audit", "export", "falco", "forget"
]

RIGHTS: dict[Role, frozenset[Right]] = {
    "node": frozenset({"ingest", "falco"}),
    "trainer": frozenset({"verdicts"}),
    "researcher": frozenset({"verdicts", "monitor_only", "sql", "review", "export"}),
    "engineer": frozenset({"verdicts", "monitor_only", "sql", "metrics", "audit"}),
    "admin": frozenset(get_args(Right)),
    "scraper": frozenset({"metrics"}),
}
"""What each role may do. A trainer never sees monitor-only incidents, and so has no SQL either."""

UNBOUND: frozenset[Right] = frozenset({"ingest", "metrics", "audit", "falco", "forget"})
"""Rights of nobody who is bound to projects."""
BINDABLE: tuple[Role, ...] = ("trainer", "researcher", "engineer")
"""Roles whose tokens may be bound to projects."""

PEER_PREFIX = "peer:"
"""Marks a client address that the server itself wrote from SO_PEERCRED; no TCP client has such a host."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, under what name, and in which role. `token_id`: "" for a user of this machine. `projects`:
    the values of the label `project` that it is bound to; none: it is bound to no project."""

    name: str
    role: Role
    token_id: str = ""
    projects: tuple[str, ...] = ()

    def may(self, right: Right) -> bool:
        """Whether the role has the right; what tells of all projects is not for who is bound to some."""
        return right in RIGHTS[self.role] and not (self.projects and right in UNBOUND)


class Access:
    """Decides who a request comes from. `trusted_uids` are the user ids that are admin on the Unix socket."""

    def __init__(self, find_token: Callable[[str], Caller | None], trusted_uids: frozenset[int]) -> None:
        self._find_token = find_token
        self._trusted_uids = trusted_uids

    def trusts(self, peer: str) -> bool:
        """Whether the kernel's word alone is enough: a peer of the Unix socket with a trusted user id."""
        return peer.startswith(PEER_PREFIX) and int(peer.removeprefix(PEER_PREFIX)) in self._trusted_uids

    def identify(self, peer: str, authorization: str) -> Caller:
        """The caller of a request from `peer` with that Authorization header; 401 where there is none."""
        scheme, _, token = authorization.partition(" ")
        if authorization:
            caller = self._find_token(token.strip()) if scheme.lower() == "bearer" else None
            if caller is None:
                raise ProblemError(401, "unknown-token", "the token is wrong, expired or revoked")
            return caller
        if self.trusts(peer):
            return Caller(f"uid {peer.removeprefix(PEER_PREFIX)}", "admin")
        fix = (
            "send `Authorization: Bearer …` (the command and the clients take it from $INVIGILATOR_TOKEN); "
            "an admin makes tokens with `guard token create`"
        )
        raise ProblemError(401, "token-needed", "this address needs a token", fix=fix)


def trusted_uids() -> frozenset[int]:
    """Root and the user who starts the process, before it drops its privileges."""
    return frozenset({0, os.getuid()})


def needs(right: Right) -> Callable[[Request], Coroutine[Any, Any, Caller]]:
    """A dependency: the caller of a request, as TrafficRules knows it, who must have `right`."""

    async def check(request: Request) -> Caller:
        caller: Caller = request.state.caller
        if not caller.may(right):
            raise ProblemError(403, "role-may-not", f"role {caller.role} has no right to {right}")
        return caller

    return check
