"""What a policy says about files, as rules of a profile.

Classes and `filesystem.files` are denials over an allowance of everything, since root in a sandbox owns its
copy of the root; with `default_action: deny` the agent gets an allowance of what the policy names instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from invigilator.profiles import protected
from invigilator.profiles.apparmor.line import Line, Where, letters
from invigilator.profiles.apparmor.names import ancestors, literal, other_names, quoted, territory
from invigilator.profiles.apparmor.statements import LETTERS
from invigilator.profiles.paths import ALIASES, canonical, to_bytes
from invigilator.profiles.policy import FileRule, PhaseName, Policy

READ = frozenset("rxkm")
"""What `read: deny` of a class refuses: also to run, to lock and to map it."""
WRITE = frozenset("wl")
ALL = frozenset("rwlkmx")
EVERYTHING = "/{,**}"
KERNEL = (
    ("/proc/sys/**", "wl"),
    ("/proc/{sysrq-trigger,kcore,kmem,kpage*,acpi/**,bus/**,fs/**,irq/**,scsi/**}", "wl"),
    ("/proc/{kcore,kmem,kpage*,sysrq-trigger}", "r"),
    ("/sys/**", "wl"),
    ("/sys/{kernel/{security,debug,tracing},fs/bpf,firmware}/**", "rkmx"),
    ("/dev/{mem,kmem,port,kmsg,loop-control,mapper/**,sd*,nvme*,vd*}", "rwl"),
)
"""Doors to the host's kernel that a sandbox has no use for; its mounts cover most of them too."""
ESSENTIAL = (
    ("/", "r"),
    ("/dev/", "r"),
    ("/dev/{null,zero,full,random,urandom,tty,ptmx}", "rw"),
    ("/dev/{pts,fd,shm,mqueue}/{,**}", "rwk"),
    ("/{null,dev/stdin,dev/stdout,dev/stderr}", "rw"),
    ("/{memfd:*,SYSV*,dev/zero}{, (deleted)}", "rwkm"),
    ("/proc/{,**}", "r"),
    ("/sys/devices/system/{cpu,node}/{,**}", "r"),
    (
        "/proc/[0-9]*/{,task/[0-9]*/}{comm,oom_score_adj,coredump_filter,fd/*,attr/**,{uid,gid}_map,setgroups}",
        "rw",
    ),
)
"""What programs need before they do anything of their own: streams, terminals, /proc, how many processors."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a sandbox's root looks like. `aliases`: links on it and where they lead. `pinned`: folders that
    nothing can rename, such as mount points, beside the policy's workspaces."""

    aliases: tuple[tuple[bytes, bytes], ...] = ALIASES
    pinned: frozenset[bytes] = field(default_factory=frozenset)


class Denial(NamedTuple):
    """`access` (letters) refused at `path` and below it, but not at `spared` and below those."""

    path: bytes
    access: frozenset[str]
    spared: tuple[bytes, ...]
    where: Where


def lines(policy: Policy, phase: PhaseName, layout: Layout) -> Iterator[Line]:
    """The rules about files of one phase. NameRefusedError, with `where`, for a path that has no pattern."""
    allowing = list(_allowed(policy, phase, layout))
    listed = phase == "agent" and policy.filesystem.default_action == "deny"
    yield from allowing if listed else [Line(f"{quoted(EVERYTHING)} {letters(ALL)},")]
    if policy.mode == "observe":
        yield from _observed(denials(policy, phase), layout)
        return
    yield from (Line(f"audit deny {quoted(pattern)} {access},") for pattern, access in KERNEL)
    yield from _refused(denials(policy, phase), layout, _pinned(policy, layout))


def denials(policy: Policy, phase: PhaseName) -> list[Denial]:
    """What is refused in a phase, by classes and by rules, whatever the mode."""
    access = protected.class_access(policy, phase)
    rules = protected.rules(policy)
    found = []
    for rule in rules:
        inside = [other for other in rules if other.path.startswith(rule.path.rstrip(b"/") + b"/")]
        by_spared: dict[tuple[bytes, ...], frozenset[str]] = {}
        for side, refused in enumerate((READ, WRITE)):
            if access[rule.name][side] == "deny":
                spared = tuple(other.path for other in inside if access[other.name][side] != "deny")
                by_spared[spared] = by_spared.get(spared, frozenset()) | refused
        found += [Denial(rule.path, refused, spared, rule.where) for spared, refused in by_spared.items()]
    for index, rule_of_files in enumerate(policy.filesystem.files):
        if phase in rule_of_files.phases and rule_of_files.deny:
            refused = frozenset(LETTERS[name] for name in rule_of_files.deny)
            found += [Denial(path, refused, (), where) for path, where in paths_of(rule_of_files, index)]
    return found


