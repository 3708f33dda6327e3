"""The guests' disk: an ext4 image of this machine's packages, copied once and never written to.

A file system of its own, since a sandbox's root is an id-mapped mount, which neither hostfs nor 9p can be.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

FORMAT = 5
SIZE_BYTES = 8 << 30
"""Sparse."""
PACKAGES = (
    "bash", "dash", "coreutils", "findutils", "grep", "sed", "gawk", "mawk", "tar", "gzip", "xz-utils",
    "util-linux", "mount", "procps", "busybox-static", "iproute2", "e2fsprogs", "nftables", "diffutils",
    "patch", "file", "strace", "login", "passwd", "debianutils", "base-files", "base-passwd", "hostname",
    "perl-base", "apparmor", "python3", "python3-venv", "python3-pip", "python3-setuptools", "python3-wheel",
    "python3-pytest", "python3-seccomp", "python3-apparmor", "python3-libapparmor", "libbpf1", "gcc",
    "libc6-dev", "make", "git", "sqlite3", "nodejs", "user-mode-linux", "netbase", "libnftables1",
    "python3-yaml",
)  # fmt: skip
"""With what they depend on; those that are not installed here are left out."""
LEFT_OUT = re.compile(
    r"^/usr/(share/(doc|man|locale|info|lintian|bug|i18n/locales|help)/.|bin/linux\.uml|lib/debug/)"
)
ETC = ("passwd", "group", "shadow", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf",
       "alternatives", "protocols", "services", "login.defs", "python3", "python3.11", "apparmor",
       "apparmor.d")  # fmt: skip
FOLDERS = ("proc", "sys", "dev", "run", "tmp", "root", "home", "mnt", "var/tmp", "var/log", "var/cache",
           "var/lib", "rig", "opt", "srv", "media")  # fmt: skip
BUILD_TIMEOUT_S = 300.0
STUB = """#!/bin/sh
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir /run/out
word() { for w in $(cat /proc/cmdline); do case $w in rig.$1=*) echo "${w#*=}"; return;; esac; done; }
case $(word kernel) in
uml) mount -t hostfs -o "$(word out)" none /run/out ;;
*) mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none out /run/out ;;
esac
exec sh /run/out/init
"""
"""The first program; what it runs comes with each boot."""


class DiskError(Exception):
    """The image cannot be made here."""


def disk(cache: Path, more: Iterable[str] = ()) -> Path:
    """The image for this machine's packages and `more`, made in `cache` where it is not there yet."""
    kind = "-".join(("disk", *more))
    packages = sorted(closure((*PACKAGES, *more)))
    digest = hashlib.sha256(f"{FORMAT} {SIZE_BYTES} {STUB} {FOLDERS} {ETC} {packages}".encode()).hexdigest()[
        :16
    ]
    image = cache / f"{kind}-{digest}.ext4"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".disk.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.exists():
            _make(image, [name for name, _ in packages])
            for old in cache.glob(f"{kind}-{'[0-9a-f]' * 16}.ext4"):
                if old != image:
                    old.unlink()
    return image


def closure(names: Iterable[str]) -> set[tuple[str, str]]:
    """(name, version) of installed packages and of all that they need."""
    form = "${Package}\t${Version}\t${Depends}, ${Pre-Depends}\t${Provides}\t${db:Status-Status}\n"
    told = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True).stdout
    needs: dict[str, tuple[str, str]] = {}
    provided: dict[str, str] = {}
    for line in told.splitlines():
        name, version, depends, provides, state = line.split("\t")
        if state == "installed":
            needs[name] = version, depends
            provided.update(dict.fromkeys(_names(provides), name))
    found: set[tuple[str, str]] = set()
    stack = [*names]
    while stack:
        name = stack.pop()
        name = name if name in needs else provided.get(name, "")
        if name and (name, needs[name][0]) not in found:
            found.add((name, needs[name][0]))
            stack += _names(needs[name][1])
    return found


def _names(field: str) -> list[str]:
    """Every name of a dependency field; of alternatives all, since only installed ones are taken."""
    words = (re.split(r"[ (:]", part.strip())[0] for part in re.split(r"[,|]", field))
    return [word for word in words if word]


def _make(image: Path, packages: list[str]) -> None:
    unfinished = image.with_suffix(f".{os.getpid()}")
    point = image.parent / f"mount-{os.getpid()}"
    names = b"\0".join(os.fsencode(path.lstrip("/")) for path in sorted(_files(packages)))
    try:
        with unfinished.open("wb") as file:
            file.truncate(SIZE_BYTES)
        point.mkdir()
        _run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=1", str(unfinished)])
        # In a mount namespace of its own, which takes the mount along when it ends.
        script = (
            'mount -o loop "$1" "$2" && tar -C / --null --no-recursion -T - -c | tar -C "$2" -xp'
            f' && cd "$2" && mkdir -p {" ".join(FOLDERS)} && chmod 1777 tmp var/tmp'
            ' && printf %s "$3" >rig/init && chmod 755 rig/init'
        )
        _run(["unshare", "--mount", "sh", "-c", script, "sh", str(unfinished), str(point), STUB], names)
        unfinished.replace(image)
    finally:
        unfinished.unlink(missing_ok=True)
        point.rmdir()


def _files(packages: list[str]) -> set[str]:
    """Everything to copy: real paths, folders of their way included."""
    listed = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True, check=True).stdout
    found: set[str] = set()
    for line in [*listed.splitlines(), *_configuration()]:
        if line.startswith("/") and not LEFT_OUT.match(line):
            folder, name = os.path.split(line)
            path = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 (Path would drop nothing less)
            if os.path.lexists(path):
                found.add(path)
    found.update(link for link in _links() if os.path.realpath(link) in found)
    found.update(path for path in _byte_code() if str(Path(path).parents[1]) in found)
    for path in [*found]:
        found.update(str(parent) for parent in Path(path).parents)
    found.discard("/")
    return found | {
        f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64") if Path("/", name).is_symlink()
    }


def _byte_code() -> Iterator[str]:
    for folder in Path("/usr/lib").glob("python3*/"):
        yield from (str(path) for path in folder.rglob("__pycache__/*.pyc"))


def _configuration() -> Iterator[str]:
    for name in ETC:
        path = Path("/etc", name)
        yield str(path)
        if path.is_dir() and not path.is_symlink():
            yield from map(str, path.rglob("*"))


def _links() -> Iterator[str]:
    """Links that no package owns: alternatives, and the linker's names."""
    for folder in ("/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu", "/usr/local/bin"):
        with os.scandir(folder) as entries:
            yield from (entry.path for entry in entries if entry.is_symlink())


def _run(command: list[str], data: bytes = b"") -> None:
    done = subprocess.run(command, input=data, capture_output=True, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode:
        raise DiskError(f"{command[0]}: {done.stderr.decode(errors='replace').strip()[-500:]}")
