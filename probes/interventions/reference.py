"""Two targets on one text: how far the states that a drafter reads have moved, and in which way."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from probes.record import PromptRecord, TargetStates
from probes.target.trace import TargetTrace


def compare_states(record: PromptRecord, trace: TargetTrace, reference: TargetTrace) -> Iterator[TargetStates]:
    """One row for each boundary that both traces hold. Position 0 is left out: many targets park one huge state there."""
    for index in sorted(trace.aux.keys() & reference.aux.keys()):
        num = min(len(trace.aux[index]), len(reference.aux[index]))
        ours, theirs = trace.aux[index][1:num].float(), reference.aux[index][1:num].float()
        if len(ours) < 2:
            continue
        yield TargetStates(
            system_prompt=record.system_prompt,
            template=record.template,
            context_tokens=record.context_tokens,
            prompt_id=record.prompt_id,
            aux_layer_id=index,
            num_positions=len(ours),
            cosine=float(torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).mean()),
            norm_ratio=float((ours.norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-12)).mean()),
            gram_similarity=gram_similarity(ours, theirs),
        )


def gram_similarity(a: Float[Tensor, "token hidden"], b: Float[Tensor, "token hidden"]) -> float:
    """Linear centred kernel alignment (arXiv 1905.00414, eq. 3), 0..1: 1 where one is the other rotated or scaled."""
    a, b = a.double() - a.double().mean(dim=0), b.double() - b.double().mean(dim=0)
    scale = (a.T @ a).norm() * (b.T @ b).norm()
    return float((a.T @ b).square().sum() / scale) if scale > 0 else 0.0
