"""A run -> its summary, condition by condition.

Knows nothing of files or SQL. Means are pooled over rounds; intervals resample prompts; degenerate prompts are left out
of everything but the counts and the `_all` objects.
"""

from __future__ import annotations

import numpy as np

from driftscope.quantities import OUT_OF_DRAFT_VOCAB, OVER_DEPTH
from driftscope.runs import Run
from driftscope.stats.acceptance import ratios
from driftscope.stats.intervals import NO_INTERVAL, Interval, growth_intervals, ratio_intervals
from driftscope.stats.thresholds import INTERVAL_MIN_PROMPTS
from driftscope.summary.run_summary import (
    ConditionSummary,
    DepthArray,
    DepthIntervals,
    FusionShares,
    RunHead,
    Summary,
    TokensPerRound,
    WithoutRounds,
)
from driftscope.summary.sums import BatchSums, MeanParts, batch_sums
from probes.record import REGIONS, PromptConditionKey


def summarise(run: Run) -> Summary:
    """Every condition of the run, in the order in which they were measured. Raises RunError for an unreadable part."""
    sums = batch_sums(run)
    rows_of = sums.rows_by_condition()
    num_without = _num_prompts_without_rounds(run)
    conditions = []
    for condition, rows in rows_of.items():
        drafter = run.info.drafter(condition.drafter)
        layer_ids = list(drafter.aux_layer_ids) if drafter is not None else []
        conditions.append(_condition(sums, np.array(rows), layer_ids, num_without.get(condition.without_drafter, 0)))
    measured = {condition.without_drafter for condition in rows_of}
    return Summary(
        run=RunHead(path=str(run.path), status=run.status.value, engine=run.info.engine),
        conditions=conditions,
        without_rounds=[
            WithoutRounds(**condition._asdict(), num_prompts=num)
            for condition, num in num_without.items()
            if condition not in measured
        ],
    )


def _num_prompts_without_rounds(run: Run) -> dict[PromptConditionKey, int]:
    """By system prompt, template and context. A response of 0 or 1 tokens has no start; of a run that did not end, the
    last prompt may have no round yet."""
    table = run.query(
        "select system_prompt, template, context_tokens, count(*) as num_prompts from prompts "
        "anti join rounds using (system_prompt, template, context_tokens, prompt_id) group by all order by all"
    )
    columns = [table[name].to_pylist() for name in table.column_names]
    return {PromptConditionKey(*condition): num for *condition, num in zip(*columns, strict=True)}


def _condition(sums: BatchSums, rows: np.ndarray, layer_ids: list[int], num_absent: int) -> ConditionSummary:
    """`rows`: the batches of this condition, one for each prompt."""
    kept = rows[~sums.is_degenerate[rows]]
    # Text given as finished is replayed in every engine: beside live rounds it has no part in the arrays over depth,
    # since dense and walk are never mixed.
    has_dense = bool(sums.is_replay[rows].all())
    num_loops = len(rows) - len(kept)
    depth = int(sums.num_depths[rows].max())
    by_depth = kept if has_dense else kept[~sums.is_replay[kept]]
    parts = {name: mean.take(by_depth, depth) for name, mean in sums.means.items()}
    arrays = {
        name: _growth(parts[name]) if quantity.is_relative else _mean(parts[name])
        for name, quantity in OVER_DEPTH.items()
    }
    # Each emitted token counts once: dense starts see it at depth 1, the walk at the depth where it was compared.
    vocab = parts[OUT_OF_DRAFT_VOCAB.name].take(slice(None), 1 if has_dense else depth)
    [out_of_vocab] = ratios([vocab.total.sum()], [vocab.count.sum()])
    num_prompts = len(rows) + num_absent
    return ConditionSummary(
        **sums.keys[rows[0]].condition._asdict(),
        num_prompts=num_prompts,
        num_degenerate=num_loops,
        num_prompts_without_rounds=num_absent,
        **_over_rounds(sums, rows, kept, num_absent),
        num_rounds_without_labels=int((sums.num_rounds - sums.num_dense_rounds)[kept].sum()) if has_dense else 0,
        depth_basis="dense" if has_dense else "walk",
        mass={region: arrays.pop(f"mass_{region}") for region in REGIONS},
        **arrays,
        depth_intervals=_depth_intervals(parts),
        fusion_share=_fusion(sums, by_depth, layer_ids),
        out_of_draft_vocab_share=out_of_vocab,
        degenerate_share=num_loops / num_prompts,
        text_agreement=_text_agreement(sums.text_agreement[kept], sums.num_response_tokens[kept]),
    )


