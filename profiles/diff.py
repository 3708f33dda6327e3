"""What becomes possible and what impossible when one policy takes another's place, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from invigilator.profiles import diff_rules, network, reach, seccomp
from invigilator.profiles.paths import canonical, to_bytes, to_text
from invigilator.profiles.policy import Access, EgressRule, IoLimits, PhaseName, Policy
from invigilator.profiles.protected import HIDDEN, PathClasses, rules

PHASES: tuple[PhaseName, ...] = ("setup", "agent", "verify")
_FREEDOM: dict[Access, int] = {"deny": 0, "watch": 1, "allow": 2}
_WORDS: dict[Access, str] = {"deny": "refused", "watch": "allowed, and an incident", "allow": "allowed"}

Effect = Literal["possible", "impossible", "judged"]
_SIGNS: dict[Effect, str] = {"possible": "+", "impossible": "-", "judged": "~"}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `possible`: more may be done; `impossible`: less; `judged`: the same may be done, but
    it is recorded, judged or priced differently. `phases`: where it holds; none: it depends on no phase."""

    effect: Effect
    text: str
    phase: PhaseName | None = None
    phases: tuple[PhaseName, ...] = ()

    def __str__(self) -> str:
        where = _in_phases(self.phases)
        return f"{_SIGNS[self.effect]} {self.text}{where}"


def _in_phases(phases: tuple[PhaseName, ...]) -> str:
    if not phases or len(phases) == len(PHASES):
        return ""
    return f", in phase{'s' if len(phases) > 1 else ''} {' and '.join(phases)}"


def diff(old: Policy, new: Policy) -> list[Change]:
    """Every difference between two policies, sorted: possible, impossible, judged."""
    found = [
        *_mode(old, new),
        *_files(old, new),
        *_workspaces(old, new),
        *_network(old, new),
        *_syscalls(old, new),
        *_rules(old, new),
        *_limits(old, new),
        *_survivors(old, new),
        *_detection(old, new),
        *_penalty(old, new),
    ]
    order = {"possible": 0, "impossible": 1, "judged": 2}
    return sorted(_by_phases(found), key=lambda change: order[change.effect])


def _by_phases(changes: list[Change]) -> list[Change]:
    """One change where several phases have the same."""
    phases: dict[Change, list[PhaseName]] = {}
    for change in changes:
        held = phases.setdefault(replace(change, phase=None), [])
        if change.phase:
            held.append(change.phase)
    return [replace(change, phases=tuple(held)) for change, held in phases.items()]


def _mode(old: Policy, new: Policy) -> Iterator[Change]:
    if old.mode != new.mode:
        effect: Effect = "possible" if new.mode == "observe" else "impossible"
        what = (
            "everything is recorded and nothing refused" if new.mode == "observe" else "denials are enforced"
        )
        yield Change(effect, f"mode {old.mode} → {new.mode}: {what}")
    for tier in sorted({*old.require} ^ {*new.require}):
        if tier in new.require:
            yield Change("impossible", f"a sandbox starts on a node without {tier}")
        else:
            yield Change("possible", f"a sandbox starts on a node without {tier}")


def _files(old: Policy, new: Policy) -> Iterator[Change]:
    """Compared at every path that either names: between those, both are constant."""
    paths = sorted({rule.path for policy in (old, new) for rule in rules(policy)})
    for phase in PHASES:
        before, after = PathClasses(old, phase), PathClasses(new, phase)
        for path in paths:
            hidden = before.classify(path) == HIDDEN, after.classify(path) == HIDDEN
            if hidden[0] != hidden[1]:
                effect: Effect = "impossible" if hidden[1] else "possible"
                yield Change(effect, f"seeing {to_text(path)} at all", phase)
                continue
            yield from _access(phase, path, before, after)
    for path in paths:
        one, two = PathClasses(old).classify(path), PathClasses(new).classify(path)
        if one != two and HIDDEN not in (one, two):
            yield Change("judged", f"{to_text(path)} is of class {two or 'none'}, was {one or 'none'}")


def _access(phase: PhaseName, path: bytes, before: PathClasses, after: PathClasses) -> Iterator[Change]:
    actions: tuple[Literal["read", "write"], ...] = ("read", "write")
    for action in actions:
        one, two = before.access(path, action), after.access(path, action)
        if one == two:
            continue
        text = f"{action} {to_text(path)} and below: {_WORDS[two]} (was {_WORDS[one]})"
        if "deny" in (one, two):
            yield Change("possible" if _FREEDOM[two] > _FREEDOM[one] else "impossible", text, phase)
        else:
            yield Change("judged", text, phase)


def _workspaces(old: Policy, new: Policy) -> Iterator[Change]:
    for key, what in (("workspace", "working in {} (copied back)"), ("submission", "handing in {}")):
        one = {canonical(to_bytes(path)) for path in getattr(old.filesystem, key)}
        two = {canonical(to_bytes(path)) for path in getattr(new.filesystem, key)}
        yield from (Change("possible", what.format(to_text(path))) for path in sorted(two - one))
        yield from (Change("impossible", what.format(to_text(path))) for path in sorted(one - two))


