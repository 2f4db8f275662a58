"""RMSNorm as every drafter family here has it; its weight has transformers' name and start."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers.models.llama.modeling_llama import LlamaRMSNorm


class RMSNorm(LlamaRMSNorm):
    def forward(self, x: Float[Tensor, "*slot hidden"]) -> Float[Tensor, "*slot hidden"]:
        """Normed in float32, rounded to x's dtype, then scaled: transformers' roundings, by torch's fused kernel.

        The weight is not given to `rms_norm`, which would scale before it rounds.
        """
        return self.weight * rms_norm(x, x.shape[-1:], None, self.variance_epsilon)
