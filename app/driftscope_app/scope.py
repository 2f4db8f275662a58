"""What the whole app looks at: runs, drafters, system prompts and context lengths, chosen in the sidebar.

Computes nothing. Nothing chosen in a filter means all of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from driftscope.figures import Estimate, SeriesStyle, series_style
from driftscope.report.estimates import depth_estimates, tokens_estimate, tokens_of
from driftscope.runs import RunInfo
from driftscope.summary import ConditionSummary, Summary, TokensPerRound
from driftscope_app import address, aggregates
from driftscope_app.folder import FolderContents, RunRef, Unreadable
from driftscope_app.text import plain, tokens_label
from probes.errors import DriftscopeError

DEMO_RUN = "demo"


@dataclass(frozen=True)
class SelectedRun:
    """A run of the sidebar's choice, opened."""

    ref: RunRef
    info: RunInfo
    summary: Summary


@dataclass(frozen=True)
class Condition:
    """One drafter under one system prompt, template and context length, of one run."""

    run: SelectedRun
    summary: ConditionSummary

    @property
    def key(self) -> str:
        """Names it in a chart's clicks."""
        return json.dumps([self.run.ref.name, *self.summary.key])

    def tokens(self, basis: str) -> TokensPerRound | None:
        """`basis`: walk or dense."""
        return tokens_of(self.summary, basis)

    def estimate(self, basis: str) -> Estimate:
        """tokens_per_round."""
        return tokens_estimate(self.summary, basis)

    def depth_estimates(self, name: str) -> list[Estimate]:
        """A depth array of the summary, or mass_REGION."""
        return depth_estimates(self.summary, name)


@dataclass(frozen=True)
class Scope:
    """The sidebar's choice."""

    contents: FolderContents
    runs: list[SelectedRun]
    conditions: list[Condition]  # filtered, in the order of the runs
    unreadable: list[Unreadable]  # of the folder, and chosen runs whose parts cannot be read

    @property
    def has_templates(self) -> bool:
        """More than one template is in view."""
        return len({c.summary.template for c in self.conditions}) > 1

    def series(self, condition: Condition) -> str:
        """The drafter, and its run where several are shown."""
        drafter = condition.summary.drafter
        return f"{drafter} · {condition.run.ref.name}" if len(self.runs) > 1 else drafter

    def all_series(self) -> list[str]:
        """In the order in which they are drawn."""
        return list(dict.fromkeys(self.series(c) for c in self.conditions))

    def drafter_index(self, drafter: str) -> int:
        """The drafter's colour and marker: its place among all drafters of the folder."""
        names = self.contents.drafters
        return names.index(drafter) if drafter in names else len(names)

    def run_index(self, condition: Condition) -> int:
        """Which of the chosen runs: a second code where runs share a drafter."""
        return [run.ref.name for run in self.runs].index(condition.run.ref.name)

    def style(self, condition: Condition) -> SeriesStyle:
        """How the series is drawn when all conditions look alike."""
        return series_style(self.drafter_index(condition.summary.drafter), self.run_index(condition))

    def row(self, condition: Condition) -> str:
        """System prompt, and template where there are several."""
        s = condition.summary
        return f"{s.system_prompt} · {s.template}" if self.has_templates else s.system_prompt

    def place(self, condition: Condition) -> str:
        """The condition without its drafter."""
        return f"{self.row(condition)} · {tokens_label(condition.summary.context_tokens)}"


def choose(contents: FolderContents) -> Scope:
    """Draws the sidebar."""
    unreadable = list(contents.unreadable)
    if not contents.runs:
        return Scope(contents, [], [], unreadable)
    names = [run.name for run in contents.runs]
    default = DEMO_RUN if DEMO_RUN in names else names[0]
    with st.sidebar:
        chosen = address.pick_many(
            st.multiselect,
            "run",
            "Runs",
            names,
            default=[default],
            placeholder="Choose a run",
            format_func=lambda name: name + (" (running)" if _is_live(contents, name) else ""),
        )
        runs = []
        for name in chosen or [default]:
            ref = contents.run(name)
            assert ref is not None  # pick_many returns options only
            try:
                run = SelectedRun(
                    ref,
                    aggregates.run_info(ref.path, ref.version),
                    aggregates.run_summary(ref.path, ref.version),
                )
            except (DriftscopeError, OSError) as error:
                unreadable.append(Unreadable(ref.name, str(error)))
                st.error(f"{plain(ref.name)}: {plain(str(error))}", icon=":material/error:")
                continue
            runs.append(run)
        conditions = [Condition(run, c) for run in runs for c in run.summary.conditions]
        conditions = _filtered(conditions)
    return Scope(contents, runs, conditions, unreadable)


def _filtered(conditions: list[Condition]) -> list[Condition]:
    filters = (
        ("drafter", "Drafters", lambda c: c.summary.drafter),
        ("system_prompt", "System prompts", lambda c: c.summary.system_prompt),
        ("template", "Templates", lambda c: c.summary.template),
        ("context_tokens", "Context length (tokens)", lambda c: str(c.summary.context_tokens)),
    )
    kept = conditions
    for name, label, value_of in filters:
        options = list(dict.fromkeys(value_of(c) for c in conditions))
        if name == "context_tokens":
            options.sort(key=int)
        if len(options) < 2:
            continue
        wanted = address.pick_many(
            st.pills,
            name,
            label,
            options,
            selection_mode="multi",
            format_func=(lambda v: f"{int(v):,}") if name == "context_tokens" else plain,
            help="Nothing chosen: all of them." if name == "drafter" else None,
        )
        if wanted:
            kept = [c for c in kept if value_of(c) in wanted]
    return kept


def _is_live(contents: FolderContents, name: str) -> bool:
    run = contents.run(name)
    return run is not None and run.is_live


def folder_label(folder: Path) -> str:
    """The folder as it is shown: below the home directory with a tilde."""
    try:
        return f"~/{folder.relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # elsewhere; no home
        return str(folder)
