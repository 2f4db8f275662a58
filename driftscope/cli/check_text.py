"""The text of `driftscope check`: findings, the worst first, then settings by engine, then coverage. For 100 columns.

Computes nothing: every number and judgement comes from the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from driftscope.check.check_report import (
    Cell,
    CheckList,
    CheckReport,
    Coverage,
    CoverageGroup,
    Finding,
    SettingRow,
    Severity,
)
from driftscope.check.table import short_names
from probes.errors import printable

STYLES = {Severity.error: "bold red", Severity.warning: "bold yellow", Severity.info: "dim"}
MOST_GROUPS = 12  # rows of one kind in the coverage table
MOST_UNCOVERED = 12


def plain(value: str, style: str = "") -> Text:
    """Text out of files, shown and not obeyed: no markup, and no control characters for the terminal."""
    return Text(printable(value), style=style)


def print_report(out: Console, report: CheckReport) -> None:
    """Print the whole page."""
    _print_head(out, report)
    _print_findings(out, report.findings)
    _print_settings(out, report.settings)
    if report.coverage is not None:
        _print_coverage(out, report.coverage)
    if report.not_checked:
        out.print("\n[bold]Not checked[/bold]")
        for sentence in report.not_checked:
            out.print(Padding(plain(sentence), (0, 0, 0, 2)))


def print_checks(out: Console, listing: CheckList) -> None:
    """Every check in one table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("id", "severity", "name", "what it finds"):
        table.add_column(name, no_wrap=name == "id", overflow="fold")
    for item in listing.checks:
        table.add_row(item.id, Text(item.severity, style=STYLES[item.severity]), item.name, item.title)
    out.print(table)
    out.print(f"\n{len(listing.checks)} checks; docs/checks has a page for each.")


def _print_head(out: Console, report: CheckReport) -> None:
    target, drafter = report.target, report.drafter
    out.print(plain(f"target   {target.name}", "bold"), soft_wrap=True)
    about = [
        target.model_type or "unknown kind",
        f"{target.num_layers} layers" if target.num_layers else "",
        f"hidden {target.hidden_size:,}" if target.hidden_size else "",
        f"{target.vocab_size:,} ids" if target.vocab_size else "",
        f"{target.max_position_embeddings:,} positions" if target.max_position_embeddings else "",
        f"quantised ({target.quantization})" if target.quantization else "",
    ]
    out.print(plain("         " + ", ".join(part for part in about if part)))
    out.print(plain(f"drafter  {drafter.name}", "bold"), soft_wrap=True)
    if drafter.producer is not None:
        layers = f"{drafter.num_layers} {drafter.family} layer" + ("s" if drafter.num_layers != 1 else "")
        out.print(
            f"         {drafter.kind} in {drafter.producer}'s layout, {layers}, {drafter.draft_vocab_size:,} draft ids",
            markup=False,
        )
    else:
        out.print("         refused by the checkpoint reader: see the errors", markup=False)


def _print_findings(out: Console, findings: Sequence[Finding]) -> None:
    counts = Counter(finding.severity for finding in findings)
    words = {Severity.error: "error", Severity.warning: "warning", Severity.info: "note"}
    said = [f"{counts[s]} {words[s]}{'s' if counts[s] != 1 else ''}" for s in words if counts[s]]
    out.print(f"\n[bold]Findings[/bold]  {', '.join(said) or 'none'}")
    for finding in findings:
        out.print()
        head = Text.assemble(
            (f"{finding.severity.value:<8}", STYLES[finding.severity]), (f"{finding.id}  ", "bold"), finding.what
        )
        out.print(head)
        lines = (("seen", finding.evidence), ("where", finding.where), ("do", finding.remedy))
        for label, value in lines[:1] if finding.severity is Severity.info else lines:
            if value:
                _print_labelled(out, label, value)


def _print_labelled(out: Console, label: str, value: str) -> None:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=13, justify="right", style="dim")
    grid.add_column(overflow="fold")
    grid.add_row(label, plain(value))
    out.print(grid)


