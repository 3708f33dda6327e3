"""What an attacker with root inside tries, and where it ends."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from invigilator.profiles.policy import Policy, Syscalls
from invigilator.sandbox.closed import Found
from invigilator.sandbox.ids import COUNT, FIRST

if TYPE_CHECKING:
    from conftest import Box, MakeBox

    from invigilator.sandbox.process import ProcessBackend

NAMESPACES = ("user", "mnt", "pid", "ipc", "uts", "cgroup", "net")


def python(box: Box, script: str, **more: object) -> bytes:
    result = box.run("python3", "-c", script, **more)
    return result.out + result.err


def test_every_namespace_is_its_own(shared_box: Box) -> None:
    for name in NAMESPACES:
        inside = shared_box.sh(f"readlink /proc/self/ns/{name}").text.strip()
        assert inside and inside != str(Path(f"/proc/self/ns/{name}").readlink()), name


def test_ids_are_65536_and_no_other_sandbox_has_them(make_box: MakeBox) -> None:
    maps = [make_box().sh("cat /proc/self/uid_map /proc/self/gid_map").text.split() for _ in range(2)]
    for words in maps:
        assert words[0] == "0" and words[2] == str(COUNT) and words[:3] == words[3:]
        assert int(words[1]) >= FIRST and (int(words[1]) - FIRST) % COUNT == 0
    assert maps[0][1] != maps[1][1]


def test_capabilities_are_dockers_without_raw_sockets(shared_box: Box) -> None:
    status = dict(
        re.findall(
            r"^(Cap\w+|NoNewPrivs|Seccomp):\s*(\S+)", shared_box.sh("cat /proc/self/status").text, re.M
        )
    )
    expected = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 27, 29, 31))
    assert int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == int(status["CapEff"], 16) == expected
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"


def test_only_the_standard_streams_are_open(shared_box: Box) -> None:
    assert shared_box.sh("ls /proc/self/fd").out == b"0\n1\n2\n3\n"  # 3: ls's own


@pytest.mark.parametrize(
    "command",
    [
        "unshare -U true", "unshare -Urm true", "unshare -m true", "unshare -n true", "mount -t tmpfs x /mnt",
        "mount -o remount,rw /proc/sys", "umount /proc/sys", "echo 5 > /proc/sys/user/max_user_namespaces",
        "echo x > /proc/sys/kernel/core_pattern", "echo b > /proc/sysrq-trigger", "mknod /tmp/sda b 8 0",
        "mknod /tmp/mem c 1 1", "hostname evil", "chroot / mount -t proc x /mnt", "date -s 2001-01-01",
        "dmesg", "cat /dev/kmsg", "ip link add d0 type dummy", "ping -c1 127.0.0.1", "losetup -f", "insmod x",
        "cat /proc/kcore", "cat /proc/1/environ", "ls /proc/1/root/", "ls /proc/1/fd/", "ls /proc/1/cwd/",
        "readlink /proc/1/exe", "kill -9 1 && sleep 0.2 && ! kill -0 1", "kill -STOP 1", "strace -p 1",
        "nsenter -t 1 -m true", "nsenter -t 1 -U true", "mount -t cgroup2 x /mnt", "mount -t devtmpfs x /mnt",
        "swapon /tmp/x", "echo 1 > /proc/sys/net/ipv4/ip_forward", "renice -n -5 $$",
        "nice -n -5 true 2>&1 | grep .",
    ],
)  # fmt: skip
def test_root_inside_is_refused(shared_box: Box, command: str) -> None:
    if command == "nice -n -5 true 2>&1 | grep .":
        assert shared_box.sh(command).code == 0  # it complains
    else:
        assert shared_box.sh(command).code != 0
    assert shared_box.run("true").code == 0


def test_nested_user_namespaces_where_the_policy_allows(make_box: MakeBox) -> None:
    box = make_box(Policy(name="nested", syscalls=Syscalls(userns="allow")))
    assert box.sh("unshare -Ur id -u").out == b"0\n"
    inside = box.sh("unshare -Urm sh -c 'mount -t tmpfs x /mnt && umount /proc/sys'")
    assert inside.code != 0


def test_user_namespaces_are_bounded_by_none(shared_box: Box) -> None:
    """Whatever refuses the call, the kernel would too."""
    assert shared_box.sh("cat /proc/sys/user/max_user_namespaces").out == b"0\n"


def test_other_processes_are_not_to_be_seen(shared_box: Box) -> None:
    numbers = [int(word) for word in shared_box.sh("ls /proc | grep -E '^[0-9]+$'").text.split()]
    assert 1 in numbers and len(numbers) < 8


def test_init_tells_nothing_of_the_host(shared_box: Box) -> None:
    assert shared_box.sh("cat /proc/1/cmdline | tr '\\0' ' '").out.strip() == b"init"
    told = shared_box.sh("cat /proc/self/mountinfo /proc/1/mountinfo /proc/mounts").text
    assert str(Path.cwd()) not in told and "pytest" not in told and "/home" not in told


def test_init_keeps_credentials_of_the_host_and_no_descriptors(shared_box: Box) -> None:
    pid = shared_box.sandbox.init_pid
    assert list(Path(f"/proc/{pid}/fd").iterdir()) == []
    assert Path(f"/proc/{pid}/ns/user").readlink() == Path("/proc/self/ns/user").readlink()
    assert re.search(r"^Uid:\s+0\s+0\s+0\s+0$", Path(f"/proc/{pid}/status").read_text(), re.M)


def test_the_launcher_cannot_be_reached_through_the_commands_executable(box: Box) -> None:
    """The class of CVE-2019-5736: /proc/self/exe as the command, then a write to what it shows."""
    first = box.run("/proc/self/exe", "x")
    assert first.code != 0
    script = (
        "import os\nfor p in os.listdir('/proc'):\n  if p.isdigit():\n    try:\n"
        "      os.open(f'/proc/{p}/exe', os.O_WRONLY); print('opened', p, os.readlink(f'/proc/{p}/exe'))\n"
        "    except OSError as e: pass"
    )
    assert b"launcher" not in python(box, script)
    box.sandbox.write_file("/tmp/run", b"#!/proc/self/exe\n", 0o755)
    box.run("/tmp/run")
    assert box.run("true").code == 0


def test_overwriting_a_system_binary_hurts_only_oneself(box: Box) -> None:
    before = Path("/bin/bash").read_bytes()
    assert (
        box.sh("printf '#!/bin/sh\\necho owned\\n' > /tmp/b; chmod 755 /tmp/b; mv /tmp/b /bin/bash").code == 0
    )
    assert box.run("bash").out == b"owned\n"
    assert Path("/bin/bash").read_bytes() == before
    assert subprocess.run(["bash", "-c", "echo fine"], capture_output=True, check=True).stdout == b"fine\n"


def test_nothing_enters_that_others_cannot_read(shared_box: Box) -> None:
    secret = shared_box.sh(
        "ls -d /etc/shadow /etc/gshadow /etc/ssl/private/* /etc/ssh/ssh_host* /root/.ssh /home/* /var/log/*"
    )
    assert secret.out.strip() in (b"", b"/var/log/apt")
    hashes = shared_box.sh("grep -rIl 'PRIVATE KEY-----' /etc 2>/dev/null")
    assert hashes.out == b""
    closed = shared_box.sh("find /usr -xdev '(' -type f -o -type d ')' ! -perm -o=r 2>/dev/null | head")
    assert closed.out == b""
    assert b"root:*:0:0:" in shared_box.sh("cat /etc/passwd").out


def test_a_file_that_is_closed_on_the_host_is_not_there(make_box: MakeBox, tmp_path: Path) -> None:
    """The trap: sandbox root owns what it sees, so a closed file in /usr must not be seen."""
    from invigilator.sandbox.closed import unreadable
    from invigilator.sandbox.root import hide

    top = tmp_path / "usr"
    (top / "open").mkdir(parents=True)
    (top / "shut").mkdir(mode=0o700)
    (top / "open" / "secret").write_text("s")
    (top / "open" / "secret").chmod(0o640)
    (top / "open" / "mine").write_text("guard")
    (top / "open" / "link").symlink_to("secret")
    found = unreadable(top, [top / "open" / "mine"])
    assert sorted(found) == [("open", "mine"), ("open", "secret"), ("shut",)]
    hide(tmp_path / "layer", top, found)
    assert (tmp_path / "layer" / "open" / "secret").is_char_device()


def test_what_is_closed_afterwards_is_known_once_it_is_looked_for_again(tmp_path: Path) -> None:
    from invigilator.sandbox.closed import Closed

    top, record = tmp_path / "usr", tmp_path / "closed.json"
    (top / "deep" / "er").mkdir(parents=True)
    for name in ("open", "later"):
        (top / "deep" / "er" / name).write_text(name)
    first = Closed(record, [top], [])
    before = first.current("state")
    assert before.paths == {str(top): []}
    (top / "deep" / "er" / "later").chmod(0o600)
    (top / "deep" / "\udcff'\n").write_text("new")
    (top / "deep" / "\udcff'\n").chmod(0o640)
    assert Closed(record, [top], []).current("state") == before, "a young record is trusted"

    closed = {str(top): [("deep", "er", "later"), ("deep", "\udcff'\n")]}
    assert Closed(record, [top], []).current("packages changed").paths == closed
    assert first.check("state").paths == closed and first.check("state").print != before.print
    assert Closed(record, [top], []).current("state").paths == closed, "and so by the next agent"
    (top / "deep" / "er" / "open").chmod(0o600)
    old = Closed(record, [top], [], recheck_s=-1)
    assert ("deep", "er", "open") in old.current("state").paths[str(top)], "an old record is not"
    record.write_text("{}")
    assert ("deep", "er", "open") in Closed(record, [top], []).current("state").paths[str(top)]


def test_what_was_found_to_be_closed_makes_another_root(backend: ProcessBackend, tmp_path: Path) -> None:
    roots = backend.machinery.roots
    lowers = {lower.mount_point: lower.folders for lower in roots.default()}
    assert lowers == {lower.mount_point: lower.folders for lower in roots.default()}
    at, found = roots._closed._known or (0.0, Found("", {}))
    more = {top: [*paths, ("share", "doc")] for top, paths in found.paths.items()}
    try:
        roots._closed._known = (at, Found(found.state, more))
        [hiding, _] = {lower.mount_point: lower.folders for lower in roots.default()}["/usr"]
        assert hiding not in lowers["/usr"] and (hiding / "share" / "doc").is_char_device()
    finally:
        roots._closed._known = (at, found)
    assert lowers == {lower.mount_point: lower.folders for lower in roots.default()}


def test_the_guard_itself_is_not_there(shared_box: Box, backend: object) -> None:
    checkout = Path(__file__).resolve().parents[2]
    assert shared_box.run("ls", str(checkout)).code != 0
    assert shared_box.sh("python3 -c 'import invigilator'").code != 0


def test_dev_is_small_and_safe(shared_box: Box) -> None:
    names = set(shared_box.sh("ls /dev").text.split())
    assert names == {
        "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
        "urandom", "zero",
    }  # fmt: skip
    assert shared_box.sh("ls /dev/pts").out == b"ptmx\n"


def test_keyrings_are_not_the_hosts(shared_box: Box) -> None:
    assert shared_box.sh("cat /proc/keys").out == b""


def test_sysv_and_posix_ipc_are_private(make_box: MakeBox) -> None:
    one, two = make_box(), make_box()
    assert one.sh("ipcmk -M 1024 && touch /dev/shm/x /dev/mqueue/q").code == 0
    assert b"0x" not in two.sh("ipcs -m").out.split(b"status")[-1]
    assert two.sh("ls /dev/shm /dev/mqueue").out == b"/dev/mqueue:\n\n/dev/shm:\n"


def test_sandboxes_do_not_see_each_other(make_box: MakeBox) -> None:
    one, two = make_box(), make_box()
    one.sh("echo mine > /tmp/x; echo mine > /usr/x")
    assert two.sh("ls /tmp/x /usr/x").out == b""
    command, out, err = one.spawn("sleep", "100")
    assert two.sh(f"kill -9 {command.pid}").code != 0
    assert command.poll() is None
    os.close(out), os.close(err)


def test_a_seccomp_filter_answers_with_errno(shared_box: Box) -> None:
    io_uring = "import ctypes;l=ctypes.CDLL(None,use_errno=True);print(l.syscall(425,8,0),ctypes.get_errno())"
    answer = python(shared_box, io_uring).split()
    assert answer[0] == b"-1" and int(answer[1]) in (1, 38)


FOREIGN = """
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
  long int80 = 20, x32; /* getpid by either */
  __asm__ volatile("int $0x80" : "+a"(int80) : : "memory");
  x32 = syscall(0x40000000 | 39);
  printf("%s %s\\n", int80 > 0 ? "allowed" : int80 == -EPERM || int80 == -ENOSYS ? "errno" : "other",
         x32 > 0 ? "allowed" : errno == EPERM || errno == ENOSYS ? "errno" : "other");
  return 7;
}
"""


def test_foreign_abis_are_answered_with_errno_and_kill_nobody(make_box: MakeBox) -> None:
    def told(box: Box) -> tuple[list[bytes], str, int]:
        box.sandbox.write_file("/tmp/foreign.c", FOREIGN.encode())
        result = box.sh("gcc -o /tmp/foreign /tmp/foreign.c && exec /tmp/foreign", timeout_s=60)
        return result.out.split(), result.status.reason, result.code

    assert told(make_box()) == ([b"errno", b"errno"], "exited", 7)
    allowing = make_box(Policy(name="foreign", syscalls=Syscalls(foreign_abi="allow")))
    (int80, _), reason, code = told(allowing)  # x32 is not in every kernel
    assert (int80, reason, code) == (b"allowed", "exited", 7)


def test_no_link_but_loopback_without_egress(shared_box: Box) -> None:
    assert shared_box.sh(
        "ls /sys/class/net 2>/dev/null; cat /proc/net/dev | tail -n +3 | cut -d: -f1"
    ).out.split() == [b"lo"]
    assert shared_box.sh("exec 3<>/dev/tcp/192.0.2.1/80").code != 0
    script = (
        "import socket\ns=socket.create_server(('127.0.0.1',80))\n"
        "print(socket.create_connection(('127.0.0.1',80)).getpeername())"
    )
    assert python(shared_box, script) == b"('127.0.0.1', 80)\n"
    assert b"PermissionError" in python(
        shared_box, "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"
    )
