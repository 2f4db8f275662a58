"""The text of `driftscope diagnose`: the verdicts of every condition, their evidence, where the loss goes, what was tried.

Computes nothing but which rows to print. Laid out for 100 columns.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from driftscope.diagnosis.diagnosis import ConditionDiagnosis, Diagnosis, InterventionResult, VerdictId
from driftscope.diagnosis.waterfall import LOSS_NAMES
from driftscope.runs import Run

MOST_INTERVENTIONS = 6  # of those tried, the best are printed; --json has all


def print_diagnosis(out: Console, run: Run, diagnosis: Diagnosis) -> None:
    """Print the whole page."""
    out.print(f"[bold]{escape(str(run.path))}[/bold]")
    for condition in diagnosis.conditions:
        _print_condition(out, condition)
    out.print()
    listed = [gain for condition in diagnosis.conditions for gain in _tried(condition)]
    if listed:
        star = "; * = counted (docs/verdicts.md)" if any(gain.is_counted for gain in listed) else ""
        out.print(f"Tried: gains in dense tokens_per_round, paired by prompt{star}.", markup=False)
    if any(condition.waterfall for condition in diagnosis.conditions):
        out.print(
            "Lost: all drafts after a round's first rejection, given to its cause. A repair gains less than that."
        )
    out.print(
        f"All of it: driftscope diagnose {run.path} --json. Rules: docs/verdicts.md", markup=False, soft_wrap=True
    )


def _print_condition(out: Console, condition: ConditionDiagnosis) -> None:
    template = "" if condition.template == "default" else f", template {condition.template}"
    name = f"{condition.drafter}, {condition.system_prompt}{template}, context {condition.context_tokens}"
    out.print(f"\n[bold]{escape(name)}[/bold]")
    for verdict in condition.verdicts:
        style = "green" if verdict.id is VerdictId.healthy else "yellow"
        out.print(f"  [{style}]{verdict.id}[/{style}] (confidence {verdict.confidence})")
        for evidence in verdict.evidence:
            interval = "" if evidence.low is None else f" [{evidence.low:.2f}, {evidence.high:.2f}]"
            out.print(f"    {evidence.statement}{interval}", markup=False)
        if verdict.id is not VerdictId.healthy:
            out.print(f"    -> {verdict.remedy}", markup=False)
    if condition.not_judged:
        reasons: dict[str, list[str]] = {}
        for item in condition.not_judged:
            reasons.setdefault(item.reason, []).append(item.id)
        listed = "; ".join(f"{reason}: {', '.join(ids)}" for reason, ids in reasons.items())
        out.print(f"  not judged: {listed}", markup=False)
    said = {evidence.name for verdict in condition.verdicts for evidence in verdict.evidence}
    for finding in condition.file_findings:
        if finding.id not in said:
            out.print(f"  driftscope check: {finding.id} {finding.what}", markup=False)
    if condition.waterfall:
        parts = sorted(condition.waterfall.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{LOSS_NAMES[name]} {value:.2f}" for name, value in parts if value)
        out.print(f"  tokens of an average walk round: {listed or 'none lost'}", markup=False)
    tried = [f"{i.id} {i.gain:+.2f}{'*' if i.is_counted else ''}" for i in _tried(condition)]
    if tried:
        out.print("  tried: " + ", ".join(tried), markup=False)
    paths = [i for i in condition.interventions if i.kind == "path" and i.gain is not None]
    if paths:
        out.print("  paths, drafts per start: " + ", ".join(f"{i.id} {i.gain:+.3f}" for i in paths), markup=False)


def _tried(condition: ConditionDiagnosis) -> list[InterventionResult]:
    """The interventions that are printed, the largest gain first."""
    return [i for i in condition.interventions if i.kind != "path" and i.gain is not None][:MOST_INTERVENTIONS]
