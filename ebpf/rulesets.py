"""Rule sets in the kernel: equal rules of several sandboxes are kept once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .loader import Kernel
from .network import KEY, VALUE, NetRule, compile_rules
from .strings import StringTable

_Rules = tuple[int, tuple[NetRule, ...]]
"""Rules, and the number of their set where they are nobody else's; 0: shared by all who have equal ones."""


@dataclass(slots=True)
class _Ruleset:
    number: int
    users: int
    keys: dict[bytes, None]
    names: dict[str, int]


class Rulesets:
    """Which rules are in the kernel under which number."""

    def __init__(self, kernel: Kernel, table: StringTable) -> None:
        self._kernel = kernel
        self._table = table
        self._by_rules: dict[_Rules, _Ruleset] = {}
        self._by_number: dict[int, _Rules] = {}
        self._next = 1

    def use(self, rules: Sequence[NetRule], *, own: bool = False) -> int:
        """The number of these rules, put into the kernel now where they are not there. `RuleError` where they
        cannot be. `own`: a set that nothing else uses, so that addresses can be pinned in it."""
        wanted = (self._next if own else 0, tuple(rules))
        known = self._by_rules.get(wanted)
        if known is None:
            known = self._by_rules[wanted] = self._put(wanted[1])
            self._by_number[known.number] = wanted
        known.users += 1
        return known.number

    def use_all(self, several: Sequence[Sequence[NetRule]], *, own: bool = False) -> tuple[int, ...]:
        """The numbers of several lists of rules; where one cannot be put into the kernel, none is used."""
        numbers: list[int] = []
        try:
            for rules in several:
                numbers.append(self.use(rules, own=own))
        except Exception:
            for number in numbers:
                self.release(number)
            raise
        return tuple(numbers)

    def pin(self, number: int, address: bytes, rules: Sequence[NetRule]) -> None:
        """Of one address (16 bytes), the rules in order, in a set that is somebody's own: one map update."""
        own, _ = self._by_number[number]
        if not own:
            raise ValueError("these rules are shared: others would get the address too")
        known = self._by_rules[self._by_number[number]]
        prefixes = [replace(rule, prefix=address, length=128) for rule in rules]
        for (prefix, length), indexes in compile_rules(prefixes).items():
            self._update(known, prefix, length, [rules[index] for index in indexes])

    def release(self, number: int) -> None:
        """One user less; without users the rules leave the kernel."""
        rules = self._by_number[number]
        known = self._by_rules[rules]
        known.users -= 1
        if known.users:
            return
        for key in known.keys:
            self._kernel.delete("rules", key)
        self._table.drop_own(known.names.values())
        del self._by_rules[rules], self._by_number[number]

    def _put(self, rules: tuple[NetRule, ...]) -> _Ruleset:
        choices = compile_rules(rules)
        made = _Ruleset(self._next, 0, {}, {})
        self._next += 1
        for (prefix, length), indexes in choices.items():
            self._update(made, prefix, length, [rules[index] for index in indexes])
        return made

    def _update(self, ruleset: _Ruleset, prefix: bytes, length: int, rules: Sequence[NetRule]) -> None:
        key = np.zeros(1, KEY)
        key["length"], key["ruleset"] = 32 + length, ruleset.number
        key["address"] = np.frombuffer(prefix, np.uint8)
        value = np.zeros(1, VALUE)
        value["count"] = len(rules)
        for place, rule in enumerate(rules):
            ports = (rule.port_low, rule.port_high)
            name = self._named(ruleset, rule.name)
            value["at"][0, place] = (*ports, rule.protocol, rule.allow, 0, name)
        self._kernel.update("rules", key.tobytes(), value.tobytes())
        ruleset.keys[key.tobytes()] = None

    def _named(self, ruleset: _Ruleset, name: str) -> int:
        if name not in ruleset.names:
            ruleset.names[name] = self._table.add_own(name.encode())
        return ruleset.names[name]
