"""Every quantity once: its SQL, name, unit, definition and sign. All that sum it up, print it or draw it read this table.

Knows no data. A new row of `OVER_DEPTH` (and its field of `ConditionSummary`) stands in the sums, `show`, summary.parquet,
`compare`, the report and the app. `python -m driftscope.quantities > docs/quantities.md` prints the page about them.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.record import REGIONS, region_definitions


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One quantity. `axis` is its axis title, with the unit."""

    name: str
    title: str
    axis: str
    definition: str
    how_to_read: str = ""
    is_share: bool = False  # 0..1
    is_signed: bool = False

    @property
    def explanation(self) -> str:
        """The definition, and how to read it."""
        return f"{self.definition} {self.how_to_read}".strip()


@dataclass(frozen=True, kw_only=True)
class DepthQuantity(Quantity):
    """A mean over the rounds of the depth basis, by depth. It stands under its name in `show --json`."""

    sql: str  # over a row of `depths`: its value; a column without a layer axis repeats on the row of every layer
    where: str = "true"  # which rows take part; `last_layer` is the drafter's
    is_relative: bool = False  # the mean is divided by the one at depth 1
    section: str = ""  # of the charts over depth; "": in no chart by itself, and without interval (a region)
    is_over_context: bool = False  # drawn against the context length too

    @property
    def has_interval(self) -> bool:
        """Over prompts, in `ConditionSummary.depth_intervals`."""
        return bool(self.section)


ONE_A_DEPTH = "layer = 0"
_HAS_LABEL = "layer = 0 and num_drafts >= depth and accepted is not null"
REGION_DEFINITIONS = region_definitions()


def _mass(region: str, **more: object) -> DepthQuantity:
    row = {
        "name": f"mass_{region}",
        "title": f"{region.replace('_', ' ').capitalize()} mass",
        "axis": f"attention on {region} (share)",
        "definition": f"Attention probability on {REGION_DEFINITIONS[region]}.",
        "sql": f"list_avg(mass_{region})",
        "is_share": True,
    }
    return DepthQuantity(**{**row, **more})  # type: ignore[arg-type]


_SHOWN = (
    DepthQuantity(
        name="acceptance_marginal",
        title="Marginal acceptance",
        axis="accepted through k (share of rounds)",
        definition="Share of the rounds with num_drafts >= k in which depth k was accepted. Engines call it "
        "acceptance per position.",
        how_to_read="It can only fall with depth: it is what is left of all rounds.",
        sql="(accepted_drafts >= depth)::int",
        where="layer = 0 and num_drafts >= depth",
        section="Acceptance",
        is_share=True,
    ),
    DepthQuantity(
        name="acceptance_conditional",
        title="Conditional acceptance",
        axis="accepted at k, given k-1 (share)",
        definition="Accepted at depth k / rounds with num_drafts >= k that were accepted through k-1.",
        how_to_read="The drafter's skill at that depth alone. It falls with depth when the drafter suffers from "
        "its own features.",
        sql="(accepted_drafts >= depth)::int",
        where="layer = 0 and num_drafts >= depth and accepted_drafts >= depth - 1",
        section="Acceptance",
        is_share=True,
        is_over_context=True,
    ),
    DepthQuantity(
        name="chain_gap",
        title="Chain gap",
        axis="P(fresh right) - accepted (share)",
        definition="P(fresh right | accepted through k-1) - acceptance_conditional[k] over the same positions. Fresh is "
        "what depth 1 predicts at the same slot with the target's true features.",
        how_to_read="The price of drafting from one's own features: what drift must raise to matter. 0 at depth 1 "
        "by definition.",
        # at the first depth the drafter has true features anyway, also where drafts are sampled
        sql="case when depth = 1 then 0 else fresh_right - accepted end",
        where=f"{_HAS_LABEL} and fresh_right is not null",
        section="Acceptance",
        is_signed=True,
        is_over_context=True,
    ),
    DepthQuantity(
        name="hidden_in_norm",
        title="State entering the layer",
        axis="L2 norm of h_k",
        definition="L2 norm (float32) of the hidden state that enters the drafter's first layer at depth k.",
        how_to_read="Growth with depth is the published sign of drift in EAGLE-3. A drafter with norm_output is "
        "flat by construction.",
        sql="hidden_in_norm",
        where=ONE_A_DEPTH,
        section="Hidden state",
    ),
    DepthQuantity(
        name="hidden_in_norm_growth",
        title="Growth of the state",
        axis="norm relative to depth 1",
        definition="hidden_in_norm at depth k / at depth 1.",
        how_to_read="1 is flat.",
        sql="hidden_in_norm",
        where=ONE_A_DEPTH,
        is_relative=True,
        section="Hidden state",
        is_over_context=True,
    ),
    DepthQuantity(
        name="hidden_out_norm",
        title="State leaving the layer",
        axis="L2 norm of o_k",
        definition="L2 norm of the residual stream after the last layer, before the final norm.",
        how_to_read="Shows growth also where the fed-back state is normalised.",
        sql="hidden_out_norm",
        where="layer = last_layer",
        section="Hidden state",
    ),
    DepthQuantity(
        name="hidden_feedback_norm",
        title="State fed back",
        axis="L2 norm of what is fed back",
        definition="L2 norm of what the next depth receives: o_k in EAGLE-3, the post-norm state with norm_output.",
        sql="hidden_feedback_norm",
        where=ONE_A_DEPTH,
        section="Hidden state",
    ),
    _mass(
        "sink",
        axis="attention on the sink (share)",
        section="Attention",
        is_over_context=True,
    ),
    DepthQuantity(
        name="sink_deficit",
        title="Sink deficit",
        axis="sink mass lost (share)",
        definition="The sink mass of a depth-1 query with true features at the same slot, minus this one's.",
        how_to_read="Above 0: the chain has taken attention from the sink.",
        sql="list_avg(sink_deficit)",
        section="Attention",
        is_signed=True,
        is_over_context=True,
    ),
    _mass(
        "own",
        axis="attention on own slots (share)",
        how_to_read="Rises with depth by construction (k-1 slots): read own excess for drift.",
        section="Attention",
    ),
    DepthQuantity(
        name="own_excess",
        title="Own excess",
        axis="own mass - recent mass (share)",
        definition="Attention on the chain's own slots, minus what a depth-1 query with true features puts on the "
        "same slots.",
        how_to_read="Own mass rises with depth by construction; this is the part that does not.",
        sql="list_avg(own_excess)",
        section="Attention",
        is_signed=True,
        is_over_context=True,
    ),
)
OVER_DEPTH = {q.name: q for q in (*_SHOWN, *(_mass(r) for r in REGIONS if f"mass_{r}" not in {q.name for q in _SHOWN}))}
"""What `show --json` has over depth, in the order of every table and chart; masses stand there by region in `mass`."""
DEPTH_CHARTS = {
    section: [q for q in _SHOWN if q.section == section] for section in dict.fromkeys(q.section for q in _SHOWN)
}
"""Section -> its charts over depth; each has an interval."""

