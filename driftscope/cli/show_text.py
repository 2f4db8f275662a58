"""The text of `driftscope show`: one table of conditions, then by depth the best and the worst of each drafter.

Computes nothing but which rows to print; every number comes from the summary. Laid out for 100 columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope.runs import Run, RunStatus
from driftscope.stats.thresholds import INTERVAL_MIN_PROMPTS
from driftscope.summary.models import ConditionSummary, DepthArray, Summary, TokensPerRound

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
            f"same slot. sink: the first {run.info.sink_slots} slot(s); slot 0 is the pair of the second token and the "
            "first token's features: the drafter sees the first token through these only. chain_gap: what drafting from "
            "its own states costs in acceptance."
        )
    for warning in _warnings(run, summary.conditions):
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
    out.print("\n[bold]tokens_per_round[/bold] = accepted drafts + the bonus token; 95 % interval over n prompts")
    has_templates = any(condition.template != "default" for condition in conditions)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("system_prompt", overflow="fold", min_width=8, max_width=18)
    if has_templates:
        table.add_column("template", overflow="fold", min_width=8, max_width=10)
    table.add_column("context", justify="right", no_wrap=True)
    table.add_column("drafter", overflow="fold", min_width=8, max_width=14)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("walk", justify="right", no_wrap=True)
    table.add_column("interval", no_wrap=True)
    table.add_column("dense", justify="right", no_wrap=True)
    labels = " ".join(f"{k:>3}" for k in depths)
    table.add_column(Text(f"acceptance_conditional, {basis}\n{labels}"), no_wrap=True)
    former: tuple[str, str, int] | None = None
    for condition in conditions:
        where = (condition.system_prompt, condition.template, condition.context_tokens)
        system, template, context = ("", "", "") if where == former else (where[0], where[1], str(where[2]))
        former = where
        headline = condition.walk or condition.dense
        used = condition.num_prompts - condition.num_degenerate
        table.add_row(
            Text(system),
            *([Text(template)] if has_templates else []),
            context,
            Text(condition.drafter),
            f"{used}" if not condition.num_degenerate else f"{used}/{condition.num_prompts}",
            _tokens(condition.walk),
            _interval(headline),
            _tokens(condition.dense),
            " ".join(f"{_short_share(_at(condition.acceptance_conditional, k)):>3}" for k in depths),
        )
    out.print(table)
    if any(condition.walk is None for condition in conditions):
        out.print("Where there is no walk, the interval is that of dense.")


def _print_depths(out: Console, conditions: Sequence[ConditionSummary], depths: Sequence[int]) -> None:
    """The conditions of one drafter with the highest and the lowest tokens_per_round."""
    ranked = sorted((c for c in conditions if _headline(c) is not None), key=lambda c: _headline(c) or 0.0)
    if not ranked:
        return
    chosen = [("highest", ranked[-1]), ("lowest", ranked[0])] if len(ranked) > 1 else [("only condition", ranked[0])]
    for rank, condition in chosen:
        out.print()
        out.print(Text(f"{condition.drafter}, {_name(condition)} ({rank} tokens_per_round)", style="bold"))
        for basis in ("walk", "dense"):
            tokens, with_degenerate = getattr(condition, basis), getattr(condition, f"{basis}_all")
            if tokens is not None:
                line = f"{_tokens(tokens)} {_interval(tokens)}, mean of the prompts {_prompt_mean(tokens)}"
                if condition.num_degenerate:
                    line += f"; with looping text {_tokens(with_degenerate)}"
                out.print(f"  {basis:<22}  {line} ({tokens.num_rounds:,} rounds)", markup=False)
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
    yield "acceptance_marginal", condition.acceptance_marginal, _share
    yield "acceptance_conditional", condition.acceptance_conditional, _share
    yield "chain_gap", condition.chain_gap, _signed
    yield "hidden_in_norm", condition.hidden_in_norm, _norm
    yield "hidden_out_norm", condition.hidden_out_norm, _norm
    yield "hidden_feedback_norm", condition.hidden_feedback_norm, _norm
    yield "mass sink", condition.mass["sink"], _mass
    yield "sink_deficit", condition.sink_deficit, _signed
    yield "mass own", condition.mass["own"], _mass
    yield "own_excess", condition.own_excess, _signed


def _warnings(run: Run, conditions: Sequence[ConditionSummary]) -> Iterator[str]:
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
    num_few = sum(c.num_prompts - c.num_degenerate < INTERVAL_MIN_PROMPTS for c in conditions)
    if num_few:
        yield f"{num_few} conditions have fewer than {INTERVAL_MIN_PROMPTS} prompts: no interval can be given."
    yield from run.info.notes


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


def _headline(condition: ConditionSummary) -> float | None:
    """Walk where there is one, else dense."""
    tokens = condition.walk or condition.dense
    return tokens.tokens_per_round if tokens is not None else None


def _name(condition: ConditionSummary) -> str:
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
