"""The Llama-type EAGLE-3 decoder layer. Layer 0 reads [embedding, state]; later layers are ordinary Llama layers.

Attention is not computed here: `project` gives q, k, v, the caller attends, `finish` adds both branches. Agrees with
vLLM 0.26-0.33 `llama_eagle3.py` and SafeAILab `cnets.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from probes.checkpoint.spec import DrafterSpec


class Projection(NamedTuple):
    q: Float[Tensor, "*slot head head_dim"]
    k: Float[Tensor, "*slot kv_head head_dim"]
    v: Float[Tensor, "*slot kv_head head_dim"]
    residual: Float[Tensor, "*slot hidden"]


def rotary_embedding(spec: DrafterSpec) -> LlamaRotaryEmbedding:
    """transformers' own rope (every rope_type it knows), read from the *draft* config only."""
    config = LlamaConfig(
        hidden_size=spec.num_heads * spec.head_dim,  # rope reads head_dim alone; the config wants a multiple of it
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_position_embeddings,
        rope_parameters=dict(spec.rope_parameters),
    )
    return LlamaRotaryEmbedding(config)


class LlamaMLP(nn.Module):
    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)
        self.act = ACT2FN[spec.hidden_act]

    def forward(self, x: Float[Tensor, "*slot hidden"]) -> Float[Tensor, "*slot hidden"]:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class LlamaAttentionProjections(nn.Module):
    def __init__(self, spec: DrafterSpec, input_size: int) -> None:
        super().__init__()
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.q_proj = nn.Linear(input_size, q_size, bias=spec.attention_bias)
        self.k_proj = nn.Linear(input_size, kv_size, bias=spec.attention_bias)
        self.v_proj = nn.Linear(input_size, kv_size, bias=spec.attention_bias)
        self.o_proj = nn.Linear(q_size, spec.hidden_size, bias=spec.has_o_proj_bias)


class LlamaDrafterLayer(nn.Module):
    def __init__(self, spec: DrafterSpec, index: int) -> None:
        super().__init__()
        self.index = index
        self.head_dim = spec.head_dim
        self.window = spec.sliding_window[index]
        self.norm_before_residual = spec.norm_before_residual
        size, eps = spec.hidden_size, spec.rms_norm_eps
        self.input_layernorm = LlamaRMSNorm(size, eps)
        self.hidden_norm = LlamaRMSNorm(size, eps) if index == 0 and spec.has_hidden_norm else None
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)
        self.self_attn = LlamaAttentionProjections(spec, 2 * size if index == 0 else size)
        self.mlp = LlamaMLP(spec)

    def read(
        self, embeds: Float[Tensor, "*slot hidden"], hidden: Float[Tensor, "*slot hidden"]
    ) -> tuple[Float[Tensor, "*slot input"], Float[Tensor, "*slot hidden"]]:
        """-> (what q, k, v read, the residual). The residual never contains the embedding."""
        if self.index > 0:
            return self.input_layernorm(hidden), hidden
        normed = hidden if self.hidden_norm is None else self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        return torch.cat([self.input_layernorm(embeds), normed], dim=-1), residual

    def project(
        self,
        embeds: Float[Tensor, "*slot hidden"],
        hidden: Float[Tensor, "*slot hidden"],
        rotation: tuple[Float[Tensor, "*slot head_dim"], Float[Tensor, "*slot head_dim"]],
    ) -> Projection:
        """q and k after RoPE; `rotation` = `Drafter.rotation(positions)`. `embeds` is read by layer 0 only."""
        x, residual = self.read(embeds, hidden)
        attn = self.self_attn
        q = attn.q_proj(x).unflatten(-1, (-1, self.head_dim))
        k = attn.k_proj(x).unflatten(-1, (-1, self.head_dim))
        v = attn.v_proj(x).unflatten(-1, (-1, self.head_dim))
        q, k = apply_rotary_pos_emb(q, k, *rotation, unsqueeze_dim=-2)
        return Projection(q, k, v, residual)

    def attention_branch(self, attended: Float[Tensor, "*slot attended"]) -> Float[Tensor, "*slot hidden"]:
        """What attention adds to the residual; `attended` = heads * head_dim."""
        return self.self_attn.o_proj(attended)

    def mlp_branch(self, stream: Float[Tensor, "*slot hidden"]) -> Float[Tensor, "*slot hidden"]:
        """What the MLP adds to the residual."""
        return self.mlp(self.post_attention_layernorm(stream))

    def finish(
        self, attended: Float[Tensor, "*slot attended"], residual: Float[Tensor, "*slot hidden"]
    ) -> Float[Tensor, "*slot hidden"]:
        """The residual stream leaving the layer (before the final norm)."""
        stream = residual + self.attention_branch(attended)
        return stream + self.mlp_branch(stream)

    def embed_share(
        self, embeds: Float[Tensor, "*slot hidden"], hidden: Float[Tensor, "*slot hidden"]
    ) -> Float[Tensor, "*slot"] | None:
        """Signed share of the embedding half in the stacked q, k, v projection, float32; None beyond layer 0.

        <W_e e, W [e, n]> / ||W [e, n]||^2 before RoPE and bias.
        """
        if self.index > 0:
            return None
        x, _ = self.read(embeds, hidden)
        attn, size = self.self_attn, embeds.shape[-1]
        weight = torch.cat([attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight])
        from_embed = linear(x[..., :size], weight[:, :size]).float()  # products in the model's dtype, sums in float32
        total = from_embed + linear(x[..., size:], weight[:, size:]).float()
        inner, square = torch.linalg.vecdot(from_embed, total), torch.linalg.vecdot(total, total)
        return inner / torch.where(square > 0, square, torch.nan)
