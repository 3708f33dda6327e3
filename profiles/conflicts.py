"""Rules about files and calls that contradict each other or that nothing could put in force.

In a profile a denial wins silently over every allowance. So where a policy says both, it is refused, with
both places, rather than half of it ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from invigilator.profiles import protected
from invigilator.profiles.access import PHASES, SIDES, only_apparmor
from invigilator.profiles.apparmor import files as profile_files
from invigilator.profiles.apparmor import globs, raw
from invigilator.profiles.apparmor.profile import NAME_FIX, unnameable
from invigilator.profiles.apparmor.statements import Rule
from invigilator.profiles.paths import to_bytes, to_text
from invigilator.profiles.policy import CallRule, FileAccess, PhaseName, Policy

Where = tuple[str | int, ...]
_OWN_FOLDERS = re.compile(
    rb"/proc/(?:self|thread-self|[0-9]+)(?:/task/[0-9]+)?/(?:cwd|exe|fd|map_files)(?=/|\Z)"
)


class Finding(NamedTuple):
    """A problem by where it stands in the policy (keys and indices from the root of the YAML); `other`: where
    that stands which it contradicts."""

    where: Where
    message: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    other: Where = ()


class _Stated(NamedTuple):
    path: bytes
    access: frozenset[FileAccess]
    phases: frozenset[PhaseName]
    where: Where


def findings(policy: Policy) -> Iterator[Finding]:
    """Every contradiction of these rules (errors), and what only some nodes put in force (warnings)."""
    yield from _depends_on_process(policy)
    yield from _unnameable(policy)
    allowed, denied = _stated(policy, "allow"), _stated(policy, "deny")
    yield from _itself(policy)
    yield from _both(allowed, denied)
    yield from _against_classes(policy, allowed, denied)
    for phase in PHASES:
        own = phase in policy.phases and policy.phases[phase].apparmor is not None
        if own or phase == "agent":
            yield from _raw(policy, phase)
    yield from _calls(policy)
    yield from _unenforced(policy)


def _stated(policy: Policy, side: Literal["allow", "deny"]) -> list[_Stated]:
    found = []
    for index, rule in enumerate(policy.filesystem.files):
        access: set[FileAccess] = {*(rule.allow if side == "allow" else rule.deny)}
        if side == "deny" and "write" in access:
            access.add("append")
        if access:
            found += [
                _Stated(path, frozenset(access), frozenset(rule.phases), where)
                for path, where in profile_files.paths_of(rule, index)
            ]
    return found


def _depends_on_process(policy: Policy) -> Iterator[Finding]:
    files = policy.filesystem
    named: list[tuple[str, Where]] = [
        (path, ("filesystem", "protected", name, "paths", index))
        for name, item in files.protected.items()
        for index, path in enumerate(item.paths)
    ]
    named += [(path, ("filesystem", "hidden", index)) for index, path in enumerate(files.hidden)]
    for number, rule in enumerate(files.files):
        named += [(path, ("filesystem", "files", number, "paths", i)) for i, path in enumerate(rule.paths)]
    for path, where in named:
        if _OWN_FOLDERS.match(to_bytes(path)):
            yield Finding(
                where, f"where `{path}` leads depends on the process", "write the path that it leads to"
            )


def _unnameable(policy: Policy) -> Iterator[Finding]:
    needed = "apparmor" in policy.require
    for where, message in unnameable(policy):
        message = message if needed else f"{message}: no sandbox starts on a node with AppArmor"
        yield Finding(where, message, NAME_FIX, "error" if needed else "warning")


def _itself(policy: Policy) -> Iterator[Finding]:
    for index, rule in enumerate(policy.filesystem.files):
        base: Where = ("filesystem", "files", index)
        for access in sorted({*rule.allow} & {*rule.deny}):
            where, other = (
                (*base, "deny", rule.deny.index(access)),
                (*base, "allow", rule.allow.index(access)),
            )
            yield Finding(
                where, f"`{access}` is both allowed and denied here", "keep one of the two", other=other
            )
        if not rule.allow and not rule.deny:
            yield Finding(base, "this rule neither allows nor denies", "add `deny: [write]`, for example")


def _both(allowed: list[_Stated], denied: list[_Stated]) -> Iterator[Finding]:
    by_path: dict[bytes, list[_Stated]] = {}
    for one in denied:
        by_path.setdefault(one.path, []).append(one)
    for one in allowed:
        for cover in _covers(one.path):
            for other in by_path.get(cover, ()):
                both = one.access & other.access
                if both and one.phases & other.phases and one.where[:3] != other.where[:3]:
                    message = (
                        f"{_list(both)} of `{to_text(one.path)}` is allowed here,"
                        f" and denied by the rule for `{to_text(cover)}`, which wins"
                    )
                    yield Finding(one.where, message, "remove one of the two", other=other.where)


def _covers(path: bytes) -> Iterator[bytes]:
    """`path` and the folders it is in."""
    while path:
        yield path
        path = path.rpartition(b"/")[0]
    yield b"/"


def _against_classes(policy: Policy, allowed: list[_Stated], denied: list[_Stated]) -> Iterator[Finding]:
    rules = protected.rules(policy)
    for phase in PHASES:
        access = protected.class_access(policy, phase)
        classes = protected.PathClasses(policy, phase)
        for one in allowed:
            rule = classes.rule(one.path) if phase in one.phases else None
            for side in sorted({SIDES[name] for name in one.access}) if rule else ():
                if rule and access[rule.name][side == "write"] == "deny":
                    message = (
                        f"`{to_text(one.path)}` is allowed here, and class `{rule.name}` denies to {side} it"
                    )
                    yield Finding(one.where, message, "remove one of the two", other=rule.where)
        for one in denied:
            for side in sorted(
                {name for name in ("read", "write") if name in one.access and phase in one.phases}
            ):
                for rule in rules:
                    says = access[rule.name][side == "write"]
                    if says != "deny" and phase == "agent" and one.path in _covers(rule.path):
                        message = (
                            f"to {side} `{to_text(one.path)}` is denied here,"
                            f" and class `{rule.name}` says `{side}: {says}` of `{to_text(rule.path)}`"
                        )
                        yield Finding(one.where, message, f"write `{side}: deny` there", other=rule.where)


def _raw(policy: Policy, phase: PhaseName) -> Iterator[Finding]:
    rules = raw.of(policy, phase)
    classes = protected.PathClasses(policy, phase)
    for rule, where in rules:
        if rule.deny:
            continue
        for denying, other in rules:
            if denying.deny and _contradict(rule, denying):
                message = f"`{rule.text}` is denied by `{denying.text}`, which wins"
                yield Finding(where, message, "remove one of the two", other=other)
        path = globs.literal_path(rule.path) if rule.kind == "file" else None
        decides = classes.rule(path) if path else None
        for side, letters in (("read", profile_files.READ), ("write", profile_files.WRITE | {"a"})):
            denied = decides and classes.access(path or b"", "read" if side == "read" else "write") == "deny"
            if decides and denied and rule.letters & letters:
                message = f"`{rule.text}`: class `{decides.name}` denies to {side} it, which wins"
                yield Finding(where, message, "remove one of the two", other=decides.where)


def _contradict(allow: Rule, deny: Rule) -> bool:
    if allow.kind != deny.kind:
        return False
    if allow.kind in ("file", "link"):
        return allow.path == deny.path and allow.target == deny.target and bool(allow.letters & deny.letters)
    return deny.rest in ("", allow.rest)


def _calls(policy: Policy) -> Iterator[Finding]:
    lists: list[tuple[Where, list[CallRule]]] = [(("seccomp", "raw"), policy.seccomp.raw)]
    for phase, item in policy.phases.items():
        if item.seccomp is not None:
            lists.append((("phases", phase, "seccomp", "raw"), item.seccomp.raw))
    for base, rules in lists:
        seen: dict[tuple[str, str], tuple[str, Where]] = {}
        for index, rule in enumerate(rules):
            answer = f"{rule.action} {rule.errno}"
            condition = repr([one.model_dump() for one in rule.args])
            for name in rule.names:
                said, other = seen.setdefault((name, condition), (answer, (*base, index)))
                if said != answer:
                    message = f"`{name}` is answered {answer} here, and {said} elsewhere"
                    yield Finding((*base, index), message, "keep one of the two", other=other)


def _unenforced(policy: Policy) -> Iterator[Finding]:
    if policy.mode == "observe" or "apparmor" in policy.require:
        return
    for where, what in only_apparmor(policy):
        message = f"only AppArmor can refuse what {what} says: without it no sandbox starts"
        fix = "require apparmor, or take it out"
        if "protected" in where:
            denied = f"the class `{where[3]}` in phase {where[1]}"
            message = f"only AppArmor can deny {denied}: without it no sandbox starts"
            fix = "write `watch` there, or require apparmor"
        yield Finding(where, message, fix, "warning")


def _list(access: frozenset[FileAccess]) -> str:
    return ", ".join(sorted(access))
