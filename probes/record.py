"""What is measured: plain dataclasses of numpy arrays, columns over (round, depth, layer, head).

A *round* is one draft and one verify, *depth* k = 1..K counts inside a round (index 0 of a depth axis is depth 1), a *slot*
is a drafter KV position, a *region* is a set of slots (docs/architecture.md#words). Unmeasured values are NaN in float
arrays and -1 in integer arrays; a whole column that an engine cannot see is None. The writer stores both as null.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

REGIONS = (
    "own",  # slots t+1 .. t+k-1: this chain's own
    "current",  # slot t, the last verified pair
    "sink",  # the first S slots (option `sink_slots`)
    "template",  # special tokens and role headers
    "system",
    "tools",
    "context",  # the document inserted for the context length
    "user",
    "history",  # earlier assistant turns
    "response",  # this turn's verified tokens before slot t
    "unknown",
    "learned_sink",  # probability given to a learned softmax sink: no slot
)
"""Disjoint regions in order of precedence; their masses sum to 1 for each head."""

TEXT_REGIONS = ("template", "system", "tools", "context", "user", "history", "response", "unknown")
"""Regions that a token of the text can belong to, before `sink`, `current` and `own` take their slots."""

ENGINES = ("replay", "live", "vllm", "import")

NUM_CANDIDATES = 5
"""How many of a distribution's most probable tokens are recorded at each (round, depth)."""


class ConditionKey(NamedTuple):
    """A condition: one drafter under one system prompt, template and context length."""

    drafter: str
    system_prompt: str
    template: str
    context_tokens: int


class RejectionReason(IntEnum):
    """Why the draft at (round, depth) was not accepted; `none` = it was."""

    none = 0
    not_reached = 1  # an earlier depth of this round was rejected
    out_of_draft_vocab = 2  # the emitted token is outside the draft vocabulary
    grammar = 3
    sampled_out = 4  # T > 0: the draft was the target's most probable token, another was sampled
    limit = 5  # no draft was allowed at this depth (num_drafts < K)
    past_end = 6  # no label: the text ends here and could not be continued
    unverified = 7  # drafted, never verified (aborted, preempted)
    disagreement = 8  # none of the others


