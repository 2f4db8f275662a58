"""Target states -> drafter input: f = fc(norms(g)), and how much of f each captured layer contributes.

Done once per verified token, never on fed-back states. Knows nothing of attention. Agrees with vLLM's
`combine_hidden_states` (llama_eagle3.py): `input_norm` over the whole concatenation first, then `fc_norm` per state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probes.checkpoint.spec import DrafterSpec
from probes.drafter.norm import RMSNorm


class FusionShares(NamedTuple):
    """What each captured target layer puts into f, all float32; shares are signed and sum with the bias to 1."""

    share: Float[Tensor, "round aux"] | None  # <W_i g_i, f> / ||f||^2; NaN where ||f|| = 0; None without fc
    share_bias: Float[Tensor, "round"] | None  # <b, f> / ||f||^2; None without a bias
    energy: Float[Tensor, "round aux"] | None  # ||W_i g_i|| / sum_j ||W_j g_j||
    aux_norm: Float[Tensor, "round aux"]  # ||g_i|| as captured, before any norm


class Fusion(nn.Module):
    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.num_aux = spec.num_aux
        width = spec.target_hidden_size * spec.num_aux
        eps = spec.rms_norm_eps
        self.input_norm = RMSNorm(width, eps) if spec.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(RMSNorm(spec.target_hidden_size, eps) for _ in range(spec.num_aux))
            if spec.has_fc_norm
            else None
        )
        self.fc = nn.Linear(width, spec.hidden_size, bias=spec.has_fc_bias) if spec.has_fc else None

    def normed(self, aux: Float[Tensor, "*slot fused"]) -> Float[Tensor, "*slot fused"]:
        """What fc reads. `fused` = num_aux * target_hidden, low to high layer."""
        if self.input_norm is not None:
            aux = self.input_norm(aux)
        if self.fc_norm is not None:
            parts = aux.chunk(self.num_aux, dim=-1)
            aux = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return aux

    def forward(self, aux: Float[Tensor, "*slot fused"]) -> Float[Tensor, "*slot hidden"]:
        return aux if self.fc is None else self.fc(self.normed(aux))

    def shares(self, aux: Float[Tensor, "round fused"]) -> FusionShares:
        """Decomposes f over the captured layers (docs/architecture.md#fusion)."""
        aux_norm = torch.stack([g.float().norm(dim=-1) for g in aux.chunk(self.num_aux, dim=-1)], dim=-1)
        if self.fc is None:
            return FusionShares(None, None, None, aux_norm)
        slices = self.fc.weight.chunk(self.num_aux, dim=-1)  # each [hidden, target_hidden]
        parts = self.normed(aux).chunk(self.num_aux, dim=-1)
        # products in the model's dtype, everything after in float32
        terms = torch.stack(
            [(g @ w.T).float() for g, w in zip(parts, slices, strict=True)], dim=1
        )  # [round, aux, hidden]
        bias = None if self.fc.bias is None else self.fc.bias.float()
        fused = terms.sum(dim=1) if bias is None else terms.sum(dim=1) + bias
        square = fused.square().sum(dim=-1, keepdim=True)  # where it is 0, so are the products: NaN
        energy = terms.norm(dim=-1)
        return FusionShares(
            share=torch.einsum("rah,rh->ra", terms, fused) / square,
            share_bias=None if bias is None else (fused @ bias) / square[:, 0],
            energy=energy / energy.sum(dim=-1, keepdim=True),
            aux_norm=aux_norm,
        )
