"""Which class a path belongs to, and what a phase may do with it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from invigilator.profiles.paths import canonical, to_bytes
from invigilator.profiles.policy import Access, PhaseName, Policy

HIDDEN = "hidden"
"""The class of `filesystem.hidden`: not there at all, in every phase."""

CACHE_MAX = 1 << 16
"""Paths remembered; an agent decides how many different ones it names, so the memory is bounded."""


class Rule(NamedTuple):
    """A path of a class, and where the policy says so (keys and indices from the root of the YAML)."""

    path: bytes
    name: str
    where: tuple[str | int, ...]


class PathClasses:
    """The path classes of a policy in one phase.

    A class holds its paths and all below them; the longest path wins. Both the policy's paths and those asked
    about go through the distribution's links first (/bin is /usr/bin), so that an alias names the same class.
    """

    def __init__(self, policy: Policy, phase: PhaseName = "agent") -> None:
        self._rules = {rule.path: rule for rule in rules(policy)}
        self._access = class_access(policy, phase)
        self._found: dict[bytes, Rule | None] = {}

    def classify(self, path: bytes) -> str | None:
        """The class of an absolute path of any bytes; None where it has none."""
        rule = self.rule(path)
        return rule.name if rule else None

    def access(self, path: bytes, action: Literal["read", "write"]) -> Access:
        """What the policy says of reading or writing `path` in the phase; `allow` where it has no class.

        It is the policy's word in either mode: with `mode: observe` a `deny` is recorded, not refused.
        """
        rule = self.rule(path)
        if rule is None:
            return "allow"
        read, write = self._access[rule.name]
        return read if action == "read" else write

    def rule(self, path: bytes) -> Rule | None:
        """The rule that decides about `path`."""
        try:
            return self._found[path]
        except KeyError:
            if len(self._found) >= CACHE_MAX:
                self._found.clear()
            found = self._found[path] = self._longest(canonical(path))
            return found

    def _longest(self, path: bytes) -> Rule | None:
        while path:
            if rule := self._rules.get(path):
                return rule
            path = path[: path.rfind(b"/")]
        return self._rules.get(b"/")


def rules(policy: Policy) -> list[Rule]:
    """Every path of every class, canonical, in the policy's order; the hidden ones first."""
    files = policy.filesystem
    found = [
        Rule(canonical(to_bytes(path)), HIDDEN, ("filesystem", "hidden", index))
        for index, path in enumerate(files.hidden)
    ]
    for name, protected in files.protected.items():
        found += [
            Rule(canonical(to_bytes(path)), name, ("filesystem", "protected", name, "paths", index))
            for index, path in enumerate(protected.paths)
        ]
    return found


def class_access(policy: Policy, phase: PhaseName) -> dict[str, tuple[Access, Access]]:
    """(read, write) of each class in a phase.

    The agent's phase is bound by `filesystem.protected`; setup and verify belong to the platform, which must
    install programs, read the grader and write the reward: there only `phases.PHASE.protected` binds.
    """
    named = policy.phases[phase].protected if phase in policy.phases else {}
    access: dict[str, tuple[Access, Access]] = {HIDDEN: ("deny", "deny")}
    for name, protected in policy.filesystem.protected.items():
        base = protected if phase == "agent" else None
        here = named.get(name) or base
        access[name] = (here.read, here.write) if here else ("allow", "allow")
    return access


def platform_denials(policy: Policy) -> list[tuple[PhaseName, str]]:
    """(phase, class) of what `phases.PHASE.protected` denies to the platform: mounts bind only the agent, so
    that another tier must enforce it."""
    return [
        (phase, name)
        for phase, rules in policy.phases.items()
        if phase != "agent"
        for name, access in rules.protected.items()
        if "deny" in (access.read, access.write)
    ]
