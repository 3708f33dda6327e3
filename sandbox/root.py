"""What the root of a sandbox is made of: read-only lower folders, mapped to the sandbox's ids when mounted.

The default root is an allow-list: /usr and the links to it (or /bin, /lib, … where they are folders), the
package managers' state, and a sanitised /etc. Sandbox root passes every permission check on what enters, so
nothing enters that "other" cannot read on the host: in /usr a layer of whiteouts lies over it (`closed.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from invigilator.profiles.filelock import locked
from invigilator.sandbox.base import SandboxError
from invigilator.sandbox.closed import Closed, Found

FORMAT = 5
SYSTEM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
PACKAGE_STATE = (
    "var/lib/dpkg", "var/lib/apt", "var/lib/ucf", "var/lib/pam", "var/lib/xml-core", "var/lib/sgml-base",
    "var/lib/emacsen-common", "var/lib/python", "var/lib/dictionaries-common", "var/cache/debconf",
    "var/lib/rpm", "var/lib/pacman", "lib/apk", "var/lib/systemd/deb-systemd-helper-enabled",
)  # fmt: skip
EMPTY_FOLDERS = {
    "dev": 0o755, "proc": 0o555, "sys": 0o555, "run": 0o755, "run/lock": 0o1777, "tmp": 0o1777,
    "root": 0o700, "home": 0o755, "mnt": 0o755, "media": 0o755, "srv": 0o755, "opt": 0o755, "var": 0o755,
    "var/tmp": 0o1777, "var/log": 0o755, "var/log/apt": 0o755, "var/cache": 0o755, "var/lib": 0o755,
    "var/lib/misc": 0o755, "var/spool": 0o755, "var/mail": 0o755, "var/opt": 0o755, "var/local": 0o755,
    "var/backups": 0o755, "var/cache/apt": 0o755, "var/cache/apt/archives": 0o755,
    "var/cache/apt/archives/partial": 0o700, "var/cache/ldconfig": 0o700,
}  # fmt: skip
ETC_LEFT_OUT = frozenset(
    {
        "shadow", "shadow-", "gshadow", "gshadow-", "passwd-", "group-", "subuid", "subgid", "subuid-",
        "subgid-", "machine-id", "hostname", "hosts", "fstab", "mtab", "crypttab", "krb5.keytab", "sudoers",
        "sudoers.d", "ssh/ssh_host_rsa_key", "ssl/private", "cron.d", "resolv.conf",
        "bash_completion.d/guard",
    }
)  # fmt: skip
_KEY_NAME = re.compile(r"(\.key|\.p12|\.pfx|\.jks|\.keytab|^ssh_host_.*|^id_(rsa|dsa|ecdsa|ed25519))$")
_KEY_TEXT = b"PRIVATE KEY-----"
LARGEST_ETC_FILE_BYTES = 16 << 20
FIRST_HUMAN_ID, NOBODY_ID = 1000, 65534


@dataclass(frozen=True, slots=True)
class Lower:
    """The lower layers of one overlay, topmost first, and where in the sandbox it is mounted. `foreign`: its
    upper folder, where that is none of the guard's own layer."""

    part: str
    mount_point: str
    folders: tuple[Path, ...]
    foreign: Path | None = None

    @property
    def upper(self) -> str:
        """Its upper folder, relative to the layer's descriptor."""
        return f"{self.part}/upper" if self.foreign is None else str(self.foreign)


