"""What a policy may not say although each part of it is well written: rules that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from invigilator.profiles import binds, conflicts, protected
from invigilator.profiles.conflicts import Finding
from invigilator.profiles.kinds import kinds
from invigilator.profiles.names import covers
from invigilator.profiles.network import PROTOCOLS, network_of, port_ranges, target_network
from invigilator.profiles.paths import canonical, to_bytes, to_text
from invigilator.profiles.policy import CLASS_DEFAULTS, EgressRule, IoLimits, PhaseName, Policy, Syscalls
from invigilator.profiles.validate import suggest

MEMORY_MIN_BYTES = 16 << 20
"""A shell with one Python below it does not start in less."""
IO_MIN_BYTES_PER_S, IO_MIN_OPS_PER_S = 1 << 20, 20
"""Below, the 40 MiB and some hundred reads that a start of Python takes from a cold disk last a minute."""
ESSENTIAL_CALLS = frozenset(
    {
        "brk",
        "close",
        "execve",
        "exit",
        "exit_group",
        "mmap",
        "mprotect",
        "openat",
        "read",
        "rt_sigreturn",
        "write",
    }
)
"""What the dynamic loader and the C library's start need (strace of /bin/true)."""
PHASES: tuple[PhaseName, ...] = ("setup", "agent", "verify")


def findings(policy: Policy) -> Iterator[Finding]:
    """Every contradiction (errors), and what is legal but likely a mistake (warnings)."""
    yield from _classes(policy)
    yield from _nesting(policy)
    yield from _egress(policy)
    yield from binds.findings(policy)
    yield from _possible(policy)
    yield from _detectors(policy)
    yield from _penalty(policy)
    yield from conflicts.findings(policy)


def _classes(policy: Policy) -> Iterator[Finding]:
    for name in policy.filesystem.protected:
        where: tuple[str | int, ...] = ("filesystem", "protected", name)
        if name == protected.HIDDEN:
            yield Finding(
                where, "`hidden` is no class of its own", "list its paths under `filesystem.hidden`"
            )
        elif name not in CLASS_DEFAULTS:
            meant = suggest(name, CLASS_DEFAULTS)
            fix = f"write `{meant}`" if meant else f"known classes: {', '.join(CLASS_DEFAULTS)}"
            yield Finding(where, f"no detector knows the class `{name}`", fix, "warning")
    for phase, rules in policy.phases.items():
        for name in rules.protected:
            if name not in policy.filesystem.protected:
                where = ("phases", phase, "protected", name)
                yield Finding(
                    where, f"the policy has no class `{name}`", "give it paths in `filesystem.protected`"
                )


def _nesting(policy: Policy) -> Iterator[Finding]:
    first: dict[bytes, protected.Rule] = {}
    files = policy.filesystem
    for rule in protected.rules(policy):
        other = first.setdefault(rule.path, rule)
        if other.name != rule.name:
            message = f"`{to_text(rule.path)}` is in the class `{other.name}` already"
            yield Finding(rule.where, message, "keep it in one of the two", other=other.where)
        if rule.path == b"/":
            yield Finding(rule.where, "`/` would put the whole sandbox into the class", "name the folders")
        if any(c in rule.path for c in b"*?"):
            message = f"`{to_text(rule.path)}` is taken literally, with its `*` or `?`"
            yield Finding(rule.where, message, "name the folder: a class holds all below it", "warning")
    yield from _under_hidden(policy)
    yield from _under_denied(policy)
    classes = protected.PathClasses(policy)
    for index, path in enumerate(files.submission):
        if classes.access(to_bytes(path), "write") == "deny":
            name = classes.classify(to_bytes(path))
            message = f"nothing can be handed in at `{path}`: the class `{name}` denies writing"
            yield Finding(("filesystem", "submission", index), message, "hand in elsewhere, or allow writing")


