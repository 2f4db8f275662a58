"""Every quantity once: its SQL, name, unit, definition and sign. All that sum it up, print it or draw it read this table.

Knows no data. A new row of `OVER_DEPTH` (and its field of `ConditionSummary`) stands in the sums, `show`, summary.parquet,
`compare`, the report and the app. `python -m driftscope.quantities > docs/quantities.md` prints the page about them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from probes.record import COLUMNS, REGIONS, region_definitions


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


def _recorded(name: str, title: str, axis: str, *, is_share: bool = False, is_signed: bool = False) -> Quantity:
    """A mean of a column as it is recorded: its definition is the column's."""
    return Quantity(
        name=name, title=title, axis=axis, definition=COLUMNS[name].meaning, is_share=is_share, is_signed=is_signed
    )


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
    _recorded("recent_mass", "Recent mass", "attention on the same slots, fresh (share)", is_share=True),
    _recorded("attention_entropy", "Attention entropy", "entropy (nats)"),
)
_BY_AUX_LAYER = (
    _recorded("fusion_share", "Fusion share", "signed share of the fused state", is_signed=True),
    _recorded("fusion_energy", "Fusion energy", "share of the summed norms", is_share=True),
    _recorded("aux_norm", "Captured state", "L2 norm of g_i"),
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


_INTRODUCTION = """\
# Quantities

Made from the registry by `python -m driftscope.quantities > docs/quantities.md`; a test keeps the two equal.

A *round* is one draft and one verify. *Depth* k = 1..K counts inside it. A *slot* is a drafter KV position: slot t holds
the pair (embedding of token t+1, fused target state of token t). The drafter sees the first token only through its state in
slot 0. More words, and the formulas: [architecture.md](architecture.md).

## What is summed up

`driftscope show --json` has these. Arrays over depth, [k], are means over the dense rounds of a replay (every start with K
labels), elsewhere over the walk. A share is 0..1 unless it says signed.

n is the prompts that have a round and do not loop: looping (degenerate) responses are found, left out of every headline and
counted. Intervals (95 %) resample prompts ([statistics.md](statistics.md)).
"""


def quantities_document() -> str:
    """docs/quantities.md."""
    lines = [
        _INTRODUCTION,
        "| name | unit | definition | how to read it |",
        "|---|---|---|---|",
        *(_row(f"`{_written(q)}`", q.axis, q.definition, q.how_to_read) for q in QUANTITIES.values()),
        "",
        "The mass of every region stands under `mass`, by region:",
        "",
        "| region | what it covers |",
        "|---|---|",
        *(_row(f"`{name}`", meaning) for name, meaning in REGION_DEFINITIONS.items()),
        "",
        "## What a round records",
        "",
        "The columns of `rounds/` and `depths/`. What was not measured is null.",
        "",
        "| column | one value for each | type | meaning |",
        "|---|---|---|---|",
        *(
            _row(f"`{name}`", c.axes, c.stored, c.meaning)
            for name, c in COLUMNS.items()
            if not name.startswith("mass_")
        ),
        _row("`mass_REGION`", COLUMNS["mass_own"].axes, "float32", COLUMNS["mass_own"].meaning),
    ]
    return "\n".join(lines) + "\n"


def _written(quantity: Quantity) -> str:
    name = quantity.name.replace("mass_", "mass.")
    return f"{name}[k]" if quantity.name in OVER_DEPTH else name


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;').replace('<', '&lt;') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(quantities_document())
