"""Words to a person who waits. Only the command passes them on; to others the package says nothing."""

from __future__ import annotations

from collections.abc import Callable


class _Notices:
    def __init__(self) -> None:
        self.listener: Callable[[str], None] | None = None


_notices = _Notices()


def listen(listener: Callable[[str], None]) -> None:
    """Have `listener` told from now on."""
    _notices.listener = listener


def tell(text: str) -> None:
    """Tell whoever listens."""
    if _notices.listener is not None:
        _notices.listener(text)