def _under_hidden(policy: Policy) -> Iterator[Finding]:
    files = policy.filesystem
    hidden: list[tuple[bytes, tuple[str | int, ...]]] = [
        (canonical(to_bytes(path)), ("filesystem", "hidden", index))
        for index, path in enumerate(files.hidden)
    ]
    named = [(rule.path, rule.where) for rule in protected.rules(policy) if rule.name != protected.HIDDEN]
    for key, paths in (("workspace", files.workspace), ("submission", files.submission)):
        named += [(canonical(to_bytes(path)), ("filesystem", key, i)) for i, path in enumerate(paths)]
    named += [
        (canonical(to_bytes(canary.under)), ("filesystem", "canaries", index, "under"))
        for index, canary in enumerate(files.canaries)
    ]
    for path, where in named:
        for cover, other in hidden:
            if path == cover or path.startswith(cover.rstrip(b"/") + b"/"):
                message = f"`{to_text(path)}` is never there: `{to_text(cover)}` is hidden"
                yield Finding(where, message, "remove one of the two", other=other)


def _under_denied(policy: Policy) -> Iterator[Finding]:
    """A mount that covers a path covers all below it, whatever the classes there allow."""
    access = protected.class_access(policy, "agent")
    denied = [rule for rule in protected.rules(policy) if access[rule.name][0] == "deny"]
    for rule in protected.rules(policy):
        read, _ = access[rule.name]
        cover = next((each for each in denied if rule.path.startswith(each.path + b"/")), None)
        if read != "deny" and cover is not None and cover.name != protected.HIDDEN:
            message = (
                f"`{to_text(rule.path)}` may be read, but below `{to_text(cover.path)}`, "
                "which may not: what covers that covers it too"
            )
            yield Finding(rule.where, message, f"put it outside `{to_text(cover.path)}`", "warning")


def _egress(policy: Policy) -> Iterator[Finding]:
    seen: set[tuple[str, ...]] = set()
    for phase in PHASES:
        network = network_of(policy, phase)
        own = network.egress != policy.network.egress
        base: tuple[str, ...] = ("phases", phase, "network") if own else ("network",)
        if base in seen:
            continue
        seen.add(base)
        for index, rule in enumerate(network.egress):
            yield from _covered((*base, "egress", index), rule, network.egress[:index])


def _possible(policy: Policy) -> Iterator[Finding]:
    """What no sandbox could start under."""
    memory = policy.limits.memory_bytes
    if memory < MEMORY_MIN_BYTES:
        message = f"nothing starts in {memory} bytes of memory"
        yield Finding(("limits", "memory"), message, f"write at least `{MEMORY_MIN_BYTES >> 20}MiB`")
    yield from _io(policy)
    denied: list[tuple[tuple[str | int, ...], Syscalls]] = [(("syscalls",), policy.syscalls)]
    for phase, rules in policy.phases.items():
        if rules.syscalls is not None and rules.syscalls.deny != policy.syscalls.deny:
            denied.append((("phases", phase, "syscalls"), rules.syscalls))
    for base, calls in denied:
        for index, name in enumerate(calls.deny):
            if name in ESSENTIAL_CALLS:
                yield Finding((*base, "deny", index), f"no program starts without `{name}`", "remove it")
    for index, rule in enumerate(policy.seccomp.raw):
        for number, name in enumerate(rule.names):
            if name in ESSENTIAL_CALLS and not rule.args and rule.action == "SCMP_ACT_ERRNO":
                where = ("seccomp", "raw", index, "names", number)
                yield Finding(where, f"no program starts without `{name}`", "remove it, or add `args`")


def _io(policy: Policy) -> Iterator[Finding]:
    io = policy.limits.io
    least: dict[str, tuple[int | None, int, str]] = {
        "read": (io.read_bytes_per_s, IO_MIN_BYTES_PER_S, "1MiB/s"),
        "write": (io.write_bytes_per_s, IO_MIN_BYTES_PER_S, "1MiB/s"),
        "read_ops": (io.read_ops_per_s, IO_MIN_OPS_PER_S, f"{IO_MIN_OPS_PER_S}/s"),
        "write_ops": (io.write_ops_per_s, IO_MIN_OPS_PER_S, f"{IO_MIN_OPS_PER_S}/s"),
    }
    for key, (value, minimum, fix) in least.items():
        if value is not None and value < minimum:
            message = "so slow a disk holds programs up for minutes"
            yield Finding(("limits", "io", key), message, f"write at least `{fix}`", "warning")
    for index, tier in enumerate(policy.require):
        if tier == "io" and io == IoLimits():
            message = "`io` is required, and `limits.io` limits nothing"
            yield Finding(("require", index), message, "write `limits: {io: {write: 50MiB/s}}`, or remove it")