def _network(old: Policy, new: Policy) -> Iterator[Change]:
    for phase in PHASES:
        one, two = network.network_of(old, phase), network.network_of(new, phase)
        for opened, rule in reach.differences(one, two):
            what = _rule(rule) if rule else "reaching what no egress rule names"
            yield Change("possible" if opened else "impossible", what, phase)
        own, others = network.binds_of(old, phase), network.binds_of(new, phase)
        for opened, rule in reach.differences(own, others, first_port=0):
            what = _bind(rule) if rule else "taking addresses and ports that no bind rule names"
            yield Change("possible" if opened else "impossible", what, phase)


def _rule(rule: EgressRule) -> str:
    private = ", private addresses too" if rule.private else ""
    return f"connecting to {rule.target}, {_ports(rule)}{private}"


def _bind(rule: EgressRule) -> str:
    where = "any address" if rule.target == network.EVERY_ADDRESS else rule.target
    return f"taking {_ports(rule)} of {where}"


def _ports(rule: EgressRule) -> str:
    ports = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in network.port_ranges(rule.ports))
    protocol = "" if rule.protocol == "any" else f" ({rule.protocol})"
    return (f"port {ports}" if rule.ports else "every port") + protocol


def _syscalls(old: Policy, new: Policy) -> Iterator[Change]:
    for phase in PHASES:
        one, two = seccomp.syscalls_of(old, phase), seccomp.syscalls_of(new, phase)
        for name in sorted({*one.deny} ^ {*two.deny}):
            yield Change("impossible" if name in two.deny else "possible", f"system call {name}", phase)
        for key in ("io_uring", "foreign_abi", "userns", "tiocsti", "extent_exchange"):
            before, after = getattr(one, key), getattr(two, key)
            if before == after:
                continue
            effect: Effect = "judged"
            if "deny" in (before, after):
                effect = "impossible" if after == "deny" else "possible"
            yield Change(effect, f"{key}: {after} (was {before})", phase)


def _rules(old: Policy, new: Policy) -> Iterator[Change]:
    for phase in PHASES:
        for possible, text in diff_rules.changes(old, new, phase):
            yield Change("possible" if possible else "impossible", text, phase)


def _limits(old: Policy, new: Policy) -> Iterator[Change]:
    names = {
        "memory_bytes": "memory",
        "cpus": "cores",
        "pids": "processes",
        "disk_bytes": "disk",
        "output_bytes": "recorded output",
        "ttl_s": "time",
    }
    for key, name in names.items():
        before, after = getattr(old.limits, key), getattr(new.limits, key)
        if before != after:
            text = f"{name} up to {_amount(key, after)} (was {_amount(key, before)})"
            yield Change("possible" if after > before else "impossible", text)
    yield from _io(old.limits.io, new.limits.io)


def _io(old: IoLimits, new: IoLimits) -> Iterator[Change]:
    names = {
        "read_bytes_per_s": "reading of a disk",
        "write_bytes_per_s": "writing to a disk",
        "read_ops_per_s": "reads of a disk",
        "write_ops_per_s": "writes to a disk",
    }
    for key, name in names.items():
        before, after = getattr(old, key), getattr(new, key)
        if before != after:
            more = after is None or (before is not None and after > before)
            text = f"{name} {_rate(key, after)} (was {_rate(key, before)})"
            yield Change("possible" if more else "impossible", text)


def _rate(key: str, value: int | None) -> str:
    if value is None:
        return "without limit"
    return f"up to {_amount(key.removesuffix('_per_s'), value)} a second"


def _amount(key: str, value: float) -> str:
    if key.endswith("_s"):
        return f"{value:g} s"
    if not key.endswith("_bytes"):
        return f"{value:g}"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"


def _survivors(old: Policy, new: Policy) -> Iterator[Change]:
    for phase in PHASES:
        one, two = (
            policy.phases[phase].survivors if phase in policy.phases else "end" for policy in (old, new)
        )
        if one != two:
            effect: Effect = "possible" if two == "keep" else "impossible"
            yield Change(effect, "a process of an earlier phase lives on", phase)


def _detection(old: Policy, new: Policy) -> Iterator[Change]:
    for key, word in (("disabled", "disabled"), ("monitor_only", "monitor-only")):
        one, two = set(getattr(old.detectors, key)), set(getattr(new.detectors, key))
        yield from (Change("judged", f"detector {name} is {word}") for name in sorted(two - one))
        yield from (Change("judged", f"detector {name} is no longer {word}") for name in sorted(one - two))
    before, after = _flat(old.detectors.thresholds), _flat(new.detectors.thresholds)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            text = f"threshold {name}: {_said(after.get(name))} (was {_said(before.get(name))})"
            yield Change("judged", text)
    spots = [{(spot.under, spot.channel) for spot in policy.filesystem.canaries} for policy in (old, new)]
    yield from (
        Change("judged", f"a canary is planted under {under}") for under, _ in sorted(spots[1] - spots[0])
    )
    yield from (Change("judged", f"no canary under {under}") for under, _ in sorted(spots[0] - spots[1]))


def _penalty(old: Policy, new: Policy) -> Iterator[Change]:
    before = _flat(old.penalty.model_dump())
    after = _flat(new.penalty.model_dump())
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            text = f"penalty {name}: {_said(after.get(name))} (was {_said(before.get(name))})"
            yield Change("judged", text)


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _said(value: Any) -> str:
    if value is None:
        return "the default"
    return f"{value:g}" if isinstance(value, (int, float)) else str(list(value))
