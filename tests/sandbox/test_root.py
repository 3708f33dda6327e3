"""The root: package managers work in it, and a folder of one's own can be it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from invigilator.ebpf.strings import Mount as Named
from invigilator.ebpf.strings import MountTable
from invigilator.sandbox.base import SandboxError

if TYPE_CHECKING:
    from conftest import MakeBox

CONTROL = """Package: guard-test
Version: 1.0
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: a package of the tests
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A Debian package with a program, a configuration file, and a script that makes a user."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("DEBIAN", "usr/bin", "etc"):
        (folder / name).mkdir(parents=True)
    (folder / "DEBIAN/control").write_text(CONTROL)
    (folder / "DEBIAN/conffiles").write_text("/etc/guard-test.conf\n")
    (folder / "DEBIAN/postinst").write_text(
        "#!/bin/sh\nset -e\nadduser --system --group --quiet guard-test\n"
        "install -d -o guard-test /var/lib/guard-test\n"
    )
    (folder / "DEBIAN/postinst").chmod(0o755)
    (folder / "etc/guard-test.conf").write_text("x=1\n")
    (folder / "usr/bin/guard-test").write_text("#!/bin/sh\necho installed\n")
    (folder / "usr/bin/guard-test").chmod(0o755)
    file = folder.with_suffix(".deb")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", folder, file], check=True, capture_output=True)
    return file.read_bytes()


def test_dpkg_installs_and_removes_in_setup(make_box: MakeBox, package: bytes) -> None:
    box = make_box()
    box.sandbox.write_file("/tmp/p.deb", package)
    result = box.sh(
        "dpkg -i /tmp/p.deb && guard-test && id guard-test && stat -c %U /var/lib/guard-test", phase="setup"
    )
    assert result.code == 0, result.err
    assert b"installed\n" in result.out and b"uid=" in result.out and result.out.endswith(b"guard-test\n")
    assert not Path("/usr/bin/guard-test").exists()
    assert box.sh("dpkg --purge guard-test", phase="setup").code == 0
    assert box.sh("guard-test").code == 127


def test_apt_installs_a_local_package_without_a_network(make_box: MakeBox, package: bytes) -> None:
    box = make_box()
    box.sandbox.write_file("/tmp/p.deb", package)
    result = box.sh("apt-get install -y /tmp/p.deb && guard-test", phase="setup", timeout_s=60)
    assert result.code == 0 and b"installed\n" in result.out, result.err


def test_package_state_is_the_hosts_and_changes_only_inside(make_box: MakeBox) -> None:
    box = make_box()
    host = subprocess.run(["dpkg-query", "-W"], capture_output=True, check=True).stdout
    assert box.run("dpkg-query", "-W").out == host


def test_usual_programs_run(make_box: MakeBox) -> None:
    box = make_box()
    script = (
        "set -e; python3 -c 'import ssl, sqlite3, multiprocessing as m; m.Lock()'; git --version; perl -e 1; "
        "echo 'int main(){return 0;}' > /tmp/a.c; gcc -o /tmp/a /tmp/a.c; /tmp/a; su -c true; "
        "getent passwd root; script -qc true /dev/null; tar cf /tmp/t.tar /etc/apt; ldconfig; "
        "update-alternatives --list editor || true"
    )
    result = box.sh(script, timeout_s=60)
    assert result.code == 0, result.err


def test_git_trusts_the_workspace(make_box: MakeBox, workspace: Path) -> None:
    subprocess.run(["git", "init", "-q", workspace], check=True)
    assert make_box(workspace=workspace).sh("git status --short").out == b"?? a.txt\n?? sub/\n"


def test_a_root_of_ones_own(make_box: MakeBox, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    subprocess.run(
        ["gcc", "-static", "-x", "c", "-o", root / "bin/hello", "-"],
        input=b'#include <stdio.h>\nint main(){puts("hello");fclose(fopen("/made","w"));return 0;}',
        check=True,
    )
    (root / "proc").symlink_to("/etc")  # must not lead a mount astray
    with pytest.raises(SandboxError):
        make_box(root=root)
    (root / "proc").unlink()
    box = make_box(root=root)
    assert box.run("/bin/hello").out == b"hello\n"
    assert not (root / "made").exists()
    assert [(one.path, one.change) for one in box.sandbox.changes(["/"])] == [(b"/made", "added")]


@pytest.mark.parametrize("kind", ["missing", "file", "state"])
def test_a_root_that_is_none_is_refused(make_box: MakeBox, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("x")
    path = {"missing": tmp_path / "no", "file": tmp_path / "file", "state": Path("/")}[kind]
    with pytest.raises(SandboxError, match="root"):
        make_box(root=path)


def test_a_device_goes_by_its_name_in_dev_whatever_it_covers(make_box: MakeBox) -> None:
    """Files of /proc that are none of the agent's business are covered by /dev/null."""
    box = make_box()
    mounts = box.sandbox.mounts()
    dev = next(mount.dev for mount in mounts if mount.mount_point == b"/dev")
    table = MountTable([Named(*mount) for mount in mounts])
    assert table.map(dev, b"/null") == b"/dev/null"
    assert box.sh("cat /proc/kallsyms | wc -c").text.strip() == "0"


def test_the_mount_table_names_superblocks(make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    mounts = box.sandbox.mounts()
    points = [mount.mount_point for mount in mounts]
    assert {b"/", b"/usr", b"/workspace", b"/tmp"} - set(points) == {b"/tmp"}
    assert points == sorted(points, key=len, reverse=True)
    by_point = {mount.mount_point: mount for mount in mounts}
    assert len({by_point[point].dev for point in (b"/", b"/usr", b"/workspace")}) == 3
    shown = box.sh("stat -c '%Hd:%Ld' /dev/shm").text.strip().split(":")
    assert by_point[b"/dev/shm"].dev == int(shown[0]) << 20 | int(shown[1])
