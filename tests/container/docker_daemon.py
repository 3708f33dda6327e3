"""Docker's daemon for tests: its own state, socket and cgroups, and an image of this machine's programs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMAGE = "room:1"
START_TIMEOUT_S = 60.0
APPLETS = (
    "sh", "cat", "echo", "id", "ls", "touch", "mkdir", "rm", "mv", "sleep", "kill", "true", "false", "env",
    "stty", "ps", "dd", "head", "wget", "nc", "mount", "umount", "mknod", "readlink", "stat", "ln", "chmod",
)  # fmt: skip


def missing() -> str | None:
    """Why no daemon can be started here."""
    if os.geteuid() != 0:
        return "Docker's daemon needs root"
    for program in ("dockerd", "containerd", "runc", "busybox"):
        if shutil.which(program) is None:
            return f"no {program}: apt-get install docker.io busybox-static"
    return None


@dataclass
class Daemon:
    """A daemon that runs. `cgroup`: name of the folder, or slice of systemd's, that its containers' are
    below."""

    folder: Path
    process: subprocess.Popen[bytes]
    cgroup: str

    @property
    def host(self) -> str:
        """What DOCKER_HOST is to be."""
        return f"unix://{self.folder / 'docker.sock'}"

    def client(self) -> Any:
        """The SDK's low-level client."""
        from docker import APIClient

        return APIClient(base_url=self.host, version="auto")

    def stop(self) -> None:
        """End it and what it left."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            point = line.split()[4]
            if point.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", point], check=False)
        for folder in Path("/sys/fs/cgroup").glob(f"*/{self.cgroup}"):
            with contextlib.suppress(OSError):
                folder.rmdir()
        with contextlib.suppress(OSError):
            Path("/sys/fs/cgroup", self.cgroup).rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)


def start(folder: Path, driver: str = "cgroupfs") -> Daemon:
    """Start one that changes nothing of the machine's network and settings, and wait until it answers."""
    settings = folder / "daemon.json"
    settings.write_text(json.dumps({"deprecated-key-path": str(folder / "key.json")}))
    cgroup = f"room{os.getpid()}.slice" if driver == "systemd" else f"room-{os.getpid()}"
    parent = cgroup if driver == "systemd" else f"/{cgroup}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["dockerd", "--config-file", settings, "--data-root", folder / "data",
             "--exec-root", folder / "exec", "--pidfile", folder / "pid",
             "-H", f"unix://{folder / 'docker.sock'}",
             "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false",
             "--ip-forward=false", f"--cgroup-parent={parent}",
             f"--exec-opt=native.cgroupdriver={driver}"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    daemon = Daemon(folder, process, cgroup)
    try:
        _await(daemon)
    except BaseException:
        daemon.stop()
        raise
    return daemon


def _await(daemon: Daemon) -> None:
    from docker.errors import DockerException

    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            daemon.client().ping()
            return
        except DockerException:
            if daemon.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((daemon.folder / "log").read_text()[-2000:]) from None
            time.sleep(0.1)


def import_image(daemon: Daemon) -> None:
    """Busybox, and this machine's bash: what the guard's shell commands need."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in ("tmp", "root", "etc", "var"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        tar.add(str(shutil.which("busybox")), "bin/busybox")
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
        for path in ("/bin/bash", *_libraries("/bin/bash")):
            tar.add(os.path.realpath(path), path.lstrip("/"))
        entry = tarfile.TarInfo("etc/hosts")
        tar.addfile(entry)
    daemon.client().import_image_from_data(
        content.getvalue(), repository=IMAGE.partition(":")[0], tag="1", changes=["ENV FROM_IMAGE=yes"]
    )


def _libraries(program: str) -> list[str]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", told)
