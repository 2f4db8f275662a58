"""The text of `driftscope show`: one table of conditions, then by depth the best and the worst of each drafter.

Computes nothing but which rows to print; every number comes from the summary. Laid out for 100 columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope.quantities import OVER_DEPTH
from driftscope.runs import Run, RunStatus
from driftscope.stats.thresholds import INTERVAL_MIN_PROMPTS
from driftscope.summary.run_summary import ConditionSummary, DepthArray, Summary, TokensPerRound, WithoutRounds
from probes.record import PromptConditionKey, counted_slots

MOST_DEPTHS = 8  # columns for depths; of a larger K some depths are left out, the last never


def print_summary(out: Console, run: Run, summary: Summary) -> None:
    """Print the whole page."""
    _print_head(out, run)
    if not summary.conditions:
        out.print("\nNo rounds are stored yet.")
    else:
        depths = _shown_depths(max(len(condition.acceptance_marginal) for condition in summary.conditions))
        _print_conditions(out, summary.conditions, depths)
        for drafter in dict.fromkeys(condition.drafter for condition in summary.conditions):
            _print_depths(out, [c for c in summary.conditions if c.drafter == drafter], depths)
        out.print(
            "\nown: slots of the chain's own drafts. own_excess, sink_deficit: against a query with true features at the "
            f"same slot. sink: the first {counted_slots(run.info.sink_slots)}; slot 0 is the pair of the second token and "
            "the first token's features: the drafter sees the first token through these only. chain_gap: what drafting "
            "from its own states costs in acceptance."
        )
    for warning in _warnings(run, summary):
        out.print(Text("! " + warning, style="yellow"))
    _print_next(out, run)


def _print_head(out: Console, run: Run) -> None:
    info, counts = run.info, run.info.counts
    drafters = ", ".join(d.name if d.kind in ("", d.name) else f"{d.name} ({d.kind})" for d in info.drafters)
    out.print(Text(str(run.path), style="bold"))
    temperature = "temperature not known" if info.temperature is None else f"temperature {info.temperature:g}"
    if info.temperature:
        temperature += f", top-k {info.top_k}" if info.top_k else ""
        temperature += f", top-p {info.top_p:g}" if info.top_p not in (None, 1.0) else ""
        temperature += f", {info.draft_sample_method} drafts" if info.draft_sample_method else ""
    out.print(f"{run.status}, engine {info.engine}, K = {info.depth}, {temperature}", markup=False)
    out.print(f"target {info.target.name or '?'}; drafters {drafters or '?'}", markup=False)
    out.print(f"{counts.num_prompts:,} prompts, {counts.num_rounds:,} rounds")


def _print_conditions(out: Console, conditions: Sequence[ConditionSummary], depths: Sequence[int]) -> None:
    basis = " and ".join(dict.fromkeys(condition.depth_basis for condition in conditions))
    out.print(
        "\n[bold]tokens_per_round[/bold] = accepted drafts + the bonus token, over the n prompts that have a round"
    )
    out.print("walk: the rounds that an engine would make; dense: a round from every position of the response")
    has_templates = any(condition.template != "default" for condition in conditions)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("system_prompt", overflow="fold", min_width=8, max_width=18)
    if has_templates:
        table.add_column("template", overflow="fold", min_width=8, max_width=10)
    table.add_column("context", justify="right", no_wrap=True)
    table.add_column("drafter", overflow="fold", min_width=8, max_width=14)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("walk", justify="right", no_wrap=True)
    bases = list(dict.fromkeys(_headline_basis(condition) for condition in conditions))
    table.add_column(f"{bases[0]} 95 %" if len(bases) == 1 else "95 %", no_wrap=True)
    table.add_column("dense", justify="right", no_wrap=True)
    labels = " ".join(f"{k:>3}" for k in depths)
    table.add_column(Text(f"acceptance_conditional, {basis}\n{labels}"), no_wrap=True)
    former: PromptConditionKey | None = None
    for condition in conditions:
        where = condition.key.without_drafter
        system, template, context = ("", "", "") if where == former else map(str, where)
        former = where
        headline = _headline(condition)
        table.add_row(
            Text(system),
            *([Text(template)] if has_templates else []),
            context,
            Text(condition.drafter),
            _n(condition),
            _tokens(condition.walk),
            _interval(headline),
            _tokens(condition.dense),
            " ".join(f"{_short_share(_at(condition.acceptance_conditional, k)):>3}" for k in depths),
        )
    out.print(table)
    if len(bases) > 1:
        out.print("Where there is no walk, n and the interval are those of dense.")
    if any(_num_used(condition) < condition.num_prompts for condition in conditions):
        out.print("n/m: n of m prompts; the others loop or have no round.")


def _print_depths(out: Console, conditions: Sequence[ConditionSummary], depths: Sequence[int]) -> None:
    """The conditions of one drafter with the highest and the lowest tokens_per_round."""
    ranked = sorted((c for c in conditions if _value(c) is not None), key=lambda c: _value(c) or 0.0)
    if not ranked:
        return
    chosen = [("highest", ranked[-1]), ("lowest", ranked[0])] if len(ranked) > 1 else [("", ranked[0])]
    for rank, condition in chosen:
        why = f"{rank} {_headline_basis(condition)} tokens_per_round" if rank else "the only condition"
        out.print()
        out.print(Text(f"{condition.drafter}, {_name(condition)} ({why})", style="bold"))
        for basis in ("walk", "dense"):
            tokens, with_degenerate = getattr(condition, basis), getattr(condition, f"{basis}_all")
            if tokens is not None:
                interval = f" {_interval(tokens)}" if tokens.low is not None else ", no interval"
                line = f"{_tokens(tokens)}{interval}, n = {tokens.num_prompts}, {tokens.num_rounds:,} rounds"
                line += f"; prompt mean {_prompt_mean(tokens)}"
                if condition.num_degenerate:
                    line += f"; with looping {_tokens(with_degenerate)}"
                out.print(f"  {basis:<22}  {line}", markup=False)
        header = f"  by depth, {condition.depth_basis}"
        out.print(Text(f"{header:<24}" + "".join(f"{k:>8}" for k in depths), style="dim"))
        for label, array, form in _depth_rows(condition):
            if any(value is not None for value in array):
                out.print(f"  {label:<22}" + "".join(f"{form(_at(array, k)):>8}" for k in depths), markup=False)
        fusion = condition.fusion_share
        if fusion.share is not None:
            shares = [
                f"layer {layer} {_signed(share)}" for layer, share in zip(fusion.layer_ids, fusion.share, strict=False)
            ]
            shares += [f"bias {_signed(fusion.bias)}"] if fusion.bias is not None else []
            out.print(f"  {'fusion_share':<24}" + ", ".join(shares), markup=False)
        vocab = condition.out_of_draft_vocab_share
        if vocab is not None:
            out.print(f"  {'out of draft vocabulary':<24}{vocab:.1%} of the emitted tokens", markup=False)


def _depth_rows(condition: ConditionSummary) -> Iterator[tuple[str, DepthArray, Callable[[float | None], str]]]:
    """Every quantity with a chart; of a mean and its growth, the mean."""
    for name, quantity in OVER_DEPTH.items():
        if quantity.section and not quantity.is_relative:
            form = _signed if quantity.is_signed else _norm
            if quantity.is_share:
                form = _mass if name.startswith("mass_") else _share
            yield name.replace("mass_", "mass "), condition.over_depth(name), form


def _warnings(run: Run, summary: Summary) -> Iterator[str]:
    conditions = summary.conditions
    if run.status is RunStatus.running:
        yield "The run is still being written: these are the numbers so far."
    elif run.status is not RunStatus.complete:
        yield f"The run is {run.status}: conditions may be missing or have fewer prompts than planned." + (
            f" It stopped with: {run.info.error}" if run.info.error else ""
        )
    num_degenerate = sum(condition.num_degenerate for condition in conditions)
    if num_degenerate:
        worst = max(conditions, key=lambda c: c.degenerate_share or 0.0)
        num_batches = sum(condition.num_prompts for condition in conditions)
        yield (
            f"{num_degenerate} of {num_batches} prompt x drafter batches are looping text and left out (most in "
            f"{_name(worst)}: {worst.degenerate_share:.0%}). dense_all and walk_all in --json have them."
        )
    yield from _without_rounds(summary)
    num_unlabelled = sum(condition.num_rounds_without_labels for condition in conditions)
    if num_unlabelled:
        yield f"{num_unlabelled:,} starts with fewer than K labels (end of the text, or forced text) are left out of dense."
    forced = [c for c in conditions if c.text_agreement is not None]
    if forced:
        worst = min(forced, key=lambda c: c.text_agreement or 0.0)
        yield (
            f"{len(forced)} conditions hold text that the target did not write: chains are scored only up to where the "
            f"target disagrees with it, and there is no walk. Lowest text_agreement: {worst.text_agreement:.3f}, "
            f"{_name(worst)}."
        )
    few = [(c, tokens.why_no_interval) for c in conditions if (tokens := _headline(c)) and tokens.why_no_interval]
    if few:
        condition, why = min(few, key=lambda item: _num_used(item[0]))
        have = "1 condition has" if len(few) == 1 else f"{len(few)} conditions have"
        yield (
            f"{have} fewer than {INTERVAL_MIN_PROMPTS} prompts: no interval can be given. "
            f"{condition.drafter}, {_name(condition)}: {why}."
        )
    yield from run.info.notes


def _without_rounds(summary: Summary) -> Iterator[str]:
    """Prompts that n leaves out although they do not loop."""
    without = [(c, tokens.num_prompts_without_rounds) for c in summary.conditions if (tokens := _headline(c))]
    total = sum(num for _, num in without)
    if total:
        worst, most = max(without, key=lambda item: item[1])
        num_batches = sum(condition.num_prompts for condition in summary.conditions)
        yield (
            f"{total} of {num_batches} prompt x drafter batches have no {_headline_basis(worst)} round: n leaves them out "
            f"(most in {worst.drafter}, {_name(worst)}: {most} of {worst.num_prompts}). A response of 0 or 1 tokens has no "
            "round; a text that the target did not write has no walk; a text of at most K tokens has no dense round."
        )
    for one in summary.without_rounds:
        yield f"{_name(one)} has no row: none of its {one.num_prompts} prompts has a round."


def _print_next(out: Console, run: Run) -> None:
    path = run.path
    out.print("\n[bold]Files[/bold]")
    out.print(f"  {path}/run.json, prompts.parquet, rounds/*.parquet, depths/*.parquet", markup=False, soft_wrap=True)
    out.print("[bold]Next[/bold]")
    steps = [
        (f"driftscope show {path} --json", "all numbers, every condition and depth, with intervals"),
        (f"driftscope runs verify {path}", "do the stored numbers agree with each other?"),
    ]
    if run.status not in (RunStatus.complete, RunStatus.running):
        steps.insert(0, (f"driftscope runs recover {path}", "mark it, recount, set aside what cannot be read"))
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        out.print(f"  {command:<{width}}  # {what}", markup=False, soft_wrap=True)


def _shown_depths(depth: int) -> list[int]:
    if depth <= MOST_DEPTHS:
        return list(range(1, depth + 1))
    return sorted({int(k) for k in np.linspace(1, depth, MOST_DEPTHS).round()})


def _headline(condition: ConditionSummary) -> TokensPerRound | None:
    """Walk where there is one, else dense."""
    return condition.walk or condition.dense


def _headline_basis(condition: ConditionSummary) -> str:
    return "dense" if condition.walk is None else "walk"


def _value(condition: ConditionSummary) -> float | None:
    tokens = _headline(condition)
    return tokens.tokens_per_round if tokens is not None else None


def _num_used(condition: ConditionSummary) -> int:
    """n: the prompts that the headline is over."""
    tokens = _headline(condition)
    return tokens.num_prompts if tokens is not None else 0


def _n(condition: ConditionSummary) -> str:
    used = _num_used(condition)
    return f"{used}" if used == condition.num_prompts else f"{used}/{condition.num_prompts}"


def _name(condition: ConditionSummary | WithoutRounds) -> str:
    template = "" if condition.template == "default" else f", template {condition.template}"
    return f"{condition.system_prompt}{template}, context {condition.context_tokens}"


def _at(array: DepthArray, k: int) -> float | None:
    return array[k - 1] if k <= len(array) else None


def _tokens(tokens: TokensPerRound | None) -> str:
    return "-" if tokens is None or tokens.tokens_per_round is None else f"{tokens.tokens_per_round:.2f}"


def _prompt_mean(tokens: TokensPerRound) -> str:
    mean = tokens.tokens_per_round_prompt_mean
    return "-" if mean is None else f"{mean:.2f}"


def _interval(tokens: TokensPerRound | None) -> str:
    if tokens is None or tokens.low is None or tokens.high is None:
        return "-"
    return f"{tokens.low:.2f}-{tokens.high:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _short_share(value: float | None) -> str:
    """.49 or 1.0: three characters."""
    text = _share(value)
    return text[1:] if text.startswith("0") else text[:3]


def _mass(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _norm(value: float | None) -> str:
    """Four significant digits, no exponent below a million."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:#.4g}".rstrip(".")
