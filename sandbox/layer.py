"""The writable layer of a sandbox: a file system of its own, as large as its disk limit.

A sparse ext4 image in a nameless file, on a loop device that vanishes with its last user, mounted in no
namespace: a descriptor holds it, so that nothing is left however the process ends. A full one means ENOSPC.
Where the disk limit is at most a quarter of the memory limit, a tmpfs. Making one costs milliseconds, so
unused ones are kept in stock. A file system that a sandbox had is never used again; its loop device is, once
it reads as zeros throughout, with a new file system on it.

What a layer holds is lost with its sandbox, so nothing here asks for it to reach the disk: no barriers, and
an image is empty when its loop device is set up, which synchronises it. A short life's blocks are then never
allocated on the host's disk, nor discarded from it again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from invigilator.profiles.limits import LimitValues
from invigilator.sandbox import kernel
from invigilator.sandbox.base import SandboxError, UnavailableError
from invigilator.sandbox.device import Device

PARTS = ("root", "usr", "workspace")
SMALLEST_IMAGE_BYTES = 4 << 20
MKFS_TIMEOUT_S = 300.0
DROPPERS = 4
WORTH_FORGETTING_BYTES = 4 << 20
"""Above this, making ext4 forget its dirty pages costs less than writing them (1.2 ms against 2 ms a MiB)."""
MOUNT_OPTIONS: Mapping[str, str | None] = {
    "discard": None, "noinit_itable": None, "nobarrier": None, "no_prefetch_block_bitmaps": None,
}  # fmt: skip
BYTES_PER_INODE = 8192
"""Half of mke2fs's default: node_modules and Python environments are many small files."""
LEAST_INODES = 2048
"""Of a layer in memory: an empty file takes no block of a tmpfs, but kernel memory."""


