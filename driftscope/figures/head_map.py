"""One quantity by head and depth: which heads give their sink up, which look at the chain's own tokens.

Knows no statistics.
"""

from __future__ import annotations

import plotly.graph_objects as go

from driftscope.figures.layout import bare_figure, escape, number, set_alt_text
from driftscope.figures.style import DIVERGING, NEUTRAL_CELL, SEQUENTIAL, color_at, text_on
from driftscope.figures.tidy import HeadMasses

MAX_ROWS_WITH_NUMBERS = 16


def head_map(masses: HeadMasses, *, title: str, value_range: tuple[float, float], is_signed: bool = False) -> go.Figure:
    """Heads in rows, depths in columns. `is_signed`: 0 is neutral, both signs have a colour; else darker is more."""
    num_heads = len(masses.values)
    depth = len(masses.values[0]) if num_heads else 0
    figure = bare_figure(height=max(170, min(26, 900 // max(1, num_heads)) * num_heads + 80))
    low, high = value_range
    reach = max(abs(low), abs(high)) or 1.0
    scale = DIVERGING if is_signed else SEQUENTIAL
    zmin, zmax = (-reach, reach) if is_signed else (low, high if high > low else low + 1.0)
    rows = [f"head {head}" for head in range(num_heads)]
    figure.add_trace(
        go.Heatmap(
            z=[list(row) for row in masses.values],
            x=list(range(1, depth + 1)),
            y=rows,
            zmin=zmin,
            zmax=zmax,
            colorscale=[list(stop) for stop in scale],
            xgap=2,
            ygap=2,
            colorbar={"thickness": 10, "outlinewidth": 0, "nticks": 5},
            hovertext=[
                [f"<b>{escape(masses.label)}</b><br>head {h}, depth {k + 1}: {number(v)}" for k, v in enumerate(row)]
                for h, row in enumerate(masses.values)
            ],
            hoverinfo="text",
        )
    )
    if num_heads <= MAX_ROWS_WITH_NUMBERS:
        cells = [(k + 1, rows[h], v) for h, row in enumerate(masses.values) for k, v in enumerate(row)]
        figure.add_trace(
            go.Scatter(
                x=[x for x, _, _ in cells],
                y=[y for _, y, _ in cells],
                mode="text",
                text=["" if v is None else f"{v:.2f}".replace("-0.00", "0.00") for _, _, v in cells],
                textfont={
                    "size": 10,
                    "color": [
                        text_on(NEUTRAL_CELL if v is None else color_at(scale, (v - zmin) / (zmax - zmin)))
                        for _, _, v in cells
                    ],
                },
                hoverinfo="skip",
                showlegend=False,
            )
        )
    figure.update_xaxes(title_text="depth k", dtick=1, showgrid=False, zeroline=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    said = "; ".join(f"head {h}: {', '.join(number(v) for v in row)}" for h, row in enumerate(masses.values))
    return set_alt_text(figure, f"Heat map of {title} of {masses.label} by head and depth. {said or 'not measured'}.")
