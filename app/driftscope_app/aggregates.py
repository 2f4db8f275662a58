"""Numbers of a run, computed by duckdb over its files and kept until they change.

Shows nothing. Every function takes a run's path and version (`folder.run_version`): a run that is still being written gets
a new version with every flush. What is returned is shared between sessions: read it, never change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import streamlit as st

from driftscope.compare.pairing import turns_by_prompt
from driftscope.diagnosis import intervene
from driftscope.diagnosis.diagnose import diagnose
from driftscope.diagnosis.diagnosis import Diagnosis
from driftscope.diagnosis.named import Named, named_by
from driftscope.figures import HeadMasses
from driftscope.report import heads
from driftscope.runs import Run, RunInfo, read_run
from driftscope.runs.reader import prompt_keys
from driftscope.runs.views import BATCH_KEY, NOT_LOOPING
from driftscope.summary import Summary, summarise
from probes.record import ConditionKey

MAX_RUNS_KEPT = 24
_IN_BATCH = "drafter = ? and system_prompt = ? and template = ? and context_tokens = ? and prompt_id = ?"


@st.cache_resource(max_entries=MAX_RUNS_KEPT, show_spinner="Reading the run")
def _run(path: str, version: str) -> Run:
    """Opened once, so that summary and diagnosis share their sums."""
    return read_run(path)


def run_info(path: str, version: str) -> RunInfo:
    """run.json."""
    return _run(path, version).info


@st.cache_resource(max_entries=MAX_RUNS_KEPT, show_spinner="Summing up the run")
def run_summary(path: str, version: str) -> Summary:
    """Means and intervals of every condition: what `driftscope show` prints."""
    return summarise(_run(path, version))


@st.cache_resource(max_entries=MAX_RUNS_KEPT, show_spinner="Looking for causes")
def run_diagnosis(path: str, version: str) -> Diagnosis:
    """What `driftscope diagnose --no-interventions` says: verdicts, losses, and the interventions that were made."""
    return diagnose(_run(path, version))


@dataclass(frozen=True)
class MissingInterventions:
    """What was not run to the end on a run, and why it cannot be; `why_not` None: nothing speaks against it."""

    ids: list[str]
    why_not: str | None
    named: list[Named]  # what they would load and read


@st.cache_resource(max_entries=MAX_RUNS_KEPT, show_spinner=False)
def missing_interventions(path: str, version: str) -> MissingInterventions:
    """The interventions that `driftscope diagnose` would run first."""
    run = _run(path, version)
    return MissingInterventions(intervene.missing_interventions(run), intervene.why_not(run), named_by(run))


@st.cache_resource(max_entries=MAX_RUNS_KEPT, show_spinner=False)
def prompt_sums(path: str, version: str) -> pa.Table:
    """One row for each drafter, condition and prompt: rounds and tokens, walk and dense; its turns, for pairing."""
    run = _run(path, version)
    sums = run.query("select * from batches order by first_round_id")
    turns = turns_by_prompt(run)
    return sums.append_column("turns", pa.array([turns.get(key) for key in prompt_keys(sums)], pa.string()))


@st.cache_resource(max_entries=MAX_RUNS_KEPT, show_spinner=False)
def aux_sums(path: str, version: str, column: str) -> pa.Table:
    """`column` (fusion_share, fusion_energy, aux_norm) summed by prompt and position, degenerate prompts left out."""
    return _run(path, version).query(
        f"with parts as (select {BATCH_KEY}, unnest({column}) as value, "
        f"generate_subscripts({column}, 1) as position from basis_rounds {NOT_LOOPING}) "
        f"select {BATCH_KEY}, position, sum(value)::double as total, count(value) as num_rounds from parts "
        "group by all order by all"
    )


@st.cache_resource(max_entries=4 * MAX_RUNS_KEPT, show_spinner=False)
def head_means(path: str, version: str, condition: ConditionKey, column: str) -> dict[int, HeadMasses]:
    """Layer -> the mean of a column of heads by depth, for one condition."""
    return heads.head_means(_run(path, version), condition, column)


@st.cache_resource(max_entries=2 * MAX_RUNS_KEPT, show_spinner=False)
def prompt_row(path: str, version: str, prompt: tuple[str, str, int, str]) -> dict[str, Any]:
    """The prompt's row: messages, token ids, regions, counts."""
    rows = _run(path, version).query(
        "select * from prompts where system_prompt = ? and template = ? and context_tokens = ? and prompt_id = ?",
        prompt,
    )
    if not rows.num_rows:  # a run whose damaged prompts were set aside
        return dict.fromkeys(rows.column_names) | {"finish_reason": "unknown"}
    return {name: rows[name][0].as_py() for name in rows.column_names}


@st.cache_resource(max_entries=2 * MAX_RUNS_KEPT, show_spinner=False)
def walk_rounds(path: str, version: str, batch: tuple[str, str, str, int, str]) -> pa.Table:
    """The rounds an engine would make in one conversation, in order, with the first rejected draft of each."""
    return _run(path, version).query(
        "with rejected as (select round_id, depth, draft_prob, draft_token, target_token, rejection_reason from depths "
        f"where {_IN_BATCH} and on_walk and layer = 0 and depth = accepted_drafts + 1 and depth <= num_drafts) "
        "select round_id, start, num_drafts, accepted_drafts, draft_prob as rejected_prob, "
        "draft_token as rejected_token, target_token as corrected_token, rejection_reason "
        f"from rounds left join rejected using (round_id) where {_IN_BATCH} and on_walk order by start",
        (*batch, *batch),
    )


@st.cache_resource(max_entries=4 * MAX_RUNS_KEPT, show_spinner=False)
def round_depths(path: str, version: str, round_id: int) -> pa.Table:
    """Everything recorded of one round, by depth and layer."""
    return _run(path, version).query("select * from depths where round_id = ? order by layer, depth", (round_id,))
