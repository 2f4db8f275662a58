"""Every series against the first one, condition by condition, over the prompts that both have.

Only prompts with the same messages, and whose response loops on neither side, take part. Judges nothing but signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.figures import Cell, Estimate
from driftscope.figures.heat_map import difference_verdict
from driftscope.report.contents import Condition, Contents, PlaceKey
from driftscope.report.tables import Table, interval, number
from driftscope.stats.paired import Difference, holm, paired_difference

# What must agree between runs for a difference to mean the drafter and not the setting.
CONTRACT = ("engine", "depth", "temperature", "acceptance_rule", "sink_slots")

PromptId = tuple[str, str]  # prompt_id, sha256 of its messages


@dataclass(frozen=True)
class Tokens:
    """What one prompt adds under one condition."""

    num_tokens: int
    num_rounds: int


@dataclass(frozen=True)
class Pair:
    """One condition of a series against the same condition of the baseline."""

    condition: Condition
    difference: Difference
    is_sure: bool  # holds over all pairs together (Holm)

    @property
    def estimate(self) -> Estimate:
        """For a figure."""
        d = self.difference
        return Estimate(value=d.estimate, low=d.low, high=d.high, num_prompts=d.num_prompts)

    @property
    def verdict(self) -> str:
        """higher, lower, not distinguishable, or why it cannot be said."""
        return difference_verdict(Cell(row="", column="", estimate=self.estimate))


@dataclass(frozen=True)
class Comparison:
    """All pairs, and each series over all conditions that it shares with the baseline."""

    baseline: str
    pairs: Sequence[Pair]
    sentences: Sequence[str]
    warnings: Sequence[str]

    def of_series(self, name: str) -> list[Pair]:
        """Pairs of one series."""
        return [p for p in self.pairs if p.condition.series == name]

    def table(self) -> Table:
        """Every pair."""
        return Table(
            caption=f"Difference in tokens per round to {self.baseline}, same prompts",
            columns=["drafter", "condition", "difference", "95 % interval", "prompts", "reading", "after Holm"],
            rows=[
                [
                    p.condition.series,
                    p.condition.place,
                    number(p.difference.estimate, 3, is_signed=True),
                    interval(p.difference.low, p.difference.high, 3, is_signed=True),
                    str(p.difference.num_prompts),
                    p.verdict,
                    "holds" if p.is_sure else "",
                ]
                for p in self.pairs
            ],
            num_labels=2,
        )


def compare_series(contents: Contents) -> Comparison | None:
    """None with one series only."""
    series = contents.series
    if len(series) < 2:
        return None
    tokens = {name: _tokens(contents, name) for name in series}
    of_place = {(c.series, c.place_key): c for c in contents.conditions}
    found = []
    sentences = []
    for name in series[1:]:
        shared = [key for key in tokens[name] if key in tokens[series[0]]]
        found += [(of_place[name, key], _difference(tokens[name][key], tokens[series[0]][key])) for key in shared]
        sentences.append(_sentence(name, series[0], tokens[name], tokens[series[0]], shared))
    are_sure = holm([difference.p_value for _, difference in found])
    return Comparison(
        baseline=series[0],
        pairs=[Pair(c, difference, is_sure) for (c, difference), is_sure in zip(found, are_sure, strict=True)],
        sentences=sentences,
        warnings=_warnings(contents),
    )


def _tokens(contents: Contents, series: str) -> dict[PlaceKey, dict[PromptId, Tokens]]:
    """By condition without the drafter, then by prompt; conditions without rounds of the basis have no prompts."""
    found: dict[PlaceKey, dict[PromptId, Tokens]] = {c.place_key: {} for c in contents.of_series(series)}
    [run] = {c.run.name: c.run for c in contents.of_series(series)}.values()
    [drafter] = {c.summary.drafter for c in contents.of_series(series)}
    columns = ["system_prompt", "template", "context_tokens", "prompt_id", "messages_sha256"]
    sha256 = {
        tuple(row[n] for n in columns[:4]): row[columns[4]] for row in run.run.prompts().select(columns).to_pylist()
    }
    sums = run.sums
    num_rounds = sums.num_walk_rounds if contents.basis == "walk" else sums.num_dense_rounds
    num_tokens = sums.num_walk_tokens if contents.basis == "walk" else sums.num_dense_tokens
    for i, key in enumerate(sums.keys):
        if key.drafter == drafter and num_rounds[i] and not sums.is_degenerate[i]:
            prompt = (key.prompt_id, sha256.get(tuple(key.prompt), ""))
            found[key.system_prompt, key.template, key.context_tokens][prompt] = Tokens(
                int(num_tokens[i]), int(num_rounds[i])
            )
    return found


def _difference(first: dict[PromptId, Tokens], second: dict[PromptId, Tokens]) -> Difference:
    common = sorted(first.keys() & second.keys())
    rows = [(first[k].num_tokens, first[k].num_rounds, second[k].num_tokens, second[k].num_rounds) for k in common]
    return paired_difference(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def _sentence(
    name: str,
    baseline: str,
    first: dict[PlaceKey, dict[PromptId, Tokens]],
    second: dict[PlaceKey, dict[PromptId, Tokens]],
    shared: list[PlaceKey],
) -> str:
    """Pooled over the conditions; a prompt brings its rounds of every condition along."""
    sums: tuple[dict[PromptId, Tokens], dict[PromptId, Tokens]] = ({}, {})
    num_conditions = 0
    for key in shared:
        common = first[key].keys() & second[key].keys()
        num_conditions += bool(common)
        for prompt in common:
            for side, one in zip(sums, (first[key][prompt], second[key][prompt]), strict=True):
                before = side.get(prompt, Tokens(0, 0))
                side[prompt] = Tokens(before.num_tokens + one.num_tokens, before.num_rounds + one.num_rounds)
    d = _difference(*sums)
    if d.estimate is None:
        return f"{name} and {baseline} have no prompt in common: they cannot be compared."
    plural = "s" if num_conditions > 1 else ""
    where = f"over {num_conditions} condition{plural} and the same {d.num_prompts} prompts"
    amount = f"{d.estimate:+.2f} tokens per round"
    if d.low is None or d.high is None:
        return f"Against {baseline}, {where}, {name} differs by {amount}; too few prompts to say more."
    ends = f"(95 % interval {d.low:+.2f} to {d.high:+.2f})"
    if d.low <= 0 <= d.high:
        return f"Against {baseline}, {where}, {name} is not distinguishable: {amount} {ends}."
    more = "more" if d.estimate > 0 else "fewer"
    return f"Against {baseline}, {where}, {name} yields {abs(d.estimate):.2f} {more} tokens per round {ends}."


def _warnings(contents: Contents) -> list[str]:
    first, *others = contents.runs
    said = []
    for other in others:
        differing = [n for n in CONTRACT if getattr(other.info, n) != getattr(first.info, n)]
        if differing:
            values = "; ".join(f"{n}: {getattr(first.info, n)} against {getattr(other.info, n)}" for n in differing)
            said.append(
                f"{first.name} and {other.name} were made with different settings ({values}). A difference between "
                "them is not the drafter's alone."
            )
    return said
