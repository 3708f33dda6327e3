"""Host names in egress rules: which a phase hands out, by which rule, and how many under a wildcard."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

from invigilator.profiles.policy import EgressRule, Network, PhaseName, Policy

DNS_PORT = 53
NAME_MAX_BYTES = 253
"""Of a name as text (RFC 1035, section 2.3.4: 255 bytes on the wire)."""
ZONE_LABELS_MIN = 2
"""A wildcard names a zone that somebody can own, not a whole top-level domain."""
BELOW_WILDCARD_MAX_BYTES = 64
"""Of a name, how much may stand for the `*`: what is asked for is told to whoever serves the zone."""
BELOW_WILDCARD_MAX_NAMES = 256
"""Distinct names under wildcards that one sandbox may ask for: about 16 KiB is all that they can tell."""
ADDRESSES_MAX = 16
"""Of one name and family, how many addresses are handed out."""

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", re.ASCII)
_WILDCARD = "*."


class Decision(NamedTuple):
    """Whether a phase hands a name out, and by which rule (None: by default).

    `pinned`: its addresses become rules; otherwise rules that name addresses decide alone. `private`: they
    may be private. `below`: what stands for a wildcard's `*`, "" where no wildcard decides.
    """

    allowed: bool
    rule: EgressRule | None = None
    pinned: bool = False
    private: bool = False
    below: str = ""

    @property
    def name(self) -> str:
        """The deciding rule's name."""
        return self.rule.name if self.rule else "default_action"


def is_name(target: str) -> bool:
    """Whether a text is a host name, or a wildcard `*.` before one of two labels or more."""
    bare = target.removeprefix(_WILDCARD).removesuffix(".")
    labels = bare.split(".")
    long_enough = not target.startswith(_WILDCARD) or len(labels) >= ZONE_LABELS_MIN
    return long_enough and len(bare) <= NAME_MAX_BYTES and all(map(_LABEL.fullmatch, labels))


def is_wildcard(target: str) -> bool:
    """Whether a rule's target stands for every name below one."""
    return target.startswith(_WILDCARD)


def canonical(name: str) -> str:
    """A name as names are compared: DNS knows no case, and the root's dot may be left out."""
    return name.lower().removesuffix(".")


def matches(target: str, name: str) -> bool:
    """Whether a rule's name or wildcard is about a canonical name. A wildcard is not about its zone."""
    target = canonical(target)
    return name.endswith(target[1:]) and name != target if is_wildcard(target) else name == target


def covers(wide: str, narrow: str) -> bool:
    """Whether every name that one target is about is one of another's."""
    return canonical(wide) == canonical(narrow) or matches(wide, canonical(narrow))


def rules_by_name(network: Network) -> list[EgressRule]:
    """The rules whose target is a name, in order."""
    return [rule for rule in network.egress if _names(rule)]


def has_names(policy: Policy, phases: Sequence[PhaseName] = ("setup", "agent", "verify")) -> bool:
    """Whether any phase's rules, in force, allow something by name."""
    networks = [rules.network for rules in map(policy.phases.get, phases) if rules and rules.network]
    whole = [policy.network, *networks] if len(networks) < len(phases) else networks
    allowing = (rule.action == "allow" for one in whole for rule in rules_by_name(one))
    return policy.mode == "enforce" and any(allowing)


class NameRules:
    """What a phase says of names."""

    def __init__(self, network: Network) -> None:
        self._named = rules_by_name(network)
        self._open = network.default_action == "allow" or any(map(_asks_others, network.egress))

    def decide(self, name: str) -> Decision:
        """What becomes of a question for a canonical name; anything that is no host name is refused."""
        if not is_name(name) or is_wildcard(name):
            return Decision(False)
        about = [rule for rule in self._named if matches(rule.target, name)]
        allowing = []
        for rule in about:
            if rule.action == "allow":
                allowing.append(rule)
            elif not rule.ports and not allowing:
                return Decision(False, rule)
        if not allowing:
            return Decision(self._open)
        first = next((rule for rule in allowing if not is_wildcard(rule.target)), allowing[0])
        below = name.removesuffix(canonical(first.target)[1:]) if is_wildcard(first.target) else ""
        if len(below) > BELOW_WILDCARD_MAX_BYTES:
            return Decision(False, first)
        return Decision(True, first, True, any(rule.private for rule in allowing), below)


def _names(rule: EgressRule) -> bool:
    try:
        ipaddress.ip_network(rule.target)
    except ValueError:
        return True
    return False


def _asks_others(rule: EgressRule) -> bool:
    """Whether a rule lets name servers of the outside be asked: then no name is kept back here."""
    return rule.action == "allow" and not _names(rule) and (not rule.ports or DNS_PORT in rule.ports)
