"""What `driftscope advise --json` prints. Field names are a contract; arrays over depth start at depth 1."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, Field

from driftscope.runs import RunStatus


class Recommendation(StrEnum):
    """What to do with speculation under a condition."""

    on = "on"  # some depth beats plain decoding with its whole interval
    off = "off"  # no depth beats plain decoding
    uncertain = "uncertain"  # the best depth beats it, but every interval holds 1 or there is none
    needs_costs = "needs_costs"  # the run has no times and none were given
    no_walk = "no_walk"  # the text was not written by this target, or nothing was measured


class Costs(BaseModel):
    """What a round was taken to cost."""

    draft_us: list[float]  # of draft step k
    verify_us: list[float]  # of a verify of K + 1 tokens
    plain_us: float  # of one step without speculation
    source: str  # measured | given | measured and given
    num_timed_rounds: int | None = None  # whose medians these are
    assumptions: list[str]


class DepthAdvice(BaseModel):
    """One K. Intervals are 95 % over prompts; costs count as known."""

    depth: int
    tokens_per_round: float
    low: float | None
    high: float | None
    added_tokens: float = Field(description="tokens_per_round less that at K - 1 (1 at K = 0)")
    round_us: float | None
    speedup: float | None = Field(description="expected tokens per second / those of plain decoding")
    speedup_low: float | None
    speedup_high: float | None
    added_speedup: float | None = Field(description="speedup less that at K - 1 (1 at K = 0)")
    break_even_tokens_per_round: float | None = Field(description="what it must exceed to beat plain decoding")
    break_even_added_tokens: float | None = Field(
        description="what added_tokens must exceed for K to beat K - 1 at these costs"
    )
    break_even_draft_share: float = Field(
        description="a draft step / a verify below which K beats plain decoding, if a verify costs what a plain step does"
    )
    break_even_draft_share_added: float | None = Field(
        description="the same for K against K - 1; null where K is better at any cost"
    )


class BatchAdvice(BaseModel):
    """Speed by K where this many requests are decoded together, from costs that the run measured."""

    batch_size: int
    context_tokens: int  # at which the costs were measured
    costs: Costs
    speedup: list[float | None]  # K = 1, 2, ..; null where K was not measured
    best_depth: int
    recommendation: Recommendation


class ConditionAdvice(BaseModel):
    """One drafter under one condition; over all its conditions where system_prompt is null."""

    drafter: str
    system_prompt: str | None
    template: str | None
    context_tokens: int | None
    num_prompts: int  # without the degenerate ones
    num_degenerate: int
    recorded_depth: int
    is_exact: bool  # every K' was walked again from dense starts; else K' < K reuses the starts of the walk at K
    acceptance_marginal: list[float | None]  # over the walk at the recorded K
    costs: Costs | None
    recommendation: Recommendation
    best_depth: int | None  # of those that have a cost
    as_good_depths: list[int]  # the best one, and those whose paired difference to it does not exclude 0
    statement: str
    depths: list[DepthAdvice]
    batches: list[BatchAdvice] = []  # empty: the run measured no costs


class Advice(BaseModel):
    """`driftscope advise --json`."""

    schema_version: int = 1
    path: str
    status: RunStatus
    engine: str
    cost_model: str
    assumptions: list[str]
    drafters: list[ConditionAdvice]  # over all conditions of the drafter, prompts resampled with all their rounds
    conditions: list[ConditionAdvice]
