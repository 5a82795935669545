"""Text for people at a terminal: tables and numbers."""

from __future__ import annotations

from collections.abc import Sequence

_GAP = "  "


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), indent: str = "") -> str:
    """Columns as wide as their longest cell, numbers to the right; those `left` are aligned to the left."""
    lines = [[shown(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    return "\n".join(
        (indent + _GAP.join(_aligned(cell, widths[at], at in left) for at, cell in enumerate(line))).rstrip()
        for line in lines
    )


def shown(text: str) -> str:
    """Without what would steer a terminal: names may come from anybody."""
    return "".join(character if character.isprintable() else "?" for character in text)


def count(number: int) -> str:
    return f"{number:,}"


def cost(value: float) -> str:
    """Four digits that count, no exponent where one can do without."""
    if value == 0.0:
        return "0"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(ms: float) -> str:
    if ms >= 60_000:
        return f"{ms / 60_000:.1f} min"
    if ms >= 1_000:
        return f"{ms / 1_000:.2f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def some(number: int, noun: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _aligned(cell: str, width: int, to_left: bool) -> str:
    return cell.ljust(width) if to_left else cell.rjust(width)
