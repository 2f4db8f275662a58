"""`driftscope compare --markdown`: GitHub-flavoured Markdown for a pull request's comment or $GITHUB_STEP_SUMMARY.

Computes nothing. Names come from files: they stand in code spans, where neither markup nor mentions nor links work.
A comment holds 65,536 characters at most: rows beyond `MOST_ROWS` are counted, failing cells come first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from driftscope.cli import compare_words as words
from driftscope.compare import Comparison
from probes.errors import printable

MOST_ROWS = 100
MOST_NOT_COMPARED = 50
MOST_NAME_CHARACTERS = 80
_MARKUP = re.compile(r"([\\`*_\[\]<>#!|~&$]|:(?=//))")


def as_markdown(comparison: Comparison) -> str:
    """The whole page, ending in a newline."""
    what = "runs" if comparison.by is None else comparison.by.replace("_", " ")
    lines = [f"### driftscope compare: {words.outcome_of(comparison)}", ""]
    lines += [f"Compared: {what}, against {_code(comparison.baseline)}.", ""]
    if said := words.same_everywhere(comparison):
        lines += [f"In every cell: {_text(said)}.", ""]
    for gate in comparison.gates:
        lines.append(f"- {_code(gate.expression)} {words.gate_words(gate)}")
    if comparison.gates:
        lines.append("")
    for index, metric in enumerate(comparison.metrics):
        lines += [*_metric(comparison, index, metric), ""]
    lines += [words.N_MEANS, ""]
    if said := words.left_out(comparison):
        lines += [said, ""]
    lines += _details("Not compared", [_not_compared(comparison, i) for i in range(len(comparison.not_compared))])
    lines += _details("Notes", [_text(note) for note in comparison.notes], is_open=True)
    return "\n".join(lines).rstrip() + "\n"


def _metric(comparison: Comparison, index: int, metric: str) -> list[str]:
    columns = words.columns_of(comparison)
    basis = ", ".join(dict.fromkeys(cell.differences[index].basis for cell in comparison.cells))
    lines = [f"{_code(metric)} ({basis}): candidate - baseline, 95 % interval over prompts", ""]
    lines.append(_row([*map(words.head, columns), "n", "baseline", "candidate", "difference", "interval", ""]))
    lines.append(_row([*("---" for _ in columns), *["---:"] * 5, "---"]))
    failing = words.failing(comparison)
    order = words.ordered(comparison)
    for i in order[:MOST_ROWS]:
        cell, one = comparison.cells[i], comparison.cells[i].differences[index]
        verdict = _text(words.verdict(one))
        lines.append(
            _row(
                [
                    *(_code(words.value_of(comparison, cell, column)).replace("|", "\\|") for column in columns),
                    words.counts(cell, one),
                    words.number(one.baseline),
                    words.number(one.candidate),
                    words.number(one.difference, "+.3f"),
                    words.interval(one.low, one.high),
                    f"{verdict} **fails**" if i in failing else verdict,
                ]
            )
        )
    if len(order) > MOST_ROWS:
        lines += ["", f"{len(order) - MOST_ROWS} more cells: see `--json`."]
    return lines


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _details(title: str, items: Sequence[str], *, is_open: bool = False) -> list[str]:
    if not items:
        return []
    lines = [f"<details{' open' if is_open else ''}><summary>{title} ({len(items)})</summary>", ""]
    lines += [f"- {item}" for item in items[:MOST_NOT_COMPARED]]
    if len(items) > MOST_NOT_COMPARED:
        lines.append(f"- {len(items) - MOST_NOT_COMPARED} more: see `--json`")
    return [*lines, "", "</details>", ""]


def _not_compared(comparison: Comparison, index: int) -> str:
    one = comparison.not_compared[index]
    sides = [_code(words.condition_words(side), 200) for side in (one.candidate, one.baseline) if side is not None]
    return f"{' vs '.join(sides)}: {_text(one.reason)}"


def _code(text: str, limit: int = MOST_NAME_CHARACTERS) -> str:
    """A code span, with a longer fence than any inside."""
    text = printable(text)
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if len(fence) > 1 or not text.strip() else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _text(text: str) -> str:
    """A sentence with names in it: no markup, no mention."""
    return _MARKUP.sub(r"\\\1", printable(text)).replace("@", "@<!-- -->")
