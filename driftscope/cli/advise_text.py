"""The text of `driftscope advise`: one line of advice for each drafter and condition, and a table of every depth.

Computes nothing. Laid out for 100 columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from driftscope.advise import Advice, ConditionAdvice, Recommendation

_STYLES = {Recommendation.on: "green", Recommendation.off: "yellow"}


def print_advice(out: Console, advice: Advice) -> None:
    """Print the whole page."""
    out.print(f"[bold]{escape(advice.path)}[/bold]  {advice.status}, {escape(advice.engine)}", soft_wrap=True)
    out.print(advice.cost_model, markup=False)
    for drafter in advice.drafters:
        own = [c for c in advice.conditions if c.drafter == drafter.drafter]
        where = f"over all {len(own)} conditions" if len(own) > 1 else _place(own[0])
        out.print(f"\n[bold]{escape(drafter.drafter)}[/bold], {escape(where)}, walk of {drafter.num_prompts} prompts")
        _print_one(out, drafter)
        if len(own) > 1 and any(c.best_depth for c in own):
            _print_conditions(out, own)
    _print_assumptions(out, advice)


def _place(condition: ConditionAdvice) -> str:
    template = "" if condition.template == "default" else f", template {condition.template}"
    return f"{condition.system_prompt}{template}, context {condition.context_tokens}"


def _print_one(out: Console, one: ConditionAdvice) -> None:
    style = _STYLES.get(one.recommendation, "default")
    out.print(Padding(f"[{style}]{escape(one.statement)}[/{style}]", (0, 0, 0, 2)))
    if not one.depths:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ["K", "tokens/round", "interval", "added", "pays while draft/verify below", "depth K pays below"]
    if one.costs is not None:
        columns[4:] = ["round us", "speed-up", "interval", "change", "pays if added >"]
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for d in one.depths:
        row = [str(d.depth), f"{d.tokens_per_round:.2f}", _range(d.low, d.high), f"{d.added_tokens:+.2f}"]
        if one.costs is None:
            row += [f"{d.break_even_draft_share:.2f}", _number(d.break_even_draft_share_added, "any")]
        else:
            mark = "*" if d.depth == one.best_depth else ""
            row += [
                "" if d.round_us is None else f"{d.round_us:,.{3 if d.round_us < 10 else 0}f}",
                mark + _number(d.speedup),
                _range(d.speedup_low, d.speedup_high),
                "" if d.added_speedup is None else f"{d.added_speedup:+.2f}",
                _number(d.break_even_added_tokens),
            ]
        table.add_row(*row)
    out.print(table)
    if len(one.batches) > 1:
        _print_batches(out, one)


def _print_batches(out: Console, one: ConditionAdvice) -> None:
    """Speed-up by K and batch size, the best of each batch marked."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("requests", justify="right")
    for k in range(1, len(one.depths) + 1):
        table.add_column(f"K={k}", justify="right")
    for name in ("plain us", "verify us", "advice"):
        table.add_column(name, justify="right")
    for batch in one.batches:
        cells = [("*" if k == batch.best_depth else "") + _number(s) for k, s in enumerate(batch.speedup, start=1)]
        us = [f"{batch.costs.plain_us:,.0f}", f"{batch.costs.verify_us[-1]:,.0f}"]
        table.add_row(str(batch.batch_size), *cells, *us, batch.recommendation.replace("_", " "))
    context = one.batches[0].context_tokens
    out.print(f"  Speed-up by batch, {context} tokens of context each; verify us: of K + 1 tokens at the largest K")
    out.print(table)


def _print_conditions(out: Console, conditions: Sequence[ConditionAdvice]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("condition", "n", "advice", "best K", "speed-up", "interval", "as good"):
        table.add_column(name, justify="left" if name in ("condition", "advice") else "right")
    for c in conditions:
        best = next((d for d in c.depths if d.depth == c.best_depth), None)
        table.add_row(
            escape(_place(c)),
            str(c.num_prompts),
            c.recommendation.replace("_", " "),
            "" if best is None else str(best.depth),
            "" if best is None else _number(best.speedup),
            "" if best is None else _range(best.speedup_low, best.speedup_high),
            "" if best is None else ", ".join(map(str, c.as_good_depths)),
        )
    out.print(table)


def _print_assumptions(out: Console, advice: Advice) -> None:
    of_costs = [text for one in (*advice.drafters, *advice.conditions) if one.costs for text in one.costs.assumptions]
    out.print("Assumed:")
    for text in dict.fromkeys([*of_costs, *advice.assumptions]):
        out.print(Padding(f"- {escape(text)}", (0, 0, 0, 2)))


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.2f}-{high:.2f}"


def _number(value: float | None, missing: str = "") -> str:
    return missing if value is None else f"{value:.2f}"
