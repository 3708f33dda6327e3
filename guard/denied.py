"""A refusal in words: what was asked, of whom, and whether it is one at all."""

from __future__ import annotations

import errno
import functools
import os

from invigilator.profiles import seccomp
from invigilator.profiles.policy import Policy
from invigilator.sandbox.audit import Refusal

ABSENT = (errno.ENOSYS, errno.EAFNOSUPPORT, errno.EOPNOTSUPP)
"""A call that a filter answers so is one that the kernel seems not to have: programs ask, and do without."""
X32 = 1 << 30
"""The bit of x32's numbers (asm/unistd.h), which events do without."""
NATIVE = {"x86_64": b"c000003e", "aarch64": b"c00000b7"}
"""AUDIT_ARCH of this machine (linux/audit.h), as records have it."""


def text_of(refusal: Refusal, policy: Policy) -> bytes | None:
    """What was refused, in words; None for a call that programs do without."""
    fields = refusal.fields
    if refusal.tier == "apparmor":
        kept = ("requested_mask", "denied_mask", "capname", "family", "sock_type", "peer", "info", "comm")
        words = [fields.get("operation", b"?")]
        words += [name.encode() + b"=" + fields[name] for name in kept if name in fields]
        return b" ".join(words)
    number = int(fields.get("syscall", b"-1"))
    if fields.get("arch") != NATIVE.get(os.uname().machine) or number >= X32:
        return b"syscall number=%d abi=foreign comm=%s" % (number, fields.get("comm", b""))
    name = _call_name(number)
    if name in _done_without(policy.model_dump_json()):
        return None
    return b"syscall %s comm=%s" % (name.encode(), fields.get("comm", b""))


@functools.lru_cache(maxsize=512)
def _call_name(number: int) -> str:
    import seccomp as library

    try:
        found = library.resolve_syscall(library.Arch(), number)
    except (ValueError, RuntimeError):
        return str(number)
    return str(found.decode() if isinstance(found, bytes) else found)


@functools.lru_cache(maxsize=16)
def _done_without(policy_json: str) -> frozenset[str]:
    """Calls that the policy's filters answer as a kernel without them would, and never otherwise."""
    policy = Policy.model_validate_json(policy_json)
    answers: dict[str, set[int]] = {}
    for refusal in seccomp.build(policy, "agent").refusals:
        answers.setdefault(refusal.call.partition("(")[0], set()).add(refusal.errno)
    return frozenset(name for name, codes in answers.items() if codes <= set(ABSENT))