OUT_OF_DRAFT_VOCAB = DepthQuantity(
    name="out_of_draft_vocab_share",
    title="Outside the draft vocabulary",
    axis="share of emitted tokens",
    definition="Share of the emitted tokens that the draft vocabulary does not hold: no draft can ever match them.",
    sql="(rejection_reason = 'out_of_draft_vocab')::int",
    where=_HAS_LABEL,
    is_share=True,
)
"""Summed by depth, but one number: each emitted token counts once (`summary.sums.vocabulary_depths`)."""

_WITHOUT_DEPTH = (
    Quantity(
        name="tokens_per_round",
        title="Tokens per round",
        axis="tokens per round (incl. bonus)",
        definition="accepted_drafts + 1, mean over rounds: the accepted drafts of a round and the token that the "
        "target adds.",
        how_to_read="1 means that speculation gains nothing; K + 1 is the most a round can give.",
    ),
)
_BY_HEAD = (
    Quantity(
        name="recent_mass",
        title="Recent mass",
        axis="attention on the same slots, fresh (share)",
        definition="What a depth-1 query at slot t+k-1, with true features, puts on the slots that are `own` here.",
        is_share=True,
    ),
    Quantity(
        name="attention_entropy",
        title="Attention entropy",
        axis="entropy (nats)",
        definition="Entropy of the attention probabilities over all slots, in nats.",
    ),
)
_BY_AUX_LAYER = (
    Quantity(
        name="fusion_share",
        title="Fusion share",
        axis="signed share of the fused state",
        definition="<W_i g_i, f> / ||f||^2 for each captured target layer i: how much of the fused state f it "
        "contributes, signed. The shares (and that of the bias, where there is one) sum to 1.",
        is_signed=True,
    ),
    Quantity(
        name="fusion_energy",
        title="Fusion energy",
        axis="share of the summed norms",
        definition="||W_i g_i|| / sum_j ||W_j g_j||: how loud a layer is, whatever its direction.",
        is_share=True,
    ),
    Quantity(
        name="aux_norm",
        title="Captured state",
        axis="L2 norm of g_i",
        definition="Raw L2 norm of the target's hidden state at the captured layer.",
    ),
)

QUANTITIES: dict[str, Quantity] = {
    q.name: q for q in (*_WITHOUT_DEPTH, *_SHOWN, *_BY_HEAD, *_BY_AUX_LAYER, OUT_OF_DRAFT_VOCAB)
}
"""The glossary, by name. The regions' masses that stand here are those with a chart."""
HEAD_QUANTITIES: dict[str, Quantity] = {
    q.name: q
    for q in (
        OVER_DEPTH["own_excess"],
        OVER_DEPTH["sink_deficit"],
        *_BY_HEAD,
        *(OVER_DEPTH[f"mass_{region}"] for region in REGIONS),
    )
}
"""Drawn head by head."""
