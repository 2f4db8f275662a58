"""Heat maps of tokens_per_round: conditions in rows and columns, the number and its interval in every cell.

Knows no statistics: estimates come in finished. Cells are clickable: an invisible marker lies on each and carries its key
(a heat map trace itself takes no part in selections).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from driftscope.figures.layout import bare_figure, escape, evidence, interval, number, set_alt_text, spoken
from driftscope.figures.style import DIVERGING, NEUTRAL_CELL, SEQUENTIAL, color_at, text_on
from driftscope.figures.tidy import Cell

ROW_HEIGHT, PAIR_LINE_HEIGHT, COLUMN_HEADER_HEIGHT = 46, 14, 66
CELL_GAP = 0.03


def tokens_map(
    label: str, cells: Sequence[Cell], *, column_title: str, value_range: tuple[float, float], what: str
) -> go.Figure:
    """tokens_per_round by row and column; darker is more. `value_range` is shared by maps that stand side by side."""
    low, high = value_range
    span = (high - low) or 1.0
    colors, texts, hovers = [], [], []
    for cell in cells:
        estimate = cell.estimate
        colors.append(NEUTRAL_CELL if estimate.value is None else color_at(SEQUENTIAL, (estimate.value - low) / span))
        texts.append(_lines(_fixed(estimate.value), _range_text(cell)))
        hovers.append(
            f"<b>{escape(label)}</b><br>{escape(cell.row)} · {escape(cell.column)} {escape(column_title)}<br>"
            f"{escape(what)} {number(estimate.value)} {interval(estimate)}<br>{evidence(estimate)}"
        )
    figure = _map(cells, colors, texts, hovers, column_title)
    numbers = "; ".join(f"{c.row}, {c.column}: {spoken(c.estimate)}" for c in cells)
    return set_alt_text(figure, f"Heat map of {what} of {label}, by system prompt and {column_title}. {numbers}.")


def difference_map(label: str, cells: Sequence[Cell], *, column_title: str, largest: float, what: str) -> go.Figure:
    """Paired differences to a baseline: blue above, orange below, grey and "≈" where the interval holds 0.

    `largest`: the largest absolute difference of all maps that stand side by side. A baseline cell holds tokens_per_round
    of all of its prompts; each other says over how many prompts, and from which baseline of these, it was taken.
    """
    scale = largest or 1.0
    colors, texts, hovers, said = [], [], [], []
    for cell in cells:
        estimate = cell.estimate
        verdict = difference_verdict(cell)
        said.append(f"{cell.row}, {cell.column}: {verdict if cell.is_baseline else _spoken_difference(cell, verdict)}")
        if cell.is_baseline:
            colors.append(NEUTRAL_CELL)
            texts.append(_lines(f"⚑ {_fixed(estimate.value)}", "baseline", _n(cell)))
        elif estimate.value is None:
            colors.append(NEUTRAL_CELL)
            texts.append(_lines("-", "no pairs"))
        else:
            is_clear = estimate.holds_zero is False
            colors.append(color_at(DIVERGING, 0.5 + estimate.value / scale / 2) if is_clear else NEUTRAL_CELL)
            sign = "" if is_clear else "≈ "
            ends = "" if estimate.low is None else _range_text(cell, is_signed=True)
            pair = [f"from {_fixed(cell.pair.baseline)}"] if cell.pair else []
            texts.append(_lines(sign + f"{estimate.value:+.2f}", ends, ", ".join([*pair, _n(cell)])))
        hovers.append(
            f"<b>{escape(label)}</b><br>{escape(cell.row)} · {escape(cell.column)} {escape(column_title)}<br>"
            + (
                f"the baseline itself: {number(estimate.value)} over all of its prompts<br>{evidence(estimate)}<br>"
                "Each difference is taken over the prompts that both sides have."
                if cell.is_baseline
                else f"difference {number(estimate.value, is_signed=True)} {interval(estimate, is_signed=True)}<br>"
                f"{_pair_text(cell)}{verdict}<br>{evidence(estimate)} in both"
            )
        )
    figure = _map(cells, colors, texts, hovers, column_title, row_height=ROW_HEIGHT + PAIR_LINE_HEIGHT)
    return set_alt_text(
        figure, f"Heat map of {what} of {label}, by system prompt and {column_title}. {'; '.join(said)}."
    )


def difference_verdict(cell: Cell) -> str:
    """In words: higher, lower, not distinguishable, or why it cannot be said."""
    estimate = cell.estimate
    if cell.is_baseline:
        return "baseline"
    if estimate.value is None:
        return "no prompts in common"
    if estimate.holds_zero is None:
        return "too few prompts for an interval"
    if estimate.holds_zero:
        return "not distinguishable"
    return "higher" if estimate.value > 0 else "lower"


def _map(
    cells: Sequence[Cell],
    colors: list[str],
    texts: list[str],
    hovers: list[str],
    column_title: str,
    row_height: int = ROW_HEIGHT,
) -> go.Figure:
    rows = list(dict.fromkeys(cell.row for cell in cells))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    figure = bare_figure(height=row_height * len(rows) + COLUMN_HEADER_HEIGHT)
    column_of = {name: index for index, name in enumerate(columns)}
    row_of = {name: index for index, name in enumerate(rows)}
    x = [column_of[cell.column] for cell in cells]
    y = [row_of[cell.row] for cell in cells]
    figure.update_layout(shapes=[_rectangle(*one) for one in zip(cells, x, y, colors, strict=True)])
    figure.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="markers+text",
            marker={"symbol": "square", "size": row_height - 8, "opacity": 0, "color": colors},
            text=texts,
            textposition="middle center",
            textfont={"size": 14, "color": [text_on(color) for color in colors]},
            customdata=[[cell.key, cell.estimate.value, cell.estimate.low, cell.estimate.high] for cell in cells],
            hovertext=hovers,
            hoverinfo="text",
            # a click selects; nothing may fade when it does
            selected={"marker": {"opacity": 0}},
            unselected={"marker": {"opacity": 0}, "textfont": {}},
            showlegend=False,
        )
    )
    figure.update_xaxes(
        title_text=column_title,
        tickvals=list(range(len(columns))),
        ticktext=[escape(c) for c in columns],
        side="top",
        range=[-0.5, len(columns) - 0.5],
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        tickvals=list(range(len(rows))),
        ticktext=[escape(r) for r in rows],
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    return figure


def _rectangle(cell: Cell, x: int, y: int, color: str) -> dict[str, Any]:
    half = 0.5 - CELL_GAP
    return {
        "type": "rect",
        "x0": x - half,
        "x1": x + half,
        "y0": y - half,
        "y1": y + half,
        "fillcolor": color,
        "line": {"width": 2 if cell.is_baseline else 0, "color": "#15181D" if cell.is_baseline else color},
        "layer": "below",
    }


def _lines(first: str, *others: str) -> str:
    return "<br>".join([f"<b>{first}</b>", *(f"<span style='font-size:10px'>{line}</span>" for line in others if line)])


def _n(cell: Cell) -> str:
    return f"n = {cell.estimate.num_prompts}"


def _pair_text(cell: Cell) -> str:
    if cell.pair is None:
        return ""
    return f"{number(cell.pair.value)} - {number(cell.pair.baseline)}, over the same prompts<br>"


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _range_text(cell: Cell, *, is_signed: bool = False) -> str:
    estimate = cell.estimate
    if estimate.value is None:
        return ""
    if estimate.low is None or estimate.high is None:
        return _n(cell)
    if is_signed:
        return f"{estimate.low:+.2f} to {estimate.high:+.2f}"
    return f"{estimate.low:.2f} to {estimate.high:.2f}"


def _spoken_difference(cell: Cell, verdict: str) -> str:
    if cell.estimate.value is None:
        return verdict
    pair = (
        ""
        if cell.pair is None
        else f" from {number(cell.pair.baseline)} over {cell.estimate.num_prompts} common prompts"
    )
    return f"{spoken(cell.estimate, is_signed=True)}{pair}, {verdict}"
