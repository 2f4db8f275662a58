"""Context: tokens per round, and what stands behind it, against the context length."""

from __future__ import annotations

import streamlit as st
from driftscope_app import address, chart, page
from driftscope_app.scope import Condition, Scope

from driftscope.figures import METRICS, Curve, Estimate, curve_figure, series_style

Series = tuple[str, list[Condition], int]  # label, conditions by context length, variant
DEEP_METRICS = (
    "acceptance_conditional",
    "chain_gap",
    "hidden_in_norm_growth",
    "own_excess",
    "sink_deficit",
    "mass_sink",
)


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
            f"with several: "
            "`--context-tokens 0,1024,4096`.",
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
    seen: dict[str, int] = {}
    series = []
    for (name, row), members in groups.items():
        drafter = members[0].summary.drafter
        variant = seen[drafter] = seen.get(drafter, -1) + 1
        label = f"{name}, {row}" if len(wanted) > 1 else name
        series.append((label, sorted(members, key=lambda c: c.summary.context_tokens), variant))
    chart.legend([(label, series_style(scope.drafter_index(m[0].summary.drafter), v)) for label, m, v in series])

    st.subheader(METRICS["tokens_per_round"].title, anchor=False, help=METRICS["tokens_per_round"].definition)
    curves = [_curve(scope, s, [c.estimate(basis) for c in s[1]]) for s in series]
    figure = curve_figure(
        curves,
        title=f"tokens per round ({basis})",
        x_title="context length (tokens)",
        y_title=METRICS["tokens_per_round"].axis,
        height=340,
    )
    chart.show(figure, "context_tokens_per_round")
    st.header(f"At depth {depth}", anchor=False)
    for begin in range(0, len(DEEP_METRICS), 3):
        for column, name in zip(st.columns(3), DEEP_METRICS[begin : begin + 3], strict=False):
            with column:
                _deep_chart(scope, series, name, int(depth))


def _curve(scope: Scope, series: Series, estimates: list[Estimate]) -> Curve:
    label, members, variant = series
    return Curve(
        label=label,
        x=[c.summary.context_tokens for c in members],
        estimates=estimates,
        drafter=scope.drafter_index(members[0].summary.drafter),
        variant=variant,
    )


def _deep_chart(scope: Scope, series: list[Series], name: str, depth: int) -> None:
    metric = METRICS[name]
    curves = []
    for one in series:
        arrays = [c.depth_estimates(name) for c in one[1]]
        missing = Estimate(value=None)
        curves.append(_curve(scope, one, [a[depth - 1] if depth <= len(a) else missing for a in arrays]))
    st.subheader(metric.title, anchor=False, help=f"{metric.definition} {metric.how_to_read}".strip())
    is_measured = any(e.value is not None for curve in curves for e in curve.estimates)
    figure = curve_figure(
        curves,
        title=f"{metric.title} at depth {depth}",
        x_title="context length (tokens)",
        y_title=metric.axis,
        is_share=metric.is_share,
    )
    chart.show(figure, f"context_{name}", missing=None if is_measured else "Not measured in this run.")


main()
