"""Depth: how acceptance, the hidden state and attention change from depth 1 to K, drafters overlaid."""

from __future__ import annotations

import streamlit as st
from driftscope_app import address, chart, page
from driftscope_app.scope import Condition, Scope

from driftscope.figures import Curve, curve_figure, series_style
from driftscope.figures.style import variants_of
from driftscope.quantities import DEPTH_CHARTS, DepthQuantity


def main() -> None:
    """The page."""
    scope = page.begin(
        "Depth", "What happens from the first draft of a round to the last. Bands are 95 % intervals over prompts."
    )
    if scope is None:
        return
    places = list(dict.fromkeys(scope.place(c) for c in scope.conditions))
    wanted = address.pick_a_few("place", "Conditions (system prompt · context tokens)", places)
    drawn = [c for c in scope.conditions if scope.place(c) in wanted]
    dashes = variants_of(c.summary.drafter for c in drawn)
    variants = {c.key: dash for c, dash in zip(drawn, dashes, strict=True)}
    has_many_places = len(wanted) > 1
    labels = {c.key: scope.series(c) + (f", {scope.place(c)}" if has_many_places else "") for c in drawn}
    chart.legend(
        [(labels[c.key], series_style(scope.drafter_index(c.summary.drafter), variants[c.key])) for c in drawn]
    )
    bases = {c.summary.depth_basis for c in drawn}
    num_prompts = sorted({c.estimate(c.summary.depth_basis).num_prompts or 0 for c in drawn})
    prompts = " to ".join(dict.fromkeys((str(num_prompts[0]), str(num_prompts[-1]))))
    st.caption(f"Over the {' and '.join(sorted(bases))} rounds of {prompts} prompts; looping responses are left out.")
    for section, quantities in DEPTH_CHARTS.items():
        st.header(section, anchor=False)
        per_row = 3 if len(quantities) == 3 else 2
        for begin in range(0, len(quantities), per_row):
            for column, quantity in zip(st.columns(per_row), quantities[begin : begin + per_row], strict=False):
                with column:
                    _chart(drawn, labels, variants, scope, quantity)
    _table(drawn, labels)


def _chart(
    drawn: list[Condition], labels: dict[str, str], variants: dict[str, int], scope: Scope, quantity: DepthQuantity
) -> None:
    st.subheader(quantity.title, anchor=False, help=quantity.explanation)
    curves = []
    for condition in drawn:
        estimates = condition.depth_estimates(quantity.name)
        curves.append(
            Curve(
                label=labels[condition.key],
                x=range(1, len(estimates) + 1),
                estimates=estimates,
                drafter=scope.drafter_index(condition.summary.drafter),
                variant=variants[condition.key],
            )
        )
    is_measured = any(e.value is not None for curve in curves for e in curve.estimates)
    figure = curve_figure(
        curves, title=quantity.title, x_title="depth k", y_title=quantity.axis, is_share=quantity.is_share
    )
    chart.show(figure, f"depth_{quantity.name}", missing=None if is_measured else "Not measured in this run.")


def _table(drawn: list[Condition], labels: dict[str, str]) -> None:
    with st.expander("Numbers", icon=":material/table:"):
        quantities = [quantity for section in DEPTH_CHARTS.values() for quantity in section]
        rows: dict[str, list[object]] = {"series": [], "depth": [], **{q.title: [] for q in quantities}}
        for condition in drawn:
            arrays = {q.title: condition.depth_estimates(q.name) for q in quantities}
            for k in range(max(len(array) for array in arrays.values())):
                rows["series"].append(labels[condition.key])
                rows["depth"].append(k + 1)
                for title, array in arrays.items():
                    rows[title].append(array[k].value if k < len(array) else None)
        st.dataframe(
            rows,
            hide_index=True,
            width="stretch",
            column_config={q.title: st.column_config.NumberColumn(format="%.4g") for q in quantities},
            placeholder="",
            alt="Table of all quantities by depth",
        )


main()
