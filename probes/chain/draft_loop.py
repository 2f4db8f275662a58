"""K draft steps for a batch of requests, as an engine makes them: keys and values in buffers of fixed size.

Slot t+k-1 holds the own-chain key of depth k until the next round overwrites it with the true feature's. Nothing is
measured here (`live` records afterwards), no shape changes from round to round and the host waits for nothing, so on
a CUDA device all K steps are one captured graph. Knows no target and no acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from probes.chain.step import SlotCache, check_length
from probes.drafter.model import Drafter

NUM_WARMUPS = 2
"""Runs before a capture: libraries allocate their workspaces in the first."""


class DraftInputs(NamedTuple):
    """What a round needs. K + 1 columns; those of a row beyond its `num_new` are anything finite."""

    token_ids: Int[Tensor, "row slot"]  # x[t+1] of the slots that are new since the last round, and of the start
    features: Float[Tensor, "row slot _"]  # of those slots
    first: Int[Tensor, "row"]  # the first new slot
    num_new: Int[Tensor, "row"]  # at least 1; the last one is the start t of this round
    noise: Float[Tensor, "row depth draft_vocab"] | None  # exponential, for probabilistic drafts


class Drafts(NamedTuple):
    """Rows of the draft vocabulary, their target ids, and of probabilistic drafts the logits they were drawn from."""

    row: Int[Tensor, "row depth"]
    token: Int[Tensor, "row depth"]
    logits: Float[Tensor, "row depth draft_vocab"] | None


class DraftLoop:
    """`caches`: the true-feature slots of each request's prompt. `num_slots`: the most that a request will have, the K - 1
    of its last chain included. `temperature` above 0 draws drafts from softmax(logits / temperature), else argmax.

    Raises InputError for rope that depends on length, as `chain.prefill` does.
    """

    def __init__(
        self,
        drafter: Drafter,
        caches: Sequence[SlotCache],
        *,
        depth: int,
        num_slots: int,
        temperature: float = 0.0,
        use_graph: bool = True,
    ) -> None:
        check_length(drafter, num_slots)
        self.drafter, self.depth, self.temperature = drafter, depth, temperature
        device = drafter.norm.weight.device
        self.use_graph = use_graph and device.type == "cuda"
        self.k: list[Float[Tensor, "row kv_head slot head_dim"]] = []
        self.v: list[Float[Tensor, "row kv_head slot value_dim"]] = []
        for index in range(len(drafter.layers)):
            for buffers, name in ((self.k, "k"), (self.v, "v")):
                parts = [getattr(cache, name)[index] for cache in caches]  # each [slot, kv_head, head_dim]
                # zeros, not `empty`: a masked slot has probability 0, and 0 * NaN would still be NaN
                buffer = parts[0].new_zeros(len(caches), parts[0].shape[1], num_slots, parts[0].shape[2])
                for row, part in enumerate(parts):
                    buffer[row, :, : len(part)] = part.transpose(0, 1)
                buffers.append(buffer)
        self._rows = torch.arange(len(caches), device=device)[:, None]
        self._captured: tuple[torch.cuda.CUDAGraph, DraftInputs, Drafts] | None = None

    def draft(self, inputs: DraftInputs, *, num_slots: int) -> Drafts:
        """`num_slots`: how many first slots any row can look at in this round. A captured round looks at all.

        With a graph the drafts stand in its buffers: they are the next round's after the next call.
        """
        if not self.use_graph:
            return self._draft(inputs, num_slots)
        if self._captured is None:
            self._captured = self._capture(inputs)
        graph, kept, drafts = self._captured
        for held, given in zip(kept, inputs, strict=True):
            if held is not None and given is not None:
                held.copy_(given)
        graph.replay()
        return drafts

    def _capture(self, inputs: DraftInputs) -> tuple[torch.cuda.CUDAGraph, DraftInputs, Drafts]:
        """A round writes the same slots with the same values however often it runs: warming up changes nothing."""
        kept = inputs._replace(**{name: x.clone() for name, x in inputs._asdict().items() if x is not None})
        num_slots = self.k[0].shape[2]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(NUM_WARMUPS):
                self._draft(kept, num_slots)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            drafts = self._draft(kept, num_slots)
        return graph, kept, drafts

    def _draft(self, inputs: DraftInputs, num_slots: int) -> Drafts:
        new = torch.arange(inputs.token_ids.shape[1], device=inputs.token_ids.device)
        start = inputs.first + inputs.num_new - 1  # t
        state = self.drafter.true_state(inputs.features)  # [row, new, hidden]
        stream = self._forward(inputs.token_ids, state, inputs.first[:, None] + new, num_slots)
        stream = stream[self._rows[:, 0], inputs.num_new - 1]  # [row, hidden]
        rows, tokens, kept = [], [], []
        for k in range(1, self.depth + 1):
            logits, feedback = self.drafter.predict(stream)
            scores = logits
            if self.temperature > 0:
                assert inputs.noise is not None
                scores = logits.float() / self.temperature - inputs.noise[:, k - 1].log()
                kept.append(logits)
            rows.append(scores.argmax(dim=-1))
            tokens.append(self.drafter.to_target_ids(rows[-1]))
            if k < self.depth:
                slot = (start + k)[:, None]
                stream = self._forward(tokens[-1][:, None], feedback[:, None], slot, num_slots)[:, 0]
        return Drafts(torch.stack(rows, dim=1), torch.stack(tokens, dim=1), torch.stack(kept, dim=1) if kept else None)

    def _forward(
        self,
        token_ids: Int[Tensor, "row slot"],
        state: Float[Tensor, "row slot hidden"],
        slots: Int[Tensor, "row slot"],
        num_slots: int,
    ) -> Float[Tensor, "row slot hidden"]:
        """The stream after the last layer; keys and values of these slots are written on the way."""
        embeds, hidden = self.drafter.enter(token_ids, state)
        rotation = self.drafter.rotation(slots)
        slot = torch.arange(num_slots, device=slots.device)
        for index, layer in enumerate(self.drafter.layers):
            q, k, v, residual = layer.project(embeds, hidden, rotation)  # [row, new, head, head_dim]
            self.k[index][self._rows, :, slots] = k
            self.v[index][self._rows, :, slots] = v
            is_seen = slot <= slots[:, None, :, None]  # [row, 1, new, slot]
            if layer.window is not None:
                is_seen &= slot > slots[:, None, :, None] - layer.window
            attended = scaled_dot_product_attention(
                q.transpose(1, 2),
                self.k[index][:, :, :num_slots],
                self.v[index][:, :, :num_slots],
                attn_mask=is_seen,
                scale=layer.scale,
                enable_gqa=True,
            )
            hidden = layer.finish(attended.transpose(1, 2).flatten(-2), residual)
        return hidden
