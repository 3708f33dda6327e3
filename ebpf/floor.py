"""The kernel's own price of a hook on system calls, to measure the sensor against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .build import object_file
from .loader import Kernel


@contextmanager
def empty_hook() -> Iterator[None]:
    """While inside, an empty program sits on the sensor's system call hook."""
    kernel = Kernel(object_file("floor"))
    try:
        kernel.load()
        kernel.attach("floor_exit")
        yield
    finally:
        kernel.close()
