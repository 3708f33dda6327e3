"""What AppArmor adds to opening a file, and to entering a sandbox, where the kernel has it.

`pytest -m slow tests/apparmor/tcg/test_figures.py -rP` prints the figures. The processor is emulated: a time
says nothing, the ratio of two does.
"""

from __future__ import annotations

from invigilator.guard.bench.enforcement import enforcement

ROUNDS = 9


def test_the_bench_of_enforcement_measures_every_tier_here() -> None:
    section = enforcement(ROUNDS)
    for one in section.figures:
        print(f"{one.name}: {one.median:.3g} {one.unit} ({one.low:.3g} to {one.high:.3g})")
    found = {one.name: one.median for one in section.figures}
    assert section.missing == []
    assert found["open and close under AppArmor ÷ without"] > 0
    assert {
        "enter, run `true`, end: without AppArmor",
        "profiles of all phases: cached, into the kernel",
    } <= set(found)
