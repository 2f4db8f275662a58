"""Heads: where each attention head looks, by depth."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st
from driftscope_app import address, aggregates, chart, page
from driftscope_app.scope import Condition, Scope
from driftscope_app.text import plain

from driftscope.figures import HeadMasses, RegionMasses, head_map, region_bars
from driftscope.quantities import HEAD_QUANTITIES, REGION_DEFINITIONS


def main() -> None:
    """The page."""
    scope = page.begin("Heads", "Where attention goes, region by region and head by head.")
    if scope is None:
        return
    places = list(dict.fromkeys(scope.place(c) for c in scope.conditions))
    place = address.pick_one(st.selectbox, "head_place", "Condition (system prompt · context tokens)", places)
    shown = [c for c in scope.conditions if scope.place(c) == place]
    if not any(value for c in shown for mass in c.summary.mass.values() for value in mass):
        st.info("This run has no attention masses (its engine or level does not record them).", icon=":material/hub:")
        return
    st.header("By region", help="Disjoint regions; they sum to 1. The mean over layers and heads.", anchor=False)
    for column, condition in zip(st.columns(max(2, len(shown))), shown, strict=False):
        with column:
            st.subheader(plain(scope.series(condition)), anchor=False)
            masses = RegionMasses(label=scope.series(condition), mass=dict(condition.summary.mass))
            chart.show(region_bars(masses), f"regions_{condition.key}")
    with st.expander("What the regions are", icon=":material/menu_book:"):
        for region, meaning in REGION_DEFINITIONS.items():
            stored = shown[0].run.info.region_definitions.get(region, meaning)
            st.markdown(f"**{region}**: {plain(stored)}")
    st.header("By head", anchor=False)
    _by_head(scope, shown)


def _by_head(scope: Scope, shown: list[Condition]) -> None:
    masses = {f"mass_{region}": [c.summary.mass[region] for c in shown] for region in REGION_DEFINITIONS}
    options = [
        name for name in HEAD_QUANTITIES if name not in masses or any(value for mass in masses[name] for value in mass)
    ]
    with st.container(horizontal=True, vertical_alignment="top", gap="small"):
        name = address.pick_one(
            st.selectbox,
            "head_metric",
            "Quantity",
            options,
            format_func=lambda n: HEAD_QUANTITIES[n].title,
            width=300,
        )
        assert name is not None
        num_layers = max((d.num_layers or 1 for c in shown for d in c.run.info.drafters), default=1)
        layer = "0"
        if num_layers > 1:
            layer = address.pick_one(st.selectbox, "layer", "Drafter layer", [str(i) for i in range(num_layers)]) or "0"
    quantity = HEAD_QUANTITIES[name]
    st.caption(quantity.explanation)
    maps = [(c, _head_masses(scope, c, name, int(layer))) for c in shown]
    values = [v for _, m in maps for row in m.values for v in row if v is not None]
    if not values:
        st.caption("Not measured in this run.")
        return
    for column, (condition, mass) in zip(st.columns(max(2, len(maps))), maps, strict=False):
        with column:
            st.subheader(plain(scope.series(condition)), anchor=False)
            if not mass.values:
                st.caption("Not measured.")
                continue
            floor = min(values) if quantity.is_signed else 0.0
            figure = head_map(
                mass, title=quantity.title, value_range=(floor, max(values)), is_signed=quantity.is_signed
            )
            chart.show(figure, f"heads_{condition.key}")
            st.caption(f"Mean over {mass.num_rounds:,} rounds")


def _head_masses(scope: Scope, condition: Condition, name: str, layer: int) -> HeadMasses:
    ref, label = condition.run.ref, scope.series(condition)
    found = aggregates.head_means(ref.path, ref.version, condition.summary.key, name).get(layer)
    return HeadMasses(label=label, values=()) if found is None else replace(found, label=label)


main()