def _over_rounds(
    sums: BatchSums, rows: np.ndarray, kept: np.ndarray, num_absent: int
) -> dict[str, TokensPerRound | None]:
    """dense, walk, and both with the degenerate prompts, which `kept` lacks; None where there are no such rounds."""
    has_dense = bool(sums.is_replay[rows].all())
    has_walk = not has_dense or bool(sums.num_walk_rounds[rows].any())
    num_loops = len(rows) - len(kept)
    found: dict[str, TokensPerRound | None] = {}
    for basis, has_rounds in (("dense", has_dense), ("walk", has_walk)):
        tokens, rounds = (getattr(sums, f"num_{basis}_{what}") for what in ("tokens", "rounds"))
        everything = _tokens_per_round(tokens[rows], rounds[rows], num_absent, 0) if has_rounds else None
        found[f"{basis}_all"] = found[basis] = everything
        if num_loops and has_rounds:
            found[basis] = _tokens_per_round(tokens[kept], rounds[kept], num_absent, num_loops)
    return found


def _fusion(sums: BatchSums, rows: np.ndarray, layer_ids: list[int]) -> FusionShares:
    share, bias = sums.fusion_share.take(rows), sums.fusion_share_bias.take(rows)
    num_aux = int((share.count > 0).any(axis=0).sum())
    return FusionShares(layer_ids=layer_ids, share=_mean(share)[:num_aux] if num_aux else None, bias=_mean(bias)[0])


def _tokens_per_round(
    num_tokens: np.ndarray, num_rounds: np.ndarray, num_absent: int, num_loops: int
) -> TokensPerRound:
    """`num_tokens`, `num_rounds` [prompt]; `num_absent` more prompts have no round of any kind, `num_loops` are left
    out."""
    [pooled] = ratios([num_tokens.sum()], [num_rounds.sum()])
    has_rounds = num_rounds > 0
    prompt_mean = float(np.mean(num_tokens[has_rounds] / num_rounds[has_rounds])) if has_rounds.any() else None
    [interval] = ratio_intervals(num_tokens[None, :], num_rounds[None, :])
    num_prompts = int(has_rounds.sum())
    num_without = num_absent + len(num_rounds) - num_prompts
    return TokensPerRound(
        num_rounds=int(num_rounds.sum()),
        num_prompts=num_prompts,
        num_prompts_without_rounds=num_without,
        tokens_per_round=pooled,
        tokens_per_round_prompt_mean=prompt_mean,
        why_no_interval=_why_no_interval(num_prompts, num_without, num_loops) if interval.low is None else None,
        **interval._asdict(),
    )


def _why_no_interval(num_prompts: int, num_without: int, num_loops: int) -> str:
    left_out = [f"{num_without} without a round"] if num_without else []
    left_out += [f"{num_loops} looping"] if num_loops else []
    beside = f" (of {num_prompts + num_without + num_loops}: {', '.join(left_out)})" if left_out else ""
    have = "1 prompt has" if num_prompts == 1 else f"{num_prompts} prompts have"
    return f"{have} a round{beside}; an interval needs {INTERVAL_MIN_PROMPTS}"


def _mean(parts: MeanParts) -> DepthArray:
    """[prompt, depth] -> [depth]."""
    return ratios(parts.total.sum(axis=0), parts.count.sum(axis=0))


def _growth(parts: MeanParts) -> DepthArray:
    """The mean over the mean at depth 1."""
    mean = _mean(parts)
    return [value / mean[0] if value is not None and mean[0] else None for value in mean]


def _depth_intervals(parts: dict[str, MeanParts]) -> dict[str, DepthIntervals]:
    """The interval of every array that has one. One call for all means: they share their resamples."""
    of = {name: parts[name] for name, quantity in OVER_DEPTH.items() if quantity.has_interval}
    means = {name: mean for name, mean in of.items() if not OVER_DEPTH[name].is_relative}
    total = np.concatenate([mean.total.T for mean in means.values()])  # [array * depth, prompt]
    count = np.concatenate([mean.count.T for mean in means.values()])
    intervals = ratio_intervals(total, count)
    depth = len(intervals) // len(means)
    found = {
        name: _as_arrays(intervals[i * depth : (i + 1) * depth], (mean.count != 0).sum(axis=0))
        for i, (name, mean) in enumerate(means.items())
    }
    for name in of.keys() - means.keys():
        mean = of[name]
        has_both = (mean.count != 0) & (mean.count[:, :1] != 0)
        found[name] = _as_arrays(growth_intervals(mean.total.T, mean.count.T), has_both.sum(axis=0))
    return found


def _as_arrays(intervals: list[Interval], num_prompts: np.ndarray) -> DepthIntervals:
    """`num_prompts` [depth]: those that have data there."""
    low, high, method = zip(*(intervals or [NO_INTERVAL]), strict=True)
    return DepthIntervals(
        low=list(low), high=list(high), interval_method=list(method), num_prompts=num_prompts.tolist()
    )


def _text_agreement(agreement: np.ndarray, num_tokens: np.ndarray) -> float | None:
    """Share of all text positions of the prompts where it was measured."""
    is_measured = ~np.isnan(agreement)
    if not num_tokens[is_measured].any():
        return None
    return float(np.average(agreement[is_measured], weights=num_tokens[is_measured]))
