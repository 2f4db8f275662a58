"""What is measured: plain dataclasses of numpy arrays, columns over (round, depth, layer, head).

A *round* is one draft and one verify, *depth* k = 1..K counts inside a round (index 0 of a depth axis is depth 1), a *slot*
is a drafter KV position, a *region* is a set of slots (docs/architecture.md#words). Unmeasured values are NaN in float
arrays and -1 in integer arrays; a whole column that an engine cannot see is None. The writer stores both as null.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from enum import IntEnum
from functools import partial
from typing import Annotated, NamedTuple, get_type_hints

import numpy as np

_REGION_DEFINITIONS = {
    "own": "slots t+1 .. t+k-1: this chain's own; empty at depth 1",
    "current": "slot t, the last verified pair",
    "sink": "the first {sink_slots}; slot 0 is the pair (token 1, state of token 0): the first token is visible to the "
    "drafter only through its state",
    "template": "special tokens, role headers and the generation prompt",
    "system": "the system prompt",
    "tools": "tool definitions",
    "context": "the document inserted for the context length",
    "user": "user turns",
    "history": "earlier assistant turns",
    "response": "this turn's verified tokens before slot t",
    "unknown": "what could not be attributed",
    "learned_sink": "a learned softmax sink, which is no slot",
}
REGIONS = tuple(_REGION_DEFINITIONS)
"""Disjoint regions in order of precedence; their masses sum to 1 for each head."""


def counted_slots(num: int) -> str:
    """The sink's size as it follows "the first": `slot`, or `2 slots`."""
    return "slot" if num == 1 else f"{num} slots"


def region_definitions(sink_slots: int | None = None) -> dict[str, str]:
    """Region -> what it covers in a run with this many sink slots; None: in words, for any run."""
    slots = "slots (1 unless the run says otherwise)" if sink_slots is None else counted_slots(sink_slots)
    return {name: text.format(sink_slots=slots) for name, text in _REGION_DEFINITIONS.items()}


TEXT_REGIONS = ("template", "system", "tools", "context", "user", "history", "response", "unknown")
"""Regions that a token of the text can belong to, before `sink`, `current` and `own` take their slots."""

ENGINES = ("replay", "live", "vllm", "import")

NUM_CANDIDATES = 5
"""How many of a distribution's most probable tokens are recorded at each (round, depth)."""


class PromptConditionKey(NamedTuple):
    """A condition without its drafter: all drafters share its prompts and texts."""

    system_prompt: str
    template: str
    context_tokens: int


class ConditionKey(NamedTuple):
    """A condition: one drafter under one system prompt, template and context length."""

    drafter: str
    system_prompt: str
    template: str
    context_tokens: int

    @property
    def without_drafter(self) -> PromptConditionKey:
        """What all drafters share."""
        return PromptConditionKey(*self[1:])


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

    @property
    def condition(self) -> PromptConditionKey:
        return PromptConditionKey(self.system_prompt, self.template, self.context_tokens)


Maybe = np.ndarray | None
LIST_AXES = ("aux", "aux_and_mean", "candidate", "head")
"""The last axis of a column that is a list in its row: one value for each head and so on."""


@dataclass(frozen=True)
class Column:
    """How a column of `RoundBatch` is laid out and stored: the run's tables and vLLM's rows follow."""

    axes: str  # in words, the first is the round
    meaning: str
    stored: str = "float32"  # Arrow's name for the type of one value
    missing: int | None = None  # what an unmeasured integer is; None: every one is measured
    is_text: bool = False  # token ids from which a response could be rebuilt: not stored with --no-text
    is_required: bool = False  # no engine lacks it

    @property
    def is_list(self) -> bool:
        """Its last axis lies in one cell of the table."""
        return self.axes.split()[-1] in LIST_AXES


