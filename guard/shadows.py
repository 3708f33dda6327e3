"""New files that Python imports in the place of a module that was there.

In one folder a package goes before an extension, and an extension before a source file (importlib.machinery,
FileFinder): `test_a/__init__.py` or `test_a.so` is what `import test_a` gives, beside a test_a.py that nobody
touched.
"""

from __future__ import annotations

import os
import re

from invigilator.sandbox.base import Change, Sandbox, SandboxError

_PACKAGE = re.compile(rb"(.*/[^/.]+)/__init__\.(?:py|pyc|(?:[^/]+\.)?so)\Z", re.DOTALL)
_EXTENSION = re.compile(rb"(.*/[^/.]+)\.(?:[^/]+\.)?so\Z", re.DOTALL)


def would_hide(change: Change) -> list[bytes]:
    """The source files that a new file hides where there are such."""
    if change.change != "added":
        return []
    found = (pattern.match(change.path) for pattern in (_PACKAGE, _EXTENSION))
    return [one[1] + b".py" for one in found if one]


def is_file(sandbox: Sandbox, path: bytes) -> bool:
    """Whether there is a regular file."""
    try:
        sandbox.read_beginning(os.fsdecode(path), 1)
    except (SandboxError, OSError):
        return False
    return True
