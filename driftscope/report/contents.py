"""What a report is of: runs, opened and summed up, and their conditions under short names. Chooses nothing but names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from driftscope.diagnosis.diagnose import diagnose
from driftscope.diagnosis.diagnosis import ConditionDiagnosis, Diagnosis
from driftscope.figures import Estimate
from driftscope.report.estimates import depth_estimates, tokens_estimate
from driftscope.report.text import label
from driftscope.runs import Run, read_run
from driftscope.runs.info import RunInfo
from driftscope.runs.listing import names_apart
from driftscope.summary import ConditionSummary, Summary, summarise
from driftscope.summary.sums import BatchSums, batch_sums
from probes.errors import InputError, RunError
from probes.record import PromptConditionKey


@dataclass(frozen=True)
class ReportRun:
    """One run. `no_diagnosis` says why there is none."""

    name: str
    run: Run
    summary: Summary
    diagnosis: Diagnosis | None
    no_diagnosis: str = ""

    @property
    def info(self) -> RunInfo:
        """run.json."""
        return self.run.info

    @cached_property
    def sums(self) -> BatchSums:
        """Sums of each prompt with each drafter."""
        return batch_sums(self.run)


@dataclass(frozen=True)
class Condition:
    """One drafter under one system prompt, template and context length, of one run."""

    run: ReportRun
    summary: ConditionSummary
    diagnosis: ConditionDiagnosis | None
    series: str  # the drafter, and its run where there are several
    place: str  # the condition without its drafter
    drafter: int  # place of the drafter among all drafters of the report
    variant: int  # place of the run

    @property
    def place_key(self) -> PromptConditionKey:
        """What must agree for two drafters to be compared."""
        return self.summary.key.without_drafter

    def estimate(self, basis: str) -> Estimate:
        """tokens_per_round over the walk or the dense rounds."""
        return tokens_estimate(self.summary, basis)

    def depth_estimates(self, name: str) -> list[Estimate]:
        """A depth array of the summary, or mass_REGION."""
        return depth_estimates(self.summary, name)


@dataclass(frozen=True)
class Contents:
    """Everything a report may show."""

    runs: Sequence[ReportRun]
    conditions: Sequence[Condition]
    basis: str  # of tokens per round: walk where there is any, else dense

    @property
    def series(self) -> list[str]:
        """In the order of the runs."""
        return list(dict.fromkeys(c.series for c in self.conditions))

    def of_series(self, name: str) -> list[Condition]:
        """All conditions of a series."""
        return [c for c in self.conditions if c.series == name]

    @cached_property
    def places(self) -> list[str]:
        """The reference place (the target's default system prompt, no document; else the first) and, where another is
        lower in the mean of the series, the lowest one."""
        first = next((c.place for c in self.conditions if c.place_key == ("default", "default", 0)), None)
        reference = first or next((c.place for c in self.conditions), None)
        if reference is None:
            return []
        means: dict[str, list[float]] = {}
        for condition in self.conditions:
            value = condition.estimate(self.basis).value
            if value is not None:
                means.setdefault(condition.place, []).append(value)
        most = max((len(values) for values in means.values()), default=0)  # only places that all series have
        lowest = min(
            (place for place, values in means.items() if len(values) == most),
            key=lambda place: sum(means[place]) / len(means[place]),
            default=reference,
        )
        return list(dict.fromkeys((reference, lowest)))

    def at(self, place: str) -> list[Condition]:
        """All series at one place."""
        return [c for c in self.conditions if c.place == place]


def read_contents(paths: Sequence[Path]) -> Contents:
    """Open and sum up the runs. Raises RunError for one that cannot be read, InputError for one given twice."""
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise InputError("a run is given twice", code="run_twice", where="command line", remedy="Name each run once.")
    names = [label(name) for name in names_apart(paths)]
    runs = [_open(path, name) for path, name in zip(paths, names, strict=True)]
    drafters = list(dict.fromkeys(c.drafter for run in runs for c in run.summary.conditions))
    shown = [label(drafter) for drafter in drafters]
    shown = [f"{name} ({i + 1})" if name in shown[:i] else name for i, name in enumerate(shown)]
    has_templates = len({c.template for run in runs for c in run.summary.conditions}) > 1
    conditions = []
    for variant, run in enumerate(runs):
        judged = {d.key: d for d in (run.diagnosis.conditions if run.diagnosis else [])}
        for s in run.summary.conditions:
            words = [label(s.system_prompt), *([label(s.template)] if has_templates else []), f"{s.context_tokens:,}"]
            conditions.append(
                Condition(
                    run=run,
                    summary=s,
                    diagnosis=judged.get(s.key),
                    series=shown[drafters.index(s.drafter)] + (f" · {run.name}" if len(runs) > 1 else ""),
                    place=" · ".join(words),
                    drafter=drafters.index(s.drafter),
                    variant=variant,
                )
            )
    return Contents(
        runs=runs, conditions=conditions, basis="walk" if any(c.summary.walk for c in conditions) else "dense"
    )


def _open(path: Path, name: str) -> ReportRun:
    run = read_run(path)
    summary = summarise(run)
    try:
        return ReportRun(name, run, summary, diagnose(run))
    except RunError as error:
        if error.code != "no_rounds":
            raise
        return ReportRun(name, run, summary, None, error.message)