TokenIds = partial(Column, stored="int32", missing=-1, is_text=True)


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

    start: Annotated[np.ndarray, Column("round", "Slot t of the last verified pair.", stored="int32")]
    num_drafts: Annotated[np.ndarray, Column("round", "Fewer than K where an engine allowed no more.", stored="int32")]
    accepted_drafts: Annotated[np.ndarray, Column("round", "0..K, without the bonus token.", stored="int32")]
    on_walk: Annotated[np.ndarray, Column("round", "A round that an engine would make.", stored="bool")]
    has_all_labels: Annotated[np.ndarray, Column("round", "K labels exist for this start.", stored="bool")]
    draft_us: Annotated[Maybe, Column("round", "Device time of the draft, microseconds.")] = None
    verify_us: Annotated[Maybe, Column("round", "Device time of the verify, microseconds.")] = None
    fusion_share_bias: Annotated[Maybe, Column("round", "Signed share of fc's bias in the fused state.")] = None
    fusion_share: Annotated[
        Maybe,
        Column(
            "round aux",
            "<W_i g_i, f> / ||f||^2 for each captured target layer i: how much of the fused state f it contributes, "
            "signed. The shares (and that of the bias, where there is one) sum to 1.",
        ),
    ] = None
    fusion_energy: Annotated[
        Maybe, Column("round aux", "||W_i g_i|| / sum_j ||W_j g_j||: how loud a layer is, whatever its direction.")
    ] = None
    aux_norm: Annotated[
        Maybe, Column("round aux", "Raw L2 norm of the target's hidden state g_i at the captured layer.")
    ] = None
    draft_token: Annotated[np.ndarray, TokenIds("round depth", "The draft, as a target id.")]
    draft_prob: Annotated[Maybe, Column("round depth", "The draft's probability under the drafter.")] = None
    draft_entropy: Annotated[Maybe, Column("round depth", "Entropy of the drafter's distribution, nats.")] = None
    target_token: Annotated[
        np.ndarray,
        TokenIds("round depth", "The target's token; unmeasured after the first mismatch."),
    ]
    target_prob_of_draft: Annotated[
        Maybe, Column("round depth", "The draft's probability under the target; unmeasured after a mismatch.")
    ] = None
    target_rank_of_draft: Annotated[
        Maybe, Column("round depth", "0 = the target's most probable token.", stored="int32", missing=-1)
    ] = None
    overlap: Annotated[Maybe, Column("round depth", "Sum of min(p, q) over the vocabulary.")] = None
    draft_top_token: Annotated[
        Maybe,
        TokenIds("round depth candidate", "The drafter's NUM_CANDIDATES most probable tokens, best first; target ids."),
    ] = None
    draft_top_prob: Annotated[
        Maybe, Column("round depth candidate", "Their probabilities, rounded to half precision: to be read.")
    ] = None
    target_top_token: Annotated[
        Maybe,
        TokenIds("round depth candidate", "The target's; unmeasured after a mismatch."),
    ] = None
    target_top_prob: Annotated[Maybe, Column("round depth candidate", "Their probabilities, rounded likewise.")] = None
    accepted: Annotated[
        np.ndarray, Column("round depth", "1, 0; unmeasured where it was not reached.", stored="int8", missing=-1)
    ]
    rejection_reason: Annotated[
        Maybe, Column("round depth", "A RejectionReason; None where the engine does not say.", stored="string")
    ]
    fresh_token: Annotated[
        Maybe,
        TokenIds("round depth", "What depth 1 predicts at slot t+k-1 with true features."),
    ] = None
    fresh_right: Annotated[
        Maybe, Column("round depth", "1 where fresh_token equals the text, 0 where not.", stored="int8", missing=-1)
    ] = None
    hidden_feedback_norm: Annotated[Maybe, Column("round depth", "L2 norm of what the next depth receives.")] = None
    target_divergence: Annotated[
        Maybe,
        Column(
            "round depth aux_and_mean",
            "Jensen-Shannon divergence (bits; on request) between the head-mean masses of this query and the target's at "
            "position t+k, own, current and response as one region: boundary id i -> layer i-1, then the mean of all "
            "full-attention layers. Unmeasured where the drafts so far differ from the text, and for id 0.",
        ),
    ] = None
    input_share_embed: Annotated[
        Maybe, Column("round depth", "Signed share of the embedding half in the stacked q, k, v.")
    ] = None
    hidden_in_norm: Annotated[
        Maybe, Column("round depth layer", "L2 norm of the residual stream entering the layer.")
    ] = None
    hidden_out_norm: Annotated[
        Maybe, Column("round depth layer", "L2 norm of the stream leaving the layer, before the final norm.")
    ] = None
    branch_norm_attn: Annotated[Maybe, Column("round depth layer", "L2 norm of what attention adds.")] = None
    branch_norm_mlp: Annotated[Maybe, Column("round depth layer", "L2 norm of what the MLP adds.")] = None
    mass: Annotated[
        dict[str, np.ndarray],
        Column("round depth layer head", "Attention probability on a region; all regions sum to 1."),
    ] = field(default_factory=dict)
    recent_mass: Annotated[
        Maybe,
        Column(
            "round depth layer head",
            "What a depth-1 query at slot t+k-1, with true features, puts on the slots that are `own` here.",
        ),
    ] = None
    own_excess: Annotated[Maybe, Column("round depth layer head", "Mass on `own` - recent_mass.")] = None
    sink_deficit: Annotated[
        Maybe,
        Column(
            "round depth layer head", "Sink mass of a depth-1 query with true features at the same slot - this one's."
        ),
    ] = None
    attention_entropy: Annotated[
        Maybe, Column("round depth layer head", "Entropy of the attention probabilities over all slots, in nats.")
    ] = None

    def values(self, name: str) -> np.ndarray | None:
        """A column of `COLUMNS`; None where the engine does not have it."""
        region = name.removeprefix("mass_")
        found: np.ndarray | None = self.mass.get(region) if region != name else getattr(self, name)
        return found


def _columns() -> dict[str, Column]:
    found: dict[str, Column] = {}
    hints = get_type_hints(RoundBatch, include_extras=True)
    for one in fields(RoundBatch):
        for column in getattr(hints[one.name], "__metadata__", ()):
            column = replace(column, is_required=one.default is one.default_factory is MISSING)
            found |= {f"mass_{region}": column for region in REGIONS} if one.name == "mass" else {one.name: column}
    return found


COLUMNS = _columns()
"""Every column over rounds by the name under which it is stored: `mass` is one for each region."""


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