def _print_settings(out: Console, rows: Sequence[SettingRow]) -> None:
    out.print(
        "\n[bold]Settings[/bold]  the checkpoint's value, who agrees (yes), who reads another (NO); ? is not known"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("setting", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=3)
    table.add_column("value", overflow="fold", max_width=24)
    table.add_column("who: from where", overflow="fold")
    if all(row.value is None for row in rows):
        out.print("  not compared, as the checkpoint was refused; --json has each engine's reading")
        return
    for row in rows:
        for line in _setting_lines(row):
            table.add_row(*line)
    out.print(table)


def _setting_lines(row: SettingRow) -> Iterator[tuple[Text, Text, Text, Text]]:
    """Engines that refuse the checkpoint are named once, in the row of the weights."""
    doubt = "" if row.is_certain else " (not certain)"
    judged = [cell for cell in row.engines if not cell.refuses or row.setting == "weights"]
    agreeing = [cell.engine for cell in judged if cell.agrees]
    yes = Text("yes", style="green")
    if len(agreeing) == len(judged):
        who = "every engine" if len(judged) == len(row.engines) else "all that load it"
        yield Text(row.setting), yes, plain(row.value or "?"), plain(f"{who}; from {row.source}{doubt}")
        return
    yield Text(row.setting), Text(""), plain(row.value or "?"), plain(f"checkpoint: {row.source}{doubt}")
    if agreeing:
        yield Text(""), yes, Text(""), Text(short_names(agreeing), style="dim")
    for cells, mark in (
        ([c for c in judged if c.agrees is False], Text("NO", style="bold yellow")),
        ([c for c in judged if c.refuses], Text("-", style="dim")),
        ([c for c in judged if c.agrees is None and not c.refuses], Text("?", style="dim")),
    ):
        for value, source, names in _grouped(cells):
            yield Text(""), mark, plain(value), plain(f"{names}: {source}" if source else names)


def _grouped(cells: Sequence[Cell]) -> Iterator[tuple[str, str, str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        groups.setdefault((cell.value or "?", cell.source), []).append(cell.engine)
    for (value, source), names in groups.items():
        yield value, source, short_names(names)


def _print_coverage(out: Console, coverage: Coverage) -> None:
    out.print(
        f"\n[bold]Vocabulary coverage[/bold]  {coverage.draft_vocab_size:,} of {coverage.vocab_size:,} ids can be drafted"
    )
    out.print(
        plain(
            f"{coverage.path} ({coverage.format}): {coverage.num_prompts:,} prompts, {coverage.num_responses:,} responses"
        ),
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("by")
    table.add_column("", overflow="fold", max_width=30)
    for part in ("prompt tokens", "covered", "response tokens", "covered"):
        table.add_column(part, justify="right")
    shown: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for (by, name), parts in _by_name(coverage.groups).items():
        shown[by] += 1
        if shown[by] > MOST_GROUPS:
            left_out[by] += 1
            continue
        table.add_row(
            by if shown[by] == 1 else "", plain(name), *_numbers(parts.get("prompt")), *_numbers(parts.get("response"))
        )
    out.print(table)
    for by, count in left_out.items():
        out.print(f"{count} more of {by}: see --json")
    if coverage.uncovered:
        out.print("\nMost frequent tokens that can never be drafted (times in prompts, in responses):")
        words = [f"{t.text!r} {t.num_prompt}+{t.num_response}" for t in coverage.uncovered[:MOST_UNCOVERED]]
        out.print(Padding(plain("   ".join(words)), (0, 0, 0, 2)))
    for note in coverage.notes:
        out.print(plain(f"! {note}", "yellow"))


def _by_name(groups: Sequence[CoverageGroup]) -> dict[tuple[str, str], dict[str, CoverageGroup]]:
    order = {by: i for i, by in enumerate(("all", "script", "language", "category"))}
    found: dict[tuple[str, str], dict[str, CoverageGroup]] = {}
    for group in groups:
        found.setdefault((group.by, group.name), {})[group.part] = group
    tokens = {key: sum(group.num_tokens for group in parts.values()) for key, parts in found.items()}
    return dict(sorted(found.items(), key=lambda item: (order[item[0][0]], -tokens[item[0]])))


def _numbers(group: CoverageGroup | None) -> tuple[str, str]:
    if group is None or group.share is None:
        return "", ""
    return f"{group.num_tokens:,}", f"{group.share:.1%}"
