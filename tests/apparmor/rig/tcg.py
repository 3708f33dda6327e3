"""Debian's own kernel in QEMU without acceleration."""

from __future__ import annotations

import shutil
from pathlib import Path

from rig import debian
from rig.boot import CHECKOUT, Kernel

MEMORY = "3G"
CLOCK = "clocksource=hpet tsc=unstable"
"""The counter of the machine that QEMU makes. Of the processor's own a kernel that boots while it is held
back misjudges the rate: its clock may go nine times too fast, and waits of a minute take seconds."""
LSM = "landlock,lockdown,yama,integrity,apparmor,bpf"
"""Debian's list, with bpf."""
PROCESSOR = "max,-avx2"
"""numpy sorts by AVX2's masked loads where there are any; under QEMU 7.2's emulation it faulted there."""


class Tcg(Kernel):
    """See the module."""

    name = "tcg"

    def missing(self) -> str:
        """See the base."""
        for program, package in (("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static")):
            if shutil.which(program) is None:
                return f"{package}: apt-get install {package}"
        return ""

    def command(self, disk: Path, out: Path, scratch: Path, words: str, cache: Path) -> list[str]:
        """See the base."""
        found = debian.image(cache)
        told = f"console=ttyS0 quiet loglevel=4 lsm={LSM} apparmor=1 mitigations=off {CLOCK} {words}"
        command = [
            "qemu-system-x86_64", "-M", "q35", "-cpu", PROCESSOR, "-accel", "tcg,thread=multi", "-smp", "2",
            "-m", MEMORY, "-nodefaults", "-nic", "none", "-display", "none", "-no-reboot", "-serial", "stdio",
            "-drive", f"file={disk},format=raw,if=virtio,snapshot=on,file.locking=off",
            "-kernel", str(found.kernel), "-initrd", str(found.initrd), "-append", told,
        ]  # fmt: skip
        for tag, folder, how in (
            ("out", out, ""), ("tree", CHECKOUT, ",readonly=on"), ("modules", found.modules, ",readonly=on"),
        ):  # fmt: skip
            files = f"local,id={tag},path={folder},security_model=none,multidevs=remap{how}"
            command += ["-fsdev", files, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        return command


class Systemd(Tcg):
    """The same, with systemd as the first process, and Docker's daemon on the disk."""

    name = "systemd"
    packages = ("systemd", "dbus", "docker.io", "containerd", "runc", "libc-bin")

    def missing(self) -> str:
        """See the base."""
        for place, package in (("/lib/systemd/systemd", "systemd"), ("/usr/sbin/dockerd", "docker.io")):
            if not Path(place).exists():
                return f"{package}: apt-get install {package} dbus"
        return super().missing()


KERNEL = Tcg()
SYSTEMD = Systemd()