def paths_of(rule: FileRule, index: int) -> list[tuple[bytes, Where]]:
    """(path, where it stands) of a rule of `filesystem.files`."""
    return [
        (canonical(to_bytes(path)), ("filesystem", "files", index, "paths", number))
        for number, path in enumerate(rule.paths)
    ]


def _pinned(policy: Policy, layout: Layout) -> frozenset[bytes]:
    return layout.pinned | {canonical(to_bytes(path)) for path in policy.filesystem.workspace}


def _refused(found: Sequence[Denial], layout: Layout, pinned: frozenset[bytes]) -> Iterator[Line]:
    for denial in found:
        access = letters(denial.access, deny=True)
        for name, pattern in _named(denial.path, denial.spared, layout):
            yield Line(f"audit deny {quoted(pattern)} {access},", denial.where)
            if denial.access & frozenset("rwl"):
                # Else a link elsewhere would be the way to it: the kernel compares the rights of a link and
                # its target only where the caller owns the target (profile_path_link, file.c).
                yield Line(f"audit deny link {quoted('/**')} -> {quoted(pattern)},", denial.where)
            if denial.access & frozenset("rw"):
                yield from _held(name, pinned, denial.where)


def _held(name: bytes, pinned: frozenset[bytes], where: Where) -> Iterator[Line]:
    """The folders on the way may not be renamed, or what is denied would be reached by another name."""
    for folder in ancestors(name):
        if folder not in pinned:
            yield Line(f"audit deny {quoted(literal(folder) + '/')} w,", where)


def _observed(found: Sequence[Denial], layout: Layout) -> Iterator[Line]:
    """The same paths, allowed and on the record: a denial would hold in complain mode too."""
    for denial in found:
        for _, pattern in _named(denial.path, denial.spared, layout):
            yield Line(f"audit {quoted(pattern)} {letters(denial.access)},", denial.where)


def _named(path: bytes, spared: Sequence[bytes], layout: Layout) -> Iterator[tuple[bytes, str]]:
    """(name, pattern) for each name that the kernel may have for the path or a part of it."""
    for name, meant in other_names(path, layout.aliases):
        if any(meant == other or meant.startswith(other + b"/") for other in spared):
            continue
        below = meant.rstrip(b"/") + b"/"
        yield (
            name,
            territory(name, [name + other[len(meant) :] for other in spared if other.startswith(below)]),
        )


def _allowed(policy: Policy, phase: PhaseName, layout: Layout) -> Iterator[Line]:
    """All that the policy names, and what every program needs."""
    base: Where = ("filesystem", "default_action")
    yield from (Line(f"{quoted(pattern)} {access},", base) for pattern, access in ESSENTIAL)
    links: dict[frozenset[str], list[str]] = {}
    for path, access, where in allowances(policy, phase):
        for _, pattern in _named(path, (), layout):
            kept = access - {"l"}
            if kept:
                yield Line(f"{quoted(pattern)} {letters(kept)},", where)
            if "l" in access:
                links.setdefault(access, []).append(pattern)
    for access, names in links.items():
        targets = [one for other, patterns in links.items() if access <= other for one in patterns]
        yield Line(f"link {quoted(_either(names))} -> {quoted(_either(targets))},", base)


def allowances(policy: Policy, phase: PhaseName) -> Iterator[tuple[bytes, frozenset[str], Where]]:
    """(path, letters, where): what the policy names and allows, for itself and all below."""
    files = policy.filesystem
    for index, folder in enumerate(files.workspace):
        yield canonical(to_bytes(folder)), ALL, ("filesystem", "workspace", index)
    access = protected.class_access(policy, phase)
    for rule in protected.rules(policy):
        read, write = access[rule.name]
        found = (READ if read != "deny" else frozenset()) | (WRITE if write != "deny" else frozenset())
        if found:
            yield rule.path, found, rule.where
    for index, rule_of_files in enumerate(files.files):
        if phase in rule_of_files.phases and rule_of_files.allow:
            found = frozenset(LETTERS[name] for name in rule_of_files.allow)
            yield from ((path, found, where) for path, where in paths_of(rule_of_files, index))


def _either(patterns: Sequence[str]) -> str:
    """One pattern of several; the language wants a path to begin with its slash."""
    unique = sorted({pattern.removeprefix("/") for pattern in patterns})
    return "/" + (unique[0] if len(unique) == 1 else "{" + ",".join(unique) + "}")
