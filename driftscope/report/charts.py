"""The report's figures: which conditions each shows. Draws nothing itself; all figures are those of `figures`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from driftscope.figures import (
    Cell,
    Curve,
    Estimate,
    Pair,
    Point,
    RegionMasses,
    Share,
    condition_dots,
    curve_figure,
    difference_map,
    fusion_bars,
    head_map,
    loss_bars,
    region_bars,
    tokens_map,
)
from driftscope.figures.style import variants_of
from driftscope.quantities import DEPTH_CHARTS, QUANTITIES
from driftscope.report.contents import Condition, Contents
from driftscope.report.estimates import losses_of, tokens_of
from driftscope.report.heads import head_means
from driftscope.report.pairs import SeriesComparison
from driftscope.stats.intervals import ratio_intervals

HEAD_MAPS = ("own_excess", "sink_deficit")
MAX_HEADS = 64  # a map of more is unreadable


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure, its heading, and how to read it. `is_wide`: takes the whole width."""

    heading: str
    figure: go.Figure
    caption: str = ""
    is_wide: bool = False


def tokens_charts(contents: Contents) -> list[Chart]:
    """All conditions as dots, best first, and as a map for each series where context lengths differ."""
    measured = [c for c in contents.conditions if c.estimate(contents.basis).value is not None]
    if not measured:
        return []
    means: dict[str, list[float]] = {}
    for c in measured:
        means.setdefault(c.place, []).append(c.estimate(contents.basis).value or 0.0)
    order = sorted(means, key=lambda place: -sum(means[place]) / len(means[place]))
    what = f"tokens per round (incl. bonus), {contents.basis}"
    points = [
        Point(
            label=c.series,
            condition=c.place,
            estimate=c.estimate(contents.basis),
            drafter=c.drafter,
            variant=c.variant,
        )
        for c in sorted(measured, key=lambda c: order.index(c.place))
    ]
    charts = [
        Chart(
            heading="By condition",
            figure=condition_dots(points, x_title=what),
            caption="System prompt · context tokens, best on top. Bars are 95 % intervals over prompts.",
            is_wide=True,
        )
    ]
    if len({c.summary.context_tokens for c in measured}) < 2:
        return charts
    values = [c.estimate(contents.basis).value or 0.0 for c in measured]
    for series in contents.series:
        cells = [_cell(c, c.estimate(contents.basis)) for c in _grid(measured, series)]
        if cells:
            figure = tokens_map(
                series, cells, column_title="context tokens", value_range=(min(values), max(values)), what=what
            )
            charts.append(Chart(heading=series, figure=figure, caption="Below each number its 95 % interval."))
    return charts


def difference_charts(contents: Contents, comparison: SeriesComparison) -> list[Chart]:
    """One map for each series that is compared with the baseline."""
    values = [p.difference.difference for p in comparison.pairs]
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    charts = []
    for series in contents.series:
        pairs = {id(p.condition): p for p in comparison.of_series(series)}
        ordered = [c for c in _grid(contents.conditions, series) if id(c) in pairs]
        if not ordered:
            continue
        against = " and ".join(dict.fromkeys(p.baseline.series for p in pairs.values()))
        figure = difference_map(
            series,
            [_cell(c, pairs[id(c)].estimate, pairs[id(c)].sides) for c in ordered],
            column_title="context tokens",
            largest=largest,
            what=f"the difference in tokens per round ({contents.basis}) to {against}",
        )
        caption = (
            "Blue: more; orange: less; grey with ≈: not distinguishable, the interval holds 0. Below each interval the "
            "baseline (from ...) and n: both sides are over the n prompts that both have. Intervals are each "
            "cell's own, not corrected for the number of cells."
        )
        charts.append(Chart(heading=f"{series} against {against}", figure=figure, caption=caption))
    return charts


