"""A run and costs -> the depth with the best expected speed, for each drafter and condition. Writes nothing.

speedup(K) = tokens_per_round(K) * plain_us / round_us(K). Costs count as known: intervals resample prompts only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from driftscope.advise.advice import Advice, BatchAdvice, ConditionAdvice, Costs, DepthAdvice, Recommendation
from driftscope.advise.costs import (
    GivenCosts,
    RoundCosts,
    TimedRounds,
    at_context,
    measured_costs,
    round_costs,
    timed_rounds,
)
from driftscope.advise.walks import ConditionWalks, PromptKey, PromptWalks, condition_walks
from driftscope.runs import Run
from driftscope.runs.info import Cost
from driftscope.stats.acceptance import ratios
from driftscope.stats.intervals import Interval, ratio_intervals
from driftscope.stats.paired import paired_difference
from probes.errors import RunError
from probes.record import ConditionKey

COST_MODEL = (
    "round(K) = K draft steps + verify(K + 1 tokens); plain decoding = one verify(1 token) a token; "
    "speedup(K) = tokens_per_round(K) * plain / round(K)"
)


def advise(run: Run, given: GivenCosts | None = None) -> Advice:
    """Every condition, and every drafter over all its conditions.

    Raises RunError without rounds, or for a part that cannot be read.
    """
    given = given or GivenCosts()
    conditions = condition_walks(run)
    if not conditions:
        raise RunError(
            "there are no rounds to advise on",
            code="no_rounds",
            where=str(run.path),
            remedy="Finish the run first: `driftscope runs recover` and `driftscope probe --resume`.",
        )
    timed = timed_rounds(run)
    by_drafter: dict[str, list[ConditionWalks]] = {}
    for condition in conditions:
        by_drafter.setdefault(condition.key[0], []).append(condition)
    return Advice(
        path=str(run.path),
        status=run.status,
        engine=run.info.engine,
        cost_model=COST_MODEL,
        assumptions=_assumptions(run, conditions, given, timed),
        drafters=[_over_all(drafter, own, given, timed, run.info.costs) for drafter, own in by_drafter.items()],
        conditions=[
            _advice(c.key, list(c.prompts.values()), c.num_degenerate, given, timed.get(c.key), run.info.costs)
            for c in conditions
        ],
    )


def _assumptions(
    run: Run, conditions: list[ConditionWalks], given: GivenCosts, timed: dict[ConditionKey, TimedRounds]
) -> list[str]:
    said = [
        "Rounds cost the same wherever they start, and every round drafts K.",
        "Tokens that the last round drafts past the end count, as in engines' counters: short answers gain less.",
        "Costs count as known: intervals are over prompts.",
    ]
    if any(not p.is_exact for c in conditions for p in c.prompts.values()):
        said.append(
            "This run holds the rounds of its own K only. For a smaller K the same rounds are cut: an approximation, "
            "since rounds would start elsewhere. A replay of the same prompts is exact."
        )
    device = run.info.provenance.gpu_name or run.info.provenance.device or "an unnamed device"
    if run.info.costs:
        said.append(
            f"Costs by batch size were measured on {device} with driftscope's own loop: "
            "the target by transformers, eagerly. An engine's are others."
        )
    elif bool(timed) and (given.draft_us is None or given.verify_us is None):
        size = run.info.plan.get("batch_size", 1) if run.info.engine == "live" else 1
        requests = "one request at a time" if size == 1 else f"up to {size} requests at a time"
        where = f"The times are this run's: engine {run.info.engine}, {requests}, on {device}."
        said.append(f"{where} A server's ratio of draft to verify is another: give --draft-us and --verify-us.")
    return said


def _over_all(
    drafter: str,
    conditions: Sequence[ConditionWalks],
    given: GivenCosts,
    timed: dict[ConditionKey, TimedRounds],
    measured: Sequence[Cost],
) -> ConditionAdvice:
    """A prompt brings its rounds of every condition along. Times: the conditions' medians, weighted by their rounds."""
    prompts: dict[PromptKey | str, PromptWalks] = {}
    for condition in conditions:
        for (prompt_id, _), walks in condition.prompts.items():
            prompts[prompt_id] = _joined(prompts.get(prompt_id), walks)
    own = [timed[c.key] for c in conditions if c.key in timed]
    num_degenerate = sum(c.num_degenerate for c in conditions)
    return _advice(
        (drafter, None, None, None), list(prompts.values()), num_degenerate, given, _mean_times(own), measured
    )


