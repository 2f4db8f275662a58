"""EAGLE-3 and 3.1: f = fc(norms(g)) of several target layers g, the stream fed back before or after the final norm.

f is made once per verified token, never of fed-back states. Agrees with vLLM's `combine_hidden_states`
(llama_eagle3.py): `input_norm` over the whole concatenation first, then `fc_norm` per state. Without fc, g is the
target's state after its final norm and f is g.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probes.drafter.model import Drafter
from probes.drafter.norm import RMSNorm


class Eagle3(Drafter):
    """`fc`, `fc_norm` and `input_norm` stand beside the shared parts, so that the canonical names are flat."""

    def make_input(self) -> None:
        spec = self.spec
        width, eps = spec.target_hidden_size * spec.num_aux, spec.rms_norm_eps
        self.input_norm = RMSNorm(width, eps) if spec.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(RMSNorm(spec.target_hidden_size, eps) for _ in range(spec.num_aux))
            if spec.has_fc_norm
            else None
        )
        self.fc = nn.Linear(width, spec.hidden_size, bias=spec.has_fc_bias) if spec.has_fc else None

    def true_state(self, features: Float[Tensor, "*slot _"]) -> Float[Tensor, "*slot hidden"]:
        """f = fc(norms(g)); without fc the target's state itself."""
        return features if self.fc is None else self.fc(self._normed(features))

    def predict(
        self, stream: Float[Tensor, "*slot hidden"]
    ) -> tuple[Float[Tensor, "*slot draft_vocab"], Float[Tensor, "*slot hidden"]]:
        """Feeds back the stream before the final norm; with `norm_output` (EAGLE-3.1) the post-norm state."""
        normed = self.norm(stream)
        return self.logits(normed), normed if self.spec.norm_output else stream

    @property
    def nulls(self) -> dict[str, str]:
        return {} if self.spec.has_fc else {"fusion_share": "the drafter has no fc"}

    def feature_columns(self, features: Float[Tensor, "round _"]) -> dict[str, Tensor | None]:
        """How much of f each captured layer contributes (docs/architecture.md#fusion), all float32:

        `aux_norm` [round, aux]: ||g_i|| as captured, before any norm; `fusion_share` [round, aux]: <W_i g_i, f> / ||f||^2,
        signed, NaN where ||f|| = 0; `fusion_share_bias` [round]: <b, f> / ||f||^2, with which the shares sum to 1;
        `fusion_energy` [round, aux]: ||W_i g_i|| / sum_j ||W_j g_j||.
        """
        num_aux = self.spec.num_aux
        aux_norm = torch.stack([g.float().norm(dim=-1) for g in features.chunk(num_aux, dim=-1)], dim=-1)
        if self.fc is None:
            return {"fusion_share": None, "fusion_share_bias": None, "fusion_energy": None, "aux_norm": aux_norm}
        slices = self.fc.weight.chunk(num_aux, dim=-1)  # each [hidden, target_hidden]
        parts = self._normed(features).chunk(num_aux, dim=-1)
        # products in the model's dtype, everything after in float32
        terms = torch.stack(
            [(g @ w.T).float() for g, w in zip(parts, slices, strict=True)], dim=1
        )  # [round, aux, hidden]
        bias = None if self.fc.bias is None else self.fc.bias.float()
        fused = terms.sum(dim=1) if bias is None else terms.sum(dim=1) + bias
        square = fused.square().sum(dim=-1, keepdim=True)  # where it is 0, so are the products: NaN
        energy = terms.norm(dim=-1)
        return {
            "fusion_share": torch.einsum("rah,rh->ra", terms, fused) / square,
            "fusion_share_bias": None if bias is None else (fused @ bias) / square[:, 0],
            "fusion_energy": energy / energy.sum(dim=-1, keepdim=True),
            "aux_norm": aux_norm,
        }

    def _normed(self, features: Float[Tensor, "*slot _"]) -> Float[Tensor, "*slot _"]:
        """What fc reads."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.chunk(self.spec.num_aux, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return features
