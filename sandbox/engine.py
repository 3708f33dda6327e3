"""Docker Engine, through its SDK: containers that hold the guard's pause alone, and what they are made of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from invigilator.profiles.limits import IoValues, LimitValues
from invigilator.sandbox import disks
from invigilator.sandbox.base import SandboxError, UnavailableError
from invigilator.sandbox.sweeping import is_alive

TIMEOUT_S = 60.0
PAUSE = "/.init"
"""Where the container sees the launcher's binary until it has started."""
SANDBOX_LABEL, AGENT_LABEL, HOME_LABEL = "invigilator.sandbox", "invigilator.agent", "invigilator.home"


@dataclass(frozen=True, slots=True)
class Image:
    """Of an image: its id, its variables, and where its commands begin (empty: nowhere)."""

    id: str
    environment: Mapping[str, str]
    folder: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A container to make. `owner`: user id of its pause. `agent`: whose it is, as `cgroups` names agents.
    `home`: that agent's state folder. `profile`: AppArmor's for what runs beside the guard's commands; None
    where the tier is absent."""

    name: str
    image: Image
    hostname: str
    pause: Path
    owner: int
    limits: LimitValues
    agent: str
    home: Path
    profile: str | None


@dataclass(frozen=True, slots=True)
class Container:
    """A container. `upper` and `lowers`: folders of its overlay, topmost first."""

    id: str
    upper: Path
    lowers: tuple[Path, ...]


class Engine:
    """The daemon that `DOCKER_HOST` names, or this machine's. Connects when first needed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Any = None

    def image(self, name: str) -> Image:
        """An image of the daemon's; `SandboxError` where it has none of that name: none is fetched."""
        from docker.errors import ImageNotFound

        try:
            with telling(f"inspect the image {name}", absence=True):
                found = self._api().inspect_image(name)
        except ImageNotFound:
            raise SandboxError(f"Docker has no image {name!r}: `docker pull` it, or name another") from None
        config = found.get("Config") or {}
        pairs = (one.partition("=") for one in config.get("Env") or ())
        return Image(found["Id"], {name: value for name, _, value in pairs}, config.get("WorkingDir") or "")

    def create(self, wanted: Wanted) -> Container:
        """Make it; nothing runs yet."""
        api, limits = self._api(), wanted.limits
        options = ["no-new-privileges"]
        if wanted.profile is not None:
            options.append(f"apparmor={wanted.profile}")
        with telling("create the container"):
            host = api.create_host_config(
                binds={str(wanted.pause): {"bind": PAUSE, "mode": "ro"}},
                network_mode="none",
                cap_drop=["ALL"],
                security_opt=options,
                mem_limit=limits.memory_bytes,
                memswap_limit=limits.memory_bytes,
                pids_limit=limits.pids,
                cpu_period=limits.cpu_period_us,
                cpu_quota=limits.cpu_quota_us,
                shm_size=limits.memory_bytes // 4,
                ipc_mode="private",
                init=False,
                log_config={"Type": "none", "Config": {}},
                **(disk_options(limits.io, api.info()["DockerRootDir"]) if limits.io else {}),
            )
            made = api.create_container(
                wanted.image.id,
                command=["pause"],
                entrypoint=[PAUSE],
                user=f"{wanted.owner}:{wanted.owner}",
                working_dir="/",
                hostname=wanted.hostname,
                name=f"invigilator-{wanted.name}",
                labels={
                    SANDBOX_LABEL: wanted.name,
                    AGENT_LABEL: wanted.agent,
                    HOME_LABEL: str(wanted.home),
                },
                host_config=host,
                healthcheck={"test": ["NONE"]},
            )
        try:
            with telling("inspect the container"):
                return _container(made["Id"], api.inspect_container(made["Id"]))
        except BaseException:
            self.remove(made["Id"])
            raise

    def start(self, container: Container) -> int:
        """Start it; process id of its init. `UnavailableError` where that is no process of this machine's, or
        has other user ids than the machine."""
        api = self._api()
        with telling("start the container"):
            api.start(container.id)
            pid = int(api.inspect_container(container.id)["State"]["Pid"])
        _require_ours(pid, container.id)
        return pid

    def hosts_file(self, container: Container) -> Path:
        """The host's file that is its /etc/hosts, once it has started."""
        with telling("inspect the container"):
            return Path(self._api().inspect_container(container.id)["HostsPath"])

    def resolv_file(self, container: Container) -> Path:
        """The host's file that is its /etc/resolv.conf, once it has started."""
        with telling("inspect the container"):
            return Path(self._api().inspect_container(container.id)["ResolvConfPath"])

    def remove(self, container_id: str) -> None:
        """Kill it, and remove it with its volumes. Idempotent."""
        from docker.errors import NotFound

        with contextlib.suppress(NotFound), telling("remove the container", absence=True):
            self._api().remove_container(container_id, force=True, v=True)

    def sweep(self, home: Path) -> int:
        """Remove containers of dead agents that had this state folder; how many."""
        removed = 0
        with telling("list containers"):
            found = self._api().containers(all=True, filters={"label": f"{HOME_LABEL}={home}"})
        for one in found:
            if not is_alive(one["Labels"].get(AGENT_LABEL, "")):
                self.remove(one["Id"])
                removed += 1
        return removed

    def close(self) -> None:
        """Leave the daemon."""
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    def _api(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = connected()
            return self._client


def connected() -> Any:
    """The SDK's client of the daemon; `UnavailableError` where there is none."""
    try:
        from docker import APIClient
        from docker.errors import DockerException
        from docker.utils import kwargs_from_env
    except ImportError:
        raise UnavailableError(
            "the Docker SDK is missing: pip install 'invigilator[docker]', or use `--backend process`"
        ) from None
    try:
        return APIClient(version="auto", timeout=TIMEOUT_S, **kwargs_from_env())
    except DockerException as error:
        raise UnavailableError(
            f"Docker's daemon does not answer ({error}): start it, or set DOCKER_HOST before the guard's"
            " agent starts"
        ) from None


@contextlib.contextmanager
def telling(what: str, *, absence: bool = False) -> Iterator[None]:
    """What Docker refuses inside is told as what could not be done. `absence`: but not that there is no such
    thing, which stays Docker's NotFound."""
    from docker.errors import APIError, DockerException, NotFound
    from requests import RequestException

    try:
        yield
    except APIError as error:
        if absence and isinstance(error, NotFound):
            raise
        raise SandboxError(f"Docker cannot {what}: {error.explanation or error}") from error
    except (DockerException, RequestException) as error:
        raise SandboxError(f"Docker's daemon did not {what}: {error}") from error


def disk_options(io: IoValues, folder: str) -> dict[str, list[dict[str, Any]]]:
    """The SDK's options that limit the disks on which a folder of the daemon's lies, where they are known."""
    found, _ = disks.below([folder])
    values = {
        "device_read_bps": io.read_bytes_per_s,
        "device_write_bps": io.write_bytes_per_s,
        "device_read_iops": io.read_ops_per_s,
        "device_write_iops": io.write_ops_per_s,
    }
    return {
        name: [{"Path": disk.name, "Rate": value} for disk in found]
        for name, value in values.items()
        if value
    }


def _container(number: str, found: Mapping[str, Any]) -> Container:
    driver = found.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if driver.get("Name") != "overlay2" or "UpperDir" not in data:
        raise UnavailableError(
            f"Docker's storage driver is {driver.get('Name') or 'of another kind'}: what a rollout changed is"
            ' told by overlay2 alone (daemon.json: "storage-driver": "overlay2")'
        )
    upper, lowers = Path(data["UpperDir"]), _folders(data["LowerDir"])
    if not upper.is_dir():
        raise UnavailableError(
            "Docker's daemon keeps its layers where this process cannot see them: run the guard where it runs"
        )
    return Container(number, upper, tuple(lowers))


def _folders(text: str) -> Sequence[Path]:
    return [Path(one) for one in text.split(":")]


def _require_ours(pid: int, container_id: str) -> None:
    try:
        own = Path(f"/proc/{pid}/cgroup").read_text()
        ids = Path(f"/proc/{pid}/uid_map").read_text().split()
    except OSError as error:
        raise SandboxError(f"the container's init ended at once ({error.strerror})") from None
    if container_id not in own:
        raise UnavailableError(
            "Docker's daemon has other process ids than this process: run the guard beside the daemon"
        )
    if ids[:2] != ["0", "0"]:
        raise UnavailableError(
            "Docker maps its containers' user ids (userns-remap, or rootless): the guard maps them itself, to"
            " a user namespace that owns nothing; run its containers on a daemon without"
        )
