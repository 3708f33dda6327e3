"""The seccomp filter, installed for real by a child process that then tries the calls."""

from __future__ import annotations

import errno
import platform
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from invigilator.profiles import library, seccomp
from invigilator.profiles.policy import CallArgument, CallRule, Policy, SeccompRules, Syscalls

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the calls below are made by x86-64 numbers and instructions"
)

PROBE = Path(__file__).with_name("seccomp_probe.c")
FINE = 0
EPERM, ENOSYS = errno.EPERM, errno.ENOSYS


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that installs a filter and makes one call."""
    program = tmp_path_factory.mktemp("probe") / "probe"
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", "-o", program, PROBE], check=True, timeout=60)
    return program


def attempt(probe: Path, program: bytes, call: str, tmp_path: Path) -> int:
    """The errno (0: none) that `call` gets under the filter; fails where anything was killed."""
    file = tmp_path / "filter"
    file.write_bytes(program)
    done = subprocess.run([probe, file, call], capture_output=True, timeout=20, check=False, text=True)
    assert done.returncode >= 0, f"killed by {signal.Signals(-done.returncode).name}"
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


DENIED = {
    "io_uring_setup": ENOSYS,
    "io_uring_enter": ENOSYS,
    "bpf": EPERM,
    "perf_event_open": EPERM,
    "userfaultfd": EPERM,
    "keyctl": EPERM,
    "add_key": EPERM,
    "request_key": EPERM,
    "init_module": EPERM,
    "kexec_load": EPERM,
    "open_by_handle_at": EPERM,
    "unshare_user": EPERM,
    "unshare_user_and_mount": EPERM,
    "clone_user": EPERM,
    "tiocsti": EPERM,
    "tiocsti_high_bits": EPERM,
    "socket_vsock": errno.EAFNOSUPPORT,
    "socket_vsock_high_bits": errno.EAFNOSUPPORT,
    "socket_packet": errno.EAFNOSUPPORT,
    "socket_alg": errno.EAFNOSUPPORT,
    "int80_getpid": ENOSYS,
    "int80_open": ENOSYS,
    "x32_getpid": ENOSYS,
}
ALLOWED = [
    "socket_unix",
    "socket_inet6",
    "socket_netlink",
    "getpid",
    "fork",
    "thread",
    "unshare_files",
    "ioctl_winsize",
    "ptrace_traceme",
    "clone3_fork",
]


@pytest.mark.parametrize(("call", "code"), DENIED.items())
def test_base_answers_a_dangerous_call_with_an_errno_and_kills_nothing(
    probe: Path, tmp_path: Path, call: str, code: int
) -> None:
    assert attempt(probe, seccomp.compile(library.load("base"), "agent"), call, tmp_path) == code


@pytest.mark.parametrize("call", ALLOWED)
def test_base_lets_ordinary_calls_be(probe: Path, tmp_path: Path, call: str) -> None:
    assert attempt(probe, seccomp.compile(library.load("base"), "agent"), call, tmp_path) == FINE


@pytest.mark.parametrize("call", ["int80_getpid", "io_uring_setup", "unshare_user", "clone_user"])
def test_without_a_filter_the_refused_calls_are_not_refused_like_that(
    probe: Path, tmp_path: Path, call: str
) -> None:
    """The control: the errno above is the filter's, not the machine's."""
    assert attempt(probe, seccomp.ALLOW_ALL, call, tmp_path) != DENIED[call]


def test_extent_ioctls_are_left_to_the_sensor_unless_denied(probe: Path, tmp_path: Path) -> None:
    watched = seccomp.compile(library.load("base"), "agent")
    denied = seccomp.compile(Policy(name="x", syscalls=Syscalls(extent_exchange="deny")), "agent")
    for call in ("ficlone", "ficlonerange", "xfs_swapext", "xfs_exchange_range", "ext4_move_ext"):
        # On /dev/null the kernel answers by itself, never with EOPNOTSUPP.
        assert attempt(probe, watched, call, tmp_path) not in (FINE, errno.EOPNOTSUPP)
        assert attempt(probe, denied, call, tmp_path) == errno.EOPNOTSUPP


def test_without_the_sysctl_clone3_answers_enosys_and_threads_and_forks_still_work(
    probe: Path, tmp_path: Path
) -> None:
    built = seccomp.build(library.load("base"), "agent", userns_sysctl=False)
    assert attempt(probe, built.program, "clone3_fork", tmp_path) == ENOSYS
    assert attempt(probe, built.program, "clone3_user", tmp_path) == ENOSYS
    assert attempt(probe, built.program, "thread", tmp_path) == FINE
    assert attempt(probe, built.program, "fork", tmp_path) == FINE


def test_what_the_policy_allows_is_allowed(probe: Path, tmp_path: Path) -> None:
    calls = Syscalls(io_uring="allow", foreign_abi="allow", userns="allow", tiocsti="allow", deny=[])
    program = seccomp.compile(Policy(name="x", syscalls=calls), "agent")
    assert attempt(probe, program, "int80_getpid", tmp_path) == FINE
    assert attempt(probe, program, "io_uring_setup", tmp_path) != ENOSYS
    assert attempt(probe, program, "unshare_user", tmp_path) == FINE


def test_a_refused_call_is_refused_in_an_allowed_foreign_abi_too(probe: Path, tmp_path: Path) -> None:
    program = seccomp.compile(
        Policy(name="x", syscalls=Syscalls(foreign_abi="allow", deny=["getpid"])), "agent"
    )
    assert attempt(probe, program, "int80_getpid", tmp_path) == EPERM
    assert attempt(probe, program, "getpid", tmp_path) == EPERM


def test_observe_refuses_nothing(probe: Path, tmp_path: Path) -> None:
    policy = library.load("base").model_copy(update={"mode": "observe"})
    assert seccomp.compile(policy, "agent") == seccomp.ALLOW_ALL
    assert attempt(probe, seccomp.ALLOW_ALL, "int80_getpid", tmp_path) == FINE


def test_real_programs_run_under_the_filter(probe: Path, tmp_path: Path) -> None:
    file = tmp_path / "filter"
    file.write_bytes(seccomp.compile(library.load("swe-task"), "agent"))
    script = "python3 -c 'import asyncio, subprocess, threading; asyncio.run(asyncio.sleep(0)); "
    script += 'threading.Thread(target=print).start(); subprocess.run(["true"], check=True)\' | sort | wc -l'
    done = subprocess.run(
        [probe, file, "exec", "bash", "-c", script], capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"1\n"), done.stderr


def test_no_instruction_of_any_filter_kills_or_traps() -> None:
    for name in library.list_names():
        for sysctl in (True, False):
            program = seccomp.build(library.load(name), "agent", userns_sysctl=sysctl).program
            returns = [k for code, _, _, k in struct.iter_unpack("=HBBI", program) if code & 0x07 == 0x06]
            allow, fail = 0x7FFF0000, 0x00050000
            assert returns
            assert all(k == allow or k & 0xFFFF0000 == fail for k in returns)


def test_what_cannot_be_expressed_is_reported_not_dropped() -> None:
    calls = Syscalls(deny=["no_such_call"], extent_exchange="deny")
    built = seccomp.build(Policy(name="x", syscalls=calls), "agent")
    said = "\n".join(built.unexpressed)
    for part in ("no_such_call", "clone3", "setns", "copy_file_range"):
        assert part in said


def test_one_call_refused_in_whole_and_in_part_compiles() -> None:
    calls = Syscalls(deny=["unshare", "ioctl", "clone3", "io_uring_setup", "unshare"])
    built = seccomp.build(Policy(name="x", syscalls=calls), "agent", userns_sysctl=False)
    assert len([refusal for refusal in built.refusals if refusal.call == "unshare"]) == 1
    assert len([refusal for refusal in built.refusals if refusal.call == "clone3"]) == 1


def test_ioctl_numbers_are_those_of_the_kernels_headers(tmp_path: Path) -> None:
    source = Path(__file__).with_name("ioctl_numbers.c")
    program = tmp_path / "numbers"
    subprocess.run(["gcc", "-o", program, source], check=True, timeout=60)
    done = subprocess.run([program], capture_output=True, check=True, timeout=10)
    found = list(map(int, done.stdout.split()))
    extents = seccomp.EXTENT_IOCTLS
    assert found[:2] == [seccomp.TIOCSTI, seccomp.CLONE_NEWUSER]
    assert found[2:12] == list(extents.values())
    assert found[12:] == [extents["FICLONE"], extents["FICLONERANGE"], extents["FIDEDUPERANGE"]]


@pytest.mark.parametrize("name", seccomp.EXTENT_IOCTLS)
def test_every_extent_ioctl_is_refused_where_denied_in_each_abi(
    probe: Path, tmp_path: Path, name: str
) -> None:
    number = seccomp.EXTENT_IOCTLS[name]
    calls = Syscalls(extent_exchange="deny", foreign_abi="allow")
    both = seccomp.compile(Policy(name="x", syscalls=calls), "agent")
    assert attempt(probe, both, f"ioctl={number:#x}", tmp_path) == errno.EOPNOTSUPP
    assert attempt(probe, both, f"ioctl={number | 1 << 40:#x}", tmp_path) == errno.EOPNOTSUPP
    assert attempt(probe, both, f"int80_ioctl={number:#x}", tmp_path) == errno.EOPNOTSUPP
    assert attempt(probe, both, f"x32_ioctl={number:#x}", tmp_path) == errno.EOPNOTSUPP
    alone = seccomp.compile(Policy(name="x", syscalls=Syscalls(extent_exchange="deny")), "agent")
    assert attempt(probe, alone, f"int80_ioctl={number:#x}", tmp_path) == ENOSYS
    assert attempt(probe, alone, f"x32_ioctl={number:#x}", tmp_path) == ENOSYS


def test_in_an_allowed_foreign_abi_the_other_refusals_hold_too(probe: Path, tmp_path: Path) -> None:
    built = seccomp.build(Policy(name="x", syscalls=Syscalls(foreign_abi="allow")), "agent")
    expected = {
        "int80_io_uring_setup": ENOSYS,
        "int80_unshare_user": EPERM,
        "int80_socket_vsock": errno.EAFNOSUPPORT,
        "int80_socketcall_vsock": errno.EAFNOSUPPORT,
        "x32_io_uring_setup": ENOSYS,
    }
    for call, code in expected.items():
        assert attempt(probe, built.program, call, tmp_path) == code, call
    assert any("socketcall" in text for text in built.unexpressed)


def test_a_policys_own_rules_hold_with_their_conditions(probe: Path, tmp_path: Path) -> None:
    rules = [
        CallRule(names=["ptrace"], errno="EACCES"),
        CallRule(
            names=["personality"],
            args=[CallArgument(index=0, op="SCMP_CMP_MASKED_EQ", value=0x40000, value_two=0x40000)],
            errno="EINVAL",
        ),
        CallRule(names=["getpid"], action="SCMP_ACT_LOG"),
        CallRule(names=["no_such_call"]),
    ]
    policy = Policy(name="x", seccomp=SeccompRules(raw=rules))
    built = seccomp.build(policy, "agent")
    assert attempt(probe, built.program, "ptrace_traceme", tmp_path) == errno.EACCES
    assert attempt(probe, built.program, "personality_no_randomize", tmp_path) == errno.EINVAL
    assert attempt(probe, built.program, "getpid", tmp_path) == FINE
    assert any("no_such_call" in text for text in built.unexpressed)
    observing = policy.model_copy(update={"mode": "observe"})
    assert attempt(probe, seccomp.compile(observing, "agent"), "ptrace_traceme", tmp_path) == FINE


def test_the_filter_leaves_no_descriptor_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        seccomp.compile(library.load("base"), "agent")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
