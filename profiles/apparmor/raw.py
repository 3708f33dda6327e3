"""`apparmor.raw`: a policy's own rules in AppArmor's language."""

from __future__ import annotations

from collections.abc import Iterator

from invigilator.profiles.apparmor import globs
from invigilator.profiles.apparmor.line import Line, Where, letters
from invigilator.profiles.apparmor.statements import Rule, parse
from invigilator.profiles.policy import PhaseName, Policy


def of(policy: Policy, phase: PhaseName) -> list[tuple[Rule, Where]]:
    """The rules of a phase, taken apart, and where they stand."""
    own = policy.phases[phase].apparmor if phase in policy.phases else None
    base: Where = ("apparmor", "raw") if own is None else ("phases", phase, "apparmor", "raw")
    said = policy.apparmor.raw if own is None else own.raw
    return [(parse(text), (*base, index)) for index, text in enumerate(said)]


def lines(policy: Policy, phase: PhaseName) -> Iterator[Line]:
    """As they go into the profile: denials on the record, and with `mode: observe` allowed."""
    for rule, where in of(policy, phase):
        yield Line(f"{_resolved(_text(rule, observe=policy.mode == 'observe'))},", where)


def _resolved(text: str) -> str:
    """A profile includes no tunables, so that its text is all that it depends on."""
    for name, value in globs.VARIABLES.items():
        if name != "profile_name":
            text = text.replace(f"@{{{name}}}/", value).replace(f"@{{{name}}}", value)
    return text


def _text(rule: Rule, *, observe: bool) -> str:
    if not rule.deny:
        return rule.text
    word = "audit" if observe else "audit deny"
    owner = "owner " if rule.owner else ""
    if rule.kind == "link":
        return f"{word} {owner}link {rule.path} -> {rule.target}"
    if rule.kind == "file":
        return f"{word} {owner}{rule.path} {letters(rule.letters, deny=not observe)}"
    return f"{word} {owner}{rule.kind} {rule.rest}".rstrip()
