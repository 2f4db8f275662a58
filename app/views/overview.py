"""Overview: what each drafter reaches, where it is worst, which runs there are, and how they were made."""

from __future__ import annotations

import html

import streamlit as st
from driftscope_app import address, aggregates, chart, empty, page, verdicts
from driftscope_app.paired import pooled_difference, prompts_by_condition
from driftscope_app.scope import Condition, Scope, SelectedRun, folder_label
from driftscope_app.text import plain

from driftscope.compare.pairing import Prompts
from driftscope.figures import Point, condition_dots
from probes.record import PromptConditionKey

REFERENCE_SYSTEM_PROMPT = "default"
MAX_SENTENCES = 4


def main() -> None:
    """The page."""
    chosen = page.scope()
    if not chosen.contents.runs:
        empty.show(page.runs_folder(), chosen.unreadable)
        return
    scope = page.begin("Overview", "How many tokens a round of speculation yields, and where it yields least.")
    slot = st.container()  # verdicts take the longest to compute and come first: the rest is drawn meanwhile
    if scope is not None:
        st.header("Tokens per round", anchor=False)
        _cards(scope)
        _sentences(scope)
        _where(scope)
    st.header("Runs", anchor=False)
    _runs(chosen)
    for run in chosen.runs:
        _provenance(run)
    if scope is not None:
        with slot:
            verdicts.show(scope)


def _cards(scope: Scope) -> None:
    basis = "walk" if any(c.summary.walk for c in scope.conditions) else "dense"
    series = scope.all_series()
    for begin in range(0, len(series), 3):
        names = series[begin : begin + 3]
        for column, name in zip(st.columns(max(2, len(names))), names, strict=False):
            own = [c for c in scope.conditions if scope.series(c) == name and c.estimate(basis).value is not None]
            with column, st.container(border=True, height="stretch"):
                _card(scope, name, own, basis)
    degenerate = sum(c.summary.num_degenerate for c in scope.conditions)
    prompts = sum(c.summary.num_prompts for c in scope.conditions)
    left_out = f"; {degenerate} of {prompts} responses loop and are left out" if degenerate else ""
    st.caption(f"Tokens per round (incl. bonus) over the {basis} rounds, 95 % intervals over prompts{left_out}.")


def _card(scope: Scope, name: str, own: list[Condition], basis: str) -> None:
    if not own:
        st.markdown(f"**{plain(name)}**: no rounds yet")
        return
    reference = next(
        (c for c in own if c.summary.system_prompt == REFERENCE_SYSTEM_PROMPT and c.summary.context_tokens == 0), own[0]
    )
    worst = min(own, key=lambda c: c.estimate(basis).value or 0.0)
    best = max(own, key=lambda c: c.estimate(basis).value or 0.0)
    color = scope.style(own[0]).color
    at_reference = reference.estimate(basis)
    interval = f"{at_reference.low:.2f} to {at_reference.high:.2f}" if at_reference.low is not None else "no interval"
    st.html(
        f'<div style="border-left:5px solid {color};padding-left:.8rem">'
        f'<div style="font-weight:600">{html.escape(name)}</div>'
        f'<div style="font-size:2.1rem;font-weight:650;line-height:1.25">{at_reference.value:.2f}'
        f'<span style="font-size:.95rem;font-weight:400;opacity:.8">&ensp;{interval}</span></div>'
        f'<div style="opacity:.8;font-size:.9rem">tokens per round ({basis}) at {html.escape(scope.place(reference))} '
        "tokens of context</div></div>"
    )
    lines = [f"Highest **{best.estimate(basis).value:.2f}** at {plain(scope.place(best))}"]
    lines.append(f"Lowest **{worst.estimate(basis).value:.2f}** at {plain(scope.place(worst))}")
    st.markdown("  \n".join(lines))


def _sentences(scope: Scope) -> None:
    """Each series against the first, pooled over the conditions that both have."""
    basis = "walk" if any(c.summary.walk for c in scope.conditions) else "dense"
    tokens: dict[str, dict[PromptConditionKey, Prompts]] = {}
    for run in scope.runs:
        sums = prompts_by_condition(aggregates.prompt_sums(run.ref.path, run.ref.version), basis)
        for c in scope.conditions:
            if c.run is run:
                key = c.summary.key
                tokens.setdefault(scope.series(c), {})[key.without_drafter] = sums.get(key, {})
    first, *others = scope.all_series()
    for other in others[:MAX_SENTENCES]:
        estimate = pooled_difference(tokens[other], tokens[first])
        num_conditions = len(tokens[other].keys() & tokens[first].keys())
        if estimate.value is None:
            continue
        where = f"over {num_conditions} conditions and the same {estimate.num_prompts} prompts"
        ends = "" if estimate.low is None else f" (95 % interval {estimate.low:+.2f} to {estimate.high:+.2f})"
        if estimate.holds_zero is None:
            said = f"differs by {estimate.value:+.2f} tokens per round ({basis}); too few prompts to say more"
        elif estimate.holds_zero:
            said = f"is not distinguishable: {estimate.value:+.2f} tokens per round ({basis}){ends}"
        else:
            more = "more" if estimate.value > 0 else "fewer"
            said = f"yields **{abs(estimate.value):.2f} {more}** tokens per round ({basis}){ends}"
        st.markdown(f"Against {plain(first)}, {where}, **{plain(other)}** {said}.")


