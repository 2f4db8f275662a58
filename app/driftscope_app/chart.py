"""Puts a figure on the page, with its text alternative. Knows no numbers."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence

import plotly.graph_objects as go
import streamlit as st

from driftscope.figures import SeriesStyle, alt_text

CONFIG = {"displaylogo": False, "displayModeBar": False, "scrollZoom": False, "doubleClick": False}

_SVG_DASH = {
    "solid": "",
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "7 3 2 3",
    "longdash": "11 4",
    "longdashdot": "11 3 2 3",
}
_SVG_MARKER = {
    "circle": '<circle cx="17" cy="7" r="4.5"/>',
    "square": '<rect x="13" y="3" width="8" height="8"/>',
    "diamond": '<path d="M17 1.5 22.5 7 17 12.5 11.5 7Z"/>',
    "triangle-up": '<path d="M17 2 22 11.5H12Z"/>',
    "cross": '<path d="M15.2 2.5h3.6v2.7h2.7v3.6h-2.7v2.7h-3.6V8.8h-2.7V5.2h2.7Z"/>',
    "x": '<path d="M13 4.6 14.6 3 17 5.4 19.4 3 21 4.6 18.6 7 21 9.4 19.4 11 17 8.6 14.6 11 13 9.4 15.4 7Z"/>',
    "star": '<path d="M17 1.5l1.6 3.6 3.9.4-2.9 2.6.8 3.9-3.4-2-3.4 2 .8-3.9-2.9-2.6 3.9-.4Z"/>',
    "hexagon": '<path d="M17 2l4.5 2.5v5L17 12l-4.5-2.5v-5Z"/>',
}


def show(
    figure: go.Figure, key: str, *, on_click: Callable[[], None] | None = None, missing: str | None = None
) -> None:
    """`on_click`: called when a point is chosen; `clicked` then says which. `missing`: shown instead of the figure."""
    if missing is not None:
        st.caption(missing)
        return
    st.plotly_chart(
        figure,
        key=key,
        width="stretch",
        alt=alt_text(figure),
        config=CONFIG,
        on_select=on_click or "ignore",
        selection_mode="points",
    )


def clicked(key: str) -> str | None:
    """The key (`Cell.key`, `Point.key`) of the point that was chosen in the chart `key`."""
    points = st.session_state[key]["selection"]["points"]
    for point in points:
        data = point.get("customdata")
        first = data[0] if isinstance(data, list) else data.get("0") if isinstance(data, dict) else data
        if first:
            return str(first)
    return None


def legend(entries: Sequence[tuple[str, SeriesStyle]]) -> None:
    """One legend for several charts: line, dash and marker of each series, then its name."""
    items = []
    for label, style in entries:
        fill = "none" if style.is_open else style.color
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" width="34" height="14">'
            f'<line x1="1" x2="33" y1="7" y2="7" stroke="{style.color}" stroke-width="2.2" '
            f'stroke-dasharray="{_SVG_DASH[style.dash]}"/>'
            f'<g fill="{fill}" stroke="{style.color}" stroke-width="1.4">{_SVG_MARKER[style.marker]}</g></svg>'
        )
        image = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"  # inline svg is sanitised away
        items.append(
            '<span style="display:inline-flex;align-items:center;gap:.4rem;margin-right:1.1rem;white-space:nowrap">'
            f'<img src="{image}" width="34" height="14" alt=""><span>{html.escape(label)}</span></span>'
        )
    st.html(f'<div style="font-size:.9rem;line-height:1.9">{"".join(items)}</div>')
