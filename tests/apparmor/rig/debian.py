"""Debian's kernel, taken from its package without installing it: image, modules, and an initial root."""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rig.boot import RigError

EARLY = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "9p", "9pnet_virtio")
"""What is needed to reach the disk and the shared folders."""
INIT = """#!/bin/busybox sh
busybox mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do busybox insmod $module; done
busybox mount -t ext4 /dev/vda /root
exec busybox switch_root /root /rig/init
"""
APT_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Image:
    """`kernel`: uncompressed, which QEMU starts without firmware. `modules`: what lies in /lib/modules."""

    kernel: Path
    initrd: Path
    modules: Path


def image(cache: Path) -> Image:
    """The kernel that `linux-image-amd64` stands for now; fetched once a version."""
    package = _package()
    folder = cache / package
    early = hashlib.sha256(f"{EARLY} {INIT}".encode()).hexdigest()[:8]
    found = Image(folder / "vmlinux", folder / f"initrd-{early}", folder / "lib/modules")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".kernel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.kernel.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _unpack(package, folder)
            _run(["busybox", "depmod", "-b", str(folder), next(found.modules.iterdir()).name])
            _write(found.kernel, _elf(next(folder.glob("boot/vmlinuz-*")).read_bytes()))
        if not found.initrd.exists():
            modules = _in_order(next(found.modules.iterdir()), EARLY)
            _write(found.initrd, b"".join(_archive([path.read_bytes() for path in modules])))
    return found


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def _package() -> str:
    told = _run(["apt-cache", "depends", "linux-image-amd64"])
    named = re.search(r"Depends: (linux-image-[0-9]\S+)", told)
    if named is None:
        raise RigError("apt knows no linux-image-amd64: apt-get update, on Debian")
    return named[1]


def _unpack(package: str, folder: Path) -> None:
    _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package], cwd=folder)
    archive = next(folder.glob("*.deb"))
    _run(["dpkg", "-x", str(archive), str(folder)])
    archive.unlink()


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=APT_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise RigError(f"{' '.join(command[:4])}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _elf(image: bytes) -> bytes:
    """The kernel inside a bzImage (Documentation/arch/x86/boot.rst: payload_offset, setup_sects)."""
    offset, length = struct.unpack_from("<II", image, 0x248)
    begin = ((image[0x1F1] or 4) + 1) * 512 + offset
    payload = image[begin : begin + length]
    if not payload.startswith(b"\xfd7zXZ\0"):
        raise RigError("the kernel's image is not compressed by xz")
    return lzma.decompress(payload[:-4])  # its length follows


def _in_order(folder: Path, names: Iterable[str]) -> list[Path]:
    """Modules with what they need, that first."""
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[_name(path)] = path, rest.split()
    order: list[str] = []

    def add(name: str) -> None:
        if name not in needs:  # in the kernel itself
            return
        path, required = needs[name]
        for one in required:
            add(_name(one))
        if path not in order:
            order.append(path)

    for name in names:
        add(name.replace("-", "_"))
    return [folder / path for path in order]


def _name(path: str) -> str:
    return Path(path).name.removesuffix(".ko").replace("-", "_")


def _archive(modules: list[bytes]) -> Iterator[bytes]:
    """A cpio archive (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    number = 0

    def entry(name: str, mode: int, content: bytes = b"") -> bytes:
        nonlocal number
        number += 1
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        return _padded(head) + _padded(content)

    for folder in ("bin", "modules", "dev", "root"):
        yield entry(folder, 0o40755)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise RigError("busybox-static: apt-get install busybox-static")
    yield entry("bin/busybox", 0o100755, Path(busybox).read_bytes())
    for place, module in enumerate(modules):
        yield entry(f"modules/{place:02}.ko", 0o100644, module)
    yield entry("init", 0o100755, INIT.encode())
    yield entry("TRAILER!!!", 0)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
