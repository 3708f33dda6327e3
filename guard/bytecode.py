"""Python's own caches of compiled modules that came about in phase agent, beside protected sources.

An interpreter takes a cache whose header names its source's time and size, whatever is in it, and does not
look at the source. So who may write the cache of a test or of a library decides what verify runs, and no
system call tells such a cache from one that Python made itself. Without it Python compiles the source anew.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from invigilator.sandbox.base import Change, Sandbox, SandboxError

_log = logging.getLogger("invigilator.rollout")
_CACHE = re.compile(rb"/__pycache__(?:/[^/]+\.pyc)?\Z")


def is_cache(change: Change) -> bool:
    """Whether a change made a cache, or what stands in the place of a folder of them."""
    return change.change in ("added", "modified") and _CACHE.search(change.path) is not None


def drop(sandbox: Sandbox, caches: Iterable[bytes]) -> None:
    """Remove them; folders stay."""
    for path in caches:
        try:
            sandbox.remove_file(path)
        except SandboxError as error:
            _log.warning("%s", error)
