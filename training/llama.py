"""A Llama target as one plain function over flat tokens, fast enough to write and to read tens of millions of them.

Does not know how tokens are packed, cached or masked: attention is given from outside. Serves generation (one token for
each of thousands of conversations, keys in a static cache) and training (many conversations packed into one row).
transformers' own model is what it must agree with (tested); `probes.target.model` measures with that one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [token, head, head_dim], k, v [token, kv_head, head_dim], after RoPE) -> [token, head, head_dim]."""


class Layer(NamedTuple):
    input_norm: Tensor
    qkv: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Llama:
    """The weights of a Hugging Face folder (dense Llama, default RoPE, no biases), fused where that saves a launch."""

    def __init__(
        self,
        folder: Path,
        *,
        device: str | torch.device,
        dtype: torch.dtype = torch.bfloat16,
        is_compiled: bool = False,  # fuses the small operations; for one number of tokens, again and again
    ) -> None:
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = {name: w.to(device, dtype) for name, w in load_file(folder / "model.safetensors").items()}
        self.num_layers = int(self.config["num_hidden_layers"])
        self.num_heads = int(self.config["num_attention_heads"])
        self.num_kv_heads = int(self.config["num_key_value_heads"])
        self.head_dim = int(self.config["head_dim"])
        self.eps = float(self.config["rms_norm_eps"])
        self.embedding = weights["model.embed_tokens.weight"]
        self.lm_head = weights.get("lm_head.weight", self.embedding)  # tied when absent
        self.norm = weights["model.norm.weight"]

        def layer(i: int) -> Layer:
            def w(name: str) -> Tensor:
                return weights[f"model.layers.{i}.{name}.weight"]

            return Layer(
                w("input_layernorm"),
                torch.cat([w("self_attn.q_proj"), w("self_attn.k_proj"), w("self_attn.v_proj")]),
                w("self_attn.o_proj"),
                w("post_attention_layernorm"),
                torch.cat([w("mlp.gate_proj"), w("mlp.up_proj")]),
                w("mlp.down_proj"),
            )

        self.rotate = torch.compile(_rotate) if is_compiled else _rotate
        self.gate = torch.compile(_gate) if is_compiled else _gate
        self.layers = [layer(i) for i in range(self.num_layers)]
        half = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float64) / self.head_dim
        frequency = float(self.config["rope_parameters"]["rope_theta"]) ** -half
        angle = torch.outer(torch.arange(int(self.config["max_position_embeddings"]), device=device), frequency)
        self.cos = torch.cat([angle.cos(), angle.cos()], dim=-1).to(dtype)[:, None]  # [position, 1, head_dim]
        self.sin = torch.cat([-angle.sin(), angle.sin()], dim=-1).to(dtype)[:, None]  # sign of rotate-half included

    def states(
        self,
        ids: Int[Tensor, "token"],
        positions: Int[Tensor, "token"],
        attend: Attend,
        *,
        capture: Sequence[int] = (),
    ) -> tuple[Float[Tensor, "token hidden"], list[Float[Tensor, "token hidden"]]]:
        """-> (post-norm final states, the residual streams entering the layers in `capture`, in ascending order)."""
        cos, sin = self.cos[positions], self.sin[positions]
        sizes = [n * self.head_dim for n in (self.num_heads, self.num_kv_heads, self.num_kv_heads)]
        stream = self.embedding[ids]
        captured = []
        for i, layer in enumerate(self.layers):
            if i in capture:
                captured.append(stream)
            x = F.linear(self._rms_norm(stream, layer.input_norm), layer.qkv)
            q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in x.split(sizes, dim=-1))
            attended = attend(i, *self.rotate(q, k, cos, sin), v)
            stream = stream + F.linear(attended.flatten(-2), layer.o)
            x = F.linear(self._rms_norm(stream, layer.mlp_norm), layer.gate_up)
            stream = stream + F.linear(self.gate(x), layer.down)
        return self._rms_norm(stream, self.norm), captured

    def logits(self, states: Float[Tensor, "token hidden"]) -> Float[Tensor, "token vocab"]:
        """float32, also from bfloat16 weights: bfloat16 logits tie, and greedy text would follow the ties."""
        if states.dtype == torch.float32:
            return F.linear(states, self.lm_head)
        if states.device.type == "cuda":
            return torch.mm(states, self.lm_head.T, out_dtype=torch.float32)
        return F.linear(states.float(), self.lm_head.float())

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """RoPE; `sin` carries the sign of rotate-half."""
    (q1, q2), (k1, k2) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
    return q * cos + torch.cat([q2, q1], dim=-1) * sin, k * cos + torch.cat([k2, k1], dim=-1) * sin


def _gate(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
