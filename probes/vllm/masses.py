"""Region masses of one decode step, read from vLLM's paged keys: the reference in plain torch, and the choice of kernel.

The query of a row stands at slot `position` and sees the slots of its request up to that one (a window of them). Codes are
indices into `record.REGIONS`, in its precedence. Knows nothing of vLLM but that keys come in blocks.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.record import REGIONS
from probes.vllm.boundaries import CURRENT, FIRST_TEXT_REGION, OWN, RESPONSE, SINK, UNKNOWN, Boundaries, Queries


def write_masses(
    queries: Queries,
    boundaries: Boundaries,
    *,
    start: Int[Tensor, "row"],
    step: Int[Tensor, ""],
    layer: int,
    mass: Float[Tensor, "row depth layer head region"],
    entropy: Float[Tensor, "row depth layer head"],
    scratch: Tensor | None,
) -> None:
    """Writes the masses of depth `step` + 1. A `mass` with one head gets the mean over heads.

    `start` is slot t of each row; at step 0 it is the query's own slot and is not read.
    """
    if queries.q.device.type == "cuda":
        from probes.vllm.masses_triton import launch

        launch(queries, boundaries, start=start, step=step, layer=layer, mass=mass, entropy=entropy, scratch=scratch)
        return
    depth = int(step)
    for row in range(queries.num_rows):
        if int(boundaries.slot[row]) < 0:
            continue
        token = row if queries.rows is None else int(queries.rows[row])
        position = int(queries.positions[token])
        first = position if depth == 0 else int(start[row])
        codes = region_codes(boundaries, row, position, first)
        by_head, h = masses_of(queries, row, token, position, codes)
        is_mean = mass.shape[3] == 1
        mass[row, depth, layer] = by_head.mean(dim=0, keepdim=True) if is_mean else by_head
        entropy[row, depth, layer] = h.mean(dim=0, keepdim=True) if is_mean else h


def region_codes(boundaries: Boundaries, row: int, position: int, start: int) -> Int[Tensor, "slot"]:
    """Index into REGIONS of the slots 0 .. position."""
    slot = int(boundaries.slot[row])
    num_prompt = int(boundaries.num_prompt_tokens[slot])
    codes = torch.full((position + 1,), UNKNOWN, device=boundaries.slot.device)
    if boundaries.region is not None:
        known = boundaries.region[slot, : min(num_prompt, position + 1)].long()
        codes[: len(known)] = known + FIRST_TEXT_REGION
    codes[num_prompt:] = RESPONSE
    codes[: boundaries.num_sink_slots] = SINK
    codes[start] = CURRENT
    codes[start + 1 :] = OWN
    return codes


def masses_of(
    queries: Queries, row: int, token: int, position: int, codes: Int[Tensor, "slot"]
) -> tuple[Float[Tensor, "head region"], Float[Tensor, "head"]]:
    """-> (masses, entropy in nats), both float32."""
    block_slots = queries.keys.shape[1]
    blocks = queries.block_table[row, : position // block_slots + 1].long()
    keys = queries.keys[blocks].flatten(0, 1)[: position + 1].float()
    q = queries.q[token].float()
    repeats = q.shape[0] // keys.shape[1]
    logits = torch.einsum("hd,shd->hs", q, keys.repeat_interleave(repeats, dim=1)) * queries.scale
    if queries.window is not None:
        logits[:, : max(0, position + 1 - queries.window)] = -torch.inf
    probability = logits.softmax(dim=-1)
    by_region = probability.new_zeros(q.shape[0], len(REGIONS)).index_add_(1, codes, probability)
    return by_region, torch.special.entr(probability).sum(dim=-1)
