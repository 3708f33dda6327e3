"""Ordered rules → longest prefixes."""

from __future__ import annotations

import ipaddress
import random

import pytest

from invigilator.ebpf.network import CHOICES, NetRule, RuleError, compile_rules, masked


def decide(rules: list[NetRule], address: bytes, port: int, protocol: int) -> int | None:
    """By the rules as written: the index of the first that matches."""
    for index, rule in enumerate(rules):
        inside = masked(address, rule.length) == masked(rule.prefix, rule.length)
        if inside and rule.port_low <= port <= rule.port_high and rule.protocol in (0, protocol):
            return index
    return None


def decide_compiled(rules: list[NetRule], address: bytes, port: int, protocol: int) -> int | None:
    """As the kernel does: the longest prefix, then its choices in order."""
    compiled = compile_rules(rules)
    for length in range(128, -1, -1):
        choices = compiled.get((masked(address, length), length))
        if choices is None:
            continue
        for index in choices:
            rule = rules[index]
            if rule.port_low <= port <= rule.port_high and rule.protocol in (0, protocol):
                return index
        return None
    return None


def test_longest_prefix_gives_the_verdict_of_the_first_rule() -> None:
    source = random.Random(7)
    for _ in range(300):
        rules = [
            NetRule.of(
                f"10.{source.randrange(2)}.{source.randrange(2)}.0/{source.choice([8, 16, 24, 32])}",
                port_low=source.choice([0, 80]),
                port_high=source.choice([80, 65535]),
                protocol=source.choice([0, 6, 17]),
                allow=source.random() < 0.5,
            )
            for _ in range(source.randrange(1, 12))
        ]
        address = NetRule.of(f"10.{source.randrange(2)}.{source.randrange(2)}.{source.randrange(2)}").prefix
        port, protocol = source.choice([22, 80, 443]), source.choice([6, 17])
        assert decide(rules, address, port, protocol) == decide_compiled(rules, address, port, protocol)


def test_ipv4_is_ipv6_mapped() -> None:
    rule = NetRule.of("192.0.2.0/24")
    assert rule.length == 120
    assert rule.prefix == ipaddress.ip_address("::ffff:192.0.2.0").packed
    assert NetRule.of("2001:db8::/32").length == 32


def test_more_choices_than_the_kernel_holds_are_refused() -> None:
    rules = [NetRule.of("10.0.0.1", port_low=p, port_high=p, name=f"r{p}") for p in range(CHOICES + 1)]
    with pytest.raises(RuleError, match="join ports"):
        compile_rules(rules)
    assert len(compile_rules([NetRule.of("10.0.0.1"), *rules])) == 1  # never reached, so not counted