def _mean_times(timed: Sequence[TimedRounds]) -> TimedRounds | None:
    if len({t.depth for t in timed}) != 1:
        return None
    weights = [t.num_rounds for t in timed]
    return TimedRounds(
        depth=timed[0].depth,
        num_rounds=sum(weights),
        draft_us=float(np.average([t.draft_us for t in timed], weights=weights)),
        verify_us=float(np.average([t.verify_us for t in timed], weights=weights)),
    )


def _joined(first: PromptWalks | None, second: PromptWalks) -> PromptWalks:
    if first is None:
        return second
    depth = min(first.depth, second.depth)
    return PromptWalks(
        num_rounds=first.num_rounds[:depth] + second.num_rounds[:depth],
        num_tokens=first.num_tokens[:depth] + second.num_tokens[:depth],
        num_accepted_at=first.num_accepted_at[:depth] + second.num_accepted_at[:depth],
        num_drafted_at=first.num_drafted_at[:depth] + second.num_drafted_at[:depth],
        is_exact=first.is_exact and second.is_exact,
    )


def _advice(
    key: tuple[str, str | None, str | None, int | None],
    prompts: list[PromptWalks],
    num_degenerate: int,
    given: GivenCosts,
    timed: TimedRounds | None,
    measured: Sequence[Cost],
) -> ConditionAdvice:
    """`measured`: the run's costs, of all drafters; without times given, those of the smallest batch are taken."""
    drafter, system_prompt, template, context_tokens = key
    depth = min((p.depth for p in prompts), default=0)
    table = at_context([c for c in measured if c.drafter == drafter], context_tokens) if prompts else []
    uses_table = bool(table) and given.draft_us is None and given.verify_us is None
    if uses_table:
        costs: RoundCosts | None = measured_costs(table[0], given.plain_us)
    else:
        costs = round_costs(given, timed, depth=depth) if prompts else None
    rounds, tokens, accepted, drafted = (
        np.array([getattr(p, name)[:depth] for p in prompts]).reshape(len(prompts), depth).T  # [depth, prompt]
        for name in ("num_rounds", "num_tokens", "num_accepted_at", "num_drafted_at")
    )
    intervals = ratio_intervals(tokens, rounds) if prompts else []
    depths = _depths(tokens, rounds, intervals, costs) if prompts else []
    best, as_good = _best(tokens, rounds, depths, costs)
    recommendation = _recommendation(depths, best)
    is_measured = costs is not None and costs.source != "given" and timed is not None and not uses_table
    return ConditionAdvice(
        drafter=drafter,
        system_prompt=system_prompt,
        template=template,
        context_tokens=context_tokens,
        num_prompts=len(prompts),
        num_degenerate=num_degenerate,
        recorded_depth=depth,
        is_exact=all(p.is_exact for p in prompts),
        acceptance_marginal=ratios(accepted.sum(axis=1), drafted.sum(axis=1)),
        costs=None
        if costs is None
        else _stored(costs, timed.num_rounds if is_measured and timed is not None else None),
        recommendation=recommendation,
        best_depth=None if best is None else best.depth,
        as_good_depths=as_good,
        statement=_statement(
            recommendation, best, as_good, depths, is_plain_known=uses_table or given.plain_us is not None
        ),
        depths=depths,
        batches=[_batch(tokens, rounds, intervals, cost) for cost in table],
    )


def _stored(costs: RoundCosts, num_timed_rounds: int | None = None) -> Costs:
    return Costs(
        draft_us=list(costs.draft_us),
        verify_us=list(costs.verify_us),
        plain_us=costs.plain_us,
        source=costs.source,
        num_timed_rounds=num_timed_rounds,
        assumptions=list(costs.assumptions),
    )


def _batch(tokens: np.ndarray, rounds: np.ndarray, intervals: Sequence[Interval], cost: Cost) -> BatchAdvice:
    """Acceptance does not depend on the batch, costs do. `tokens`, `rounds` [depth, prompt]."""
    costs = measured_costs(cost)
    depths = _depths(tokens, rounds, intervals, costs)
    best = _fastest(depths)
    assert best is not None
    return BatchAdvice(
        batch_size=cost.batch_size,
        context_tokens=cost.context_tokens,
        costs=_stored(costs),
        speedup=[d.speedup for d in depths],
        best_depth=best.depth,
        recommendation=_recommendation(depths, best),
    )


