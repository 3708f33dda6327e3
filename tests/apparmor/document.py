"""The proof as a document: policy × attack × tier, from what the guest found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from battery import LIBRARY, TIERS, Attack, attacks, policy_of

HEAD = """# Proof: what each tier refuses

Made by `make test-slow` (tests/apparmor): every attack is run as the sandbox's root, in Debian's
user-mode-linux with AppArmor, by the project's own launcher and profiles. The scripts are in
`profiles/attacks.yaml`.

- **refused+**: the attack did not work, and the kernel's audit records tell of the refusal.
- refused: it did not work. A mount, a capability or a namespace refuses without a record; the event of
  the call has the error. Of a refused capability AppArmor tells once for each profile and processor,
  so that a + there would say which attack came first.
- works: this tier alone does not refuse it.
- (refused): it does not work even with every tier off; the reason is given below the table.
- ·: the policy does not mean to refuse it.

"""


@dataclass(frozen=True)
class Found:
    """What became of an attack."""

    worked: bool
    told: bool


Results = Mapping[tuple[str, frozenset[str], str], Found]
"""(policy, tiers in force, attack) → what became of it."""


def read(lines: Iterable[str]) -> Results:
    """The results as the guest wrote them."""
    rows = [json.loads(line) for line in lines]
    return {
        (row["policy"], frozenset(row["tiers"]), row["attack"]): Found(row["worked"], row["told"])
        for row in rows
    }


def missing(results: Results) -> list[str]:
    """Runs that the document needs and the guest did not make."""
    needed = [("strict", frozenset[str]()), ("strict", frozenset(TIERS))]
    needed += [("strict", frozenset([tier])) for tier in TIERS]
    needed += [(name, frozenset(tiers)) for name in LIBRARY for tiers in (TIERS, ("apparmor",))]
    made = {(policy, tiers) for policy, tiers, _ in results}
    left = [run for run in needed if run not in made]
    return [f"{policy} with {', '.join(sorted(tiers)) or 'nothing'}" for policy, tiers in left]


def text(results: Results) -> str:
    """The whole document."""
    return HEAD + "\n".join([*_tiers(results), "", *_policies(results), ""])


def _tiers(results: Results) -> list[str]:
    lines = [
        "## Tier by tier",
        "",
        "Policy `strict`: a `swe-task` that denies writing the system's programs too.",
        "",
    ]
    lines += _header("attack", "what it does", *TIERS, "whole sandbox")
    for attack in attacks():
        alone = [_cell(attack, results["strict", frozenset([tier]), attack.id]) for tier in TIERS]
        whole = _cell(attack, results["strict", frozenset(TIERS), attack.id], whole=True)
        lines.append(_row(f"`{attack.id}`", attack.does, *alone, whole))
    reasons = [f"- `{one.id}`: {one.always}." for one in attacks() if one.always]
    return [*lines, "", "Not to be seen in one tier:", "", *reasons]


def _policies(results: Results) -> list[str]:
    lines = ["## Policy by policy", "", "The whole sandbox; + where AppArmor alone refuses it and tells.", ""]
    lines += _header("attack", *(f"`{name}`" for name in LIBRARY))
    for attack in attacks():
        cells = []
        for name in LIBRARY:
            if not attack.concerns(policy_of(name)):
                cells.append("·")
                continue
            whole = results[name, frozenset(TIERS), attack.id]
            alone = results[name, frozenset(["apparmor"]), attack.id]
            plus = "+" if alone.told and not alone.worked and not attack.once else ""
            cells.append("WORKS" if whole.worked else f"refused{plus}")
        lines.append(_row(f"`{attack.id}`", *cells))
    return lines


def _cell(attack: Attack, found: Found, *, whole: bool = False) -> str:
    if found.worked:
        return "WORKS" if whole else "works"
    told = found.told and not attack.once
    word = "**refused+**" if told else "refused"
    return word if whole or told or attack.always is None else "(refused)"


def _header(*names: str) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
