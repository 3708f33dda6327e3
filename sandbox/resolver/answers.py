"""What a sandbox's questions come to: decided by its policy, and in force before it is told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from invigilator.profiles.names import (
    BELOW_WILDCARD_MAX_NAMES,
    Decision,
    NameRules,
    canonical,
    is_wildcard,
    matches,
)
from invigilator.profiles.network import IpAddress, NetRule, mapped, network_of
from invigilator.profiles.pins import Family, Pins, sort
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox.base import LimitHit, NameEvents, Pinned

_log = logging.getLogger("invigilator.resolver")

PHASES: Sequence[PhaseName] = ("setup", "agent", "verify")
REFUSALS_MAX = 256
"""Distinct names whose refusal is told of one sandbox; that there were more is told as the limit `names`."""

Admit = Callable[[str, Sequence[IpAddress]], None]
"""Let a name's addresses through at the host's end of the link."""


class Answer(NamedTuple):
    """`look`: the name servers are to be asked, and what they say comes back with `found`."""

    verdict: Literal["refuse", "have", "look"]
    addresses: tuple[str, ...] = ()


REFUSE = Answer("refuse")


class Kept(NamedTuple):
    """What another policy leaves of the names handed out: `names` with their addresses, and these with their
    rules by phase, as far as no rule of the policy has them from the start."""

    names: Mapping[str, Sequence[IpAddress]]
    pins: Pinned


class Answers:
    """One sandbox's. `phase`: the one that its newest command is in. Questions come from one thread."""

    def __init__(self, policy: Policy, hosts: Mapping[str, Sequence[str]], admit: Admit) -> None:
        """`hosts`: what the policy's names led to when the sandbox was made."""
        self.events: NameEvents | None = None
        self.phase: PhaseName = "setup"
        self._admit = admit
        self._below: set[str] = set()
        self._set(policy, hosts)
        self._told: set[tuple[PhaseName, str]] = set()
        self._limited = False
        self._fast = False

    def ask(self, name: str, family: int) -> Answer:
        """A question for a name; `family` 0 is for what is no address, which no name has."""
        decision = self._decide(name)
        if not decision.allowed:
            return self._refuse(name, decision)
        if not family:
            return Answer("have")
        known = self._pins.of(name, family) if decision.pinned else None
        return Answer("look") if known is None else self._hand_out(name, family, decision)

    def found(self, name: str, family: Family, texts: Sequence[str]) -> Answer:
        """What the name servers say of a name that `ask` let be looked up. ValueError for no addresses."""
        decision = self._decide(name)
        if not decision.allowed or family not in (4, 6):
            return self._refuse(name, decision)
        if not decision.pinned:
            return Answer("have", tuple(map(str, sort(texts, family, private=True).granted)))
        granted, refused = sort(texts, family, private=decision.private)
        if refused:
            self._tell_refusal(name, decision)
        if not granted:
            return REFUSE if refused else Answer("have")
        self._pins.put(name, family, granted)
        return self._hand_out(name, family, decision)

    @property
    def known(self) -> Mapping[str, Sequence[str]]:
        """The addresses that names were handed out with, or are from the start."""
        found: dict[str, list[str]] = {}
        for name, family in sorted(self._in_force):
            found.setdefault(name, []).extend(map(str, self._pins.of(name, family) or ()))
        return {name: addresses for name, addresses in found.items() if addresses}

    def change(self, policy: Policy, hosts: Mapping[str, Sequence[str]]) -> Kept:
        """Decide by another policy from now on. Names that it still allows keep their addresses, but those
        that it does not grant; the answer is to be put in force before the next question."""
        former, pins = self._in_force, self._pins
        self._set(policy, hosts)
        self._told.clear()
        names: dict[str, list[IpAddress]] = {}
        for name, family in sorted(former - self._in_force):
            decided = [rules.decide(name) for rules in self._rules.values()]
            private = any(one.private for one in decided if one.pinned)
            known = pins.of(name, family) or ()
            granted = sort([str(one) for one in known], family, private=private).granted
            if granted and any(one.pinned for one in decided):
                self._pins.put(name, family, granted)
                self._in_force.add((name, family))
                names.setdefault(name, []).extend(granted)
        return Kept(names, {phase: self._pinned(phase, names) for phase in PHASES})

    def too_fast(self, maximum: int) -> None:
        """It asks faster than it is answered."""
        if self.events is not None and not self._fast:
            self._fast = True
            self.events.limit(LimitHit("questions", maximum, maximum))

    def _set(self, policy: Policy, hosts: Mapping[str, Sequence[str]]) -> None:
        self._networks = {phase: network_of(policy, phase) for phase in PHASES}
        self._pins = Pins(policy, hosts)
        self._rules = {phase: NameRules(network) for phase, network in self._networks.items()}
        self._in_force = {(name, family) for name in self._exact(hosts) for family in (4, 6)}

    def _pinned(
        self, phase: PhaseName, names: Mapping[str, Sequence[IpAddress]]
    ) -> dict[bytes, Sequence[NetRule]]:
        """The rules of a phase about the addresses of those names that it hands out."""
        allowed = [name for name in names if self._rules[phase].decide(name).pinned]
        return {mapped(one): self._pins.rules(phase, one) for name in allowed for one in names[name]}

    def _exact(self, hosts: Mapping[str, Sequence[str]]) -> list[str]:
        """Names that no wildcard is about too: the rules have had their addresses from the start."""
        rules = [rule for network in self._networks.values() for rule in network.egress]
        wild = [rule.target for rule in rules if is_wildcard(rule.target)]
        found = map(canonical, hosts)
        return [name for name in found if not any(matches(target, name) for target in wild)]

    def _decide(self, name: str) -> Decision:
        decision = self._rules[self.phase].decide(name)
        if decision.below and decision.allowed and name not in self._below:
            if len(self._below) >= BELOW_WILDCARD_MAX_NAMES:
                self._tell_limit(BELOW_WILDCARD_MAX_NAMES)
                return decision._replace(allowed=False)
            self._below.add(name)
        return decision

    def _hand_out(self, name: str, family: Family, decision: Decision) -> Answer:
        """The addresses, once they are in force in every phase that allows the name."""
        addresses = self._pins.of(name, family) or ()
        if (name, family) not in self._in_force:
            try:
                self._put_in_force(name, addresses)
            except Exception as error:
                _log.warning("the addresses of %r cannot be put in force: %s", name, error)
                return self._refuse(name, decision)
            self._in_force.add((name, family))
        return Answer("have", tuple(map(str, addresses)))

    def _put_in_force(self, name: str, addresses: Sequence[IpAddress]) -> None:
        if self.events is None:
            raise RuntimeError("nobody puts rules in force yet")
        self._admit(name, addresses)
        for phase in PHASES:
            for address, rules in self._pinned(phase, {name: addresses}).items():
                self.events.pin(phase, address, rules)

    def _refuse(self, name: str, decision: Decision) -> Answer:
        self._tell_refusal(name, decision)
        return REFUSE

    def _tell_refusal(self, name: str, decision: Decision) -> None:
        key = (self.phase, name)
        if self.events is None or key in self._told:
            return
        if len(self._told) >= REFUSALS_MAX:
            self._tell_limit(REFUSALS_MAX)
            return
        self._told.add(key)
        self.events.refused(self.phase, name, decision.name)

    def _tell_limit(self, maximum: int) -> None:
        if self.events is not None and not self._limited:
            self._limited = True
            self.events.limit(LimitHit("names", maximum, maximum))
