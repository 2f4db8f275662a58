"""The summary of a run as data: exactly what `driftscope show --json` prints.

Field names are a contract. Arrays over depth start at depth 1. What was not measured is null.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from probes.record import ConditionKey

DepthArray = list[float | None]


class TokensPerRound(BaseModel):
    """Mean tokens of a round over one set of rounds (accepted drafts and the bonus token)."""

    num_rounds: int
    num_prompts: int = Field(
        0, description="n: the prompts that have one of these rounds. Others are in no number here."
    )
    num_prompts_without_rounds: int = Field(
        0,
        description="Prompts that would count but have none of these rounds; looping ones count in the _all objects only.",
    )
    tokens_per_round: float | None  # pooled: every round weighs the same
    tokens_per_round_prompt_mean: float | None  # every prompt weighs the same
    low: float | None  # 95 % interval of the pooled mean, over prompts
    high: float | None
    interval_method: str | None  # jackknife_t | bca | percentile
    why_no_interval: str | None = Field(None, description="In words; null where there is an interval.")


class FusionShares(BaseModel):
    """How much of the fused state comes from each captured target layer: signed, mean over rounds; sums to 1."""

    layer_ids: list[int]  # boundary ids, ascending
    share: DepthArray | None = Field(description="One for each layer id; null where the drafter fuses nothing.")
    bias: float | None  # share of fc's bias


class DepthIntervals(BaseModel):
    """95 % intervals over prompts of one array over depth."""

    low: DepthArray
    high: DepthArray
    interval_method: list[str | None]
    num_prompts: list[int] = Field([], description="n at each depth: fewer prompts reach the deeper ones.")


class ConditionSummary(BaseModel):
    """One drafter under one system prompt, template and context length.

    Each array over depth is one of `driftscope.quantities.OVER_DEPTH`, where it is defined.

    Every figure but num_prompts, num_degenerate, degenerate_share and the `_all` objects leaves degenerate prompts out.
    Arrays over depth are means over the rounds of `depth_basis`; in drafters of several layers hidden_in_norm is the
    first layer's, hidden_out_norm the last one's, attention columns are means over layers and heads.
    """

    drafter: str
    system_prompt: str  # "none" without one
    template: str  # "default", "raw" or the given name
    context_tokens: int  # 0 = no document
    num_prompts: int  # all, also those that loop or have no round: n of a number is its own num_prompts
    num_degenerate: int
    num_prompts_without_rounds: int = Field(
        0, description="Of no kind: no round can start in a response of 0 or 1 tokens."
    )
    dense: TokensPerRound | None  # over all starts of a replay that have K labels; null in other engines
    walk: TokensPerRound | None  # over the rounds an engine would make; null for text the target did not write
    dense_all: TokensPerRound | None  # the same with the degenerate prompts
    walk_all: TokensPerRound | None
    num_rounds_without_labels: int  # starts of a replay with fewer than K labels, left out of dense
    depth_basis: Literal["dense", "walk"]
    acceptance_marginal: DepthArray
    acceptance_conditional: DepthArray
    hidden_in_norm: DepthArray
    hidden_out_norm: DepthArray
    hidden_feedback_norm: DepthArray
    hidden_in_norm_growth: DepthArray
    mass: dict[str, DepthArray]  # region -> head mean of the attention probability
    own_excess: DepthArray
    sink_deficit: DepthArray
    chain_gap: DepthArray
    depth_intervals: dict[str, DepthIntervals]  # array over depth -> its intervals
    fusion_share: FusionShares
    out_of_draft_vocab_share: float | None  # share of the emitted tokens, each counted once, that no draft can be
    degenerate_share: float | None
    text_agreement: float | None  # share of text positions where the target's argmax is the text; forced text only

    @property
    def key(self) -> ConditionKey:
        """The condition."""
        return ConditionKey(self.drafter, self.system_prompt, self.template, self.context_tokens)

    def over_depth(self, name: str) -> DepthArray:
        """The means of one of `quantities.OVER_DEPTH`, from depth 1 on."""
        region = name.removeprefix("mass_")
        array: DepthArray = self.mass[region] if region != name else getattr(self, name)
        return array


class WithoutRounds(BaseModel):
    """Prompts of a condition in which no prompt has a round: there is nothing to sum up."""

    system_prompt: str
    template: str
    context_tokens: int
    num_prompts: int


class RunHead(BaseModel):
    """Which run."""

    path: str
    status: str  # running | complete | incomplete | failed
    engine: str


class Summary(BaseModel):
    """`driftscope show --json`."""

    schema_version: int = 1
    run: RunHead
    conditions: list[ConditionSummary]
    without_rounds: list[WithoutRounds] = Field([], description="Conditions that are stored but hold no round.")