def _covered(where: tuple[str | int, ...], rule: EgressRule, earlier: list[EgressRule]) -> Iterator[Finding]:
    for index, other in enumerate(earlier):
        if other.name == rule.name:
            message = f"two rules are named `{rule.name}`"
            yield Finding((*where, "name"), message, "name them apart", other=(*where[:-1], index))
        elif _covers(other, rule):
            severity: Literal["error", "warning"] = "warning" if other.action == rule.action else "error"
            message = f"`{rule.name}` never decides: `{other.name}` stands before it and covers it"
            fix = f"put it before `{other.name}`, or remove it"
            yield Finding(where, message, fix, severity, (*where[:-1], index))
            return


def _covers(wide: EgressRule, narrow: EgressRule) -> bool:
    if PROTOCOLS[wide.protocol] not in (0, PROTOCOLS[narrow.protocol]):
        return False
    ports = port_ranges(wide.ports)
    if not all(any(a <= low and high <= b for a, b in ports) for low, high in port_ranges(narrow.ports)):
        return False
    one, two = target_network(wide.target), target_network(narrow.target)
    if one is None or two is None:
        return one is two and covers(wide.target, narrow.target)
    return one.version == two.version and two.subnet_of(one)  # type: ignore[arg-type]


def _detectors(policy: Policy) -> Iterator[Finding]:
    detectors = policy.detectors
    listed = {
        ("detectors", "disabled"): detectors.disabled,
        ("detectors", "monitor_only"): detectors.monitor_only,
    }
    for where, names in listed.items():
        for index, name in enumerate(names):
            yield from _known_kind((*where, index), name)
    for name in detectors.thresholds:
        yield from _known_kind(("detectors", "thresholds", name), name)
    for index, name in enumerate(detectors.disabled):
        if name in detectors.monitor_only:
            message = f"`{name}` is both disabled and monitor-only"
            yield Finding(("detectors", "disabled", index), message, "keep it in one of the two lists")
    for name, protected_class in policy.filesystem.protected.items():
        watching = [kind for kind, facts in kinds().items() if name in facts.classes]
        if protected_class.paths and watching and not set(watching) - set(detectors.disabled):
            message = f"every detector that watches the class `{name}` is disabled ({', '.join(watching)})"
            yield Finding(
                ("filesystem", "protected", name), message, "enable one, or drop the class", "warning"
            )


def _known_kind(where: tuple[str | int, ...], name: str) -> Iterator[Finding]:
    if name not in kinds():
        meant = suggest(name, kinds())
        fix = f"write `{meant}`" if meant else "docs/detectors.md names those that are there"
        yield Finding(where, f"no detector `{name}` in the library", fix, "warning")


def _penalty(policy: Policy) -> Iterator[Finding]:
    penalty = policy.penalty
    low, high = penalty.reward_range
    span = high - low
    if span <= 0:
        fix = f"write [{min(low, high):g}, {max(low, high) if span else low + 1:g}]"
        yield Finding(("penalty", "reward_range"), "the highest reward must be above the lowest", fix)
        return
    judged = set(kinds()) - set(policy.detectors.disabled) - set(policy.detectors.monitor_only)
    for kind, weight in penalty.weights.items():
        where = ("penalty", "weights", kind)
        if kind not in kinds():
            yield from _known_kind(where, kind)
        elif kinds()[kind].cheat and kind in judged and 0 < min(weight, penalty.cap) <= span:
            cost = min(weight, penalty.cap)
            too_low = ("penalty", "cap") if penalty.cap <= span else where
            yield Finding(
                too_low,
                f"a successful `{kind}` scores {high:g} - {cost:g} = {high - cost:g}, "
                f"no less than an honest failure ({low:g})",
                f"write a weight and a cap above {span:g}",
            )