@dataclass(frozen=True, kw_only=True)
class PromptRecord:
    """One prompt under one system prompt, template and context length, with its response; shared by all drafters."""

    prompt_id: str
    system_prompt: str  # name, "none" without one
    template: str  # "default", "raw" or a given name
    context_tokens: int  # as asked for; 0 = no document
    category: str | None = None
    messages: tuple[dict[str, object], ...] = ()
    token_ids: np.ndarray  # int32 [token]: prompt, response, continuation past the end
    region: np.ndarray  # uint8 [token]: index into TEXT_REGIONS
    num_prompt_tokens: int | None  # P; None: an engine's metrics that do not say
    num_response_tokens: int | None  # L - P, the stop token included; None likewise
    num_continuation_tokens: int  # run past the end so that the last rounds have labels
    finish_reason: str  # "stop" | "length" | "forced"
    is_forced: bool = False  # the text was not produced by this target
    text_agreement: float = float(
        "nan"
    )  # share of response positions whose target argmax is the text token; forced only
    mean_logprob: float = float("nan")  # of the text under the target; forced only
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RoundBatch:
    """All rounds of one prompt with one drafter. R rounds, K depths, A aux layers, Y drafter layers, H heads.

    In a replay every start of the response is a round (`on_walk` marks those an engine would make); live rounds are all
    on the walk. `has_all_labels` is False for starts whose last depths have no label; they leave the dense means.
    """

    drafter: str
    prompt_id: str
    system_prompt: str
    template: str
    context_tokens: int
    engine: str
    depth: int  # K
    num_trimmed_tokens: int | None  # tokens of the walk past the end; None without a walk (forced text)
    num_ties: int = 0  # draft or target ties (logit gap < 1e-4) that a parity test may resolve either way

    # [round]
    start: np.ndarray  # int32: slot t of the last verified pair
    num_drafts: np.ndarray  # int32
    accepted_drafts: np.ndarray  # int32, without the bonus token
    on_walk: np.ndarray  # bool
    has_all_labels: np.ndarray  # bool
    draft_us: np.ndarray | None = None  # float32, device time of the draft
    verify_us: np.ndarray | None = None
    fusion_share_bias: np.ndarray | None = None  # float32
    # [round, aux], aux layers in ascending id
    fusion_share: np.ndarray | None = None  # float32 <W_i g_i, f> / ||f||^2, signed
    fusion_energy: np.ndarray | None = None  # float32 ||W_i g_i|| / sum_j ||W_j g_j||
    aux_norm: np.ndarray | None = None  # float32, raw ||g_i||

    # [round, depth]
    draft_token: np.ndarray  # int32, target ids
    draft_prob: np.ndarray | None = None  # float32
    draft_entropy: np.ndarray | None = None  # float32, nats
    target_token: np.ndarray  # int32, -1 after the first mismatch
    target_prob_of_draft: np.ndarray | None = None
    target_rank_of_draft: np.ndarray | None = None  # int32, 0 = most probable
    overlap: np.ndarray | None = None  # float32, sum min(p, q)
    # [round, depth, candidate]: the NUM_CANDIDATES most probable tokens (all, of a smaller vocabulary), best first, and
    # their probabilities rounded to half precision (three digits, to be read); the target's are unmeasured after the
    # first mismatch
    draft_top_token: np.ndarray | None = None  # int32, target ids
    draft_top_prob: np.ndarray | None = None  # float32
    target_top_token: np.ndarray | None = None  # int32
    target_top_prob: np.ndarray | None = None  # float32
    accepted: np.ndarray  # int8: 1, 0, -1 = not reached
    rejection_reason: np.ndarray | None  # uint8, RejectionReason; None where the engine does not say
    fresh_token: np.ndarray | None = None  # int32: depth 1's prediction at slot t+k-1 with true features
    fresh_right: np.ndarray | None = None  # int8
    hidden_feedback_norm: np.ndarray | None = None  # float32: L2 of what is fed back
    # on request, [round, depth, aux + 1], float32, bits: Jensen-Shannon divergence between the head-mean masses of this
    # query and the target's at position t+k (own, current and response as one region): boundary id i -> layer i-1, then
    # the mean of all full-attention layers. NaN where the drafts so far differ from the text, and for id 0
    target_divergence: np.ndarray | None = None
    input_share_embed: np.ndarray | None = None  # float32: signed share of the embedding half in the stacked q,k,v

    # [round, depth, layer]
    hidden_in_norm: np.ndarray | None = None  # float32: L2 of the residual stream entering the layer
    hidden_out_norm: np.ndarray | None = (
        None  # float32: L2 of the stream leaving it (last layer: before the final norm)
    )
    branch_norm_attn: np.ndarray | None = None
    branch_norm_mlp: np.ndarray | None = None

    # [round, depth, layer, head]
    mass: dict[str, np.ndarray] = field(default_factory=dict)  # region -> float32
    recent_mass: np.ndarray | None = None
    own_excess: np.ndarray | None = None
    sink_deficit: np.ndarray | None = None
    attention_entropy: np.ndarray | None = None  # float32, nats, over all slots


Record = PromptRecord | RoundBatch


@dataclass(frozen=True, kw_only=True)
class InterventionCounts:
    """One intervention on one prompt with one drafter, counted by depth.

    For whole chains: `num_starts` dense starts with all labels (the same at every depth), `accepted` those accepted
    through depth k, `baseline_accepted` the same of the drafter as it is (over its own starts, when the text changed; the
    row "baseline" has their number). For kind "path": `num_starts` positions whose drafts before depth k equal the text,
    `accepted` those right at depth k under the patch, `baseline_accepted` those where the chain is.
    """

    id: str
    kind: str
    drafter: str
    system_prompt: str
    template: str
    context_tokens: int
    prompt_id: str
    # [depth], int64
    num_starts: np.ndarray
    accepted: np.ndarray
    baseline_accepted: np.ndarray
    response_token_ids: np.ndarray | None = None  # of the text that replaced the prompt's own; None where it stayed


@dataclass(frozen=True, kw_only=True)
class TargetStates:
    """This target's states beside a reference target's on the same text, at one layer boundary: means over positions.

    Noise lowers `cosine` and `gram_similarity` together; a rotated residual stream has a low `cosine`, a `norm_ratio` of 1
    and keeps every inner product between positions, so `gram_similarity` stays 1.
    """

    system_prompt: str
    template: str
    context_tokens: int
    prompt_id: str
    aux_layer_id: int
    num_positions: int
    cosine: float
    norm_ratio: float  # this target's norm over the reference's
    gram_similarity: float  # cosine of the two centred Gram matrices (linear CKA, arXiv 1905.00414)
