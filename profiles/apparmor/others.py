"""What a profile says about all but files: capabilities, sockets, signals, tracing, namespaces.

What is not named is refused: mounting, moving the root, loading policy, every capability that is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator

from invigilator.profiles import seccomp
from invigilator.profiles.apparmor.abi import Abi
from invigilator.profiles.apparmor.line import Line
from invigilator.profiles.capabilities import IN_USER_NAMESPACES, SANDBOX
from invigilator.profiles.policy import PhaseName, Policy

PREFIX = "invigilator-"
"""Of every profile's name."""
SOCKETS = (
    "unix", "inet stream", "inet dgram", "inet6 stream", "inet6 dgram", "netlink raw", "netlink dgram",
)  # fmt: skip
"""Families and types; raw and packet sockets want a capability that no sandbox has, others no sensor sees."""


def lines(policy: Policy, phase: PhaseName, abi: Abi) -> Iterator[Line]:
    """The rules of one phase."""
    calls = seccomp.syscalls_of(policy, phase)
    yield from (Line(f"capability {name},") for name in SANDBOX)
    if calls.userns == "allow":
        yield from (Line(f"capability {name},", ("syscalls", "userns")) for name in IN_USER_NAMESPACES)
    yield from (Line(f"network {kind},") for kind in SOCKETS)
    yield Line("unix,")
    yield from _processes(phase)
    if abi.userns and calls.userns == "allow":
        yield Line("userns,", ("syscalls", "userns"))
    if abi.io_uring and calls.io_uring == "allow":
        yield Line("io_uring,", ("syscalls", "io_uring"))
    if abi.mqueue:
        yield Line("mqueue,")


def _processes(phase: PhaseName) -> Iterator[Line]:
    """Among processes of the phase everything; the host and the platform may signal and look at the agent's,
    and not the other way round."""
    ours = f'"{PREFIX}*"'
    yield Line("signal (send, receive) peer=@{profile_name},")
    yield Line("signal (receive) peer=unconfined,")
    yield Line("ptrace (read, trace, readby, tracedby) peer=@{profile_name},")
    if phase == "agent":
        yield Line(f"signal (receive) peer={ours},")
        yield Line(f"ptrace (readby, tracedby) peer={ours},")
    else:
        yield Line(f"signal (send, receive) peer={ours},")
        yield Line(f"ptrace (read, trace, readby, tracedby) peer={ours},")
