"""The Qwen3-type EAGLE-3 decoder layer: Llama's, with an RMSNorm over each head of q and k before RoPE.

Agrees with vLLM 0.26-0.33 `qwen3_eagle3.py` and with transformers' Qwen3 layer (float64 tests of both kinds).
"""

from __future__ import annotations

from torch import Tensor

from probes.checkpoint.spec import DrafterSpec
from probes.drafter.layers.llama import LlamaAttentionProjections, LlamaDrafterLayer, Projected, Rotation, rotated
from probes.drafter.norm import RMSNorm


class Qwen3AttentionProjections(LlamaAttentionProjections):
    def __init__(self, spec: DrafterSpec, input_size: int) -> None:
        super().__init__(spec, input_size)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)


class Qwen3DrafterLayer(LlamaDrafterLayer):
    projections = Qwen3AttentionProjections
    self_attn: Qwen3AttentionProjections

    def heads(self, projected: Projected, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """q and k after their norms and RoPE; as `LlamaDrafterLayer.heads` otherwise."""
        q, k, v = self.split(projected)
        attn = self.self_attn
        return *rotated(attn.q_norm(q), attn.k_norm(k), rotation), v
