"""What each quantity is called, its unit and its definition: the one place that axes, tables and the glossary share.

Knows no data. Definitions are those of the run's schema.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One quantity. `axis` is its axis title, with the unit."""

    name: str
    title: str
    axis: str
    definition: str
    how_to_read: str = ""
    is_share: bool = False  # 0..1
    is_signed: bool = False


_ALL = (
    Metric(
        name="tokens_per_round",
        title="Tokens per round",
        axis="tokens per round (incl. bonus)",
        definition="accepted_drafts + 1, mean over rounds: the accepted drafts of a round and the token that the "
        "target adds.",
        how_to_read="1 means that speculation gains nothing; K + 1 is the most a round can give.",
    ),
    Metric(
        name="acceptance_conditional",
        title="Conditional acceptance",
        axis="accepted at k, given k-1 (share)",
        definition="Accepted at depth k / rounds with num_drafts >= k that were accepted through k-1.",
        how_to_read="The drafter's skill at that depth alone. It falls with depth when the drafter suffers from "
        "its own features.",
        is_share=True,
    ),
    Metric(
        name="acceptance_marginal",
        title="Marginal acceptance",
        axis="accepted through k (share of rounds)",
        definition="Share of the rounds with num_drafts >= k in which depth k was accepted. Engines call it "
        "acceptance per position.",
        how_to_read="It can only fall with depth: it is what is left of all rounds.",
        is_share=True,
    ),
    Metric(
        name="chain_gap",
        title="Chain gap",
        axis="P(fresh right) - accepted (share)",
        definition="P(fresh right | accepted through k-1) - acceptance_conditional[k] over the same positions. "
        "Fresh is what "
        "depth 1 predicts at the same slot with the target's true features.",
        how_to_read="The price of drafting from one's own features: what drift must raise to matter. 0 at depth 1 "
        "by definition.",
        is_signed=True,
    ),
    Metric(
        name="hidden_in_norm",
        title="State entering the layer",
        axis="L2 norm of h_k",
        definition="L2 norm (float32) of the hidden state that enters the drafter's layer at depth k.",
        how_to_read="Growth with depth is the published sign of drift in EAGLE-3. A drafter with norm_output is "
        "flat by construction.",
    ),
    Metric(
        name="hidden_in_norm_growth",
        title="Growth of the state",
        axis="norm relative to depth 1",
        definition="hidden_in_norm at depth k / at depth 1.",
        how_to_read="1 is flat.",
    ),
    Metric(
        name="hidden_out_norm",
        title="State leaving the layer",
        axis="L2 norm of o_k",
        definition="L2 norm of the residual stream after the last layer, before the final norm.",
        how_to_read="Shows growth also where the fed-back state is normalised.",
    ),
    Metric(
        name="hidden_feedback_norm",
        title="State fed back",
        axis="L2 norm of what is fed back",
        definition="L2 norm of what the next depth receives: o_k in EAGLE-3, the post-norm state with norm_output.",
    ),
    Metric(
        name="own_excess",
        title="Own excess",
        axis="own mass - recent mass (share)",
        definition="Attention on the chain's own slots, minus what a depth-1 query with true features puts on the "
        "same slots.",
        how_to_read="Own mass rises with depth by construction; this is the part that does not.",
        is_signed=True,
    ),
    Metric(
        name="sink_deficit",
        title="Sink deficit",
        axis="sink mass lost (share)",
        definition="The sink mass of that depth-1 query minus this one's.",
        how_to_read="Above 0: the chain has taken attention from the sink.",
        is_signed=True,
    ),
    Metric(
        name="mass_sink",
        title="Sink mass",
        axis="attention on the sink (share)",
        definition="Attention probability on the first slots (1 unless the run says otherwise). Slot 0 is the pair "
        "(token 1, state "
        "of token 0): the first token is visible to the drafter only through its state.",
        is_share=True,
    ),
    Metric(
        name="mass_own",
        title="Own mass",
        axis="attention on own slots (share)",
        definition="Attention probability on slots t+1 .. t+k-1, this chain's own. Empty at depth 1.",
        how_to_read="Rises with depth by construction (k-1 slots): read own excess for drift.",
        is_share=True,
    ),
    Metric(
        name="recent_mass",
        title="Recent mass",
        axis="attention on the same slots, fresh (share)",
        definition="What a depth-1 query at slot t+k-1, with true features, puts on the slots that are `own` here.",
        is_share=True,
    ),
    Metric(
        name="attention_entropy",
        title="Attention entropy",
        axis="entropy (nats)",
        definition="Entropy of the attention probabilities over all slots, in nats.",
    ),
    Metric(
        name="fusion_share",
        title="Fusion share",
        axis="signed share of the fused state",
        definition="<W_i g_i, f> / ||f||^2 for each captured target layer i: how much of the fused state f it "
        "contributes, signed. "
        "The shares (and that of the bias, where there is one) sum to 1.",
        is_signed=True,
    ),
    Metric(
        name="fusion_energy",
        title="Fusion energy",
        axis="share of the summed norms",
        definition="||W_i g_i|| / sum_j ||W_j g_j||: how loud a layer is, whatever its direction.",
        is_share=True,
    ),
    Metric(
        name="aux_norm",
        title="Captured state",
        axis="L2 norm of g_i",
        definition="Raw L2 norm of the target's hidden state at the captured layer.",
    ),
    Metric(
        name="out_of_draft_vocab_share",
        title="Outside the draft vocabulary",
        axis="share of emitted tokens",
        definition="Share of the emitted tokens that the draft vocabulary does not hold: no draft can ever match them.",
        is_share=True,
    ),
)

METRICS = {metric.name: metric for metric in _ALL}
DEPTH_METRICS = {
    "Acceptance": ("acceptance_conditional", "acceptance_marginal", "chain_gap"),
    "Hidden state": ("hidden_in_norm", "hidden_in_norm_growth", "hidden_out_norm", "hidden_feedback_norm"),
    "Attention": ("own_excess", "sink_deficit", "mass_sink", "mass_own"),
}
HEAD_METRICS = ("own_excess", "sink_deficit", "recent_mass", "attention_entropy")

REGION_MEANINGS = {
    "own": "slots t+1 .. t+k-1: this chain's own; empty at depth 1",
    "current": "slot t, the last verified pair",
    "sink": "the first slots (1 unless the run says otherwise)",
    "template": "special tokens and role headers",
    "system": "the system prompt",
    "tools": "tool definitions",
    "context": "the document inserted for the context length",
    "user": "user turns",
    "history": "earlier assistant turns",
    "response": "this turn's verified tokens before slot t",
    "unknown": "what could not be attributed",
    "learned_sink": "probability given to a learned softmax sink: no slot",
}
"""Disjoint regions of attention, in order of precedence; they sum to 1 for each head."""
