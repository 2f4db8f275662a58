"""Bars of parts of a whole: where attention goes by depth, and which target layers the fused state comes from.

Knows no statistics. Regions have a pattern besides their colour.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import plotly.graph_objects as go

from driftscope.figures.layout import bare_figure, error_bars, escape, evidence, interval, number, set_alt_text, spoken
from driftscope.figures.style import REGION_COLORS, REGION_PATTERNS, patterned, series_style
from driftscope.figures.tidy import RegionMasses, Share

SMALLEST_SHOWN_MASS = 5e-4  # a region that never reaches this is not listed


def region_bars(masses: RegionMasses, *, height: int = 320, has_legend: bool = True) -> go.Figure:
    """Stacked: the head-mean attention probability of every region, by depth."""
    figure = bare_figure(height=height)
    said = []
    for region, color in REGION_COLORS.items():
        values = masses.mass.get(region, ())
        if max((value or 0.0 for value in values), default=0.0) < SMALLEST_SHOWN_MASS:
            continue
        depths = list(range(1, len(values) + 1))
        figure.add_trace(
            go.Bar(
                x=depths,
                y=list(values),
                name=region,
                marker=patterned(color, REGION_PATTERNS[region], size=5),
                hovertext=[f"<b>{region}</b><br>depth {k}: {number(v)}" for k, v in zip(depths, values, strict=True)],
                hoverinfo="text",
            )
        )
        said.append(f"{region}: {', '.join(number(v) for v in values)}")
    figure.update_layout(
        barmode="stack",
        bargap=0.18,
        showlegend=has_legend,
        legend_traceorder="normal",
    )
    figure.update_xaxes(title_text="depth k", dtick=1, showgrid=False)
    figure.update_yaxes(
        title={"text": "attention probability (head mean)", "standoff": 12},
        range=[0, 1],
    )
    return set_alt_text(
        figure,
        f"Stacked bars of the attention probability of {masses.label} by region, depth 1 on. {'; '.join(said) or 'none'}.",
    )


def fusion_bars(
    shares: Sequence[Share], *, height: int = 320, y_title: str, value_range: tuple[float, float] | None = None
) -> go.Figure:
    """One group of bars for each aux layer, one bar for each series, with its interval. `value_range` is shared by
    figures that stand side by side."""
    figure = bare_figure(height=height)
    labels = list(dict.fromkeys(share.label for share in shares))
    for label, pattern in zip(labels, itertools.cycle(("", "/", "x", ".", "\\", "-", "+", "|"))):
        own = [s for s in shares if s.label == label and s.estimate.value is not None]
        if own:
            figure.add_trace(_share_bars(own, pattern))
    figure.update_layout(
        barmode="group",
        bargap=0.25,
        showlegend=len(labels) > 1,
    )
    figure.update_xaxes(title_text="captured target layer (boundary id)", type="category")
    figure.update_yaxes(title={"text": y_title, "standoff": 12}, zeroline=True)
    if value_range is not None:
        margin = 0.06 * (value_range[1] - value_range[0])
        figure.update_yaxes(range=[value_range[0] - margin * (value_range[0] < 0), value_range[1] + margin])
    numbers = "; ".join(f"{s.label}, {s.part}: {spoken(s.estimate)}" for s in shares)
    return set_alt_text(figure, f"Bars of the {y_title} by captured target layer. {numbers}.")


def _share_bars(shares: Sequence[Share], pattern: str) -> go.Bar:
    """One series: its shares that were measured."""
    label, style = shares[0].label, series_style(shares[0].drafter, shares[0].variant)
    return go.Bar(
        x=[s.part for s in shares],
        y=[s.estimate.value for s in shares],
        name=escape(label),
        marker=patterned(style.color, pattern),
        error_y=error_bars([s.estimate for s in shares], thickness=2, width=5, color="#7D8590"),
        customdata=[[s.estimate.low, s.estimate.high] for s in shares],
        hovertext=[
            f"<b>{escape(label)}</b><br>{escape(s.part)}: {number(s.estimate.value)} {interval(s.estimate)}<br>"
            f"{evidence(s.estimate)}"
            for s in shares
        ],
        hoverinfo="text",
    )
