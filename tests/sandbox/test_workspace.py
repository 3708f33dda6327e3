"""The writable layer: its differences, the way home of the workspace, and its size."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from invigilator.profiles.policy import Filesystem, Limits, Policy
from invigilator.sandbox.base import SandboxError

if TYPE_CHECKING:
    from conftest import Box, MakeBox

MIB = 1 << 20
OWNER = 12345


def told(box: Box, *under: str) -> set[tuple[str, str]]:
    return {(one.path.decode(), one.change) for one in box.sandbox.changes(under or ["/"])}


def test_a_fresh_sandbox_has_no_changes(make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    assert box.run("true").code == 0
    assert told(box) == set()


def test_changes_are_told_by_their_kind(make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    box.sh(
        "echo new > n; echo 1 > a.txt; rm sub/b.txt; mkdir d; echo x > d/e; chmod 600 /etc/profile; "
        "cp /bin/true /usr/bin/bash2; echo evil > /usr/bin/ls"
    )
    assert told(box, "/workspace") == {
        ("/workspace/n", "added"), ("/workspace/a.txt", "modified"), ("/workspace/sub/b.txt", "removed"),
        ("/workspace/d", "added"), ("/workspace/d/e", "added"),
    }  # fmt: skip
    assert told(box, "/usr/bin/ls", "/usr/bin/bash2") == {
        ("/usr/bin/bash2", "added"),
        ("/usr/bin/ls", "modified"),
    }
    assert told(box, "/etc") == {("/etc/profile", "metadata")}
    assert len(told(box)) == 8


def test_what_ends_with_the_same_content_is_no_change(make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    box.sh(
        "cp a.txt k; echo changed > a.txt; cat k > a.txt; rm k; mv sub s2; mv s2 sub; touch a.txt; "
        "cp sub/b.txt x; rm sub/b.txt; mv x sub/b.txt"
    )
    assert told(box) == set()


def test_a_folder_moved_away_and_back_is_no_change(make_box: MakeBox, workspace: Path) -> None:
    (workspace / "sub" / "inner").mkdir()
    (workspace / "sub" / "inner" / "c").write_text("c")
    box = make_box(workspace=workspace)
    box.sh("mv sub s2; mv s2 sub; cp sub/b.txt k; echo x > sub/b.txt; mv k sub/b.txt; mv sub s3; mv s3 sub")
    assert told(box) == set()
    box.sh("mv sub s2; mv s2 sub; rm sub/inner/c")
    assert told(box) == {("/workspace/sub/inner/c", "removed")}


def test_a_folder_made_anew_or_moved_in_is_compared_with_the_one_that_had_its_name(
    make_box: MakeBox, workspace: Path
) -> None:
    for name in ("same", "other"):
        (workspace / name).mkdir()
        (workspace / name / "b.txt").write_text((workspace / "sub" / "b.txt").read_text())
    (workspace / "other" / "b.txt").write_text("weaker")
    box = make_box(workspace=workspace)
    box.sh("rm -r sub; mv same sub; chmod 644 sub/b.txt")
    assert ("/workspace/sub/b.txt", "modified") not in told(box)
    box.sh("rm -r sub; mv other sub")
    assert ("/workspace/sub/b.txt", "modified") in told(box)
    box.sh("touch sub/b.txt")
    assert ("/workspace/sub/b.txt", "modified") in told(box)
    box.sh("rm -r sub; mkdir sub; echo weaker > sub/b.txt")
    assert ("/workspace/sub/b.txt", "modified") in told(box)


def test_replaced_renamed_and_removed_folders_tell_all_that_was_in_them(
    make_box: MakeBox, workspace: Path
) -> None:
    (workspace / "old").mkdir()
    (workspace / "old" / "x").write_text("x")
    (workspace / "gone" / "deep").mkdir(parents=True)
    (workspace / "gone" / "deep" / "y").write_text("y")
    box = make_box(workspace=workspace)
    box.sh("rm -r sub; mkdir sub; echo z > sub/z; mv old new; rm -r gone")
    assert told(box, "/workspace") == {
        ("/workspace/sub/b.txt", "removed"), ("/workspace/sub/z", "added"),
        ("/workspace/old", "removed"), ("/workspace/old/x", "removed"),
        ("/workspace/new", "added"), ("/workspace/new/x", "added"),
        ("/workspace/gone", "removed"), ("/workspace/gone/deep", "removed"),
        ("/workspace/gone/deep/y", "removed"),
    }  # fmt: skip
    assert told(box, "/workspace/gone/deep/y") == {("/workspace/gone/deep/y", "removed")}
    assert told(box, "/workspace/new") == {("/workspace/new", "added"), ("/workspace/new/x", "added")}
    assert told(box, "/workspace/sub", "/workspace/sub/z") == {
        ("/workspace/sub/b.txt", "removed"), ("/workspace/sub/z", "added"),
    }  # fmt: skip


def test_names_of_any_bytes_are_told(make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    name = b"a b\n'\"\xff[x]"
    assert box.run("touch", name).code == 0
    assert [one.path for one in box.sandbox.changes(["/workspace"])] == [b"/workspace/" + name]


def test_a_changes_inode_is_the_one_that_processes_see(make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    seen = int(box.sh("echo 2 > a.txt; stat -c %i a.txt").text)
    assert [one.ino for one in box.sandbox.changes(["/workspace"])] == [seen]


def test_the_workspace_comes_home(make_box: MakeBox, workspace: Path) -> None:
    (workspace / "dir").mkdir()
    (workspace / "dir" / "kept").write_text("kept")
    box = make_box(workspace=workspace)
    box.sh(
        "echo new > 'n w'; echo 1 > a.txt; rm -r sub; mkdir -p p/q; echo deep > p/q/r; ln -s a.txt link; "
        "mv dir moved; chmod 755 'n w'; : > empty; ln a.txt hard; touch -d @1000000000 empty"
    )
    assert (workspace / "a.txt").read_text() == "one\n"
    box.sandbox.copy_back()
    assert (workspace / "n w").read_text() == "new\n"
    assert stat.S_IMODE((workspace / "n w").stat().st_mode) == 0o755
    assert (workspace / "a.txt").read_text() == "1\n" and (workspace / "hard").read_text() == "1\n"
    assert not (workspace / "sub").exists() and not (workspace / "dir").exists()
    assert (workspace / "p/q/r").read_text() == "deep\n"
    assert (workspace / "moved/kept").read_text() == "kept"
    assert (workspace / "link").is_symlink() and (workspace / "link").readlink() == Path("a.txt")
    assert (workspace / "empty").stat().st_mtime == 1_000_000_000
    assert list(box.sandbox.skipped) == []


def test_folders_that_changed_their_names_come_home_whole(make_box: MakeBox, workspace: Path) -> None:
    """The host's folder is the lower layer: what is read from it must be read before it is changed."""
    for name in ("a", "b", "z"):
        (workspace / name / "in").mkdir(parents=True)
        (workspace / name / "in" / "file").write_text(name)
    box = make_box(workspace=workspace)
    box.sh(
        "mv a t; mv b a; mv t b; mkdir -p n; mv z/in n/y; echo new > n/y/more; mkdir z/in; "
        "echo o > z/in/file; mv sub a/in/s"
    )
    want = box.sh("find . -type f -exec sh -c 'echo $1 $(cat $1)' - {} \\; | sort").text
    box.sandbox.copy_back()
    found = sorted(
        f"./{one.relative_to(workspace)} {one.read_text().strip()}"
        for one in workspace.rglob("*")
        if one.is_file()
    )
    assert "\n".join(found) + "\n" == want
    assert "./n/y/file z" in found and "./b/in/file a" in found