def _depths(
    tokens: np.ndarray, rounds: np.ndarray, intervals: Sequence[Interval], costs: RoundCosts | None
) -> list[DepthAdvice]:
    """`tokens`, `rounds` [depth, prompt]; `intervals` [depth], of their ratio."""
    mean = tokens.sum(axis=1) / rounds.sum(axis=1)
    advice: list[DepthAdvice] = []
    before, speed_before = 1.0, 1.0  # of K - 1: tokens of a round, and speed-up
    for k, (value, interval) in enumerate(zip(mean.tolist(), intervals, strict=True), start=1):
        has_cost = costs is not None and k <= costs.max_depth
        round_us = costs.round_us(k) if costs is not None and has_cost else None
        factor = costs.plain_us / round_us if costs is not None and round_us else None  # speed-up of one token a round
        speedup = None if factor is None else value * factor
        low, high = _scaled(interval, factor)
        added_us = costs.round_us(k) - costs.round_us(k - 1) if costs is not None and has_cost else None
        slope = k * before - (k - 1) * value
        advice.append(
            DepthAdvice(
                depth=k,
                tokens_per_round=value,
                low=interval.low,
                high=interval.high,
                added_tokens=value - before,
                round_us=round_us,
                speedup=speedup,
                speedup_low=low,
                speedup_high=high,
                added_speedup=None if speedup is None else speedup - speed_before,
                break_even_tokens_per_round=None if factor is None else 1 / factor,
                break_even_added_tokens=None
                if added_us is None or costs is None
                else before * added_us / costs.round_us(k - 1),
                break_even_draft_share=(value - 1) / k,
                break_even_draft_share_added=(value - before) / slope if slope > 0 else None,
            )
        )
        before, speed_before = value, speedup if speedup is not None else speed_before
    return advice


def _scaled(interval: Interval, factor: float | None) -> tuple[float | None, float | None]:
    if factor is None or interval.low is None or interval.high is None:
        return None, None
    return interval.low * factor, interval.high * factor


def _best(
    tokens: np.ndarray, rounds: np.ndarray, depths: list[DepthAdvice], costs: RoundCosts | None
) -> tuple[DepthAdvice | None, list[int]]:
    """The fastest depth, and all that are not surely slower: paired over prompts."""
    best = _fastest(depths)
    if best is None or costs is None:
        return None, []
    as_good = []
    for other in (d for d in depths if d.speedup is not None):
        b, o = best.depth, other.depth
        difference = paired_difference(
            tokens[b - 1] / costs.round_us(b), rounds[b - 1], tokens[o - 1] / costs.round_us(o), rounds[o - 1]
        )
        if o == b or not difference.is_above_zero:
            as_good.append(o)
    return best, as_good


def _fastest(depths: list[DepthAdvice]) -> DepthAdvice | None:
    return max((d for d in depths if d.speedup is not None), key=lambda d: d.speedup or 0.0, default=None)


def _recommendation(depths: list[DepthAdvice], best: DepthAdvice | None) -> Recommendation:
    if not depths:
        return Recommendation.no_walk
    if best is None or best.speedup is None:
        return Recommendation.needs_costs
    if best.speedup <= 1:
        return Recommendation.off
    return Recommendation.on if _sure_depths(depths) else Recommendation.uncertain


def _sure_depths(depths: list[DepthAdvice]) -> list[int]:
    """Those whose whole interval lies above plain decoding."""
    return [d.depth for d in depths if d.speedup_low is not None and d.speedup_low > 1]


def _statement(
    recommendation: Recommendation,
    best: DepthAdvice | None,
    as_good: list[int],
    depths: list[DepthAdvice],
    *,
    is_plain_known: bool,
) -> str:
    if recommendation is Recommendation.no_walk:
        return "No walk: the text was not written by this target, so no engine's rounds can be told."
    if best is None:
        ceiling = max(d.break_even_draft_share for d in depths)
        return (
            "No costs: give --draft-us and --verify-us. If a verify costs what a plain step does, speculation pays while "
            f"a draft step costs less than {ceiling:.2f} of it."
        )
    interval = "no interval: fewer than 5 prompts"
    if best.speedup_low is not None and best.speedup_high is not None:
        interval = f"95 % interval {best.speedup_low:.2f} to {best.speedup_high:.2f}"
    speed = f"{best.speedup:.2f} times the speed of plain decoding ({interval})"
    if not is_plain_known:
        speed += ", if a plain step costs what a verify does"
    if recommendation is Recommendation.off:
        return f"Turn speculation off: at these costs no K beats plain decoding. The best, K = {best.depth}, gives {speed}."
    others = [k for k in as_good if k != best.depth]
    also = f" Not surely slower: K = {', '.join(map(str, others))}." if others else ""
    if recommendation is Recommendation.uncertain:
        return f"K = {best.depth} looks best with {speed}, but no K beats plain decoding for certain.{also}"
    sure = _sure_depths(depths)
    if best.depth not in sure:
        also += f" Certain to beat plain decoding: K = {', '.join(map(str, sure))}."
    edge = " This is the largest K that was recorded: a larger one may be better." if best is depths[-1] else ""
    return f"Use K = {best.depth}: {speed}.{also}{edge}"
