"""Rule sets in the kernel: equal rules of several sandboxes are kept once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .loader import Kernel
from .network import KEY, VALUE, NetRule, compile_rules
from .strings import StringTable


@dataclass(slots=True)
class _Ruleset:
    number: int
    users: int
    keys: list[bytes]
    names: list[int]


class Rulesets:
    """Which rules are in the kernel under which number."""

    def __init__(self, kernel: Kernel, table: StringTable) -> None:
        self._kernel = kernel
        self._table = table
        self._by_rules: dict[tuple[NetRule, ...], _Ruleset] = {}
        self._by_number: dict[int, tuple[NetRule, ...]] = {}
        self._next = 1

    def use(self, rules: Sequence[NetRule]) -> int:
        """The number of these rules, put into the kernel now where they are not there. `RuleError` where they
        cannot be."""
        wanted = tuple(rules)
        known = self._by_rules.get(wanted)
        if known is None:
            known = self._by_rules[wanted] = self._put(wanted)
            self._by_number[known.number] = wanted
        known.users += 1
        return known.number

    def use_all(self, several: Sequence[Sequence[NetRule]]) -> tuple[int, ...]:
        """The numbers of several lists of rules; where one cannot be put into the kernel, none is used."""
        numbers: list[int] = []
        try:
            for rules in several:
                numbers.append(self.use(rules))
        except Exception:
            for number in numbers:
                self.release(number)
            raise
        return tuple(numbers)

    def release(self, number: int) -> None:
        """One user less; without users the rules leave the kernel."""
        rules = self._by_number[number]
        known = self._by_rules[rules]
        known.users -= 1
        if known.users:
            return
        for key in known.keys:
            self._kernel.delete("rules", key)
        self._table.drop_own(known.names)
        del self._by_rules[rules], self._by_number[number]

    def _put(self, rules: tuple[NetRule, ...]) -> _Ruleset:
        choices = compile_rules(rules)
        number = self._next
        self._next += 1
        names = {name: self._table.add_own(name.encode()) for name in {rule.name for rule in rules}}
        keys = []
        for (prefix, length), indexes in choices.items():
            key = np.zeros(1, KEY)
            key["length"], key["ruleset"] = 32 + length, number
            key["address"] = np.frombuffer(prefix, np.uint8)
            value = np.zeros(1, VALUE)
            value["count"] = len(indexes)
            for place, rule in enumerate(rules[index] for index in indexes):
                ports = (rule.port_low, rule.port_high)
                value["at"][0, place] = (*ports, rule.protocol, rule.allow, 0, names[rule.name])
            keys.append(key.tobytes())
            self._kernel.update("rules", keys[-1], value.tobytes())
        return _Ruleset(number, 0, keys, list(names.values()))