class Roots:
    """Root templates of one agent, made when first needed. Thread-safe."""

    def __init__(self, folder: Path, own: Sequence[Path]) -> None:
        """`folder`: where templates lie. `own`: files and folders of the guard, which never enter."""
        self._folder = folder
        self._own = tuple(path for path in map(Path.resolve, own) if _enters(path))
        folders = [Path("/", name) for name in system_folders()]
        self._closed = Closed(folder / "closed.json", folders, self._own)
        self._lock = threading.Lock()
        self._current: tuple[str, list[Lower]] | None = None
        self._held: list[int] = []

    def default(self) -> list[Lower]:
        """The layers of the default root."""
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            closed = self._closed.current(fingerprint(self._own))
            if self._current is None or self._current[0] != closed.print:
                self._current = (closed.print, _layers(self._obtain(closed)))
            return self._current[1]

    def close(self) -> None:
        """Let the templates be swept by others."""
        while self._held:
            os.close(self._held.pop())

    def _obtain(self, closed: Found) -> Path:
        template = self._folder / f"default-{closed.print}"
        with locked(self._folder / ".lock"):
            if not template.exists():
                unfinished = self._folder / f".unfinished-{closed.print}"
                if unfinished.exists():
                    shutil.rmtree(unfinished)
                try:
                    _make_template(unfinished, closed)
                    unfinished.replace(template)
                except BaseException:
                    # Half a template on a full disk would keep it full.
                    shutil.rmtree(unfinished, ignore_errors=True)
                    raise
            held = os.open(template, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_SH)
            self._held.append(held)
            self._drop_old(template)
        return template

    def _drop_old(self, current: Path) -> None:
        """Templates of earlier states of the host that no agent holds."""
        for old in self._folder.glob("default-*"):
            if old == current:
                continue
            fd = os.open(old, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old)
            except BlockingIOError:
                continue
            finally:
                os.close(fd)


def _layers(template: Path) -> list[Lower]:
    return [
        Lower("root", "/", (template / "root",)),
        *(Lower(name, f"/{name}", (template / "hide" / name, Path("/", name))) for name in system_folders()),
    ]


def system_folders() -> list[str]:
    """Folders of the host's root that enter as they are: /usr, and /bin, /lib, … where they are no links."""
    return [name for name in SYSTEM_FOLDERS if _is_folder(Path("/", name))]


def fingerprint(own: Iterable[Path]) -> str:
    """Changes when packages are installed, /etc or the package state changes."""
    digest = hashlib.sha256(f"{FORMAT} {sys.version}".encode())
    watched = [
        "/etc", "/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/etc/alternatives", "/usr", "/usr/bin",
        "/usr/local/bin", "/usr/lib", "/usr/local", "/usr/share", "/var/lib/dpkg/status",
        "/var/lib/apt/lists", "/var/lib/rpm",
    ]  # fmt: skip
    for name in watched:
        with contextlib.suppress(OSError):
            found = os.stat(name)  # noqa: PTH116
            digest.update(f"{name} {found.st_mtime_ns} {found.st_ino}\n".encode())
    for path in own:
        digest.update(os.fsencode(path) + b"\0")
    return digest.hexdigest()[:16]


def _open_to_all(state: os.stat_result) -> bool:
    if stat.S_ISDIR(state.st_mode):
        return state.st_mode & 0o005 == 0o005
    return stat.S_ISREG(state.st_mode) and bool(state.st_mode & 0o004)


def hide(layer: Path, top: Path, paths: Iterable[Sequence[str]]) -> None:
    """Make `layer` an upper neighbour of `top` in which `paths` are whited out; the folders on the way keep
    the looks that they have in `top`, since those of the uppermost layer are what is seen."""
    layer.mkdir(parents=True)
    _look_like(top, layer)
    for names in paths:
        folder, original = layer, top
        for name in names[:-1]:
            folder, original = folder / name, original / name
            if not folder.exists():
                folder.mkdir()
                _look_like(original, folder)
        with contextlib.suppress(FileExistsError):
            os.mknod(folder / names[-1], stat.S_IFCHR, 0)
    for names in paths:
        for depth in range(len(names)):
            _look_like(top.joinpath(*names[:depth]), layer.joinpath(*names[:depth]))


def _enters(path: Path) -> bool:
    return any(path.is_relative_to(Path("/", name)) for name in system_folders())


def _look_like(original: Path, copy: Path) -> None:
    state = original.lstat()
    os.chown(copy, state.st_uid, state.st_gid)
    copy.chmod(stat.S_IMODE(state.st_mode))
    os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))


def _make_template(folder: Path, closed: Found) -> None:
    root = folder / "root"
    root.mkdir(parents=True)
    root.chmod(0o755)
    for name in SYSTEM_FOLDERS:
        original = Path("/", name)
        if original.is_symlink():
            (root / name).symlink_to(original.readlink())
        elif _is_folder(original):
            (root / name).mkdir()
            _look_like(original, root / name)
            hide(folder / "hide" / name, original, closed.paths[str(original)])
    for name, mode in EMPTY_FOLDERS.items():
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)
    (root / "var/run").symlink_to("/run")
    (root / "var/lock").symlink_to("/run/lock")
    for name in PACKAGE_STATE:
        _take_state(Path("/", name), root / name)
    _give_to("_apt", root / "var/cache/apt/archives/partial")
    _take_etc(root / "etc")
    for name in (".bashrc", ".profile"):
        with contextlib.suppress(OSError):
            shutil.copyfile(Path("/etc/skel", name), root / "root" / name)


