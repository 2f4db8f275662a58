"""A whole drafter as a torch module: first what its algorithm answers, then the parts that every chain drafter has.

Slot t pairs the embedding of x[t+1] with a state: the true one, made of the target's states, or at a chain's later slots
the one fed back. The state dict uses the canonical names of `probes.checkpoint.spec`. Knows neither caches nor masks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeAlias, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from probes.checkpoint.algorithms import LAYOUTS
from probes.checkpoint.spec import DrafterSpec
from probes.drafter.layers import LAYER_FAMILIES
from probes.drafter.layers.llama import LlamaDrafterLayer, Projected, Rotation
from probes.drafter.norm import RMSNorm
from probes.errors import CheckpointError

TargetStates: TypeAlias = Mapping[int, Float[Tensor, "*token _"]]
"""The target's states [*token, target_hidden] by boundary id, from slot 0."""


class Drafter(nn.Module, ABC):
    """What an algorithm answers. `probes.drafter.algorithms` has the answers."""

    @abstractmethod
    def make_input(self) -> None:
        """Makes the modules between the target's states and layer 0. Called first, so that a fresh drafter draws its
        weights in the order of the forward pass."""

    @staticmethod
    def boundary_ids(spec: DrafterSpec) -> tuple[int, ...]:
        """The target's states that are read: boundary ids, or FINAL_NORMED."""
        return spec.aux_layer_ids

    @abstractmethod
    def true_state(self, features: Float[Tensor, "*slot _"]) -> Float[Tensor, "*slot hidden"]:
        """The state of a verified slot, of its `features`."""

    def enter(
        self, token_ids: Int[Tensor, "*slot"], state: Float[Tensor, "*slot hidden"]
    ) -> tuple[Float[Tensor, "*slot hidden"], Float[Tensor, "*slot hidden"]]:
        """-> (the tokens' embeddings, what enters layer 0). Here the state itself: layer 0 reads the embedding too."""
        return self.embed_tokens(token_ids), state

    @abstractmethod
    def predict(
        self, stream: Float[Tensor, "*slot hidden"]
    ) -> tuple[Float[Tensor, "*slot draft_vocab"], Float[Tensor, "*slot hidden"]]:
        """What leaves the last layer -> (logits over the draft vocabulary, the state fed back at the next depth)."""

    @abstractmethod
    def feature_columns(self, features: Float[Tensor, "round _"]) -> dict[str, Tensor | None]:
        """What is recorded of the starts' features, by `RoundBatch`'s names; None where `nulls` says why."""

    @property
    @abstractmethod
    def nulls(self) -> Mapping[str, str]:
        """Column -> why it is null for this drafter, where another one would have it."""

    def embed_share(
        self,
        embeds: Float[Tensor, "query hidden"],
        state: Float[Tensor, "query hidden"],
        x: Float[Tensor, "query _"],
        projected: Projected,
    ) -> Float[Tensor, "query"] | None:
        """`input_share_embed`: how much of a slot's input is its embedding's, float32; None where `nulls` says why.

        `x` and `projected`: what layer 0 reads and makes of it. Here, where it reads the embedding, its products' share.
        """
        return self.layers[0].embed_share(x, projected)

    # ---- the parts

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.spec = spec
        self.make_input()
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        family, layout = LAYER_FAMILIES[spec.family], LAYOUTS[spec.algorithm]
        layers = (family(spec, i, reads_embedding=i == 0 and layout.reads_embedding) for i in range(spec.num_layers))
        self.layers = cast("list[LlamaDrafterLayer]", nn.ModuleList(layers))
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.lm_head = nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False)
        self.d2t = nn.Buffer(torch.zeros(spec.draft_vocab_size, dtype=torch.int64))
        self.rotary = family.rotary(spec)

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
        # computed, never stored: it must not stay on meta
        drafter.rotary = LAYER_FAMILIES[spec.family].rotary(spec).to(device)
        try:
            drafter.load_state_dict(state, strict=True, assign=True)
        except RuntimeError as error:
            raise CheckpointError(
                f"the {spec.producer} checkpoint's tensors do not fit the drafter: {error}",
                code="tensors_do_not_fit",
                remedy="`driftscope check` lists what is missing, unused or mis-shaped",
            ) from error
        return drafter.eval().requires_grad_(False)

    def features(self, states: TargetStates, at: slice | Tensor | tuple[Tensor, Tensor]) -> Float[Tensor, "*slot _"]:
        """What the drafter reads of the target at the slots `at`: the states at `boundary_ids`, side by side in this order
        (features = their number * target_hidden), in the drafter's dtype."""
        dtype = self.norm.weight.dtype
        return torch.cat([states[i][at].to(dtype) for i in self.boundary_ids(self.spec)], dim=-1)

    def rotation(self, positions: Int[Tensor, "*slot"]) -> Rotation:
        """cos and sin of RoPE at these positions, for `layers[i].project`. Slot t stands at position t."""
        flat = positions.reshape(1, -1)
        cos, sin = self.rotary(self.norm.weight, flat)  # the first argument only gives dtype and device
        return cos[0].view(*positions.shape, -1), sin[0].view(*positions.shape, -1)

    def logits(self, normed: Float[Tensor, "*slot hidden"]) -> Float[Tensor, "*slot draft_vocab"]:
        """lm_head, scaled where the checkpoint says so."""
        logits = self.lm_head(normed)
        return logits if self.spec.logit_scale == 1.0 else logits * self.spec.logit_scale

    def to_target_ids(self, draft_ids: Int[Tensor, "*slot"]) -> Int[Tensor, "*slot"]:
        """Draft-vocabulary ids -> target ids (d2t is an offset in every producer)."""
        return draft_ids + self.d2t[draft_ids]

    def target_ids(self) -> Int[Tensor, "draft_vocab"]:
        """The target id of each draft-vocabulary row."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t
