"""Access tokens: made once, shown once, kept only as hashes in one file of the serving user's."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from invigilator.guard.api.access import BINDABLE, RIGHTS, Caller, Role
from invigilator.guard.errors import GuardError, NotFoundError

PREFIX = "inv"
SECRET_BYTES = 32
"""256 bits of the kernel's randomness need no slow hash: SHA-256 cannot be searched."""
_log = logging.getLogger("invigilator.serve")


@dataclass(frozen=True, slots=True)
class Token:
    """One token as kept: its public id, its name and role, the hex SHA-256 of its secret, when it ends
    (Unix seconds; None: never), the projects that it is bound to (none: it sees all)."""

    id: str
    name: str
    role: Role
    digest: str
    expires_at: float | None = None
    projects: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """What may be told of it: all but its secret's hash."""
        return {name: value for name, value in asdict(self).items() if name != "digest"}

    def accepts(self, secret: str, now: float) -> bool:
        """Whether `secret` is this token's and the token still holds."""
        same = hmac.compare_digest(self.digest, digest(secret))
        return same and (self.expires_at is None or now < self.expires_at)


Tell = Callable[[str, str, Mapping[str, Any] | None, Mapping[str, Any] | None], None]


def _untold(*change: Any) -> None:
    """For tokens of no consequence: a test's, the demonstration's."""


def _made(name: str, role: str, ttl_s: float | None, projects: Sequence[str]) -> tuple[Token, str]:
    if role not in RIGHTS:
        raise GuardError(f"no role {role!r}", fix=f"roles are {', '.join(RIGHTS)}")
    if projects and role not in BINDABLE:
        fix = f"leave out --project, or take one of {', '.join(BINDABLE)}"
        raise GuardError(f"a token of role {role} is never bound to projects", fix=fix)
    secret = secrets.token_urlsafe(SECRET_BYTES)
    expires_at = None if ttl_s is None else time.time() + ttl_s
    bound = tuple(sorted(set(projects)))
    token = Token(secrets.token_hex(6), name, role, digest(secret), expires_at, bound)
    return token, f"{PREFIX}_{token.id}_{secret}"


def _named(tokens: Mapping[str, Token], token_id: str) -> Token:
    if token_id not in tokens:
        raise NotFoundError(f"no token {token_id!r}", fix="see `guard token list`")
    return tokens[token_id]


def digest(secret: str) -> str:
    """The hex SHA-256 of a token's secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def parse(line: str) -> Token | None:
    """The token that a line of the file holds; None where the line is damaged, or a part is missing."""
    try:
        given = {"projects": [], **json.loads(line)}
        token = Token(**{**given, "projects": tuple(given["projects"])})
    except (ValueError, TypeError, RecursionError):
        return None
    ends = token.expires_at
    texts = (token.id, token.name, token.role, token.digest)
    sound = all(isinstance(text, str) for text in texts) and token.role in RIGHTS and len(token.digest) == 64
    timed = ends is None or (isinstance(ends, int | float) and not isinstance(ends, bool))
    bound = isinstance(given["projects"], list) and all(isinstance(one, str) for one in token.projects)
    return token if sound and timed and bound and len(given) == len(fields(Token)) else None


class TokenFile:
    """The file of tokens, one JSON object a line; read again whenever it changed.

    A damaged line is no token: whoever holds it is refused, the others are not. Nothing is made or revoked
    until it is mended, as writing the file anew would lose it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._tokens: dict[str, Token] = {}
        self._damaged: tuple[int, ...] = ()
        self._trouble: int | None = None

    def find(self, text: str) -> Caller | None:
        """Who holds the token `text`, or None where it is wrong, expired or revoked."""
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        try:
            token = self._read().get(token_id)
        except OSError as error:
            if self._trouble != error.errno:
                _log.error("no token is accepted: %s: %s", self._path, error.strerror)
            self._trouble = error.errno
            return None
        if prefix != PREFIX or token is None or not token.accepts(secret, time.time()):
            return None
        return Caller(token.name, token.role, token.id, token.projects)

    def all(self) -> list[Token]:
        """All tokens, by name. GuardError where the file is damaged."""
        return sorted(self._whole().values(), key=lambda token: (token.name, token.id))

    def create(
        self,
        name: str,
        role: str,
        ttl_s: float | None = None,
        projects: Sequence[str] = (),
        *,
        tell: Tell = _untold,
    ) -> tuple[Token, str]:
        """A new token and its text, which is kept nowhere. GuardError where the role cannot be bound to
        projects. `tell` puts it on record first, as (action, token id, before, after)."""
        token, text = _made(name, role, ttl_s, projects)
        with self._locked():
            tokens = self._whole()
            tell("token.create", token.id, None, token.facts())
            self._write([*tokens.values(), token])
        return token, text

    def rotate(
        self, token_id: str, ttl_s: float | None, overlap_s: float, *, tell: Tell = _untold
    ) -> tuple[Token, str]:
        """A token of the same name, role and projects in the place of another one, which ends in `overlap_s`
        at the latest."""
        with self._locked():
            tokens = dict(self._whole())
            old = _named(tokens, token_id)
            end = time.time() + overlap_s
            ending = replace(old, expires_at=end if old.expires_at is None else min(end, old.expires_at))
            token, text = _made(old.name, old.role, ttl_s, old.projects)
            tell("token.rotate", token_id, old.facts(), {"old": ending.facts(), "new": token.facts()})
            self._write([*(tokens | {token_id: ending}).values(), token])
        return token, text

    def revoke(self, token_id: str, *, tell: Tell = _untold) -> Token:
        """Take a token out; it is refused from the next request on."""
        with self._locked():
            tokens = dict(self._whole())
            gone = _named(tokens, token_id)
            tell("token.revoke", token_id, gone.facts(), None)
            del tokens[token_id]
            self._write(list(tokens.values()))
        return gone

    def _read(self) -> dict[str, Token]:
        try:
            with self._path.open(errors="surrogateescape") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_mtime_ns, status.st_size, status.st_ino)
                if seen != self._seen:
                    self._take(list(file))
                    self._seen = seen
        except FileNotFoundError:
            self._tokens, self._seen, self._damaged = {}, None, ()
        return self._tokens

    def _take(self, lines: list[str]) -> None:
        found = [(number, parse(line)) for number, line in enumerate(lines, start=1) if line.strip()]
        self._tokens = {token.id: token for _, token in found if token is not None}
        self._damaged = tuple(number for number, token in found if token is None)
        if self._damaged:
            _log.error("%s is damaged in line %s: no token is accepted by it", self._path, self._damaged[0])

    def _whole(self) -> dict[str, Token]:
        tokens = self._read()
        if self._damaged:
            numbers = ", ".join(map(str, self._damaged))
            fix = "take these lines out (whoever holds their tokens needs new ones), or restore the file"
            raise GuardError(f"no tokens stand in line {numbers}: damaged", where=str(self._path), fix=fix)
        return tokens

    def _write(self, tokens: list[Token]) -> None:
        owner = self._path.parent.stat() if not self._path.exists() else self._path.stat()
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.writelines(json.dumps(asdict(token)) + "\n" for token in tokens)
            file.flush()
            os.fsync(file.fileno())
            if os.getuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        fresh.replace(self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
