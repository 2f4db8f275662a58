"""What `driftscope diagnose` says of the chosen conditions: causes first, then the evidence. Judges nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from driftscope.diagnosis.diagnosis import ConditionDiagnosis, Verdict, VerdictId
from driftscope.figures import Estimate, Point, condition_dots, loss_bars
from driftscope.report.estimates import losses_of
from driftscope.report.verdicts import verdict_group
from driftscope.stats.thresholds import COUNTED_MIN_GAIN_TOKENS
from driftscope_app import address, aggregates, chart, interventions
from driftscope_app.scope import Condition, Scope
from driftscope_app.text import plain
from probes.errors import DriftscopeError

Judged = tuple[Condition, ConditionDiagnosis]


def show(scope: Scope) -> None:
    """The verdicts, grouped; then the evidence of one condition."""
    judged = _judged(scope)
    if not judged:
        return
    st.header("Verdicts", anchor=False)
    groups: dict[tuple[VerdictId, str, str], list[tuple[str, Verdict]]] = {}
    for condition, diagnosis in judged:
        for verdict in diagnosis.verdicts:
            key = (verdict.id, scope.series(condition), verdict.confidence)
            groups.setdefault(key, []).append((scope.place(condition), verdict))
    counts = {name: sum(scope.series(c) == name for c, _ in judged) for name in scope.all_series()}
    order = sorted(groups, key=lambda key: (key[0] is VerdictId.healthy, -len(groups[key])))
    for key in order:
        _group(key, groups[key], counts[key[1]])
    _not_judged([diagnosis for _, diagnosis in judged])
    interventions.show(scope)
    _evidence(scope, judged)


def _judged(scope: Scope) -> list[Judged]:
    judged = []
    for run in scope.runs:
        try:
            diagnosis = aggregates.run_diagnosis(run.ref.path, run.ref.version)
        except (DriftscopeError, OSError) as error:
            st.caption(f"No verdicts for {plain(run.ref.name)}: {plain(str(error))}")
            continue
        of_key = {d.key: d for d in diagnosis.conditions}
        for condition in scope.conditions:
            found = of_key.get(condition.summary.key)
            if condition.run is run and found is not None:
                judged.append((condition, found))
    return judged


def _group(key: tuple[VerdictId, str, str], members: Sequence[tuple[str, Verdict]], num_conditions: int) -> None:
    group = verdict_group(key, members, num_conditions)
    lines = [f"**{plain(group.series)}: {group.name}** {group.where} ({group.confidence} confidence). {group.meaning}"]
    if group.kind == "good":
        st.success("  \n".join(lines), icon=":material/check_circle:")
        return
    if group.places:
        lines.append(f"Where: {plain(group.places)}")
    place, first = members[0]
    lines += [f"{plain(place)}: {plain(e.statement)}" for e in first.evidence[:2]]
    lines.append(f"**What to do:** {plain(group.remedy)}")
    box = st.info if group.kind == "note" else st.warning
    box("  \n".join(lines), icon=":material/report:")


def _not_judged(diagnoses: Sequence[ConditionDiagnosis]) -> None:
    details: dict[str, list[str]] = {}
    for diagnosis in diagnoses:
        for item in diagnosis.not_judged:
            name = item.id.value.replace("_", " ")
            if name not in details.setdefault(item.detail, []):
                details[item.detail].append(name)
    for detail, names in details.items():
        st.caption(f"Could not be judged: {', '.join(names)} ({plain(detail)})")


def _evidence(scope: Scope, judged: Sequence[Judged]) -> None:
    places = list(dict.fromkeys(scope.place(condition) for condition, _ in judged))
    faulty = [scope.place(c) for c, d in judged if any(v.id is not VerdictId.healthy for v in d.verdicts)]
    place = address.pick_one(
        st.selectbox,
        "evidence",
        "Evidence for the condition (system prompt · context tokens)",
        places,
        width=420,
        default=faulty[0] if faulty else places[0],
    )
    shown = [(condition, diagnosis) for condition, diagnosis in judged if scope.place(condition) == place]
    losses = [losses_of(scope.series(c), c.summary, d.waterfall) for c, d in shown if d.waterfall]
    if losses:
        st.markdown("**Where the tokens of a round are lost** (walk)")
        chart.show(loss_bars(losses), "losses")
        st.caption(
            "All drafts after a round's first rejection are lost to the cause of that rejection: an attribution, not what "
            "a repair gains, since most drafts that deep are never accepted. Hard token: true features would have been "
            "wrong too. Chain decay: they would have been right. Lost to vocabulary: the target's token cannot be drafted; "
            "the estimated gain of a full draft vocabulary, in the evidence below, is another number."
        )
    _gains(scope, shown)
    with st.expander("The evidence in words", icon=":material/fact_check:"):
        for condition, diagnosis in shown:
            for verdict in diagnosis.verdicts:
                name = verdict.id.value.replace("_", " ")
                st.markdown(f"**{plain(scope.series(condition))}: {name}** ({verdict.confidence} confidence)")
                st.markdown("\n".join(f"- {plain(e.statement)}" for e in verdict.evidence))
                st.markdown(f"What to do: {plain(verdict.remedy)}")


def _gains(scope: Scope, shown: Sequence[Judged]) -> None:
    points = [
        Point(
            label=scope.series(c),
            condition=f"{gain.id} ({gain.kind})",
            estimate=Estimate(value=gain.gain, low=gain.low, high=gain.high, num_prompts=gain.num_prompts),
            drafter=scope.drafter_index(c.summary.drafter),
            variant=scope.run_index(c),
        )
        for c, d in shown
        for gain in d.interventions
        if gain.kind != "path"
    ]
    if not points:
        return
    st.markdown("**What one change gains** (dense)")
    chart.show(condition_dots(points, x_title="gain in tokens per round (dense)", is_signed=True), "gains")
    counted = [
        f"{scope.series(c)}: {gain.id} ({gain.gain:+.2f})"
        for c, d in shown
        for gain in d.interventions
        if gain.is_counted
    ]
    st.caption(
        f"Over the dense rounds. Gains that count: {plain(', '.join(counted)) or 'none'}. One counts when it is a repair, "
        f"at least {COUNTED_MIN_GAIN_TOKENS:g}, and its interval lies above 0 after correction for how many were tried."
    )
