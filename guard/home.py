"""The one folder below which all state lives, and the locks that say who is at work in it.

$INVIGILATOR_HOME (default /var/lib/invigilator)
  run/        agent.sock, serve.sock, locks, logs       spool/      segments not yet acknowledged
  store/      the embedded store, owned by serve        rollouts/   one record per live rollout
  sandboxes/  one folder a sandbox                      roots/      root templates
  node.json   this node's id                            tokens      bearer tokens of the API
  audit/      changes that serve has still to put on record
  attachable  cgroups of others that may be watched, instead of the usual (optional)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from invigilator.guard.errors import GuardError

DEFAULT_HOME = Path("/var/lib/invigilator")
HOME_VARIABLE = "INVIGILATOR_HOME"

_FOLDERS = {
    # Serve runs without privileges and has to pass through to its socket and its store: search, not read.
    "": 0o711,
    "run": 0o711,
    "spool": 0o700,
    "store": 0o711,
    "sandboxes": 0o711,
    "roots": 0o711,
    "rollouts": 0o700,
    "audit": 0o700,
}


class HomeError(GuardError):
    """The state folder cannot be used."""

    exit_code = 4


class LockHeldError(HomeError):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class Home:
    """The state folder. `root` is absolute."""

    root: Path

    @classmethod
    def locate(cls, folder: Path | None = None) -> Home:
        """`folder`, else the folder that `$INVIGILATOR_HOME` names, else the default."""
        return cls((folder or Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)).absolute())

    @property
    def run(self) -> Path:
        """Sockets, locks and logs."""
        return self.root / "run"

    @property
    def agent_socket(self) -> Path:
        """Where the agent listens (root only)."""
        return self.run / "agent.sock"

    @property
    def serve_socket(self) -> Path:
        """Where serve listens."""
        return self.run / "serve.sock"

    @property
    def tokens(self) -> Path:
        """The file of the API's bearer tokens."""
        return self.root / "tokens"

    @property
    def audit(self) -> Path:
        """Changes made on this machine that serve has still to put on record."""
        return self.root / "audit"

    @property
    def attachable(self) -> Path:
        """The node's own list of cgroups that may be watched, where it has one (`sandbox.places`)."""
        return self.root / "attachable"

    @property
    def spool(self) -> Path:
        """Segments that the store has not acknowledged."""
        return self.root / "spool"

    @property
    def store(self) -> Path:
        """The embedded store."""
        return self.root / "store"

    @property
    def sandboxes(self) -> Path:
        """One folder a sandbox, the backends' own."""
        return self.root / "sandboxes"

    @property
    def roots(self) -> Path:
        """Root templates."""
        return self.root / "roots"

    @property
    def rollouts(self) -> Path:
        """One record per live rollout, so that the next agent can tell what a dead one left."""
        return self.root / "rollouts"

    def make(self) -> Home:
        """Create what is missing, with the modes that the privileges of agent and serve ask for."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for name, mode in _FOLDERS.items():
                folder = self.root / name
                folder.mkdir(exist_ok=True)
                if folder.stat().st_uid == os.geteuid():
                    folder.chmod(mode)
        except OSError as error:
            raise HomeError(
                f"the state folder cannot be made: {error.strerror}",
                where=str(self.root),
                fix=f"set {HOME_VARIABLE} to a folder that root can write",
            ) from error
        return self

    def node_id(self) -> uuid.UUID:
        """This node's id, generated at first use; `HomeError` where the file that keeps it is damaged."""
        file = self.root / "node.json"
        with self.lock("node", wait=True):
            if not file.exists():
                write_atomically(file, json.dumps({"node_id": str(uuid.uuid4())}).encode(), 0o644)
            try:
                return uuid.UUID(json.loads(file.read_bytes())["node_id"])
            except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
                fix = "restore it, or remove it: the node gets a new id, and what is recorded keeps the old"
                raise HomeError("it does not hold this node's id", where=str(file), fix=fix) from error

    @contextlib.contextmanager
    def lock(self, name: str, *, wait: bool) -> Iterator[None]:
        """Hold the lock `name`; it ends with the process at the latest. `LockHeldError` where not to wait."""
        file = self.run / f"{name}.lock"
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as error:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise LockHeldError(f"process {holder} holds the lock", where=str(file)) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)


def write_atomically(file: Path, content: bytes, mode: int) -> None:
    """Replace `file` so that a reader sees the old content or the new, also after a crash."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """An address for `path` that fits the 108 bytes of a Unix socket's name, however deep the folder is."""
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def connect_unix(path: Path, kind: socket.SocketKind) -> socket.socket:
    """A connection to the Unix socket at `path`; OSError where nobody listens."""
    connection = socket.socket(socket.AF_UNIX, kind)
    try:
        with short_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
