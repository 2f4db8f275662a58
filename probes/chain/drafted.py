"""What one depth of many chains drafted, with the step's measurements; and depth 1 of true features at every slot.

Knows nothing of the target: `rounds` and `target_columns` say what it made of the drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from probes.attention.masses import recent_masses
from probes.chain.step import SlotCache, StepOutput, step
from probes.drafter.layers.llama import Rotation
from probes.drafter.model import Drafter
from probes.record import COLUMNS, NUM_CANDIDATES
from probes.target.trace import TargetTrace
from probes.target.vocab_rows import row_statistics

STEP_COLUMNS = tuple(one.name for one in fields(StepOutput) if one.name in COLUMNS)
"""What a step measures of a round is recorded under its name."""


@dataclass(frozen=True)
class Drafted:
    """One depth of R chains: the drafts, and the step's measurements with rounds as first axis."""

    row: Int[Tensor, "round"]  # of the draft vocabulary
    token: Int[Tensor, "round"]  # target id
    logits: Float[Tensor, "round draft_vocab"]  # as the drafter gives them, over the temperature when T > 0
    lse: Float[Tensor, "round"]  # of the logits, float32
    logit_gap: Float[Tensor, "round"]  # by which the draft leads the best other one; below 0 when it is not the best
    columns: dict[str, Tensor]
    """name -> [round, ...]: STEP_COLUMNS that the drafter has, mass, own, entropy, top, top_id, draft_logit and
    draft_entropy. `top` and `draft_logit` are over the temperature when T > 0, `top_id` rows of the draft vocabulary."""

    @classmethod
    def from_step(cls, drafter: Drafter, output: StepOutput, *, temperature: float = 0.0) -> Drafted:
        """The most probable tokens as drafts.

        q = softmax(logits / temperature), at temperature 0 of the raw logits; no top-k, no top-p (vLLM's rule).
        """
        logits = output.logits if temperature in (0.0, 1.0) else output.logits.float() / temperature
        found = row_statistics(logits, NUM_CANDIDATES)
        row, logit = found.top_id[:, 0], found.top[:, 0]
        gap = logit - found.top[:, 1]
        columns = {name: value for name in STEP_COLUMNS if (value := getattr(output, name)) is not None}
        for name in ("mass", "own", "entropy"):  # [round, layer, head, ...]
            of_layers = [getattr(m, name) for m in output.masses]
            columns[name] = of_layers[0][:, None] if len(of_layers) == 1 else torch.stack(of_layers, dim=1)
        columns |= {"top": found.top, "top_id": found.top_id, "draft_logit": logit, "draft_entropy": found.entropy}
        return cls(
            row=row,
            token=drafter.to_target_ids(row),
            logits=logits,
            lse=found.lse,
            logit_gap=gap * temperature if temperature else gap,
            columns=columns,
        )

    def with_drafts(self, drafter: Drafter, row: Int[Tensor, "round"], *, temperature: float = 0.0) -> Drafted:
        """The same step, had it drafted these rows of the draft vocabulary in place of the most probable."""
        logit = self.logits.gather(1, row[:, None])[:, 0].float()
        below = logit - self.columns["draft_logit"]
        return replace(
            self,
            row=row,
            token=drafter.to_target_ids(row),
            logit_gap=torch.where(row == self.row, self.logit_gap, below * temperature if temperature else below),
            columns=self.columns | {"draft_logit": logit},
        )

    def take(self, rows: Int[Tensor, "round"] | slice) -> Drafted:
        return Drafted(
            row=self.row[rows],
            token=self.token[rows],
            logits=self.logits[rows],
            lse=self.lse[rows],
            logit_gap=self.logit_gap[rows],
            columns={name: value[rows] for name, value in self.columns.items()},
        )


@dataclass(frozen=True)
class Fresh:
    """Depth 1 with true features at the slots first, first+1, ...: every start, and what later depths compare with."""

    first: int
    output: StepOutput
    drafted: Drafted
    recent: Float[Tensor, "slot depth layer head"]  # mass on the k-1 slots up to this one


def fresh_pass(
    drafter: Drafter,
    trace: TargetTrace,
    cache: SlotCache,
    regions: UInt8[Tensor, "token"],
    *,
    first: int,
    last: int,
    depth: int,
    rotation: Rotation | None = None,
) -> Fresh:
    """Depth 1 at the slots first .. last; `cache` holds at least these slots. `rotation`: as `step` takes it."""
    state = drafter.true_state(drafter.features(trace.aux, slice(first, last + 1)))  # [slot, hidden]
    output = step(drafter, cache, regions, trace.token_ids[first + 1 : last + 2], state, start=first, rotation=rotation)
    slots = torch.arange(first, last + 1, device=trace.token_ids.device)
    recent = [
        recent_masses(
            output.queries[i],
            cache.k[i],
            slots,
            output.masses[i].lse,
            scale=layer.scale,
            window=layer.window,
            depth=depth,
        )
        for i, layer in enumerate(drafter.layers)
    ]
    drafted = Drafted.from_step(drafter, output, temperature=trace.temperature)
    return Fresh(first, output, drafted, torch.stack(recent, dim=2))
