"""A backtest as a picture: the mean penalised reward of each checkpoint, before and after, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from invigilator.guard.backtest import Backtest, CheckpointChange

WIDTH, HEIGHT, MARGIN = 800, 360, 60
BEFORE, AFTER = "#9aa0a6", "#1a73e8"


def svg(result: Backtest) -> str:
    """The picture, by itself: no font, script or style from elsewhere."""
    shown = [one for one in result.checkpoints if one.mean_before is not None or one.mean_after is not None]
    values = [value for one in shown for value in (one.mean_before, one.mean_after) if value is not None]
    low, high = min([0.0, *values]), max([0.0, *values])
    scale = (HEIGHT - 2 * MARGIN) / ((high - low) or 1.0)
    zero = HEIGHT - MARGIN + low * scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        _text(MARGIN, 24, "mean reward after the penalty, by checkpoint"),
        _box(WIDTH - 220, 14, 12, 12, BEFORE, "") + _text(WIDTH - 202, 24, "as it was"),
        _box(WIDTH - 120, 14, 12, 12, AFTER, "") + _text(WIDTH - 102, 24, "under the policy"),
        _text(8, zero + 4, "0"),
        f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="black"/>',
    ]
    if values:
        parts.append(_text(8, HEIGHT - MARGIN - (high - low) * scale + 4, f"{high:.3g}") if high else "")
        parts.append(_text(8, HEIGHT - MARGIN + 4, f"{low:.3g}") if low else "")
    parts += _bars(shown, zero, scale)
    return "".join([*parts, "</svg>\n"])


def _bars(shown: Sequence[CheckpointChange], zero: float, scale: float) -> list[str]:
    room = (WIDTH - 2 * MARGIN) / max(1, len(shown))
    every = max(1, len(shown) // 20)
    parts = []
    for place, one in enumerate(shown):
        left = MARGIN + place * room
        for offset, value, colour in ((0.1, one.mean_before, BEFORE), (0.5, one.mean_after, AFTER)):
            if value is not None:
                top = zero - max(0.0, value) * scale
                told = f"{one.checkpoint}: {value:.4g}, {one.changed} of {one.rollouts} rollouts changed"
                parts.append(_box(left + offset * room, top, 0.38 * room, abs(value) * scale, colour, told))
        if place % every == 0:
            parts.append(_text(left + 0.1 * room, HEIGHT - MARGIN + 24, one.checkpoint[:12]))
    return parts


def _box(x: float, y: float, width: float, height: float, colour: str, told: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
        f"<title>{escape(told)}</title></rect>"
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
