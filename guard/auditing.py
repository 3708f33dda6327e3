"""Changes made on this machine by commands, left for the audit: one file each, which serve puts on record.

A command acts whether serve runs or not, so it leaves what it does in a folder that only root and serve's
user can enter; serve takes it from there, exactly once (`guard/api/audit.py`).
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from invigilator.guard.errors import GuardError
from invigilator.guard.home import Home

SUFFIX = ".json"


def leave(
    home: Home,
    action: str,
    subject: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Leave a change for the audit, durably; call it before the change is made, so that none goes untold.
    GuardError where it cannot be kept: then the change must not be made either."""
    home.make()
    change = row(user(), "", "admin", (), action, subject, before, after)
    try:
        _write(home, change)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise  # said as it is of everything in the state folder
        fix = "without an audit nothing is changed: be root"
        raise GuardError(
            f"the audit cannot be kept: {error.strerror}", where=str(home.audit), fix=fix
        ) from None


def row(
    who: str,
    token_id: str,
    role: str,
    projects: tuple[str, ...],
    action: str,
    subject: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> dict[str, str]:
    """A row of `audit` as JSON values, made now."""
    return {
        "at": datetime.now(UTC).isoformat(),
        "who": who,
        "token_id": token_id,
        "role": role,
        "project": " ".join(projects),
        "action": action,
        "subject": subject,
        "before": _text(before),
        "after": _text(after),
    }


def user() -> str:
    """The user who runs this process, and the one who became it."""
    uid = os.getuid()
    login = os.environ.get("SUDO_USER", "")
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    named = f"uid {uid} ({name})" if name else f"uid {uid}"
    return f"{named} for {login}" if uid == 0 and login else named


def _text(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else json.dumps(value, sort_keys=True, default=str)


def _write(home: Home, change: Mapping[str, str]) -> None:
    # The folder is serve's own, which is not trusted: nothing is followed, nothing is overwritten.
    folder = os.open(home.audit, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        name = uuid.uuid4().hex
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        part = os.open(name, flags, 0o600, dir_fd=folder)
        with os.fdopen(part, "w") as file:
            json.dump(change, file)
            file.flush()
            os.fsync(file.fileno())
            if os.getuid() == 0:
                owner = os.fstat(folder)
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        os.rename(name, name + SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    finally:
        os.close(folder)
