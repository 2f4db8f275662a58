"""Curves over depth or context length: one line a series, the band is the 95 % interval.

Knows no statistics. Colour and marker say the drafter, the dash says the condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from driftscope.figures.layout import bare_figure, escape, evidence, interval, number, set_alt_text, spoken
from driftscope.figures.style import series_style, translucent
from driftscope.figures.tidy import Curve, Estimate

BAND_ALPHA = 0.16


def curve_figure(
    curves: Sequence[Curve],
    *,
    title: str,
    x_title: str,
    y_title: str,
    height: int = 270,
    is_share: bool = False,
    has_legend: bool = False,
) -> go.Figure:
    """`title` is what the alt text calls the figure. `is_share`: the y axis starts at 0 and has no negative part."""
    figure = bare_figure(height=height)
    for curve in curves:
        figure.add_traces([*_band(curve), _line(curve, x_title)])
    all_x = sorted({x for curve in curves for x in curve.x})
    figure.update_layout(showlegend=has_legend, hovermode="closest")
    figure.update_xaxes(
        title_text=x_title, tickvals=_spread_ticks(all_x), tickformat=",", showgrid=False, zeroline=False
    )
    figure.update_yaxes(
        title={"text": y_title, "standoff": 12},
        rangemode="tozero" if is_share else "normal",
        zeroline=not is_share,
        zerolinewidth=1,
        nticks=6,
    )
    said = "; ".join(f"{curve.label}: {_values(curve) or 'not measured'}" for curve in curves)
    return set_alt_text(figure, f"Line chart, {title} against {x_title}. {said}.")


def _band(curve: Curve) -> Iterator[go.Scatter]:
    """The intervals as one polygon, where there are any."""
    banded = [(x, e) for x, e in _drawn(curve) if e.low is not None and e.high is not None]
    if banded:
        xs = [x for x, _ in banded]
        yield go.Scatter(
            x=xs + xs[::-1],
            y=[e.high for _, e in banded] + [e.low for _, e in reversed(banded)],
            mode="lines",
            fill="toself",
            fillcolor=translucent(series_style(curve.drafter, curve.variant).color, BAND_ALPHA),
            line={"width": 0},
            hoverinfo="skip",
            name=f"{escape(curve.label)} (interval)",
            legendgroup=curve.label,
            showlegend=False,
        )


def _line(curve: Curve, x_title: str) -> go.Scatter:
    style, drawn = series_style(curve.drafter, curve.variant), _drawn(curve)
    return go.Scatter(
        x=[x for x, _ in drawn],
        y=[e.value for _, e in drawn],
        mode="lines+markers",
        name=escape(curve.label),
        legendgroup=curve.label,
        line={"color": style.color, "dash": style.dash, "width": 2.2},
        marker={
            "symbol": style.marker + ("-open" if style.is_open else ""),
            "size": 8,
            "color": style.color,
            "line": {"width": 1.5, "color": style.color},
        },
        customdata=[[e.low, e.high] for _, e in drawn],
        hovertext=[
            f"<b>{escape(curve.label)}</b><br>{x_title} {x:,}: {number(e.value)} {interval(e)}<br>{evidence(e)}"
            for x, e in drawn
        ],
        hoverinfo="text",
        cliponaxis=False,
    )


def _drawn(curve: Curve) -> list[tuple[float, Estimate]]:
    return [(x, e) for x, e in zip(curve.x, curve.estimates, strict=True) if e.value is not None]


def _values(curve: Curve) -> str:
    return ", ".join(f"{x:,}: {spoken(e)}" for x, e in _drawn(curve))


def _spread_ticks(values: list[float]) -> list[float]:
    """All values where they have room: those closer than a twelfth of the axis to the last one kept are left out."""
    if not values:
        return []
    room = (values[-1] - values[0]) / 12
    kept = values[:1]
    for value in values[1:]:
        if value - kept[-1] >= room:
            kept.append(value)
    return kept
