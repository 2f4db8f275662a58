"""Where the tokens of a round go: what is gained, and each part of what is lost, up to K + 1.

Knows no statistics: the parts come from the loss waterfall.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from driftscope.diagnosis.waterfall import LOSS_NAMES
from driftscope.figures.layout import bare_figure, escape, number, set_alt_text
from driftscope.figures.style import patterned
from driftscope.figures.tidy import Losses

BAR_HEIGHT = 46
GAINED_COLOR = "#5F6B7A"
PART_COLORS = {
    "chain_decay": "#D55E00",
    "hard_token": "#7FB2DD",
    "hard_token_or_chain_decay": "#C79A6B",
    "out_of_draft_vocab": "#A45BB5",
    "sampled_out": "#0B9A6D",
    "grammar": "#C9B037",
    "limit": "#8E97CC",
    "unattributed": "#C4C4C4",
}
PART_PATTERNS = {
    "chain_decay": "/",
    "hard_token": "",
    "hard_token_or_chain_decay": "x",
    "out_of_draft_vocab": "\\",
    "sampled_out": ".",
    "grammar": "-",
    "limit": "|",
    "unattributed": "+",
}


def loss_bars(losses: Sequence[Losses]) -> go.Figure:
    """One bar for each series: tokens_per_round of the walk, then the lost tokens by first cause."""
    figure = bare_figure(height=BAR_HEIGHT * len(losses) + 120)
    labels = [escape(one.label) for one in losses]

    def add(name: str, values: list[float], color: str, pattern: str) -> None:
        figure.add_trace(
            go.Bar(
                y=labels,
                x=values,
                name=name,
                orientation="h",
                marker=patterned(color, pattern),
                hovertext=[f"<b>{label}</b><br>{name}: {number(v)}" for label, v in zip(labels, values, strict=True)],
                hoverinfo="text",
            )
        )

    add("tokens per round, walk", [one.tokens_per_round for one in losses], GAINED_COLOR, "")
    for part, color in PART_COLORS.items():
        values = [one.parts.get(part, 0.0) for one in losses]
        if any(values):
            add(LOSS_NAMES[part], values, color, PART_PATTERNS[part])
    figure.update_layout(barmode="stack", bargap=0.35, legend_traceorder="normal")
    figure.update_xaxes(title_text="tokens of an average walk round", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    said = "; ".join(
        f"{one.label}: {number(one.tokens_per_round)} tokens per round of the walk, "
        + ", ".join(f"{LOSS_NAMES[part]} {number(value)}" for part, value in one.parts.items() if value)
        for one in losses
    )
    return set_alt_text(figure, f"Bars of where the tokens of a round are lost. {said}.")