def _where(scope: Scope) -> None:
    basis = "walk" if any(c.summary.walk for c in scope.conditions) else "dense"
    means: dict[str, list[float]] = {}
    for condition in scope.conditions:
        value = condition.estimate(basis).value
        if value is not None:
            means.setdefault(scope.place(condition), []).append(value)
    order = sorted(means, key=lambda place: -sum(means[place]) / len(means[place]))
    points = [
        Point(
            label=scope.series(c),
            condition=scope.place(c),
            estimate=c.estimate(basis),
            drafter=scope.drafter_index(c.summary.drafter),
            variant=scope.run_index(c),
            key=c.key,
        )
        for c in sorted(
            (c for c in scope.conditions if scope.place(c) in means), key=lambda c: order.index(scope.place(c))
        )
    ]
    if not points:
        return
    st.header("Where it holds, where it does not", anchor=False)
    st.caption("System prompt · context tokens, best on top. Select a dot to read its rounds.")
    chart.show(
        condition_dots(points, x_title=f"tokens per round (incl. bonus), {basis}"), "overview_dots", on_click=_open
    )
    if st.session_state.pop("overview_goes_to_rounds", False):
        st.switch_page("views/rounds.py")


def _open() -> None:
    key = chart.clicked("overview_dots")
    if key is not None:
        address.put(at=key, prompt=None, round=None, token=None)
        st.session_state["overview_goes_to_rounds"] = True


def _runs(scope: Scope) -> None:
    runs = scope.contents.runs
    st.caption(f"In {plain(folder_label(scope.contents.folder))}")
    st.dataframe(
        {
            "run": [r.name for r in runs],
            "status": [r.entry.status.value if r.entry.status else "" for r in runs],
            "engine": [r.entry.engine for r in runs],
            "target": [r.entry.target for r in runs],
            "drafters": [", ".join(r.entry.drafters) for r in runs],
            "prompts": [r.entry.num_prompts for r in runs],
            "rounds": [r.entry.num_rounds for r in runs],
            "made": [r.entry.created_at.replace("T", " ")[:16] for r in runs],
        },
        hide_index=True,
        width="stretch",
        key="overview_runs",
        alt=f"Table of {len(runs)} runs",
    )
    empty.list_unreadable(scope.unreadable)


def _provenance(run: SelectedRun) -> None:
    info = run.info
    with st.expander(f"How {plain(run.ref.name)} was made", icon=":material/history_edu:"):
        p = info.provenance
        facts = {
            "target": f"{info.target.name} ({info.target.model_type or '?'}, {info.target.num_layers or '?'} layers)",
            "engine": f"{info.engine}, K = {info.depth}",
            "temperature": "not known" if info.temperature is None else f"{info.temperature:g}",
            "acceptance rule": info.acceptance_rule or "not recorded",
            "numbers": f"{p.dtype or '?'} on {p.gpu_name or p.device or '?'}, attention: {p.attention_backend or '?'}"
            + (f", CUDA graphs: {p.cuda_graph_mode}" if p.cuda_graph_mode else ""),
            "driftscope": p.driftscope_version or "?",
            "packages": ", ".join(f"{name} {version}" for name, version in p.packages.items()) or "not recorded",
            "seed": str(p.seed) if p.seed is not None else "not recorded",
            "made": f"{info.created_at} to {info.finished_at or info.updated_at}",
        }
        values = [plain(value) for value in facts.values()]  # a table's cells are Markdown
        st.table({"": list(facts), "value": values}, hide_index=True, border="horizontal")
        if p.argv:
            st.caption("Command line")
            st.code(" ".join(p.argv), language="bash", wrap_lines=True)
        for note in (*info.notes, *([info.error] if info.error else [])):
            st.warning(plain(note), icon=":material/info:")
        for drafter in info.drafters:
            st.subheader(f"Drafter {plain(drafter.name)}")
            layers = ", ".join(map(str, drafter.aux_layer_ids)) or "none"
            st.markdown(
                f"{plain(drafter.kind or 'unknown kind')} · from {plain(drafter.producer or 'unknown producer')} · "
                f"target layers {layers} · draft vocabulary {drafter.draft_vocab_size or '?'} · "
                f"{drafter.num_heads or '?'} heads"
            )
            if drafter.origins:
                origins = drafter.origins
                st.dataframe(
                    {
                        "setting": list(origins),
                        "value": [str(drafter.settings.get(name)) for name in origins],
                        "from": [str(o.get("source", "")) for o in origins.values()],
                        "detail": [str(o.get("detail", "")) for o in origins.values()],
                        "certain": ["yes" if o.get("is_certain", True) else "guessed" for o in origins.values()],
                    },
                    hide_index=True,
                    width="stretch",
                    alt=f"Effective settings of the drafter {drafter.name} and where each came from",
                )
            for finding in drafter.findings:
                st.warning(plain(str(finding.get("message", finding))), icon=":material/report:")


main()
