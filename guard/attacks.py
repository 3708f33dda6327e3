"""The battery of attacks (`profiles/attacks.yaml`) as a policy's proof runs it, and attacks of its own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from invigilator.profiles import policy as policy_module
from invigilator.profiles import protected
from invigilator.profiles.access import decide
from invigilator.profiles.names import (
    BELOW_WILDCARD_MAX_BYTES,
    NAME_MAX_BYTES,
    NameRules,
    canonical,
    has_names,
    is_wildcard,
    rules_by_name,
)
from invigilator.profiles.network import network_of
from invigilator.profiles.policy import FileAccess, Policy
from invigilator.sandbox.resolver import ADDRESS, PORT

BATTERY = Path(policy_module.__file__).with_name("attacks.yaml")
PLANTED = {
    "/grader/tests.py": b"assert answer == 42\n",
    "/solution/answer.txt": b"42\n",
    "/var/log/harness/run.log": b"started\n",
    "/logs/verifier/old.txt": b"0\n",
}
"""What the battery's scripts are after, and which class it must be in for them to mean anything."""
CLASS_PATHS = {
    "system_binary": b"/usr/bin/tac",
    "grader": b"/grader/tests.py",
    "answer": b"/solution/answer.txt",
    "harness_log": b"/var/log/harness/run.log",
    "reward": b"/logs/verifier/old.txt",
}
RAW = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
words = [ctypes.c_long(int(word, 0)) for word in sys.argv[2:]]
code = ctypes.get_errno() if libc.syscall(*words) < 0 else 0
print(sys.argv[1], os.strerror(code))
sys.exit(code in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT))
"""
PRELUDE = f'raw() {{ python3 -c {shlex.quote(RAW)} "$@"; }}\n'
"""What the battery calls `raw`: one system call, status 1 where it is refused."""
CONNECT = """
import errno, socket, sys
with socket.socket() as one:
    one.settimeout(2)
    code = one.connect_ex((sys.argv[1], int(sys.argv[2])))
print(errno.errorcode.get(code, code))
sys.exit(code in (errno.EPERM, errno.EACCES, errno.ENETUNREACH))
"""
LONG = ".".join(["a" * 32] * (BELOW_WILDCARD_MAX_BYTES // 32))
"""More than may stand for a wildcard's `*`, dots counted."""
REFUSED_CODE = 5
"""A name server's word that it does not answer that (RFC 1035, section 4.1.1)."""
ADDRESSES = (("169.254.169.254", 80), ("192.0.2.1", 443))
"""A metadata service's address, and one that is nobody's (RFC 5737)."""

ASK = f"""
import socket, struct, sys
name = b"".join(bytes([len(one)]) + one.encode() for one in sys.argv[1].split(".")) + bytes(1)
with socket.socket(type=socket.SOCK_DGRAM) as one:
    one.settimeout(10)
    one.sendto(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + name + struct.pack("!2H", 1, 1), {(ADDRESS, PORT)})
    code = one.recv(999)[3] & 15
print("response code", code)
sys.exit(code == {REFUSED_CODE})
"""

BIND = """
import socket, sys
try:
    socket.create_server((sys.argv[1], int(sys.argv[2])))
except OSError as error:
    sys.exit(f"{error}")
"""
OWN = (("127.0.0.1", 47101), ("0.0.0.0", 47102))
"""Own addresses and ports that no program expects."""


UNNAMED: tuple[tuple[FileAccess, bytes, str], ...] = (
    ("read", b"/etc/hosts", 'cat -- "$1"'),
    ("read", b"/etc/shells", 'cat -- "$1"'),
    ("write", b"/etc/attack", 'echo x >"$1"'),
    ("write", b"/tmp/attack", 'echo x >"$1"'),
)
"""What every root has, or lets be made, and few rules name."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A script of bash that exits 0 only where the attack has worked. `tiers`: those that refuse it alone;
    `controlled`: it may be run where nothing refuses it, to see that it would work."""

    id: str
    does: str
    script: str
    tiers: tuple[str, ...]
    argument: bytes = b""
    controlled: bool = True


