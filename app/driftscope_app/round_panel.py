"""One round: why it ended where it did, and everything recorded at each of its depths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import streamlit as st

from driftscope.figures import Curve, Estimate, RegionMasses, curve_figure, region_bars
from driftscope.figures.style import COLORS
from driftscope.runs.schema import MASS_COLUMNS
from driftscope_app import aggregates, candidates, chart
from driftscope_app.scope import Condition, Scope
from driftscope_app.text import code, plain
from driftscope_app.tokens import Vocabulary
from probes.record import COLUMNS, REGIONS

NEUTRAL = len(COLORS) - 1
LABELS = {
    "hidden_in_norm": "norm in",
    "hidden_out_norm": "norm out",
    "hidden_feedback_norm": "norm fed back",
    "branch_norm_attn": "attention adds",
    "branch_norm_mlp": "MLP adds",
    "input_share_embed": "embedding share",
}
OF_TOKENS = ("draft_prob", "draft_entropy", "target_prob_of_draft", "overlap")  # stand beside the tokens
NUMBERS = LABELS | {
    name: LABELS.get(name, name.replace("_", " "))
    for name, column in COLUMNS.items()
    if column.axes in ("round depth", "round depth layer") and column.stored == "float32" and name not in OF_TOKENS
}
"""Column -> its heading in the table of depths: every number that is recorded at a depth."""
LAST_LAYER_COLUMNS = ("hidden_out_norm", "branch_norm_attn", "branch_norm_mlp")


def show(
    scope: Scope,
    condition: Condition,
    rounds: pa.Table,
    chosen: int,
    words: Vocabulary,
    *,
    choose: Callable[[int], None],
) -> None:
    """`chosen`: index into `rounds` (`aggregates.walk_rounds`); `choose`: called with another index."""
    row = rounds.slice(chosen, 1).to_pylist()[0]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(f"Round {chosen + 1:,} of {rounds.num_rows:,}", anchor=False, width="stretch")
        for label, step, icon in (("Previous round", -1, "arrow_back"), ("Next round", 1, "arrow_forward")):
            target = chosen + step
            if st.button(
                "",
                key=f"step_{step}",
                icon=f":material/{icon}:",
                help=label,
                disabled=not 0 <= target < rounds.num_rows,
            ):
                choose(target)
                st.rerun()
    ref = condition.run.ref
    depths = aggregates.round_depths(ref.path, ref.version, row["round_id"])
    rows = _of_the_drafter(depths.to_pylist())
    _verdict(row, rows, words)
    _depth_table(rows, words)
    candidates.show(rows, words)
    _round_charts(condition, rows, scope.drafter_index(condition.summary.drafter))


def _of_the_drafter(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each depth from those of its layers (by layer, then depth), as `driftscope show` sums them up: what
    enters is the first layer's, what leaves the last one's, attention is over the heads of all layers."""
    by_depth: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_depth.setdefault(row["depth"], []).append(row)
    return [
        layers[0]
        | {name: layers[-1][name] for name in LAST_LAYER_COLUMNS}
        | {name: [mass for layer in layers for mass in layer[name] or []] for name in MASS_COLUMNS}
        for layers in by_depth.values()
    ]


def _verdict(row: dict[str, Any], rows: list[dict[str, Any]], words: Vocabulary) -> None:
    accepted, num_drafts = row["accepted_drafts"], row["num_drafts"]
    if accepted >= num_drafts:
        st.success(f"All {num_drafts} drafts accepted, and the bonus token.", icon=":material/done_all:")
        return
    failed = rows[accepted]
    reason = _reason(failed)
    drafted, emitted = words.one(failed["draft_token"]), words.one(failed["target_token"])
    fresh = ""
    if failed["fresh_right"] is not None and accepted:
        fresh = (
            " With true features it would have been right: lost to the chain."
            if failed["fresh_right"]
            else " With true features it would have been wrong too: a hard token."
        )
    tokens = f" Drafted {code(drafted)}, the target wrote {code(emitted)}." if drafted or emitted else ""
    st.warning(
        f"{accepted} of {num_drafts} accepted. Rejected at depth {accepted + 1}: **{plain(reason)}**.{tokens}{fresh}",
        icon=":material/close:",
    )