def test_setuid_devices_pipes_sockets_and_attributes_stay_behind(make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    box.sh(
        "cp /bin/true suid; chmod 6755 suid; mkdir -m 7777 d; mkfifo fifo; python3 -c '"
        'import socket,os; socket.socket(socket.AF_UNIX).bind("sock"); os.setxattr("suid","user.x",b"1")\'; '
        "setcap cap_chown+ep suid; chown 5:6 suid"
    )
    box.sandbox.copy_back()
    state = (workspace / "suid").lstat()
    assert stat.S_IMODE(state.st_mode) == 0o755 and (state.st_uid, state.st_gid) == (0, 0)
    assert os.listxattr(workspace / "suid") == []
    assert stat.S_IMODE((workspace / "d").stat().st_mode) == 0o777
    assert not (workspace / "fifo").exists() and not (workspace / "sock").exists()
    assert sorted(line.split(":")[0] for line in box.sandbox.skipped) == ["fifo", "sock"]


@pytest.mark.parametrize(
    "trick", ["rm -r sub; ln -s {out} sub", "ln -s {out}/victim new", "ln -sf {out}/victim a.txt"]
)
def test_no_link_of_the_agents_leads_out(
    make_box: MakeBox, workspace: Path, tmp_path: Path, trick: str
) -> None:
    out = tmp_path / "outside"
    out.mkdir()
    (out / "victim").write_text("untouched")
    (out / "b.txt").write_text("untouched")
    box = make_box(workspace=workspace)
    box.sh(trick.format(out=out))
    box.sandbox.copy_back()
    assert {one.name: one.read_text() for one in out.iterdir()} == {
        "victim": "untouched",
        "b.txt": "untouched",
    }


def test_a_link_that_the_host_has_in_the_workspace_is_replaced_not_followed(
    make_box: MakeBox, workspace: Path, tmp_path: Path
) -> None:
    """The host's folder may change while the sandbox runs: between a check and a write, say."""
    out = tmp_path / "outside"
    out.mkdir()
    (out / "b.txt").write_text("untouched")
    box = make_box(workspace=workspace)
    box.sh("echo 3 > sub/b.txt; echo 4 > a.txt")
    (workspace / "sub" / "b.txt").unlink()
    (workspace / "sub").rmdir()
    (workspace / "sub").symlink_to(out)
    (workspace / "a.txt").unlink()
    (workspace / "a.txt").symlink_to(out / "b.txt")
    box.sandbox.copy_back()
    assert (out / "b.txt").read_text() == "untouched"
    assert (workspace / "a.txt").read_text() == "4\n" and not (workspace / "a.txt").is_symlink()


def test_hard_links_of_the_host_are_not_written_through(
    make_box: MakeBox, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", workspace / "linked")
    box = make_box(workspace=workspace)
    box.sh("echo gone > linked")
    box.sandbox.copy_back()
    assert (tmp_path / "precious").read_text() == "precious"
    assert (workspace / "linked").read_text() == "gone\n"


def _give_away(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.lchown(path, OWNER, OWNER)


def test_the_invoking_user_gets_files_of_his_own(make_box: MakeBox, workspace: Path, tmp_path: Path) -> None:
    for parent in tmp_path.parents:
        if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    _give_away(workspace)
    box = make_box(workspace=workspace, owner_uid=OWNER, owner_gid=OWNER)
    assert (
        box.sh("stat -c %U:%G a.txt . ; echo 1 > a.txt; mkdir d; echo x > d/n; chown 7 d/n").out
        == b"root:root\nroot:root\n"
    )
    box.sandbox.copy_back()
    for name in ("a.txt", "d", "d/n"):
        state = (workspace / name).stat()
        assert (state.st_uid, state.st_gid) == (OWNER, OWNER)


def test_what_the_invoking_user_may_not_read_stays_closed_to_the_sandbox(
    make_box: MakeBox, workspace: Path, tmp_path: Path
) -> None:
    for parent in [tmp_path, *tmp_path.parents]:
        if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
            parent.chmod(0o755)
    _give_away(workspace)
    (workspace / "roots").write_text("secret")
    (workspace / "roots").chmod(0o600)
    box = make_box(workspace=workspace, owner_uid=OWNER, owner_gid=OWNER)
    result = box.sh("cat roots; chmod 777 roots; chown 0 roots")
    assert b"secret" not in result.out and b"Permission denied" in result.err


def test_a_workspace_that_the_user_cannot_enter_is_refused(make_box: MakeBox, workspace: Path) -> None:
    workspace.chmod(0o700)
    with pytest.raises(SandboxError, match="cannot be read as user 12345"):
        make_box(workspace=workspace, owner_uid=OWNER, owner_gid=OWNER)


@pytest.mark.parametrize("kind", ["missing", "file", "state"])
def test_a_workspace_that_is_none_is_refused(make_box: MakeBox, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("x")
    path = {"missing": tmp_path / "no", "file": tmp_path / "file", "state": Path("/")}[kind]
    with pytest.raises(SandboxError, match="workspace"):
        make_box(workspace=path)


def test_a_full_disk_is_enospc_and_not_out_of_memory(make_box: MakeBox) -> None:
    limits = Limits(memory_bytes=96 * MIB, disk_bytes=128 * MIB)
    box = make_box(Policy(name="small", limits=limits))
    result = box.sh("dd if=/dev/zero of=/big bs=1M count=300; echo code=$?")
    assert b"No space left on device" in result.err and b"code=1" in result.out
    assert "disk" in [hit.limit for hit in box.sandbox.limits_hit()]
    assert box.sh("rm /big; echo fine > /tmp/x && cat /tmp/x").out == b"fine\n"


@pytest.mark.parametrize("where", ["/workspace", "/usr/lib", "/tmp", "/var/tmp", "/root"])
def test_everything_writable_is_inside_the_limit(make_box: MakeBox, workspace: Path, where: str) -> None:
    limits = Limits(memory_bytes=256 * MIB, disk_bytes=32 * MIB)
    box = make_box(Policy(name="small", limits=limits), workspace=workspace)
    assert b"No space left" in box.sh(f"dd if=/dev/zero of={where}/big bs=1M count=64").err


def test_shared_memory_is_limited_too(make_box: MakeBox) -> None:
    box = make_box(Policy(name="small", limits=Limits(memory_bytes=128 * MIB)))
    assert b"No space left" in box.sh("dd if=/dev/zero of=/dev/shm/big bs=1M count=100").err
    assert b"No space left" in box.sh("dd if=/dev/zero of=/dev/big bs=1M count=10").err


def test_a_small_layer_is_in_memory_and_as_small(make_box: MakeBox) -> None:
    box = make_box(Policy(name="tiny", limits=Limits(memory_bytes=256 * MIB, disk_bytes=16 * MIB)))
    assert b"No space left" in box.sh("dd if=/dev/zero of=/big bs=1M count=30").err
    assert box.sandbox._layer is not None and box.sandbox._layer.in_memory


@pytest.mark.parametrize("where", ["/tmp", "/dev", "/dev/shm"])
def test_empty_files_fill_a_layer_in_memory_and_never_the_memory(make_box: MakeBox, where: str) -> None:
    """An empty file takes no block of a tmpfs: without a bound of their own they would end in an OOM kill."""
    box = make_box(Policy(name="tiny", limits=Limits(memory_bytes=128 * MIB, disk_bytes=16 * MIB)))
    script = (
        "import errno, os\ntry:\n  for i in range(1 << 20):\n    os.mknod(f'{os.sys.argv[1]}/{i}')\n"
        "except OSError as e:\n  print(errno.errorcode[e.errno])"
    )
    result = box.run("python3", "-c", script, where)
    assert (result.out, result.status.reason) == (b"ENOSPC\n", "exited"), result.err
    hit = {one.limit for one in box.sandbox.limits_hit()}
    assert ("disk" in hit) == (where == "/tmp") and "memory" not in hit


def test_a_huge_sparse_file_costs_nothing_on_the_way_home(make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    assert box.sh("truncate -s 1T sparse; echo end | dd of=sparse bs=1 seek=1000000 conv=notrunc").code == 0
    box.sandbox.copy_back()
    state = (workspace / "sparse").stat()
    assert state.st_size == 1 << 40 and state.st_blocks < 100


def test_a_very_deep_tree_is_cut_not_followed_for_ever(make_box: MakeBox, workspace: Path) -> None:
    box = make_box(workspace=workspace)
    deep = "import os\nfor _ in range(600):\n  os.mkdir('d'); os.chdir('d')\nopen('end','w').close()"
    assert box.run("python3", "-c", deep).code == 0
    assert 150 < len(list(box.sandbox.changes(["/workspace"]))) < 300
    box.sandbox.copy_back()
    assert len(box.sandbox.skipped) == 1 and "deeper" in box.sandbox.skipped[0]
    os.system(f"rm -rf '{workspace}/d'")


def test_files_go_in_and_out_and_never_through_links_out(make_box: MakeBox, tmp_path: Path) -> None:
    box = make_box()
    box.sandbox.write_file("/new/folder/file", b"\x00content", 0o755)
    assert box.sandbox.read_file("/new/folder/file") == b"\x00content"
    assert box.sh("stat -c '%U %a' /new/folder/file").out == b"root 755\n"
    (tmp_path / "host").write_text("host")
    up = "/".join([".."] * 12)
    box.sh(
        f"ln -s {tmp_path}/host /link; ln -s {up}{tmp_path}/host /up; mkfifo /fifo; ln -s /proc/1/root /magic"
    )
    for path in (
        "/link",
        "/up",
        f"/{up}{tmp_path}/host",
        "/fifo",
        f"/magic{tmp_path}/host",
        "/new",
        "/dev/zero",
    ):
        with pytest.raises(SandboxError):
            box.sandbox.read_file(path, 1000)
    box.sandbox.write_file("/link", b"inside")
    assert (tmp_path / "host").read_text() == "host"
    with pytest.raises(SandboxError, match="larger"):
        box.sandbox.read_file("/new/folder/file", 3)


def test_more_workspaces_of_the_policy_are_made(make_box: MakeBox) -> None:
    box = make_box(Policy(name="two", filesystem=Filesystem(workspace=["/deep/work", "/data/more"])))
    assert box.sh("pwd; touch /data/more/x /deep/work/y").out == b"/deep/work\n"
