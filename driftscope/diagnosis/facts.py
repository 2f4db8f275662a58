"""What is known of each condition, as plain arrays over prompts: the input of the verdicts' rules.

Knows no rules. Degenerate prompts are left out of every array, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from driftscope.check.check_report import Finding
from driftscope.diagnosis.files import file_findings, suspects
from driftscope.diagnosis.gains import Counts, Gain, counts_by_condition, gains
from driftscope.diagnosis.waterfall import Waterfall, join, waterfalls
from driftscope.quantities import OUT_OF_DRAFT_VOCAB
from driftscope.runs import Run
from driftscope.summary.sums import batch_sums
from probes.interventions.registry import BASELINE
from probes.record import ConditionKey


@dataclass(frozen=True, kw_only=True)
class StateChange:
    """This target's states beside the reference target's at one layer: means over prompts, weighted by positions."""

    aux_layer_id: int
    cosine: float
    norm_ratio: float
    gram_similarity: float


@dataclass(frozen=True, kw_only=True)
class ConditionFacts:
    """One condition. Arrays [prompt] or [prompt, depth], prompts in the order of `prompt_ids`."""

    key: ConditionKey
    prompt_ids: tuple[str, ...]  # without the degenerate ones
    num_prompts: int  # all
    num_degenerate: int
    basis: Literal["dense", "walk"]  # the rounds that the arrays are over: dense where there is dense, else walk
    num_rounds: np.ndarray
    num_accepted: np.ndarray  # sum of accepted_drafts over them
    reached: np.ndarray  # [prompt, depth] of these rounds: accepted through k-1
    accepted: np.ndarray  # [prompt, depth]: accepted through k
    gap: np.ndarray  # [prompt, depth]: sum of fresh_right - accepted over the positions counted in num_gap
    num_gap: np.ndarray
    out_of_vocab: np.ndarray  # [prompt, depth]: rejections because the emitted token cannot be drafted
    waterfall: Waterfall | None  # over the walk, prompts in the same order; None without a walk
    counts: tuple[Counts, ...] = ()  # of interventions, the baseline among them
    gains: tuple[Gain, ...] = ()
    state_changes: tuple[StateChange, ...] = ()
    checkpoint_errors: tuple[str, ...] = ()  # messages of the reader's findings of severity error
    file_findings: tuple[Finding, ...] = ()  # of `driftscope check`, warnings and errors, where the files are at hand

    @property
    def num_prompts_with_rounds(self) -> int:
        """Prompts that a mean is over."""
        return int((self.num_rounds > 0).sum())


@dataclass(frozen=True)
class RunFacts:
    """All conditions of a run."""

    conditions: dict[ConditionKey, ConditionFacts] = field(default_factory=dict)


def run_facts(run: Run) -> RunFacts:
    """Gather everything. Raises RunError for a part that cannot be read."""
    sums = batch_sums(run)
    falls = waterfalls(run)
    degenerate = {key for key, is_loop in zip(sums.keys, sums.is_degenerate, strict=True) if is_loop}
    tried = counts_by_condition(run.interventions(), degenerate)
    findings = file_findings(run)
    result = {}
    for condition, all_rows in sums.rows_by_condition().items():
        rows = np.array([r for r in all_rows if not sums.is_degenerate[r]], dtype=np.int64)
        is_dense = bool(sums.is_replay[all_rows].all())
        depth = int(sums.num_depths[all_rows].max())
        num_rounds = sums.num_dense_rounds if is_dense else sums.num_walk_rounds
        num_tokens = sums.num_dense_tokens if is_dense else sums.num_walk_tokens
        gap, vocab = sums.means["chain_gap"], sums.means[OUT_OF_DRAFT_VOCAB.name]
        marginal, conditional = (sums.means[f"acceptance_{which}"] for which in ("marginal", "conditional"))
        walks = [falls.get(sums.keys[r]) for r in rows]
        counts = tried.get(condition, [])
        prompt_ids = tuple(sums.keys[r].prompt_id for r in rows)
        accepted = marginal.total[rows, :depth].astype(np.int64)
        own_rounds = None
        if not is_dense:
            drafted = marginal.count[rows, :depth].astype(np.int64)
            own_rounds = Counts(BASELINE, BASELINE, prompt_ids, drafted, accepted, accepted)
        drafter = run.info.drafter(condition[0])
        result[condition] = ConditionFacts(
            key=condition,
            prompt_ids=prompt_ids,
            num_prompts=len(all_rows),
            num_degenerate=len(all_rows) - len(rows),
            basis="dense" if is_dense else "walk",
            num_rounds=num_rounds[rows],
            num_accepted=num_tokens[rows] - num_rounds[rows],
            reached=conditional.count[rows, :depth].astype(np.int64),
            accepted=accepted,
            gap=gap.total[rows, :depth],
            num_gap=gap.count[rows, :depth],
            out_of_vocab=vocab.total[rows, :depth],
            waterfall=join([w for w in walks if w is not None]) if walks and None not in walks else None,
            counts=tuple(counts),
            gains=tuple(
                gains(
                    counts,
                    rounds=own_rounds,
                    context_tokens=condition[3],
                    suspects=suspects(findings.get(condition[0], ())),
                )
            ),
            state_changes=_state_changes(run, condition),
            checkpoint_errors=tuple(
                str(f.get("message", "")) for f in (drafter.findings if drafter else []) if f.get("severity") == "error"
            ),
            file_findings=findings.get(condition[0], ()),
        )
    return RunFacts(result)


def _state_changes(run: Run, condition: ConditionKey) -> tuple[StateChange, ...]:
    """Over the layers that this drafter reads."""
    drafter = run.info.drafter(condition[0])
    layers = set(drafter.aux_layer_ids) if drafter is not None else set()
    rows = [
        row
        for row in run.target_states().to_pylist()
        if (row["system_prompt"], row["template"], row["context_tokens"]) == condition[1:]
        and row["aux_layer_id"] in layers
    ]
    changes = []
    for layer in sorted({row["aux_layer_id"] for row in rows}):
        of_layer = [row for row in rows if row["aux_layer_id"] == layer]
        weight = [row["num_positions"] for row in of_layer]
        mean = {
            name: float(np.average([row[name] for row in of_layer], weights=weight))
            for name in ("cosine", "norm_ratio", "gram_similarity")
        }
        changes.append(StateChange(aux_layer_id=layer, **mean))
    return tuple(changes)
