"""The drafter's chains over a packed row of conversations, every slot a start, depth by depth: training and evaluation.

Row t0 is the chain that starts at slot t0. At depth k it stands at slot t0+k-1, reads embed(x[t0+k]) of the true text and
its own state of depth k-1 (at depth 1 the fused target states), and predicts x[t0+k+1]. With the text as input this is
EAGLE-3's training-time test; it is also exactly what an engine does up to and including the first wrong draft, because
until then the drafts are the text. Does not know the loss.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.drafter.model import Drafter
from training.attention import Packing

AttendChain = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Packing], Tensor]
"""`training.attention.attend_plain` or `attend_flash`."""
Tail = Callable[[int, Tensor, Tensor], Tensor]
"""(depth index, attended [row, heads * head_dim], residual [row, hidden]) -> the state that is fed back."""


def run_chains(
    drafter: Drafter,
    embeds: Float[Tensor, "token hidden"],
    aux: Float[Tensor, "token _"],
    positions: Int[Tensor, "token"],
    packing: Packing,
    depth: int,
    attend: AttendChain,
    tail: Tail,
    project: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]],
) -> None:
    """Calls `tail` at each depth for the first `len(packing.conversation)` tokens as starts.

    `embeds` must hold `depth` more tokens than there are starts. `project` = `drafter.layers[0].project`, compiled or
    not. One-layer drafters only: that is what is trained here.
    """
    num_starts = len(packing.conversation)
    hidden = drafter.true_state(aux[:num_starts])
    cos, sin = drafter.rotation(positions)
    own_k: list[Tensor] = []
    own_v: list[Tensor] = []
    for k in range(depth):  # index 0 is depth 1
        rotation = (cos[k : k + num_starts], sin[k : k + num_starts])  # slot t0+k, while that is the same conversation
        q, key, value, residual = project(embeds[k + 1 : k + 1 + num_starts], hidden, rotation)
        q, key, value = q.to(embeds.dtype), key.to(embeds.dtype), value.to(embeds.dtype)
        if k == 0:
            base_k, base_v = key, value
            own = key.new_empty(0, *key.shape)
            attended = attend(q, base_k, base_v, own, own, packing)
        else:
            own_k.append(key)
            own_v.append(value)
            attended = attend(q, base_k, base_v, torch.stack(own_k), torch.stack(own_v), packing)
        hidden = tail(k, attended.flatten(1), residual)
