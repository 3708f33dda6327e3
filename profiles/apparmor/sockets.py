"""Which `network` rules of AppArmor's language are about a socket of the Internet's families."""

from __future__ import annotations

from typing import Literal

from invigilator.profiles.apparmor.statements import Rule

FAMILIES = {4: "inet", 6: "inet6"}
TYPES = {"tcp": "stream", "udp": "dgram"}


def is_about(rule: Rule, version: Literal[4, 6] | None, protocol: str) -> bool:
    """Whether the rule is about every socket of `protocol` (tcp, udp) and IP `version`; None: of a name's
    addresses, which have either. A rule of named addresses or ports alone is about some, and is not."""
    words = rule.rest.split()
    if rule.kind != "network" or any("=" in word or "(" in word for word in words):
        return False
    families = {FAMILIES[version]} if version else set(FAMILIES.values())
    # apparmor.d(5), NETWORK RULE: a family, then a type or a protocol; what is left out means all.
    if words and words[0] not in (TYPES[protocol], protocol):
        if words[0] not in families:
            return False
        words = words[1:]
    return all(word in (TYPES[protocol], protocol) for word in words)
