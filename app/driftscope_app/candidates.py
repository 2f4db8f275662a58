"""What drafter and target held likely at each depth of a round, side by side. Knows no run, only the rows it is given."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import streamlit as st

from driftscope_app.tokens import Vocabulary

DRAFTED, EMITTED = "●", "★"
_CELL = "padding:.25rem .5rem;vertical-align:top;border-top:1px solid rgba(128,128,128,.35)"
_LINE = "display:flex;justify-content:space-between;gap:.5rem;padding:0 .3rem"


def show(rows: Sequence[dict[str, Any]], words: Vocabulary) -> None:
    """`rows`: one for each depth, as in depths/. Nothing is drawn where no candidates were recorded."""
    if not any(row["draft_top_prob"] or row["target_top_prob"] for row in rows):
        return
    st.markdown("**Candidates**")
    st.caption(
        f"The most probable tokens and their probabilities. {DRAFTED} drafted, {EMITTED} written by the target. The target "
        "has not seen what stands after the first rejected draft."
    )
    body = "".join(_depth(row, words) for row in rows)
    st.html(
        '<table style="width:100%;border-collapse:collapse;font-size:.88rem;table-layout:fixed">'
        '<thead><tr><th scope="col" style="width:3rem;text-align:left">depth</th>'
        '<th scope="col" style="text-align:left;padding-left:.8rem">drafter</th>'
        f'<th scope="col" style="text-align:left;padding-left:.8rem">target</th></tr></thead><tbody>{body}</tbody></table>'
    )


def _depth(row: dict[str, Any], words: Vocabulary) -> str:
    cells = "".join(
        f'<td style="{_CELL}">{_candidates(row, side, words) or "not seen"}</td>' for side in ("draft", "target")
    )
    return f'<tr><th scope="row" style="{_CELL};text-align:left">{row["depth"]}</th>{cells}</tr>'


def _candidates(row: dict[str, Any], side: str, words: Vocabulary) -> str:
    probabilities = row[f"{side}_top_prob"] or []
    tokens = row[f"{side}_top_token"] or [None] * len(probabilities)  # a run without text keeps no tokens
    lines = []
    for token, probability in zip(tokens, probabilities, strict=True):
        is_drafted = token is not None and token == row["draft_token"]
        is_emitted = token is not None and token == row["target_token"]
        marks = (DRAFTED if is_drafted else "") + (EMITTED if is_emitted else "")
        weight = "font-weight:650" if marks else ""
        width = f"{100 * probability:.0f}%"
        bar = f"background:linear-gradient(to right,rgba(43,123,186,.22) {width},transparent {width})"
        shown = f"{probability:.3f}" if probability >= 5e-4 else "&lt;0.001"
        word = html.escape(words.one(token)) or "token not kept"
        lines.append(
            f'<div style="{_LINE};{bar};{weight}"><span style="overflow-wrap:anywhere">{word} {marks}</span>'
            f"<span>{shown}</span></div>"
        )
    return "".join(lines)