def loss_charts(contents: Contents) -> list[Chart]:
    """At the report's places."""
    charts = []
    for place in contents.places:
        losses = [
            losses_of(c.series, c.summary, c.diagnosis.waterfall)
            for c in contents.at(place)
            if c.diagnosis and c.diagnosis.waterfall
        ]
        if losses:
            charts.append(Chart(heading=place, figure=loss_bars(losses)))
    return charts


def gain_charts(contents: Contents) -> list[Chart]:
    """What one change gains, at the report's places; path patches are in the table."""
    charts = []
    for place in contents.places:
        points = [
            Point(
                label=c.series,
                condition=f"{i.id} ({i.kind})",
                estimate=Estimate(value=i.gain, low=i.low, high=i.high, num_prompts=i.num_prompts),
                drafter=c.drafter,
                variant=c.variant,
            )
            for c in contents.at(place)
            if c.diagnosis
            for i in c.diagnosis.interventions
            if i.kind != "path"
        ]
        if points:
            figure = condition_dots(points, x_title="gain (dense tokens per round)")
            charts.append(Chart(heading=place, figure=figure, is_wide=True))
    return charts


def depth_charts(contents: Contents) -> dict[str, list[Chart]]:
    """Section -> curves over depth, at the report's places."""
    drawn = [c for place in contents.places for c in contents.at(place)]
    variants = variants_of(c.drafter for c in drawn)
    sections = {}
    for section, quantities in DEPTH_CHARTS.items():
        charts = []
        for quantity in quantities:
            curves = []
            for c, variant in zip(drawn, variants, strict=True):
                estimates = c.depth_estimates(quantity.name)
                if any(e.value is not None for e in estimates):
                    label = f"{c.series}, {c.place}" if len(contents.places) > 1 else c.series
                    depths = range(1, len(estimates) + 1)
                    curves.append(Curve(label=label, x=depths, estimates=estimates, drafter=c.drafter, variant=variant))
            if curves:
                figure = curve_figure(
                    curves,
                    title=quantity.title,
                    x_title="depth k",
                    y_title=quantity.axis,
                    is_share=quantity.is_share,
                    has_legend=True,
                    height=300 + 20 * len(curves),
                )
                charts.append(Chart(heading=quantity.title, figure=figure, caption=quantity.explanation))
        if charts:
            sections[section] = charts
    return sections


def attention_charts(contents: Contents) -> list[Chart]:
    """Where attention goes by region, at the report's places, and by head at the first."""
    charts = []
    for place in contents.places:
        for c in contents.at(place):
            if any(value for mass in c.summary.mass.values() for value in mass):
                masses = RegionMasses(label=c.series, mass=dict(c.summary.mass))
                charts.append(Chart(heading=f"{c.series}, {place}: by region", figure=region_bars(masses, height=360)))
    for place in contents.places[:1]:
        for name in HEAD_MAPS:
            charts += list(_head_charts(contents.at(place), name))
    return charts


def _head_charts(conditions: Sequence[Condition], name: str) -> Iterator[Chart]:
    quantity = QUANTITIES[name]
    of_layer = [
        (c, layer, masses)
        for c in conditions
        for layer, masses in head_means(c.run.run, c.summary.key, name, c.series).items()
    ]
    shown = [(c, layer, m) for c, layer, m in of_layer if 0 < len(m.values) <= MAX_HEADS]
    values = [v for _, _, m in shown for row in m.values for v in row if v is not None]
    num_layers = len({layer for _, layer, _ in shown})
    for c, layer, masses in shown:
        figure = head_map(
            masses,
            title=quantity.title,
            value_range=(min(0.0, *values), max(values)),
            is_signed=quantity.is_signed,
        )
        which = f", layer {layer}" if num_layers > 1 else ""
        tokens = tokens_of(c.summary, c.summary.depth_basis)
        n = f"n = {tokens.num_prompts if tokens else 0:,} prompts, {masses.num_rounds or 0:,} rounds; no interval by head."
        heading = f"{c.series}, {c.place}: {quantity.title.lower()} by head{which}"
        yield Chart(heading=heading, figure=figure, caption=f"{quantity.definition} {n}")