def _take_state(original: Path, copy: Path) -> None:
    """Package state: hard links where possible, since lower layers are never written to."""
    if not _is_folder(original) or copy.exists():
        return
    for parent in reversed(copy.relative_to(copy.parents[-1]).parents):
        (copy.parents[-1] / parent).mkdir(exist_ok=True)
    _take_tree(original, copy, _link_or_copy)


def _take_etc(etc: Path) -> None:
    _take_tree(Path("/etc"), etc, _copy_unless_key, ETC_LEFT_OUT)
    for name in ("passwd", "group"):
        with contextlib.suppress(OSError):
            lines = Path("/etc", name).read_bytes().splitlines(keepends=True)
            (etc / name).write_bytes(b"".join(map(_without_password, filter(_is_system_entry, lines))))
    (etc / "hostname").write_text("sandbox\n")
    (etc / "hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n")
    (etc / "machine-id").write_text("")
    (etc / "resolv.conf").write_text(_resolvers())
    (etc / "mtab").symlink_to("/proc/self/mounts")


def _resolvers() -> str:
    """The host's name servers; one on the host's loopback is of no use inside."""
    with contextlib.suppress(OSError):
        lines = Path("/etc/resolv.conf").read_text().splitlines()
        kept = [line for line in lines if not re.match(r"\s*nameserver\s+(127\.|::1)", line)]
        return "\n".join(kept) + "\n"
    return ""


def _without_password(line: bytes) -> bytes:
    """The entry with no password, and none to be looked for in shadow, which is not there: PAM's account
    check fails where an entry says `x` and shadow has none."""
    name, _, rest = line.split(b":", 2)
    return b":".join((name, b"*", rest))


def _is_system_entry(line: bytes) -> bool:
    fields = line.split(b":")
    if len(fields) < 3 or not fields[2].isdigit():
        return False
    return int(fields[2]) < FIRST_HUMAN_ID or int(fields[2]) == NOBODY_ID


def _take_tree(
    original: Path, copy: Path, take: Callable[[Path, Path], None], left_out: frozenset[str] = frozenset()
) -> None:
    for folder, folders, files in os.walk(original):
        inside = Path(folder).relative_to(original)
        target = copy / inside
        target.mkdir(exist_ok=True)
        for name in [*folders, *files]:
            source = Path(folder, name)
            if str(inside / name) in left_out:
                folders[:] = [one for one in folders if one != name]
                continue
            state = source.lstat()
            if stat.S_ISLNK(state.st_mode):
                (target / name).symlink_to(source.readlink())
                folders[:] = [one for one in folders if one != name]
            elif not _open_to_all(state):
                folders[:] = [one for one in folders if one != name]
            elif stat.S_ISREG(state.st_mode):
                take(source, target / name)
        _look_like(Path(folder), target)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        _look_like(source, target)


def _copy_unless_key(source: Path, target: Path) -> None:
    if _KEY_NAME.search(source.name) or source.stat().st_size > LARGEST_ETC_FILE_BYTES:
        return
    content = source.read_bytes()
    if _KEY_TEXT in content:
        return
    target.write_bytes(content)
    _look_like(source, target)


def _give_to(user: str, path: Path) -> None:
    with contextlib.suppress(OSError):
        for line in Path("/etc/passwd").read_text().splitlines():
            fields = line.split(":")
            if fields[0] == user:
                os.chown(path, int(fields[2]), 0)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def check_folder(folder: Path, state: Path, what: str) -> Path:
    """The real path of a folder that shall enter a sandbox; `SandboxError` where it must not."""
    try:
        real = folder.resolve(strict=True)
    except OSError as error:
        raise SandboxError(f"the {what} {folder}: {error.strerror}") from error
    if not real.is_dir():
        raise SandboxError(f"the {what} {folder} is not a folder")
    state = state.resolve()
    if real == state or real in state.parents or state in real.parents:
        raise SandboxError(f"the {what} {folder} overlaps the guard's state in {state}: choose another")
    return real
