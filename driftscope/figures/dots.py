"""One dot per drafter and condition, with its interval: which drafter is worse, and where.

Knows no statistics. Conditions stand in rows in the given order.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from driftscope.figures.layout import bare_figure, error_bars, escape, evidence, interval, number, set_alt_text, spoken
from driftscope.figures.style import COLORS, series_style
from driftscope.figures.tidy import Point

ROW_HEIGHT = 26


def condition_dots(points: Sequence[Point], *, x_title: str, is_signed: bool = False) -> go.Figure:
    """Conditions in rows (first on top), one dot for each series, the bar is the 95 % interval. `is_signed`: of
    differences, with a line at 0."""
    conditions = list(dict.fromkeys(point.condition for point in points))
    labels = list(dict.fromkeys(point.label for point in points))
    figure = bare_figure(height=ROW_HEIGHT * len(conditions) + 90)
    row_of = {name: row for row, name in enumerate(conditions)}
    for index, label in enumerate(labels):
        own = [p for p in points if p.label == label and p.estimate.value is not None]
        if not own:
            continue
        style = series_style(own[0].drafter, own[0].variant)
        offset = (index - (len(labels) - 1) / 2) * min(0.3, 0.7 / len(labels))
        figure.add_trace(
            go.Scatter(
                x=[p.estimate.value for p in own],
                y=[row_of[p.condition] + offset for p in own],
                mode="markers",
                name=escape(label),
                marker={
                    "symbol": style.marker + ("-open" if style.is_open else ""),
                    "size": 9,
                    "color": style.color,
                    "line": {"width": 1.5, "color": style.color},
                },
                error_x=error_bars([p.estimate for p in own], thickness=1.6, width=0, color=style.color),
                customdata=[[p.key, p.estimate.value, p.estimate.low, p.estimate.high] for p in own],
                hovertext=[
                    f"<b>{escape(label)}</b><br>{escape(p.condition)}<br>{number(p.estimate.value, is_signed=is_signed)} "
                    f"{interval(p.estimate, is_signed=is_signed)}<br>{evidence(p.estimate)}"
                    for p in own
                ],
                hoverinfo="text",
            )
        )
    figure.update_layout(showlegend=True, legend_y=1.0)
    figure.update_xaxes(title_text=x_title, zeroline=False)
    if is_signed:
        figure.add_vline(x=0, line={"color": COLORS[-1], "width": 1.5, "dash": "dash"}, layer="below")
    figure.update_yaxes(
        tickvals=list(range(len(conditions))),
        ticktext=[escape(c) for c in conditions],
        range=[len(conditions) - 0.4, -0.6],
        showgrid=True,
        zeroline=False,
    )
    numbers = "; ".join(f"{p.condition}, {p.label}: {spoken(p.estimate, is_signed=is_signed)}" for p in points)
    return set_alt_text(figure, f"Dot chart of {x_title} by condition. {numbers}.")