def _reason(row: dict[str, Any]) -> str:
    """An imported run does not know why a draft was rejected."""
    return (row["rejection_reason"] or "reason not known").replace("_", " ")


def _depth_table(rows: list[dict[str, Any]], words: Vocabulary) -> None:
    mark = {1: "✓", 0: "✗", None: ""}
    columns = {
        "depth": [r["depth"] for r in rows],
        "drafted": [words.one(r["draft_token"]) for r in rows],
        "accepted": [mark[r["accepted"]] for r in rows],
        "target": [words.one(r["target_token"]) for r in rows],
        "p drafter": [r["draft_prob"] for r in rows],
        "p target": [r["target_prob_of_draft"] for r in rows],
        "reason": [_reason(r) if r["accepted"] != 1 else "" for r in rows],
        "rank in target": [r["target_rank_of_draft"] for r in rows],
        "fresh": [words.one(r["fresh_token"]) for r in rows],
        "fresh right": ["" if r["fresh_right"] is None else ("yes" if r["fresh_right"] else "no") for r in rows],
        "entropy": [r["draft_entropy"] for r in rows],
        "overlap": [r["overlap"] for r in rows],
        **{label: [r[name] for r in rows] for name, label in NUMBERS.items()},
    }
    measured = {name: values for name, values in columns.items() if any(v not in (None, "") for v in values)}
    norms = [label for name, label in NUMBERS.items() if "norm" in name]
    decimals = (
        "p drafter",
        "p target",
        "entropy",
        "overlap",
        *(label for label in NUMBERS.values() if label not in norms),
    )
    config: dict[str, Any] = {name: st.column_config.NumberColumn(format="%.2f", width=72) for name in decimals}
    config |= {name: st.column_config.NumberColumn(format="%.1f", width="small") for name in norms}
    config |= {"accepted": st.column_config.TextColumn(width=70)}
    config |= {"depth": st.column_config.NumberColumn(width=48, pinned=True)}
    st.dataframe(
        measured,
        hide_index=True,
        width="stretch",
        height=38 + 35 * len(rows),
        column_config={name: c for name, c in config.items() if name in measured},
        placeholder="",
        alt=f"Table of the {len(rows)} depths of this round",
    )


def _round_charts(condition: Condition, rows: list[dict[str, Any]], drafter: int) -> None:
    depths = [r["depth"] for r in rows]

    def curve(label: str, name: str, *, variant: int = 0, is_target: bool = False) -> Curve:
        estimates = [Estimate(value=r[name]) for r in rows]
        color = NEUTRAL if is_target else drafter  # the drafter keeps its colour; what is not a drafter has none
        return Curve(label=label, x=depths, estimates=estimates, drafter=color, variant=variant)

    if any(r["draft_prob"] is not None for r in rows):
        st.markdown("**Probability of the draft**")
        figure = curve_figure(
            [curve("drafter", "draft_prob"), curve("target", "target_prob_of_draft", is_target=True)],
            title="probability of the drafted token",
            x_title="depth k",
            y_title="probability",
            height=210,
            is_share=True,
            has_legend=True,
        )
        chart.show(figure, "round_probabilities")
    if any(r["hidden_in_norm"] is not None for r in rows):
        st.markdown("**Norm of the hidden state**")
        figure = curve_figure(
            [
                curve("entering", "hidden_in_norm"),
                curve("leaving", "hidden_out_norm", variant=1),
                curve("fed back", "hidden_feedback_norm", variant=2),
            ],
            title="norm of the hidden state",
            x_title="depth k",
            y_title="L2 norm",
            height=210,
            is_share=True,
            has_legend=True,
        )
        chart.show(figure, "round_norms")
    masses = {region: [_mean(r[column]) for r in rows] for region, column in zip(REGIONS, MASS_COLUMNS, strict=True)}
    if any(value is not None for values in masses.values() for value in values):
        st.markdown("**Attention by region** (mean over heads)")
        label = f"round of {condition.summary.drafter}"
        chart.show(region_bars(RegionMasses(label=label, mass=masses), height=280), "round_masses")


def _mean(heads: list[float] | None) -> float | None:
    return sum(heads) / len(heads) if heads else None
