"""Answers -> GitHub-flavoured Markdown: every fault, the confusion matrix, the counts. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fault_bench.run import Answer
from driftscope.stats.thresholds import VERDICT_MIN_TOKENS

NOTHING_SAID = ("healthy", "not_enough_data")


@dataclass(frozen=True)
class Judged:
    """An answer with what its fault cost, in tokens per round against the sound drafter."""

    answer: Answer
    cost: float | None

    @property
    def is_diagnosed(self) -> bool:
        """The first verdict names the cause; a dynamic fault that costs little may also pass as healthy."""
        a = self.answer
        is_small = a.part == "dynamic" and self.cost is not None and self.cost < VERDICT_MIN_TOKENS
        return a.verdicts[0] in a.right or (is_small and a.verdicts[0] in NOTHING_SAID)

    @property
    def is_right(self) -> bool:
        """Diagnosed, or a fault of files that `driftscope check` names."""
        return self.is_diagnosed or bool(self.answer.named_by_check)


def judged(answers: Sequence[Answer], base_case: dict[str, str]) -> list[Judged]:
    """`base_case`: case -> the case whose sound drafters its costs are against."""
    sound = {(a.prompt_set, a.case, a.base): a for a in answers if a.drafter == a.base and not a.condition}
    found = []
    for a in answers:
        base = sound.get((a.prompt_set, base_case.get(a.case) or a.case, a.base))
        is_without_cost = a.part == "untouched" or a.right == ("degenerate_text",)
        found.append(Judged(a, None if is_without_cost or base is None else _cost(base, a)))
    return found


def _cost(base: Answer, answer: Answer) -> float | None:
    """Over the prompts whose text loops in neither; over each one's own where they have none in common (other texts)."""
    shared = base.sums.keys() & answer.sums.keys()

    def tokens_per_round(a: Answer) -> float | None:
        rounds, tokens = (sum(a.sums[p][i] for p in shared or a.sums) for i in (0, 1))
        return tokens / rounds if rounds else None

    before, after = tokens_per_round(base), tokens_per_round(answer)
    return None if before is None or after is None else before - after


def table(found: Sequence[Judged]) -> str:
    """Every fault with what was said of it."""
    lines = [
        "| set | fault | cost | check | first verdict | its evidence | others | right |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for j in found:
        a = j.answer
        cost = "" if j.cost is None else f"{j.cost:.2f}"
        right = "yes" if j.is_diagnosed else "by check" if j.is_right else f"no ({' or '.join(a.right)})"
        said = f"{a.verdicts[0]} ({a.confidence})" if a.confidence else a.verdicts[0]
        lines.append(
            f"| {a.prompt_set} | {a.fault} | {cost} | {', '.join(a.new_checks)} | {said} | {a.evidence} "
            f"| {', '.join(a.verdicts[1:])} | {right} |"
        )
    return "\n".join(lines)


def confusion(found: Sequence[Judged]) -> str:
    """Rows: what was injected. Columns: the first verdict."""
    rows: dict[str, dict[str, int]] = {}
    for j in found:
        name = "nothing" if j.answer.part == "untouched" else f"{j.answer.part}: {j.answer.right[0]}"
        is_small = j.answer.part == "dynamic" and j.cost is not None and j.cost < VERDICT_MIN_TOKENS
        row = rows.setdefault(f"{name}, cost below {VERDICT_MIN_TOKENS}" if is_small else name, {})
        row[j.answer.verdicts[0]] = row.get(j.answer.verdicts[0], 0) + 1
    columns = sorted({verdict for row in rows.values() for verdict in row})
    lines = [f"| injected | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1)]
    for name in sorted(rows):
        lines.append(f"| {name} | {' | '.join(str(rows[name].get(c, '')) for c in columns)} |")
    return "\n".join(lines)


def counts(found: Sequence[Judged]) -> str:
    """One sentence a part."""
    lines = []
    for part in ("static", "dynamic", "reference"):
        of_part = [j for j in found if j.answer.part == part]
        if of_part:
            diagnosed = sum(j.is_diagnosed for j in of_part)
            by_check = f", {sum(j.is_right for j in of_part)} by it or by check" if part == "static" else ""
            lines.append(f"{part}: {diagnosed} of {len(of_part)} by the first verdict{by_check}.")
    untouched = [j for j in found if j.answer.part == "untouched"]
    false = sum(j.answer.verdicts[0] not in NOTHING_SAID for j in untouched)
    lines.append(f"untouched: {false} of {len(untouched)} with a false verdict.")
    return "\n".join(lines)
