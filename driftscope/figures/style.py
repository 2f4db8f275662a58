"""Colours, dashes and markers: one drafter looks the same in every figure, and never by colour alone.

Knows no data. The colours are distinct for the three common kinds of colour blindness (after Okabe and Ito) and keep at
least 3:1 against white and against the app's dark background (tested).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

COLORS = ("#2B7BBA", "#D55E00", "#0B9A6D", "#A45BB5", "#A67C00", "#D14D8B", "#3C8F9E", "#7D7D7D")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

# Attention regions, in the order in which they are stacked.
REGION_COLORS = {
    "own": "#D55E00",
    "current": "#F0A561",
    "response": "#2B7BBA",
    "sink": "#4A5BB0",
    "template": "#7D7D7D",
    "system": "#A45BB5",
    "tools": "#6E4A7E",
    "context": "#0B9A6D",
    "user": "#8CCBB5",
    "history": "#C9B037",
    "unknown": "#C4C4C4",
    "learned_sink": "#8E97CC",
}
REGION_PATTERNS = {
    "own": "",
    "current": "/",
    "response": "",
    "sink": "x",
    "template": "",
    "system": "\\",
    "tools": "+",
    "context": "",
    "user": ".",
    "history": "-",
    "unknown": "|",
    "learned_sink": "x",
}

# Light to dark, so that more reads as more also in grey.
SEQUENTIAL = ((0.0, "#F1F6FB"), (0.25, "#C6DCEF"), (0.5, "#83B5DB"), (0.75, "#3B7DB8"), (1.0, "#0A3D70"))
# Orange: below the baseline; blue: above; both darker with distance, the middle neutral.
DIVERGING = (
    (0.0, "#8A3B00"),
    (0.25, "#E08A45"),
    (0.5, "#F4F4F2"),
    (0.75, "#6FA8D6"),
    (1.0, "#0A3D70"),
)
NEUTRAL_CELL = "#E4E4E1"
DARK_TEXT, LIGHT_TEXT = "#15181D", "#FFFFFF"


class SeriesStyle(NamedTuple):
    """How one series is drawn."""

    color: str
    dash: str
    marker: str
    is_open: bool  # hollow marker: a further variant of the same drafter


def series_style(drafter: int, variant: int = 0) -> SeriesStyle:
    """Colour and marker by the drafter's place in the list of all drafters, dash by variant."""
    return SeriesStyle(
        color=COLORS[drafter % len(COLORS)],
        dash=DASHES[variant % len(DASHES)],
        marker=MARKERS[drafter % len(MARKERS)],
        is_open=variant % 2 == 1,
    )


def variants_of(drafters: Iterable[object]) -> list[int]:
    """Each series' drafter -> 0, 1, ..: which of the series of its drafter it is, for a dash of its own."""
    seen: Counter[object] = Counter()
    variants = []
    for drafter in drafters:
        variants.append(seen[drafter])
        seen[drafter] += 1
    return variants


def patterned(color: str, pattern: str, size: int = 6) -> dict[str, Any]:
    """The marker of a bar that also has a pattern."""
    return {"color": color, "pattern": {"shape": pattern, "fgcolor": "#FFFFFF", "fillmode": "overlay", "size": size}}


def translucent(color: str, alpha: float) -> str:
    """`#RRGGBB` -> rgba()."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def color_at(scale: tuple[tuple[float, str], ...], position: float) -> str:
    """The colour at `position` 0..1 of a scale, linear between its stops."""
    position = min(1.0, max(0.0, position))
    for (left, first), (right, second) in pairwise(scale):
        if position <= right:
            share = (position - left) / (right - left)
            channels = [
                round(int(first[i : i + 2], 16) * (1 - share) + int(second[i : i + 2], 16) * share) for i in (1, 3, 5)
            ]
            return "#{:02X}{:02X}{:02X}".format(*channels)
    return scale[-1][1]


def luminance(color: str) -> float:
    """Relative luminance of `#RRGGBB` as WCAG 2 defines it, 0..1."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1..21 (WCAG 2)."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def text_on(color: str) -> str:
    """Dark or light text, whichever reads better on `color`."""
    return max((DARK_TEXT, LIGHT_TEXT), key=lambda text: contrast(text, color))
