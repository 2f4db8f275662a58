"""The Llama-type decoder layer. EAGLE-3's layer 0 reads [embedding, state]; later layers are ordinary Llama layers.

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
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from probes.attention.kernel import has_triton
from probes.checkpoint.spec import DrafterSpec
from probes.drafter.norm import RMSNorm

Rotation = tuple[Float[Tensor, "*slot head_dim"], Float[Tensor, "*slot head_dim"]]
"""cos and sin of RoPE by position."""


def has_layer_kernels(x: Tensor) -> bool:
    """Whether `rope_kernel` and `share_kernel` take x: a CUDA device with Triton, no float64, nothing to differentiate."""
    needs_grad = torch.is_grad_enabled() and x.requires_grad
    return x.is_cuda and not needs_grad and x.dtype != torch.float64 and has_triton()


def rotated(q: Tensor, k: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """q [*slot, head, d] and k [*slot, kv_head, d] after RoPE."""
    if has_layer_kernels(q) and rotation[0].dtype == q.dtype:
        from probes.drafter.layers.rope_kernel import rotate

        return rotate(q, k, *rotation)
    return apply_rotary_pos_emb(q, k, *rotation, unsqueeze_dim=-2)


class Projected(NamedTuple):
    """The three products, biases included, before any norm of a head and before RoPE: [*slot, heads * their size]."""

    q: Float[Tensor, "*slot _"]
    k: Float[Tensor, "*slot _"]
    v: Float[Tensor, "*slot _"]


class Projection(NamedTuple):
    q: Float[Tensor, "*slot head head_dim"]
    k: Float[Tensor, "*slot kv_head head_dim"]
    v: Float[Tensor, "*slot kv_head value_dim"]
    residual: Float[Tensor, "*slot hidden"]


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
    """`reads_embedding`: whether the layer reads [embedding, state]; else it is an ordinary Llama layer."""

    projections = LlamaAttentionProjections

    def __init__(self, spec: DrafterSpec, index: int, *, reads_embedding: bool) -> None:
        super().__init__()
        self.reads_embedding = reads_embedding
        self.head_dim = self.value_dim = spec.head_dim  # of queries and keys, and of values
        self.scale = spec.head_dim**-0.5  # of the attention logits
        self.window = spec.sliding_window[index]
        self.norm_before_residual = spec.norm_before_residual
        size, eps = spec.hidden_size, spec.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.hidden_norm = RMSNorm(size, eps) if reads_embedding and spec.has_hidden_norm else None
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.self_attn = self.projections(spec, 2 * size if reads_embedding else size)
        self.mlp = LlamaMLP(spec)

    @staticmethod
    def rotary(spec: DrafterSpec) -> nn.Module:
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

    def read(
        self, embeds: Float[Tensor, "*slot hidden"], hidden: Float[Tensor, "*slot hidden"]
    ) -> tuple[Float[Tensor, "*slot _"], Float[Tensor, "*slot hidden"]]:
        """-> (what q, k, v read, the residual). The residual never contains the embedding."""
        if not self.reads_embedding:
            return self.input_layernorm(hidden), hidden
        normed = hidden if self.hidden_norm is None else self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        return torch.cat([self.input_layernorm(embeds), normed], dim=-1), residual

    def project(
        self, embeds: Float[Tensor, "*slot hidden"], hidden: Float[Tensor, "*slot hidden"], rotation: Rotation
    ) -> Projection:
        """q and k after RoPE; `rotation` = `Drafter.rotation(positions)`. `embeds`: for `reads_embedding` alone."""
        x, residual = self.read(embeds, hidden)
        return Projection(*self.heads(self.products(x), rotation), residual)

    def products(self, x: Float[Tensor, "*slot _"]) -> Projected:
        """The projections of what `read` gives."""
        attn = self.self_attn
        return Projected(attn.q_proj(x), attn.k_proj(x), attn.v_proj(x))

    def heads(self, projected: Projected, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v by head, q and k after RoPE."""
        q, k, v = self.split(projected)
        return *rotated(q, k, rotation), v

    def split(self, projected: Projected) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v by head, before RoPE."""
        sizes = (self.head_dim, self.head_dim, self.value_dim)
        q, k, v = (x.unflatten(-1, (-1, size)) for x, size in zip(projected, sizes, strict=True))
        return q, k, v

    def attention_branch(self, attended: Float[Tensor, "*slot _"]) -> Float[Tensor, "*slot hidden"]:
        """What attention adds to the residual; `attended` [*slot, heads * value_dim]."""
        return self.self_attn.o_proj(attended)

    def mlp_branch(self, stream: Float[Tensor, "*slot hidden"]) -> Float[Tensor, "*slot hidden"]:
        """What the MLP adds to the residual."""
        return self.mlp(self.post_attention_layernorm(stream))

    def finish(
        self, attended: Float[Tensor, "*slot _"], residual: Float[Tensor, "*slot hidden"]
    ) -> Float[Tensor, "*slot hidden"]:
        """The residual stream leaving the layer (before the final norm)."""
        stream = residual + self.attention_branch(attended)
        return stream + self.mlp_branch(stream)

    def embed_share(self, x: Float[Tensor, "*slot _"], projected: Projected) -> Float[Tensor, "*slot"]:
        """Signed share of the embedding half in layer 0's stacked q, k, v products, float32; NaN where these are 0.

        <W_e e, W [e, n]> / ||W [e, n]||^2 before RoPE and bias, of what `read` and `products` gave. Products in the model's
        dtype, sums in float32.
        """
        attn, wide = self.self_attn, torch.promote_types(x.dtype, torch.float32)
        layers, size = (attn.q_proj, attn.k_proj, attn.v_proj), x.shape[-1] // 2
        from_embed = linear(x[..., :size], torch.cat([layer.weight[:, :size] for layer in layers]))
        biases = None if attn.q_proj.bias is None else tuple(layer.bias for layer in layers)
        if has_layer_kernels(x):
            from probes.drafter.layers.share_kernel import share

            return share(from_embed, projected, biases)
        total = torch.cat(projected, dim=-1)
        if biases is not None:
            total = total.to(wide) - torch.cat(biases)
        square = torch.linalg.vector_norm(total, dim=-1, dtype=wide).square()
        return (from_embed.to(wide) * total).sum(dim=-1) / square
