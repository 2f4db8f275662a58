"""Where the target itself looks: its attention masses by region, layer by layer, at the positions of a response.

For `target_divergence`: the drafter's query at depth k is compared with the target's at position t+k. Works through
transformers' attention interface, whichever function a model uses, on one more pass over the response; probabilities are
made in blocks of queries. Layers without softmax attention do not go through it and are absent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from probes.attention.slots import SLOT_REGIONS, slot_regions
from probes.errors import InputError
from probes.record import TEXT_REGIONS
from probes.target.family import WINDOW_LAYER_TYPES
from probes.target.model import Target
from probes.target.prefix import Prefix
from probes.target.trace import TargetTrace

COMPARED_REGIONS = ("sink", *(r for r in TEXT_REGIONS if r != "response"), "response", "learned_sink")
"""own, current and response are one region here: the target has no chain of its own."""

QUERY_BLOCK = 64


class TargetMasses(NamedTuple):
    """Head-mean masses over COMPARED_REGIONS of the queries at positions P-1 .. N-2, each [position, compared_region]."""

    by_layer: dict[int, Tensor]
    full_mean: Tensor | None  # over the layers without a window; None where all have one


@torch.inference_mode()
def target_masses(
    target: Target, trace: TargetTrace, region: np.ndarray, *, sink_slots: int, prefix: Prefix | None = None
) -> TargetMasses:
    """One more pass over the response, on the cache of the prompt. `region` holds every token's.

    Every softmax layer that goes through transformers' attention interface is there. Raises InputError when none does.
    """
    first = trace.num_prompt_tokens - 1
    column = slot_regions(region, sink_slots=sink_slots, device=target.device)
    one_hot = nn.functional.one_hot(column.long(), len(SLOT_REGIONS)).float()  # [token, sink + TEXT_REGIONS]
    masses: dict[int, Tensor] = {}
    types = getattr(target.config, "layer_types", None) or ["full_attention"] * target.num_layers
    full_layers = {i for i, layer_type in enumerate(types) if layer_type not in WINDOW_LAYER_TYPES}

    def measure(module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, scale: float, options: Any) -> None:
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        masses[layer] = _region_masses(q[0], k[0], mask, one_hot, scale, options)
        if options.get("sliding_window") is not None:  # families with one window for all layers have no layer types
            full_layers.discard(layer)

    head = target.prefill(trace.token_ids[:first].cpu().numpy(), prefix=prefix)
    with _watched_attention(target.model, measure):
        target.forward(trace.token_ids[None, first:-1], head.fork())
    if not masses:
        raise InputError(
            f"no attention layer of this {target.config.model_type} target can be watched",
            code="target_attention_not_seen",
            remedy="leave out --target-attention",
        )
    full = [masses[i] for i in sorted(masses) if i in full_layers]
    return TargetMasses(masses, torch.stack(full).mean(dim=0) if full else None)


@contextmanager
def _watched_attention(model: PreTrainedModel, measure: Callable[..., None]) -> Iterator[None]:
    """Within: every attention call also goes to `measure`; its result is unchanged."""
    name = model.config.get_text_config()._attn_implementation
    known = ALL_ATTENTION_FUNCTIONS.get(name)

    def watched(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Any:
        scale = options.get("scaling") or q.shape[-1] ** -0.5
        measure(module, q, k, mask, scale, options)
        inner = known or sys.modules[type(module).__module__].eager_attention_forward
        return inner(module, q, k, v, mask, **options)

    mapping = type(ALL_ATTENTION_FUNCTIONS)._global_mapping
    mapping[name] = watched
    try:
        yield
    finally:
        if known is None:
            del mapping[name]
        else:
            mapping[name] = known


def _region_masses(
    q: Float[Tensor, "head query head_dim"],
    k: Float[Tensor, "kv_head slot head_dim"],
    mask: Tensor | None,
    one_hot: Float[Tensor, "token region"],  # of the whole text
    scale: float,
    options: dict[str, Any],
) -> Float[Tensor, "query _"]:
    """Head mean. Soft caps and learned sinks are those of the model's own eager attention."""
    num_queries, num_slots = q.shape[1], k.shape[1]
    k = k.float().repeat_interleave(q.shape[0] // k.shape[0], dim=0)
    window = options.get("sliding_window")
    slot = torch.arange(num_slots, device=q.device)
    rows = []
    for begin in range(0, num_queries, QUERY_BLOCK):
        block = q[:, begin : begin + QUERY_BLOCK].float()
        logits = block @ k.transpose(-1, -2) * scale  # [head, query, slot]
        if (cap := options.get("softcap")) is not None:
            logits = (logits / cap).tanh() * cap
        position = num_slots - num_queries + begin + torch.arange(block.shape[1], device=q.device)
        is_seen = slot <= position[:, None]
        if window is not None:
            is_seen &= slot > position[:, None] - window
        if mask is not None:
            own = mask[0, 0, begin : begin + QUERY_BLOCK, :num_slots]
            is_seen &= own if own.dtype == torch.bool else own >= 0
        logits = logits.masked_fill(~is_seen, -torch.inf)
        sinks = options.get("s_aux")
        if sinks is None:
            probability, sunk = logits.softmax(dim=-1), torch.zeros_like(logits[..., 0])
        else:
            column = sinks.float().view(-1, 1, 1).expand(-1, block.shape[1], 1)
            whole = torch.cat([logits, column], dim=-1).softmax(dim=-1)
            probability, sunk = whole[..., :-1], whole[..., -1]
        region = (probability @ one_hot[:num_slots]).mean(dim=0)  # [query, sink + TEXT_REGIONS]
        rows.append(_compared(region, sunk.mean(dim=0)))
    return torch.cat(rows)


def _compared(
    region: Float[Tensor, "*query region"], learned_sink: Float[Tensor, "*query"], own: Tensor | float = 0.0
) -> Float[Tensor, "*query _"]:
    """From sink + TEXT_REGIONS to COMPARED_REGIONS."""
    response = 1 + TEXT_REGIONS.index("response")
    others = [i for i in range(region.shape[-1]) if i != response]
    return torch.cat([region[..., others], (region[..., response] + own)[..., None], learned_sink[..., None]], dim=-1)


def compared_masses(
    region: Float[Tensor, "round depth region"], own_and_current: Float[Tensor, "round depth"]
) -> Float[Tensor, "round depth _"]:
    """A drafter's head-mean masses over COMPARED_REGIONS."""
    return _compared(region, torch.zeros_like(own_and_current), own_and_current)


def jensen_shannon(p: Float[Tensor, "*query region"], q: Float[Tensor, "*query region"]) -> Float[Tensor, "*query"]:
    """Divergence in bits, 0..1."""
    middle = (p + q) / 2

    def entropy(x: Tensor) -> Tensor:
        return torch.special.entr(x).sum(dim=-1)

    return ((entropy(middle) - (entropy(p) + entropy(q)) / 2) / np.log(2.0)).clamp(0.0, 1.0)
