"""What rules beyond the path classes say of a file: `filesystem.files`, its default, and `apparmor.raw`.

AppArmor alone enforces them. A denial wins over every allowance, as in the profile that they become.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from invigilator.profiles import protected
from invigilator.profiles.apparmor import files as profile_files
from invigilator.profiles.apparmor import globs, raw
from invigilator.profiles.apparmor.statements import LETTERS, Rule
from invigilator.profiles.paths import canonical, to_bytes, to_text
from invigilator.profiles.policy import FileAccess, PhaseName, Policy

Where = tuple[str | int, ...]
SIDES: dict[FileAccess, Literal["read", "write"]] = {
    "read": "read", "lock": "read", "mmap": "read", "exec": "read",
    "write": "write", "append": "write", "link": "write",
}  # fmt: skip
"""By which of a class's two sides an access is decided."""
PHASES: tuple[PhaseName, ...] = ("setup", "agent", "verify")


class Decision(NamedTuple):
    """What a rule says, in words, and where it stands."""

    denied: bool
    rule: str
    where: Where


def decide(policy: Policy, phase: PhaseName, access: FileAccess, path: bytes) -> Decision | None:
    """The rule that decides about `path`; None where the path classes have the word."""
    path = canonical(path)
    denial = _denying_rule(policy, phase, access, path) or _denying_raw(policy, phase, access, path)
    if denial is not None:
        return denial
    if phase != "agent" or policy.filesystem.default_action == "allow":
        return None
    if protected.PathClasses(policy, phase).rule(path) or _in_workspace(policy, path):
        return None
    return _allowing(policy, phase, access, path) or Decision(
        True, "filesystem.default_action: deny", ("filesystem", "default_action")
    )


def holds(folder: bytes, path: bytes) -> bool:
    """Whether `path` is `folder` or below it."""
    return (path + b"/").startswith(folder.rstrip(b"/") + b"/")


def _denying_rule(policy: Policy, phase: PhaseName, access: FileAccess, path: bytes) -> Decision | None:
    for index, rule in enumerate(policy.filesystem.files):
        said = access if access in rule.deny else "write"
        if phase not in rule.phases or not (said in rule.deny and access in (said, "append")):
            continue
        for top, where in profile_files.paths_of(rule, index):
            if holds(top, path):
                return Decision(True, f"filesystem.files ({to_text(top)}), deny: {said}", where)
    return None


def _denying_raw(policy: Policy, phase: PhaseName, access: FileAccess, path: bytes) -> Decision | None:
    for rule, where in raw.of(policy, phase):
        if rule.deny and _about(rule, access, path):
            return Decision(True, f"apparmor.raw: {rule.text}", where)
    return None


def _about(rule: Rule, access: FileAccess, path: bytes) -> bool:
    """Whether a rule in AppArmor's language decides; allowing to run a file allows to map it."""
    wider = {"append": "w", "mmap": "" if rule.deny else "x"}.get(access, "")
    held = LETTERS[access] in rule.letters or wider in rule.letters
    return rule.kind in ("file", "link") and held and globs.matches(rule.path, path)


def _in_workspace(policy: Policy, path: bytes) -> bool:
    return any(holds(canonical(to_bytes(folder)), path) for folder in policy.filesystem.workspace)


def _allowing(policy: Policy, phase: PhaseName, access: FileAccess, path: bytes) -> Decision | None:
    wider = {"append": "write", "mmap": "exec"}.get(access, access)
    for index, rule in enumerate(policy.filesystem.files):
        said = access if access in rule.allow else wider
        if phase not in rule.phases or said not in rule.allow:
            continue
        for top, where in profile_files.paths_of(rule, index):
            if holds(top, path):
                return Decision(False, f"filesystem.files ({to_text(top)}), allow: {said}", where)
    for raw_rule, where in raw.of(policy, phase):
        if not raw_rule.deny and _about(raw_rule, access, path):
            return Decision(False, f"apparmor.raw: {raw_rule.text}", where)
    for pattern, letters in profile_files.ESSENTIAL:
        if _about(Rule("file", "", path=pattern, letters=frozenset(letters)), access, path):
            return Decision(False, "what every program needs", ("filesystem", "default_action"))
    return None


def only_apparmor(policy: Policy) -> list[tuple[Where, str]]:
    """(where, what) of all that the policy refuses and no other tier than AppArmor can: where it is not in
    force, such a policy would say denied and nothing would deny."""
    found: list[tuple[Where, str]] = [
        (("phases", phase, "protected", name), f"phases.{phase}.protected.{name}")
        for phase, name in protected.platform_denials(policy)
    ]
    files = policy.filesystem
    if files.default_action == "deny":
        found.append((("filesystem", "default_action"), "filesystem.default_action"))
    found += [
        (("filesystem", "files", index), f"filesystem.files.{index}")
        for index, rule in enumerate(files.files)
        if rule.deny
    ]
    for phase in PHASES:
        for rule, where in raw.of(policy, phase):
            said = (where, ".".join(map(str, where)))
            if rule.deny and said not in found:
                found.append(said)
    return found
