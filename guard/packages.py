"""What a bare install leaves out: packages that a node's agent and service need, and how to say so."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from invigilator.guard.errors import MissingError

AGENT = ("numpy", "pyarrow", "pyroute2", "dns")
SERVICE = ("numpy", "pyarrow", "fastapi", "uvicorn", "clickhouse_connect")
INSTALL = "pip install 'invigilator[node,serve]', or name a service that runs in $INVIGILATOR_SERVE_URL"


def require_packages(what: str, names: Sequence[str]) -> None:
    """`MissingError` where this installation cannot be `what` for want of packages."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingError(f"{what} needs the Python packages {', '.join(absent)}", fix=INSTALL)


def missing_package(error: ModuleNotFoundError) -> str | None:
    """The package that an import did not find; None for a module of our own, which is a fault of ours."""
    name = (error.name or "").partition(".")[0]
    return None if name in ("", "invigilator") else name