def battery(policy: Policy) -> Iterator[Attack]:
    """The attacks that the policy means to refuse, those that need a verifier of their own left out."""
    classes = protected.PathClasses(policy)
    for row in yaml.safe_load(BATTERY.read_text("utf-8"))["attacks"]:
        name, script = row.get("class"), row["script"]
        if "$VERIFIER" in script or "raw detached" in script or row.get("confined"):
            continue
        if name is not None and not _denied(classes, name):
            continue
        if "unless" in row and getattr(policy.syscalls, row["unless"]) == "allow":
            continue
        yield Attack(row["id"], row["does"], PRELUDE + script, tuple(row["tiers"]))


def _denied(classes: protected.PathClasses, name: str) -> bool:
    path = CLASS_PATHS[name]
    return classes.classify(path) == name and "deny" in (
        classes.access(path, "read"),
        classes.access(path, "write"),
    )


def on_paths(policy: Policy) -> Iterator[Attack]:
    """Reading and writing each path that the policy's classes deny."""
    access = protected.class_access(policy, "agent")
    for rule in protected.rules(policy):
        read, write = access[rule.name]
        shown = rule.path.decode("utf-8", "backslashreplace")
        if read == "deny":
            script = 'if [ -d "$1" ]; then ls -- "$1"; else cat -- "$1"; fi'
            yield Attack(f"read {shown}", f"class {rule.name}", script, ("mount", "apparmor"), rule.path)
        # What is hidden is not there, so that writing there writes a file of the agent's own.
        if write == "deny" and rule.name != protected.HIDDEN:
            script = 'if [ -d "$1" ]; then echo x >"$1/attack"; else echo x >>"$1"; fi'
            yield Attack(f"write {shown}", f"class {rule.name}", script, ("mount", "apparmor"), rule.path)


def on_unnamed(policy: Policy) -> Iterator[Attack]:
    """Files that no rule names, where the policy denies those."""
    for access, path, script in UNNAMED:
        decision = decide(policy, "agent", access, path)
        if decision is not None and decision.denied:
            shown = path.decode()
            yield Attack(f"{access} {shown}", "a file that no rule names", script, ("apparmor",), path)


def on_calls(names: list[str], numbers: dict[str, int]) -> Iterator[Attack]:
    """Each system call that the policy denies by name."""
    for name in names:
        if name in numbers:
            script = f"{PRELUDE}raw {name} {numbers[name]} -1 -1 -1 -1 -1 -1"
            yield Attack(
                f"call {name}", "a system call that the policy denies", script, ("seccomp",), controlled=False
            )


def on_addresses(addresses: list[tuple[str, int]]) -> Iterator[Attack]:
    """Connecting to addresses that the policy does not let the agent reach."""
    for address, port in addresses:
        script = f"python3 -c {shlex.quote(CONNECT)} {address} {port}"
        what = "an address that the policy does not name"
        yield Attack(f"connect {address}:{port}", what, script, ("network",), controlled=False)


def on_names(policy: Policy) -> Iterator[Attack]:
    """Asking the sandbox's name server for names that no rule hands out: a stranger's, a neighbour's of each
    zone, and one below each that tells its owner more than a name may."""
    if not has_names(policy, ("agent",)):
        return
    rules = network_of(policy, "agent")
    zones = [canonical(rule.target)[2:] for rule in rules_by_name(rules) if is_wildcard(rule.target)]
    tries = {"attack.invalid": "a name that the policy does not name"}
    for zone in zones:
        tries[f"attack-{zone}"] = "a name that ends like those of a zone"
        tries[f"{LONG}.{zone}"] = "more below a zone than a name may tell"
    known = NameRules(rules)
    for name, what in tries.items():
        if len(name) <= NAME_MAX_BYTES and not known.decide(canonical(name)).allowed:
            script = f"python3 -c {shlex.quote(ASK)} {shlex.quote(name)}"
            yield Attack(f"ask {name}", what, script, ("network",), controlled=False)


def on_own_ports(places: list[tuple[str, int]]) -> Iterator[Attack]:
    """Listening where the policy does not let the agent listen."""
    for address, port in places:
        script = f"python3 -c {shlex.quote(BIND)} {address} {port}"
        yield Attack(f"listen {address}:{port}", "a port that the policy does not name", script, ("network",))
