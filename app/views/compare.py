"""Compare: tokens_per_round of every drafter, system prompt and context length, and differences to a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import streamlit as st
from driftscope_app import address, aggregates, chart, page
from driftscope_app.paired import difference, prompts_by_condition
from driftscope_app.scope import Condition, Scope, SelectedRun
from driftscope_app.text import plain, tokens_label

from driftscope.compare.contract import why_settings_differ
from driftscope.compare.pairing import Prompts
from driftscope.figures import Cell, Estimate, Pair, difference_map, tokens_map
from driftscope.figures.heat_map import difference_verdict
from driftscope.stats.paired import holm

DIMENSIONS = {
    "drafter": "drafter",
    "system_prompt": "system prompt",
    "template": "template",
    "context_tokens": "context length",
    "run": "run",
}
NO_BASELINE = "nothing"
COLUMN_TITLE = "context tokens"


@dataclass(frozen=True)
class Difference:
    """A condition against its baseline."""

    condition: Condition
    baseline: Condition | None  # None: the baseline's run has no such condition
    estimate: Estimate
    pair: Pair | None  # both sides over the prompts that both have
    is_sure: bool  # holds over all cells together (Holm)


def main() -> None:
    """The page."""
    scope = page.begin(
        "Compare", "Every drafter under every system prompt and context length. Select a cell to read its rounds."
    )
    if scope is None:
        return
    basis, by, baseline = _controls(scope)
    differences = _differences(scope, basis, by, baseline) if by != NO_BASELINE and baseline is not None else []
    _headline(scope, basis, by, baseline, differences)
    _maps(scope, basis, by, baseline, differences)
    _warnings(scope, by, baseline)
    _table(scope, basis, by, baseline, differences)


def _value(condition: Condition, by: str) -> str:
    return condition.run.ref.name if by == "run" else str(getattr(condition.summary, by))


def _controls(scope: Scope) -> tuple[str, str, str | None]:
    values = {by: list(dict.fromkeys(_value(c, by) for c in scope.conditions)) for by in DIMENSIONS}
    choices = [NO_BASELINE, *(by for by in DIMENSIONS if len(values[by]) > 1)]
    baseline = None
    with st.container(horizontal=True, vertical_alignment="top", gap="small"):
        by = address.pick_one(
            st.segmented_control,
            "by",
            "Pin a baseline",
            choices,
            format_func=lambda name: DIMENSIONS.get(name, "none").capitalize(),
            required=True,
        )
        assert by is not None
        if by != NO_BASELINE:
            baseline = address.pick_one(
                st.pills,
                "baseline",
                f"Baseline {DIMENSIONS[by]}",
                sorted(values[by], key=int) if by == "context_tokens" else values[by],
                format_func=(lambda v: f"{int(v):,}") if by == "context_tokens" else plain,
                required=True,
            )
        bases = [b for b in ("walk", "dense") if any(c.tokens(b) for c in scope.conditions)]
        basis = address.pick_one(
            st.segmented_control,
            "basis",
            "Rounds",
            bases or ["walk"],
            required=True,
            help="walk: the rounds that an engine would make. dense: a round from every position of the response. "
            "They have different expectations and are never mixed.",
        )
    assert basis is not None
    return basis, by, baseline


def _differences(scope: Scope, basis: str, by: str, baseline: str) -> list[Difference]:
    """Each condition that is not a baseline and may be compared, with the one that differs from it in `by` only."""
    prompts = {}
    for run in scope.runs:
        sums = aggregates.prompt_sums(run.ref.path, run.ref.version)
        prompts[run.ref.name] = prompts_by_condition(sums, basis)

    def tokens(condition: Condition) -> Prompts:
        return prompts[condition.run.ref.name].get(condition.summary.key, {})

    others = {tuple(_value(c, d) for d in DIMENSIONS): c for c in scope.conditions}
    pairs = []
    for condition in scope.conditions:
        if _value(condition, by) == baseline:
            continue
        key = tuple(baseline if d == by else _value(condition, d) for d in DIMENSIONS)
        other = others.get(key)
        if other is None or _why_not_compared(condition.run, other.run) is None:
            pairs.append((condition, other))
    compared = [difference(tokens(c), tokens(b) if b is not None else {}) for c, b in pairs]
    are_sure = holm([one.p_value for one in compared])
    return [
        Difference(c, b, one.estimate, one.pair, is_sure)
        for (c, b), one, is_sure in zip(pairs, compared, are_sure, strict=True)
    ]


def _headline(scope: Scope, basis: str, by: str, baseline: str | None, differences: list[Difference]) -> None:
    if differences:
        verdicts = [difference_verdict(Cell(row="", column="", estimate=d.estimate)) for d in differences]
        counts = {v: verdicts.count(v) for v in dict.fromkeys(sorted(verdicts))}
        said = ", ".join(f"**{n}** {verdict}" for verdict, n in counts.items())
        num_sure = sum(d.is_sure for d in differences)
        st.markdown(
            f"Tokens per round ({basis}) against {DIMENSIONS[by]} **{plain(str(baseline))}**, of {len(differences)} cells: "
            f"{said}. {num_sure or 'None'} of them would still hold after Holm's correction over all cells."
        )
        return
    measured = [c for c in scope.conditions if c.estimate(basis).value is not None]
    if not measured:
        return
    best = max(measured, key=lambda c: c.estimate(basis).value or 0.0)
    worst = min(measured, key=lambda c: c.estimate(basis).value or 0.0)
    ends = [
        f"**{c.estimate(basis).value:.2f}**, {plain(scope.series(c))} at {plain(scope.place(c))}" for c in (best, worst)
    ]
    st.markdown(f"Tokens per round ({basis}): highest {ends[0]}; lowest {ends[1]}.")


def _maps(scope: Scope, basis: str, by: str, baseline: str | None, differences: list[Difference]) -> None:
    contexts = sorted({c.summary.context_tokens for c in scope.conditions})
    rows = list(dict.fromkeys(scope.row(c) for c in scope.conditions))
    estimates = [c.estimate(basis).value for c in scope.conditions]
    values = [v for v in estimates if v is not None]
    value_range = (min(values, default=1.0), max(values, default=2.0))
    largest = max((abs(d.estimate.value) for d in differences if d.estimate.value is not None), default=0.0)
    of_condition = {d.condition.key: d for d in differences}
    series = scope.all_series()
    columns = st.columns(min(len(series), 3)) if len(series) != 4 else st.columns(2)
    for index, name in enumerate(series):
        own = {(scope.row(c), c.summary.context_tokens): c for c in scope.conditions if scope.series(c) == name}
        ordered = [own[row, context] for row in rows for context in contexts if (row, context) in own]
        has_difference = any(c.key in of_condition for c in ordered)
        cells = [
            Cell(
                row=scope.row(c),
                column=tokens_label(c.summary.context_tokens),
                estimate=of_condition[c.key].estimate if c.key in of_condition else c.estimate(basis),
                key=c.key,
                is_baseline=has_difference and _value(c, by) == baseline,
                pair=of_condition[c.key].pair if c.key in of_condition else None,
            )
            for c in ordered
        ]
        key = f"map_{index}"
        with columns[index % len(columns)]:
            suffix = " · baseline" if by != NO_BASELINE and all(_value(c, by) == baseline for c in ordered) else ""
            st.subheader(plain(name) + suffix, anchor=False)
            if has_difference:
                figure = difference_map(
                    name,
                    cells,
                    column_title=COLUMN_TITLE,
                    largest=largest,
                    what=f"the difference in tokens per round ({basis}) to {DIMENSIONS[by]} {baseline}",
                )
            else:
                figure = tokens_map(
                    name,
                    cells,
                    column_title=COLUMN_TITLE,
                    value_range=value_range,
                    what=f"tokens per round (incl. bonus), {basis}",
                )
            chart.show(figure, key, on_click=partial(_open, key))
    if st.session_state.pop("compare_goes_to_rounds", False):
        st.switch_page("views/rounds.py")
    if differences:
        st.caption(
            f'Tokens per round ({basis}), paired: each difference is taken over the n prompts that both sides have, "from" '
            "the baseline's mean over these. ⚑ marks the baseline with its mean over all of its own prompts, "
            "which may be another number. 95 % interval of each cell by itself, not corrected for the number of cells. "
            "Blue: more than the baseline; orange: less; grey with ≈: not distinguishable, the interval holds 0."
        )
    else:
        st.caption(f"Tokens per round (incl. bonus), {basis}; below it the 95 % interval over prompts. Darker is more.")


def _open(chart_key: str) -> None:
    key = chart.clicked(chart_key)
    if key is not None:
        address.put(at=key, prompt=None, round=None, token=None)
        st.session_state["compare_goes_to_rounds"] = True


def _why_not_compared(run: SelectedRun, other: SelectedRun) -> str | None:
    """The settings that forbid a difference between two runs, as `driftscope compare` does."""
    if run.info.depth != other.info.depth:
        return f"K differs: {run.info.depth} against {other.info.depth}"
    return why_settings_differ(run.info, other.info)


def _warnings(scope: Scope, by: str, baseline: str | None) -> None:
    pinned = next((run for run in scope.runs if by == "run" and run.ref.name == baseline), None)
    for run in scope.runs:
        reason = pinned and run is not pinned and _why_not_compared(run, pinned)
        if pinned and reason:
            st.warning(
                f"{plain(run.ref.name)} is not compared with {plain(pinned.ref.name)}: {plain(reason)}. "
                "The difference would be the setting's.",
                icon=":material/warning:",
            )
    engines = {run.info.engine for run in scope.runs}
    if len(engines) > 1:
        st.warning(f"Runs of different engines are in view: {', '.join(sorted(engines))}.", icon=":material/warning:")


def _table(scope: Scope, basis: str, by: str, baseline: str | None, differences: list[Difference]) -> None:
    of_condition = {d.condition.key: d for d in differences}
    rows: list[dict[str, object]] = []
    for c in scope.conditions:
        s, e = c.summary, c.estimate(basis)
        row: dict[str, object] = {"run": c.run.ref.name} if len(scope.runs) > 1 else {}
        row |= {"drafter": s.drafter, "system prompt": s.system_prompt}
        row |= {"template": s.template} if scope.has_templates else {}
        row |= {"context": s.context_tokens, f"tokens per round ({basis})": e.value, "low": e.low, "high": e.high}
        if by != NO_BASELINE:
            d = of_condition.get(c.key)
            if d:
                verdict = difference_verdict(Cell(row="", column="", estimate=d.estimate))
            else:
                verdict = "baseline" if _value(c, by) == baseline else "not compared"
            row |= {
                "difference": d.estimate.value if d else None,
                "diff. low": d.estimate.low if d else None,
                "diff. high": d.estimate.high if d else None,
                "from baseline": d.pair.baseline if d and d.pair else None,
                "common prompts": d.estimate.num_prompts if d else None,
                "verdict": verdict,
                "after Holm": ("holds" if d.is_sure else "") if d else "",
            }
        row |= {"prompts": e.num_prompts or 0, "looping": s.num_degenerate, "rounds": e.num_rounds}
        rows.append(row)
    st.subheader("Numbers", anchor=False)
    decimals = (f"tokens per round ({basis})", "low", "high", "difference", "diff. low", "diff. high", "from baseline")
    event = st.dataframe(
        {name: [row[name] for row in rows] for name in rows[0]},
        hide_index=True,
        width="stretch",
        height=min(420, 38 + 35 * len(rows)),
        column_config={name: st.column_config.NumberColumn(format="%.3f") for name in decimals},
        key="compare_table",
        on_select="rerun",
        selection_mode="single-row",
        placeholder="",
        alt=f"Table of {len(rows)} conditions",
    )
    chosen = event["selection"]["rows"]
    label = "Open the rounds of the chosen row" if chosen else "Choose a row, then open its rounds"
    if st.button(label, disabled=not chosen, icon=":material/forum:"):
        address.put(at=scope.conditions[chosen[0]].key, prompt=None, round=None, token=None)
        st.switch_page("views/rounds.py")


main()