def fusion_charts(contents: Contents) -> list[Chart]:
    """Fusion shares of each series, at the report's places."""
    charts = []
    for series in contents.series:
        drawn = [c for place in contents.places for c in contents.at(place) if c.series == series]
        shares = [share for variant, c in enumerate(drawn) for share in _shares(c, variant)]
        if any(s.estimate.value is not None for s in shares):
            figure = fusion_bars(shares, y_title=QUANTITIES["fusion_share"].axis)
            charts.append(Chart(heading=series, figure=figure, caption=QUANTITIES["fusion_share"].definition))
    return charts


def _shares(condition: Condition, variant: int) -> list[Share]:
    s, sums = condition.summary, condition.run.sums
    rows = [i for i, key in enumerate(sums.keys) if key.condition == s.key and not sums.is_degenerate[i]]
    layer_ids = s.fusion_share.layer_ids
    parts = [(str(id), sums.fusion_share, i) for i, id in enumerate(layer_ids)]
    if s.fusion_share.bias is not None:
        parts.append(("bias", sums.fusion_share_bias, 0))
    shares = []
    for part, mean, column in parts:
        if column >= mean.total.shape[1] or not rows:
            continue
        total, count = mean.total[rows, column], mean.count[rows, column]
        [found] = ratio_intervals(total[None, :], count[None, :])
        estimate = Estimate(
            value=float(total.sum() / count.sum()) if count.sum() else None,
            low=found.low,
            high=found.high,
            num_prompts=int((count > 0).sum()),
            num_rounds=int(count.sum()),
        )
        shares.append(
            Share(label=condition.place, part=part, estimate=estimate, drafter=condition.drafter, variant=variant)
        )
    return shares


def context_charts(contents: Contents) -> list[Chart]:
    """tokens_per_round against context length: the mean of no conditions, one curve for each system prompt of the
    report's places."""
    if len({c.summary.context_tokens for c in contents.conditions}) < 2:
        return []
    wanted = [c.place_key[:2] for place in contents.places for c in contents.at(place)]
    groups: dict[tuple[str, str, str], list[Condition]] = {}
    for c in contents.conditions:
        if c.place_key[:2] in wanted and c.estimate(contents.basis).value is not None:
            groups.setdefault((c.series, *c.place_key[:2]), []).append(c)
    variants = variants_of(members[0].drafter for members in groups.values())
    curves = []
    for ((series, _, _), members), variant in zip(groups.items(), variants, strict=True):
        members.sort(key=lambda c: c.summary.context_tokens)
        first = members[0]
        curves.append(
            Curve(
                label=f"{series}, {first.place.rpartition(' · ')[0]}",
                x=[c.summary.context_tokens for c in members],
                estimates=[c.estimate(contents.basis) for c in members],
                drafter=first.drafter,
                variant=variant,
            )
        )
    if not curves:
        return []
    figure = curve_figure(
        curves,
        title=f"tokens per round ({contents.basis})",
        x_title="context length (tokens)",
        y_title=QUANTITIES["tokens_per_round"].axis,
        height=360,
        has_legend=True,
    )
    return [Chart(heading="Against context length", figure=figure, is_wide=True)]


def _grid(conditions: Sequence[Condition], series: str) -> list[Condition]:
    """A series' conditions by row (system prompt, template) as they come, then by context length."""
    own = [c for c in conditions if c.series == series]
    rows = list(dict.fromkeys(c.place_key[:2] for c in conditions))
    return sorted(own, key=lambda c: (rows.index(c.place_key[:2]), c.summary.context_tokens))


def _cell(condition: Condition, estimate: Estimate, pair: Pair | None = None) -> Cell:
    row, _, column = condition.place.rpartition(" · ")
    return Cell(row=row, column=column, estimate=estimate, pair=pair)
