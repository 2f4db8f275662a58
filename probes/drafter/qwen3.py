"""The Qwen3-type EAGLE-3 decoder layer: Llama's, with an RMSNorm over each head of q and k before RoPE.

Agrees with vLLM 0.26-0.33 `qwen3_eagle3.py` and with transformers' Qwen3 layer (float64 tests of both kinds).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from probes.checkpoint.spec import DrafterSpec
from probes.drafter.llama import LlamaAttentionProjections, LlamaDrafterLayer, Projection


class Qwen3AttentionProjections(LlamaAttentionProjections):
    def __init__(self, spec: DrafterSpec, input_size: int) -> None:
        super().__init__(spec, input_size)
        self.q_norm = LlamaRMSNorm(spec.head_dim, spec.rms_norm_eps)
        self.k_norm = LlamaRMSNorm(spec.head_dim, spec.rms_norm_eps)


class Qwen3DrafterLayer(LlamaDrafterLayer):
    def __init__(self, spec: DrafterSpec, index: int) -> None:
        super().__init__(spec, index)
        self.self_attn = Qwen3AttentionProjections(spec, 2 * spec.hidden_size if index == 0 else spec.hidden_size)

    def project(
        self,
        embeds: Float[Tensor, "*slot hidden"],
        hidden: Float[Tensor, "*slot hidden"],
        rotation: tuple[Float[Tensor, "*slot head_dim"], Float[Tensor, "*slot head_dim"]],
    ) -> Projection:
        """q and k after their norms and RoPE; as `LlamaDrafterLayer.project` otherwise."""
        x, residual = self.read(embeds, hidden)
        attn = self.self_attn
        q = attn.q_norm(attn.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        k = attn.k_norm(attn.k_proj(x).unflatten(-1, (-1, self.head_dim)))
        v = attn.v_proj(x).unflatten(-1, (-1, self.head_dim))
        q, k = apply_rotary_pos_emb(q, k, *rotation, unsqueeze_dim=-2)
        return Projection(q, k, v, residual)
