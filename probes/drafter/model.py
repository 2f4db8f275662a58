"""A whole drafter as a torch module; its state dict uses the canonical names of `probes.checkpoint.spec`.

Knows neither caches nor attention masks. `Drafter.load` makes one from a checkpoint, `Drafter(spec)` a fresh one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from probes.checkpoint.spec import DrafterSpec
from probes.drafter.fusion import Fusion
from probes.drafter.layers.llama import LlamaDrafterLayer, Rotation, rotary_embedding
from probes.drafter.layers.qwen3 import Qwen3DrafterLayer
from probes.drafter.norm import RMSNorm
from probes.errors import CheckpointError

LAYER_FAMILIES = {"llama": LlamaDrafterLayer, "qwen3": Qwen3DrafterLayer}


class Drafter(Fusion):
    """fuse -> layers -> predict. Inherits `fc`, `fc_norm` and `input_norm` so that the canonical names are flat."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__(spec)
        self.spec = spec
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(LAYER_FAMILIES[spec.family](spec, i) for i in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.lm_head = nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False)
        self.d2t = nn.Buffer(torch.zeros(spec.draft_vocab_size, dtype=torch.int64))
        self.rotary = rotary_embedding(spec)

    @classmethod
    def load(
        cls,
        spec: DrafterSpec,
        tensors: Mapping[str, Tensor],
        *,
        target_embedding: Float[Tensor, "vocab hidden"] | None = None,
        target_lm_head: Float[Tensor, "vocab hidden"] | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Drafter:
        """A drafter in evaluation mode. The target's embedding and lm_head stand in where the checkpoint has none.

        Raises CheckpointError when a tensor is missing, unknown or of another shape.
        """
        state = {name: tensor for name, tensor in tensors.items() if name != "t2d"}
        for name, shared in (("embed_tokens.weight", target_embedding), ("lm_head.weight", target_lm_head)):
            if name not in state and shared is not None:
                state[name] = shared
        state.setdefault("d2t", torch.zeros(spec.draft_vocab_size, dtype=torch.int64))
        state = {name: t.to(device, torch.int64 if name == "d2t" else dtype) for name, t in state.items()}
        with torch.device("meta"):
            drafter = cls(spec)
        drafter.rotary = rotary_embedding(spec).to(device)  # computed, never stored: it must not stay on meta
        try:
            drafter.load_state_dict(state, strict=True, assign=True)
        except RuntimeError as error:
            raise CheckpointError(
                f"the {spec.producer} checkpoint's tensors do not fit the drafter: {error}",
                code="tensors_do_not_fit",
                remedy="`driftscope check` lists what is missing, unused or mis-shaped",
            ) from error
        return drafter.eval().requires_grad_(False)

    def embed(self, token_ids: Int[Tensor, "*slot"]) -> Float[Tensor, "*slot hidden"]:
        """Embeddings of target ids."""
        return self.embed_tokens(token_ids)

    def fuse(self, aux: Float[Tensor, "*slot fused"]) -> Float[Tensor, "*slot hidden"]:
        """f = fc(norms(g)); without fc the target's state itself."""
        return Fusion.forward(self, aux)

    def rotation(self, positions: Int[Tensor, "*slot"]) -> Rotation:
        """cos and sin of RoPE at these positions, for `layers[i].project`. Slot t stands at position t."""
        flat = positions.reshape(1, -1)
        cos, sin = self.rotary(self.norm.weight, flat)  # the first argument only gives dtype and device
        return cos[0].view(*positions.shape, -1), sin[0].view(*positions.shape, -1)

    def predict(
        self, stream: Float[Tensor, "*slot hidden"]
    ) -> tuple[Float[Tensor, "*slot draft_vocab"], Float[Tensor, "*slot hidden"]]:
        """-> (logits over the draft vocabulary, the state fed back at the next depth).

        EAGLE-3 feeds back the stream before the final norm; with `norm_output` (EAGLE-3.1) the post-norm state.
        """
        normed = self.norm(stream)
        logits = self.lm_head(normed)
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        return logits, normed if self.spec.norm_output else stream

    def to_target_ids(self, draft_ids: Int[Tensor, "*slot"]) -> Int[Tensor, "*slot"]:
        """Draft-vocabulary ids -> target ids (d2t is an offset in every producer)."""
        return draft_ids + self.d2t[draft_ids]

    def target_ids(self) -> Int[Tensor, "draft_vocab"]:
        """The target id of each draft-vocabulary row."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t
