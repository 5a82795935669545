"""A picture of how times to first token are distributed: one line a policy, SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 40, 50
# Told apart also by those who see no red or no green (after Okabe and Ito).
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")
_POINTS = 400
_LEAST_S = 0.001


def ttft_plot(times: Mapping[str, Sequence[float]], title: str) -> str:
    """`times` are seconds by policy; those of a policy without any are left out."""
    lines = {name: sorted(max(_LEAST_S, value) for value in values) for name, values in times.items() if values}
    shortest = min((values[0] for values in lines.values()), default=_LEAST_S)
    longest = max((values[-1] for values in lines.values()), default=1.0)
    first, last = floor(log10(shortest)), ceil(log10(longest))
    last = max(last, first + 1)

    def x(seconds: float) -> float:
        return _LEFT + (log10(seconds) - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for power in range(first, last + 1):
        at, label = x(10.0**power), f"{10.0**power:g}"
        parts.append(_line(at, y(0), at, y(1)))
        parts.append(f'<text x="{at:.1f}" y="{y(0) + 18:.1f}" text-anchor="middle">{label}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(_line(x(10.0**first), y(share), x(10.0**last), y(share)))
        parts.append(f'<text x="{_LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">'
        "requests with a first token within so many seconds</text>"
    )
    for number, (name, values) in enumerate(lines.items()):
        color, steps = _COLORS[number % len(_COLORS)], min(_POINTS, len(values))
        places = [ceil(step * len(values) / steps) - 1 for step in range(1, steps + 1)]
        points = " ".join(f"{x(values[place]):.1f},{y((place + 1) / len(values)):.1f}" for place in places)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        height = _TOP + 16 + 18 * number
        parts.append(f'<rect x="{_LEFT + 12}" y="{height - 9}" width="18" height="4" fill="{color}"/>')
        parts.append(f'<text x="{_LEFT + 36}" y="{height - 2}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'