@dataclass(slots=True)
class Layer:
    """`fd` is its root folder, with `PART/upper` and `PART/work` for each of `PARTS`; `device`: what it lies
    on, None where that is memory."""

    fd: int
    device: Device | None

    @property
    def in_memory(self) -> bool:
        """Whether it is a tmpfs."""
        return self.device is None

    def usage(self) -> tuple[int, int, int, int]:
        """(bytes, free bytes, inodes, free inodes)."""
        found = os.fstatvfs(self.fd)
        return (
            found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, found.f_files, found.f_favail
        )  # fmt: skip

    def full(self) -> int | None:
        """Bytes in use, where there is no room for more; None where there is, or it is gone."""
        if self.fd < 0:
            return None
        size, free, inodes, free_inodes = self.usage()
        return size - free if free < max(4096, size // 200) or (inodes and free_inodes < 8) else None

    def _written_bytes(self) -> int:
        """Without what ext4 keeps for itself, which `usage` does not count as free."""
        found = os.fstatvfs(self.fd)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def own(self, first_id: int) -> None:
        """Give the upper layers to the sandbox's root."""
        for part in PARTS:
            os.chown(f"{part}/upper", first_id, first_id, dir_fd=self.fd)

    def close(self, *, keep_device: bool = False) -> Device | None:
        """Drop it with all that is in it; its device, where that shall be kept. Idempotent."""
        if self.fd < 0:
            return None
        device, self.device = self.device, None
        if device and self._written_bytes() > WORTH_FORGETTING_BYTES:
            with contextlib.suppress(OSError):
                kernel.shut_down_ext4(self.fd)
        kept = device if device and keep_device and device.hold() else None
        os.close(self.fd)
        self.fd = -1
        return kept


class Layers:
    """Layers of any size, with a stock of those last asked for. Thread-safe."""

    def __init__(self, folder: Path, stock: int = 4) -> None:
        """`folder`: where images lie. `stock`: how many unused layers of the last size to keep ready."""
        self._folder = folder
        self._stock = stock
        self._ready: deque[Layer] = deque()
        self._spare: deque[Device] = deque()
        self._size = 0
        self._blanks: dict[int, Sequence[tuple[int, bytes]]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._filler: threading.Thread | None = None
        self._dropper = ThreadPoolExecutor(DROPPERS, "layers-dropped")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def take(self, limits: LimitValues) -> Layer:
        """A fresh layer."""
        if limits.disk_in_memory:
            return _furnish(Layer(_tmpfs(limits.disk_bytes), None))
        size = max(limits.disk_bytes, SMALLEST_IMAGE_BYTES)
        with self._changed:
            if size != self._size:
                self._drop_stock()
                self._size = size
            layer = self._ready.popleft() if self._ready else None
            self._begin_filling()
            self._changed.notify()
        return layer or self._make(size)

    def discard(self, layer: Layer) -> None:
        """Drop a layer in the background: unmounting waits for the kernel, and nobody need wait for it."""
        self._dropper.submit(self._drop, layer)

    def close(self) -> None:
        """Drop the stock, and wait for what is being dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._filler:
            self._filler.join()
        self._dropper.shutdown(wait=True)
        self._drop_stock()

    def _drop(self, layer: Layer) -> None:
        device = layer.close(keep_device=self._wants(layer.device))
        if device is None:
            return
        clean = device.scrub()
        with self._changed:
            if clean and self._wants(device):
                self._spare.append(device)
                return
        device.let_go()

    def _wants(self, device: Device | None) -> bool:
        if device is None or self._closed:
            return False
        return device.size == self._size and len(self._spare) < self._stock

    def _begin_filling(self) -> None:
        if self._filler is None and self._stock:
            self._filler = threading.Thread(target=self._fill, name="layers", daemon=True)
            self._filler.start()

    def _fill(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._stock)
                if self._closed:
                    return
                size = self._size
            try:
                layer = self._make(size)
            except (OSError, SandboxError):  # the next `take` meets it and says so
                with self._changed:
                    self._changed.wait(1.0)
                continue
            with self._changed:
                if size == self._size and not self._closed:
                    self._ready.append(layer)
                    continue
            self._drop(layer)

    def _drop_stock(self) -> None:
        while self._ready:
            self._ready.popleft().close()
        while self._spare:
            self._spare.popleft().let_go()

    def _make(self, size: int) -> Layer:
        blank = self._blank(size)
        device = self._device(size)
        try:
            for offset, content in blank:
                os.pwrite(device.fd, content, offset)
            layer = Layer(kernel.mount_detached("ext4", device.path, MOUNT_OPTIONS), device)
        except OSError as error:
            raise UnavailableError(f"cannot mount the writable layer: {error.strerror}") from error
        finally:
            device.let_go()
        with contextlib.suppress(OSError):  # reading ahead what is all empty costs time and memory
            Path("/sys/fs/ext4", Path(device.path).name, "mb_prefetch").write_text("0")
        return layer

    def _device(self, size: int) -> Device:
        with self._changed:
            if self._spare and self._spare[0].size == size:
                return self._spare.popleft()
        return Device.make(self._folder, size)

    def _blank(self, size: int) -> Sequence[tuple[int, bytes]]:
        """What is written in an image of that size before anything is, as (offset, content)."""
        if (known := self._blanks.get(size)) is None:
            known = self._blanks[size] = _pieces(self._template(size))
        return known

    def _template(self, size: int) -> Path:
        template = self._folder / f"layer-{size}.ext4"
        if not template.exists():
            _make_file_system(template, size)
        return template


def _furnish(layer: Layer) -> Layer:
    _furnish_folder(layer.fd)
    return layer


def _furnish_folder(fd: int) -> None:
    for part in PARTS:
        for name, mode in ((part, 0o700), (f"{part}/upper", 0o755), (f"{part}/work", 0o700)):
            os.mkdir(name, mode, dir_fd=fd)
            os.chmod(name, mode, dir_fd=fd)


def _tmpfs(size: int) -> int:
    inodes = max(size // BYTES_PER_INODE, LEAST_INODES)
    options: dict[str, str | None] = {"size": str(size), "mode": "0700", "nr_inodes": str(inodes)}
    try:
        return kernel.mount_detached("tmpfs", "layer", options)
    except OSError as error:
        raise UnavailableError(f"cannot mount a tmpfs: {error.strerror}") from error


def _make_file_system(template: Path, size: int) -> None:
    """An ext4 without journal, since its content is lost with the sandbox whatever happens, and with the
    folders that every layer begins with."""
    tool = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if tool is None:
        raise UnavailableError("no mkfs.ext4: apt-get install e2fsprogs")
    unfinished = template.with_name(f".{template.name}.{os.getpid()}.{threading.get_ident()}")
    with unfinished.open("wb") as image:
        image.truncate(size)
    furnished = template.with_name(f"{unfinished.name}.folders")
    furnished.mkdir(mode=0o700)
    fd = os.open(furnished, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _furnish_folder(fd)
    finally:
        os.close(fd)
    command = [
        tool, "-d", str(furnished), "-q", "-F", "-O", "^has_journal,^resize_inode,sparse_super2",
        "-E", "lazy_itable_init=1,nodiscard,num_backup_sb=0", "-m", "0", "-b", "4096",
        "-i", str(BYTES_PER_INODE), str(unfinished),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, timeout=MKFS_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        unfinished.unlink(missing_ok=True)
        raise UnavailableError(f"mkfs.ext4 took longer than {MKFS_TIMEOUT_S:g} s: run it again") from error
    finally:
        shutil.rmtree(furnished)
    if done.returncode != 0:
        unfinished.unlink()
        raise UnavailableError(f"mkfs.ext4 failed: {done.stderr.decode(errors='replace').strip()}")
    unfinished.replace(template)


def _pieces(image: Path) -> list[tuple[int, bytes]]:
    """A file without its holes, as (offset, content)."""
    found: list[tuple[int, bytes]] = []
    with image.open("rb", buffering=0) as source:
        fd = source.fileno()
        offset, size = 0, os.fstat(fd).st_size
        while offset < size:
            try:
                start = os.lseek(fd, offset, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                break
            offset = os.lseek(fd, start, os.SEEK_HOLE)
            found.append((start, os.pread(fd, offset - start, start)))
    return found
