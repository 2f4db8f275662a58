"""Fusion: how much of the drafter's fused input comes from each captured target layer."""

from __future__ import annotations

import numpy as np
import streamlit as st
from driftscope_app import address, aggregates, chart, page
from driftscope_app.scope import Condition, Scope
from driftscope_app.text import plain

from driftscope.figures import Estimate, Share, fusion_bars
from driftscope.quantities import QUANTITIES
from driftscope.runs.schema import CONDITION
from driftscope.stats.intervals import ratio_intervals

COLUMNS = ("fusion_share", "fusion_energy", "aux_norm")


def main() -> None:
    """The page."""
    scope = page.begin(
        "Fusion", "Which layers of the target the drafter listens to, and whether that changes with the condition."
    )
    if scope is None:
        return
    places = list(dict.fromkeys(scope.place(c) for c in scope.conditions))
    left, right = st.columns(2)
    with left:
        column = address.pick_one(
            st.segmented_control,
            "fusion",
            "Quantity",
            COLUMNS,
            format_func=lambda name: QUANTITIES[name].title,
            required=True,
        )
    with right:
        wanted = address.pick_a_few("place", "Conditions (system prompt · context tokens)", places)
    assert column is not None
    quantity = QUANTITIES[column]
    st.caption(f"{quantity.definition} {quantity.how_to_read}".strip())
    shown = [c for c in scope.conditions if scope.place(c) in wanted]
    series = scope.all_series()
    shares = {
        name: [
            share
            for number, c in enumerate(c for c in shown if scope.series(c) == name)
            for share in _shares(scope, c, column, number)
        ]
        for name in series
    }
    ends = [
        end
        for of_series in shares.values()
        for s in of_series
        for end in (s.estimate.value, s.estimate.low, s.estimate.high)
        if end is not None
    ]
    for begin in range(0, len(series), 2):
        names = series[begin : begin + 2]
        for slot, name in zip(st.columns(2), names, strict=False):
            with slot:
                st.subheader(plain(name), anchor=False)
                is_measured = any(s.estimate.value is not None for s in shares[name])
                figure = fusion_bars(
                    shares[name],
                    y_title=quantity.axis,
                    value_range=(min(0.0, *ends), max(0.0, *ends)) if ends else None,
                )
                missing = None if is_measured else "Not measured: no fusion layer, or not recorded."
                chart.show(figure, f"fusion_{name}", missing=missing)
    st.caption("Error bars are 95 % intervals over prompts.")
    _over_conditions(scope, column)


def _shares(scope: Scope, condition: Condition, column: str, variant: int) -> list[Share]:
    s, ref = condition.summary, condition.run.ref
    table = aggregates.aux_sums(ref.path, ref.version, column)
    rows = [row for row in table.to_pylist() if tuple(row[name] for name in CONDITION) == s.key]
    prompts = sorted({row["prompt_id"] for row in rows})
    num_parts = max((row["position"] for row in rows), default=0)
    total = np.zeros((num_parts, len(prompts)))
    count = np.zeros((num_parts, len(prompts)))
    for row in rows:
        place = row["position"] - 1, prompts.index(row["prompt_id"])
        total[place], count[place] = row["total"], row["num_rounds"]
    intervals = ratio_intervals(total, count) if num_parts else []
    layer_ids = s.fusion_share.layer_ids
    shares = [
        Share(
            label=scope.place(condition),
            part=str(layer_ids[i]) if i < len(layer_ids) else f"input {i + 1}",
            estimate=Estimate(
                value=float(total[i].sum() / count[i].sum()) if count[i].sum() else None,
                low=intervals[i].low,
                high=intervals[i].high,
                num_prompts=int((count[i] > 0).sum()),
                num_rounds=int(count[i].sum()),
            ),
            drafter=scope.drafter_index(s.drafter),
            variant=variant,
        )
        for i in range(num_parts)
    ]
    if column == "fusion_share" and s.fusion_share.bias is not None:
        bias = Estimate(value=s.fusion_share.bias)
        shares.append(
            Share(label=scope.place(condition), part="bias", estimate=bias, drafter=scope.drafter_index(s.drafter))
        )
    return shares


def _over_conditions(scope: Scope, column: str) -> None:
    with st.expander("Numbers of every condition", icon=":material/table:"):
        rows: list[dict[str, object]] = []
        for condition in scope.conditions:
            row: dict[str, object] = {"drafter": scope.series(condition), "condition": scope.place(condition)}
            for share in _shares(scope, condition, column, 0):
                row[f"layer {share.part}" if share.part.isdigit() else share.part] = share.estimate.value
            rows.append(row)
        names = list(dict.fromkeys(name for row in rows for name in row))
        st.dataframe(
            {name: [row.get(name) for row in rows] for name in names},
            hide_index=True,
            width="stretch",
            column_config={n: st.column_config.NumberColumn(format="%.3f") for n in names[2:]},
            placeholder="",
            alt=f"Table of {QUANTITIES[column].title} by layer for {len(rows)} conditions",
        )


main()
