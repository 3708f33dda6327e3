"""Policy → seccomp profile of an OCI runtime's kind, as `docker run --security-opt seccomp=FILE` takes it.

It says what the filter of `seccomp.build` says, for containers that others start. Two things differ: how a
call by another ABI is refused, where the policy denies it, is the runtime's to say (the process may end); and
nothing holds `user.max_user_namespaces` at 0, so that clone3 is refused where user namespaces are.
"""

from __future__ import annotations

import os
from typing import Any

from invigilator.profiles import seccomp
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.profiles.seccomp_writer import FOREIGN

ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
"""By machine (uname -m), as the runtime specification names them."""


def profile(policy: Policy, phase: PhaseName) -> dict[str, Any]:
    """The profile of a phase, to be written as JSON. With `mode: observe` it refuses nothing."""
    machine = os.uname().machine
    foreign = policy.mode == "observe" or seccomp.syscalls_of(policy, phase).foreign_abi == "allow"
    own = ARCHITECTURES.get(machine)
    others = [f"SCMP_ARCH_{name}" for name in FOREIGN.get(machine, ())] if foreign else []
    made = seccomp.build(policy, phase, userns_sysctl=False)
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [own, *others] if own else others,
        "syscalls": [dict(rule) for rule in made.oci],
    }
