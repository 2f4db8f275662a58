"""What all figures share: a bare layout that takes fonts and background from the page, and the text alternative.

Knows no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from driftscope.figures.tidy import Estimate
from driftscope.stats.thresholds import INTERVAL_MIN_PROMPTS

MAX_ALT_CHARACTERS = 2_000  # a screen reader reads all of it; the table beside the chart has every number


def bare_figure(*, height: int) -> go.Figure:
    """A figure without title or background; its axes cannot be dragged, a legend stands above it."""
    return go.Figure(
        layout=go.Layout(
            height=height,
            margin={"l": 8, "r": 8, "t": 8, "b": 8},
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            hoverlabel={"align": "left"},
            legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
            xaxis={"fixedrange": True, "title": {"standoff": 6}},
            yaxis={"fixedrange": True, "automargin": True},
            dragmode=False,
            modebar={"remove": ["zoom", "pan", "select", "lasso2d", "autoScale", "resetScale"]},
        )
    )


def error_bars(estimates: Sequence[Estimate], **style: Any) -> dict[str, Any]:
    """The intervals as plotly wants them: how far each end is from the value, 0 where there is none."""

    def reach(estimate: Estimate, end: float | None) -> float:
        return 0.0 if end is None or estimate.value is None else abs(end - estimate.value)

    above, below = [reach(e, e.high) for e in estimates], [reach(e, e.low) for e in estimates]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **style}


def set_alt_text(figure: go.Figure, text: str) -> go.Figure:
    """Store the text alternative in the figure itself."""
    if len(text) > MAX_ALT_CHARACTERS:
        text = text[:MAX_ALT_CHARACTERS].rsplit(";", 1)[0] + "; and more, see the table of numbers"
    figure.update_layout(meta={"alt": text})
    return figure


def alt_text(figure: go.Figure) -> str:
    """The text alternative of a figure of this package: what it shows, with its numbers."""
    return str(figure.layout.meta["alt"])


def number(value: float | None, *, is_signed: bool = False) -> str:
    """Three significant digits, at most three decimals."""
    if value is None:
        return "not measured"
    decimals = 3 if abs(value) < 1 else 2 if abs(value) < 100 else 0
    return f"{value:{'+' if is_signed else ''},.{decimals}f}"


def interval(estimate: Estimate, *, is_signed: bool = False) -> str:
    """[low, high], or why there is none."""
    if estimate.low is None or estimate.high is None:
        is_few = estimate.num_prompts is not None and estimate.num_prompts < INTERVAL_MIN_PROMPTS
        return f"no interval (fewer than {INTERVAL_MIN_PROMPTS} prompts)" if is_few else "no interval"
    return f"[{number(estimate.low, is_signed=is_signed)}, {number(estimate.high, is_signed=is_signed)}]"


def evidence(estimate: Estimate) -> str:
    """n, for hover texts."""
    parts = []
    if estimate.num_prompts is not None:
        parts.append(f"{estimate.num_prompts:,} prompts")
    if estimate.num_rounds is not None:
        parts.append(f"{estimate.num_rounds:,} rounds")
    return "n = " + ", ".join(parts) if parts else ""


def spoken(estimate: Estimate, *, is_signed: bool = False) -> str:
    """For alt texts: the value, with its interval where there is one."""
    text = number(estimate.value, is_signed=is_signed)
    return text if estimate.low is None else f"{text} {interval(estimate, is_signed=is_signed)}"


def escape(text: str) -> str:
    """Names come from files: no markup of theirs may reach a plotly label."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
