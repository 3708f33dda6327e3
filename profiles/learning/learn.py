"""Facts of recordings and a base → the text of a policy that allows what was recorded, and little more.

It is about the agent's phase; setup and verify stay as the base has them. What the base decides itself (its
classes, the workspace, its rules) is not said again, and what it denies is not learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from invigilator.profiles import access, protected
from invigilator.profiles.apparmor import raw
from invigilator.profiles.apparmor.names import NameRefusedError, literal
from invigilator.profiles.apparmor.statements import RULE_MAX
from invigilator.profiles.learning import network, writing
from invigilator.profiles.learning.facts import Recording, Use
from invigilator.profiles.learning.tree import Pattern, patterns
from invigilator.profiles.paths import PATH_MAX, canonical, to_bytes
from invigilator.profiles.policy import Policy
from invigilator.profiles.source import FILE_MAX_BYTES

CALLS: Mapping[str, tuple[str, ...]] = {
    "PTRACE": ("ptrace",),
    "VM_ACCESS": ("process_vm_readv", "process_vm_writev"),
    "PIDFD_GETFD": ("pidfd_getfd",),
    "SETNS": ("setns",),
    "CHROOT": ("chroot",),
    "MOUNT": ("mount", "umount2", "move_mount", "open_tree", "fsopen", "fsmount", "pivot_root"),
}
"""Kind of event → system calls that only it tells of: where none was seen, the learned policy denies them."""
DEFAULT = "filesystem.default_action: deny"


class TooMuchError(ValueError):
    """What was recorded does not fit into a policy."""


@dataclass(frozen=True)
class Learned:
    """A policy's text; `covered`: the uses that it allows by rules of its own or by the base's; `patterns`:
    its file rules, those with `instances` generalised; `left_out`: reason → what and how often."""

    text: str
    covered: frozenset[Use]
    patterns: tuple[Pattern, ...]
    left_out: dict[str, Counter[bytes]] = field(default_factory=dict)


def learn(
    recordings: Sequence[Recording],
    base: Policy,
    *,
    name: str,
    extends: str,
    hosts: Mapping[str, Sequence[str]] | None = None,
) -> Learned:
    """The policy `name` over `base`, which its text calls `extends`. Same facts, same text.

    `hosts`: addresses of names, by which an address that was reached becomes a rule for its name; a name that
    is not in it stays unused. Raises TooMuchError.
    """
    left_out: dict[str, Counter[bytes]] = {}
    for recording in recordings:
        for reason, what in recording.left_out.items():
            left_out.setdefault(reason, Counter()).update(what)
    given, own = _files(recordings, base, left_out)
    found = patterns(own, _kept_apart(recordings, base))
    egress = network.rules(recordings, base, dict(hosts or {}), left_out)
    denied = _denied_calls(base)
    seen = {call for recording in recordings for call in recording.calls}
    calls = [
        call for kind, names in CALLS.items() if kind not in seen for call in names if call not in denied
    ]
    text = writing.text(
        writing.Content(
            name,
            extends,
            [one.title for one in recordings],
            found,
            egress,
            network.binds(recordings, base, left_out),
            calls,
            _rest(base),
            network.kept(base),
            left_out,
        )
    )
    if len(text.encode()) > FILE_MAX_BYTES:
        raise TooMuchError(
            f"the policy would have {len(text.encode())} bytes, and a policy has at most {FILE_MAX_BYTES}: "
            "name the folders that were used most in a policy of your own, and extend that"
        )
    return Learned(text, frozenset(given | own), tuple(found), left_out)


def _denied_calls(base: Policy) -> set[str]:
    agent = base.phases.get("agent")
    return set((agent.syscalls if agent and agent.syscalls else base.syscalls).deny)


def _rest(base: Policy) -> frozenset[str]:
    held = {
        "files": base.filesystem.files,
        "raw": raw.of(base, "agent"),
        "calls": _denied_calls(base),
    }
    return frozenset(name for name, entries in held.items() if entries)


def _files(
    recordings: Sequence[Recording], base: Policy, left_out: dict[str, Counter[bytes]]
) -> tuple[set[Use], set[Use]]:
    """(what the base allows anyway, what the policy has to)."""
    strict = base.model_copy(
        update={
            "filesystem": base.filesystem.model_copy(update={"default_action": "deny"}),
            "mode": "enforce",
        }
    )
    classes = protected.PathClasses(strict)
    given: set[Use] = set()
    own: set[Use] = set()
    uses: Counter[Use] = Counter()
    for recording in recordings:
        uses.update(recording.uses)
    for use, count in uses.items():
        reason = _unfit(use.path) or _denied(strict, classes, use)
        if reason == DEFAULT:
            own.add(use)
        elif reason is None:
            given.add(use)
        else:
            left_out.setdefault(reason, Counter())[use.path] += count
    return given, own


def _denied(strict: Policy, classes: protected.PathClasses, use: Use) -> str | None:
    decision = access.decide(strict, "agent", use.access, use.path)
    if decision is not None and decision.denied:
        return DEFAULT if decision.rule == DEFAULT else f"the base denies it ({decision.rule})"
    if decision is None and classes.access(use.path, access.SIDES[use.access]) == "deny":
        return f"the base denies the class {classes.classify(use.path)} to the agent"
    return None


def _unfit(path: bytes) -> str | None:
    if not path.startswith(b"/") or path != canonical_text(path):
        return "no absolute path is known of it"
    if len(path) >= PATH_MAX:
        return "its path is longer than a policy's may be"
    try:
        if len(literal(path)) > RULE_MAX // 2:
            return "its path is longer than a rule may be"
    except NameRefusedError as error:
        return str(error)
    return None


def canonical_text(path: bytes) -> bytes:
    """`path` with single slashes and neither `.` nor `..`: what a policy can name."""
    return b"/" + b"/".join(part for part in path.split(b"/") if part not in (b"", b".", b".."))


def _kept_apart(recordings: Sequence[Recording], base: Policy) -> set[bytes]:
    """Programs that ran, and the folders that the base has something to say about."""
    ran = {use.path for recording in recordings for use in recording.uses if use.access in ("exec", "mmap")}
    named = {rule.path for rule in protected.rules(base)}
    own = [*base.filesystem.workspace, *base.filesystem.submission]
    own += [path for rule in base.filesystem.files for path in rule.paths]
    own += [canary.under for canary in base.filesystem.canaries]
    return ran | named | {canonical(to_bytes(path)) for path in own}
