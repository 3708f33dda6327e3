"""What changes between two policies' rules beyond classes: files by access, and rules in AppArmor's and
seccomp's own languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, get_args

from invigilator.profiles import protected, seccomp
from invigilator.profiles.access import decide
from invigilator.profiles.apparmor import files, raw
from invigilator.profiles.paths import canonical, to_bytes, to_text
from invigilator.profiles.policy import CallRule, FileAccess, PhaseName, Policy

ACCESSES: tuple[FileAccess, ...] = get_args(FileAccess)
_ELSEWHERE = b"/\x01"


class RuleChange(NamedTuple):
    """One difference of a phase: whether more is possible with it, and what, in words."""

    possible: bool
    text: str


def changes(old: Policy, new: Policy, phase: PhaseName) -> Iterator[RuleChange]:
    """Every difference of these rules in one phase."""
    yield from _files(old, new, phase)
    yield from _raw(old, new, phase)
    yield from _calls(old, new, phase)


def _files(old: Policy, new: Policy, phase: PhaseName) -> Iterator[RuleChange]:
    """Compared at every path that either names, and at one that none does."""
    if not any(_has_rules(policy) for policy in (old, new)):
        return
    for path in sorted(_named(old) | _named(new) | {_ELSEWHERE}):
        gone = [access for access in ACCESSES if not _denied(old, phase, access, path)]
        kept = [access for access in ACCESSES if not _denied(new, phase, access, path)]
        what = "files that nothing names" if path == _ELSEWHERE else f"{to_text(path)} and below"
        opened, closed = _said(kept, gone), _said(gone, kept)
        if opened:
            yield RuleChange(True, f"{opened} {what}: allowed (was refused)")
        if closed:
            yield RuleChange(False, f"{closed} {what}: refused (was allowed)")


def _has_rules(policy: Policy) -> bool:
    return bool(policy.filesystem.files) or policy.filesystem.default_action == "deny"


def _named(policy: Policy) -> set[bytes]:
    named = {rule.path for rule in protected.rules(policy)}
    named |= {canonical(to_bytes(path)) for path in policy.filesystem.workspace}
    for index, rule in enumerate(policy.filesystem.files):
        named |= {path for path, _ in files.paths_of(rule, index)}
    return named


def _denied(policy: Policy, phase: PhaseName, access: FileAccess, path: bytes) -> bool:
    found = decide(policy, phase, access, path)
    return found is not None and found.denied


def _said(these: list[FileAccess], those: list[FileAccess]) -> str:
    return ", ".join(access for access in these if access not in those)


def _raw(old: Policy, new: Policy, phase: PhaseName) -> Iterator[RuleChange]:
    before, after = ({rule.text: rule for rule, _ in raw.of(policy, phase)} for policy in (old, new))
    for text in sorted({*before} ^ {*after}):
        rule = after.get(text) or before[text]
        yield RuleChange((text in after) != rule.deny, f"what AppArmor's rule `{text}` names")


def _calls(old: Policy, new: Policy, phase: PhaseName) -> Iterator[RuleChange]:
    before, after = (set(_calls_of(seccomp.raw_of(policy, phase))) for policy in (old, new))
    for text in sorted(before ^ after):
        yield RuleChange(text in before, text)


def _calls_of(rules: list[CallRule]) -> Iterator[str]:
    for rule in rules:
        when = f" where {seccomp.condition(rule)}" if rule.args else ""
        for name in rule.names:
            if rule.action == "SCMP_ACT_ERRNO":
                yield f"system call {name}{when} ({rule.errno})"
