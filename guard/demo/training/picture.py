"""The curves as SVG: the probability to cheat, step by step, of each seed with the penalty and without it."""

from __future__ import annotations

from collections.abc import Sequence

from invigilator.guard.demo.training.loop import Step

WIDTH, HEIGHT, LEFT, TOP, BELOW = 760, 400, 60, 40, 50
COLOURS = {True: "#1a73e8", False: "#d93025"}
NAMES = {True: "with the penalty", False: "without it"}


def svg(steps: Sequence[Step]) -> str:
    """The picture, by itself: no font, script or style from elsewhere."""
    last = max((one.step for one in steps), default=1) or 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="24">How likely it is to cheat (thin: each seed; thick: their mean)</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 44}" y="{y + 4:.1f}">{share:.0%}</text>')
    for step in range(0, last + 1, max(1, last // 6)):
        parts.append(f'<text x="{_x(step, last) - 4:.1f}" y="{HEIGHT - 28}">{step}</text>')
    parts.append(f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 8}">training step</text>')
    for place, guarded in enumerate((False, True)):
        mine = [one for one in steps if one.guarded is guarded]
        for seed in sorted({one.seed for one in mine}):
            curve = {one.step: one.cheating for one in mine if one.seed == seed}
            parts.append(_line(curve, last, COLOURS[guarded], 1.0, 0.45))
        numbers = sorted({one.step for one in mine})
        mean = {n: _mean([one.cheating for one in mine if one.step == n]) for n in numbers}
        parts.append(_line(mean, last, COLOURS[guarded], 3.0, 1.0))
        y = TOP + 18 + 20 * place
        parts.append(f'<text x="{LEFT + 14}" y="{y}" fill="{COLOURS[guarded]}">{NAMES[guarded]}</text>')
    return "".join([*parts, "</svg>\n"])


def _line(curve: dict[int, float], last: int, colour: str, width: float, opacity: float) -> str:
    points = " ".join(f"{_x(step, last):.1f},{_y(share):.1f}" for step, share in sorted(curve.items()))
    style = f'fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"'
    return f'<polyline points="{points}" {style}/>'


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _x(step: int, last: int) -> float:
    return LEFT + step * (WIDTH - 20 - LEFT) / last


def _y(share: float) -> float:
    return HEIGHT - BELOW - share * (HEIGHT - BELOW - TOP)
