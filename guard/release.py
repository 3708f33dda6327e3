"""Which release this is."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The installed version, or `0` from a tree that was never installed."""
    try:
        return metadata.version("invigilator")
    except metadata.PackageNotFoundError:
        return "0"
