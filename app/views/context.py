"""Context: tokens per round, and what stands behind it, against the context length."""

from __future__ import annotations

import streamlit as st
from driftscope_app import address, chart, page
from driftscope_app.scope import Condition, Scope

from driftscope.figures import Curve, Estimate, curve_figure, series_style
from driftscope.figures.style import variants_of
from driftscope.quantities import OVER_DEPTH, QUANTITIES, DepthQuantity

Series = tuple[str, list[Condition], int]  # label, conditions by context length, variant
TOKENS = QUANTITIES["tokens_per_round"]


def main() -> None:
    """The page."""
    scope = page.begin(
        "Context", "Does the drafter hold when the prompt grows? The same prompts behind documents of several lengths."
    )
    if scope is None:
        return
    contexts = sorted({c.summary.context_tokens for c in scope.conditions})
    if len(contexts) < 2:
        st.info(
            f"Only one context length ({contexts[0]:,} tokens) is in view. Clear the filter in the sidebar, or probe "
            "with several: `--context-tokens 0,1024,4096`.",
            icon=":material/straighten:",
        )
        return
    rows = list(dict.fromkeys(scope.row(c) for c in scope.conditions))
    with st.container(horizontal=True, vertical_alignment="top", gap="small"):
        wanted = address.pick_a_few("row", "System prompts", rows, width=360)
        bases = [b for b in ("walk", "dense") if any(c.tokens(b) for c in scope.conditions)] or ["walk"]
        basis = address.pick_one(st.segmented_control, "basis", "Rounds", bases, required=True)
        max_depth = max(len(c.summary.acceptance_marginal) for c in scope.conditions)
        depth = address.pick_one(
            st.selectbox,
            "depth",
            "Depth of the lower charts",
            [str(k + 1) for k in range(max_depth)],
            default=str(min(3, max_depth)),
            width=180,
        )
    assert basis is not None
    assert depth is not None
    groups: dict[tuple[str, str], list[Condition]] = {}
    for condition in scope.conditions:
        if scope.row(condition) in wanted:
            groups.setdefault((scope.series(condition), scope.row(condition)), []).append(condition)
    series = []
    variants = variants_of(members[0].summary.drafter for members in groups.values())
    for ((name, row), members), variant in zip(groups.items(), variants, strict=True):
        label = f"{name}, {row}" if len(wanted) > 1 else name
        series.append((label, sorted(members, key=lambda c: c.summary.context_tokens), variant))
    chart.legend([(label, series_style(scope.drafter_index(m[0].summary.drafter), v)) for label, m, v in series])

    st.subheader(TOKENS.title, anchor=False, help=TOKENS.definition)
    curves = [_curve(scope, s, [c.estimate(basis) for c in s[1]]) for s in series]
    figure = curve_figure(
        curves,
        title=f"tokens per round ({basis})",
        x_title="context length (tokens)",
        y_title=TOKENS.axis,
        height=340,
    )
    chart.show(figure, "context_tokens_per_round")
    st.header(f"At depth {depth}", anchor=False)
    quantities = [q for q in OVER_DEPTH.values() if q.is_over_context]
    for begin in range(0, len(quantities), 3):
        for column, quantity in zip(st.columns(3), quantities[begin : begin + 3], strict=False):
            with column:
                _deep_chart(scope, series, quantity, int(depth))


def _curve(scope: Scope, series: Series, estimates: list[Estimate]) -> Curve:
    label, members, variant = series
    return Curve(
        label=label,
        x=[c.summary.context_tokens for c in members],
        estimates=estimates,
        drafter=scope.drafter_index(members[0].summary.drafter),
        variant=variant,
    )


def _deep_chart(scope: Scope, series: list[Series], quantity: DepthQuantity, depth: int) -> None:
    curves = []
    for one in series:
        arrays = [c.depth_estimates(quantity.name) for c in one[1]]
        missing = Estimate(value=None)
        curves.append(_curve(scope, one, [a[depth - 1] if depth <= len(a) else missing for a in arrays]))
    st.subheader(quantity.title, anchor=False, help=quantity.explanation)
    is_measured = any(e.value is not None for curve in curves for e in curve.estimates)
    figure = curve_figure(
        curves,
        title=f"{quantity.title} at depth {depth}",
        x_title="context length (tokens)",
        y_title=quantity.axis,
        is_share=quantity.is_share,
    )
    chart.show(figure, f"context_{quantity.name}", missing=None if is_measured else "Not measured in this run.")


main()
