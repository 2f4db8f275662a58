"""Wiring: other aux layers, norms and shared parts. Each is a known way to load a drafter wrongly without an error.

No torch at import. Numbers in comments are those of the public reports of silent failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from probes.checkpoint.spec import DrafterSpec
from probes.interventions.changed_drafter import DrafterIntervention
from probes.interventions.parts import Parts, TargetFacts, load

if TYPE_CHECKING:
    from torch import Tensor

    from probes.drafter.model import Drafter

FLAGS = {
    "norm_output": "feed back the state after the final norm",
    "norm_before_residual": "let the residual start from the normed state",
    "has_fc_norm": "norm each target state before fc (gains of 1 where the checkpoint has none)",
    "norm_before_fc": "norm the concatenated target states before fc (gains of 1 where the checkpoint has none)",
}


class _Wiring(DrafterIntervention):
    kind = "wiring"


class ShiftedAuxIds(_Wiring):
    """The two id conventions differ by one: output ids read as boundary ids capture one layer early."""

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.id = f"aux_ids_{'plus' if shift > 0 else 'minus'}_1"
        convention = "layer-output ids read as boundary ids" if shift > 0 else "boundary ids read as layer-output ids"
        self.changes = f"captures every target state one layer {'later' if shift > 0 else 'earlier'} ({convention})"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        ids = [i + self.shift for i in spec.aux_layer_ids]
        return spec.use_aux_hidden_state and min(ids) >= 0 and max(ids) <= target.num_layers

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        return replace(spec, aux_layer_ids=tuple(i + self.shift for i in spec.aux_layer_ids))


class DefaultAuxIds(_Wiring):
    """Engines that do not find the ids take these."""

    id = "aux_ids_default"
    changes = "captures the default layers (2, n//2, n-3) in place of the checkpoint's"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        ids = self._ids(target)
        return len(spec.aux_layer_ids) == 3 and len(set(ids)) == 3 and min(ids) >= 0 and ids != spec.aux_layer_ids

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        return replace(spec, aux_layer_ids=self._ids(target))

    def _ids(self, target: TargetFacts) -> tuple[int, ...]:
        return tuple(sorted((2, target.num_layers // 2, target.num_layers - 3)))


class PermutedAux(_Wiring):
    """fc's columns belong to another order of the captured layers."""

    def __init__(self, order: tuple[int, int, int]) -> None:
        self.order = order
        names = [("low", "mid", "high")[i] for i in order]
        self.id = f"aux_order_{'_'.join(names)}"
        named = ", ".join(names)
        self.changes = f"gives fc the captured states in the order {named}"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return spec.has_fc and spec.num_aux == 3

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        return replace(spec, aux_layer_ids=tuple(spec.aux_layer_ids[i] for i in self.order))


class Flag(_Wiring):
    """One boolean of the forward pass, switched."""

    def __init__(self, flag: str, value: bool) -> None:
        self.flag, self.value = flag, value
        self.keeps_slots = flag == "norm_output"  # only what later depths read changes
        self.id = f"{flag.removeprefix('has_')}_{'on' if value else 'off'}"
        self.changes = f"sets {flag} {value}: {FLAGS[flag] if value else 'does not ' + FLAGS[flag]}"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        is_fusion = self.flag in ("has_fc_norm", "norm_before_fc")
        return getattr(spec, self.flag) is not self.value and (spec.has_fc or not is_fusion)

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        changed: dict[str, Any] = {self.flag: self.value}
        return replace(spec, **changed)


class DoubleHiddenNorm(_Wiring):
    """A suspected train/serve mismatch of stock decoder layers used for training: their own norm stays in front."""

    id = "double_hidden_norm"
    changes = "norms the incoming state twice: hidden_norm(input_layernorm(h)) in place of hidden_norm(h)"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return spec.has_hidden_norm

    def build(self, parts: Parts, target: TargetFacts) -> Drafter | None:
        drafter = super().build(parts, target)
        if drafter is not None:
            first = drafter.layers[0]
            assert first.hidden_norm is not None  # `applies` says so
            first.hidden_norm.register_forward_pre_hook(lambda _, args: (first.input_layernorm(args[0]),))
        return drafter


class UnnormedLogits(_Wiring):
    """Some training code took logits from the state before the final norm; engines always norm first."""

    id = "lm_head_without_norm"
    keeps_slots = True
    changes = "reads logits from the state before the final norm"

    def build(self, parts: Parts, target: TargetFacts) -> Drafter | None:
        from probes.drafter.algorithms import algorithm_of

        class WithoutNorm(algorithm_of(parts.spec)):  # type: ignore[misc]
            def predict(self, stream: Tensor) -> tuple[Tensor, Tensor]:
                _, feedback = super().predict(stream)
                raw: Tensor = self.lm_head(stream)
                return raw, feedback

        return load(WithoutNorm, parts.spec, parts.tensors)


class StateFirst(_Wiring):
    """q, k and v read [embedding, state]; the reverse order of their columns is a known porting mistake."""

    id = "input_state_first"
    changes = "reads [state, embedding] in place of [embedding, state] in layer 0's q, k and v"

    def tensors(self, parts: Parts, target: TargetFacts) -> Mapping[str, Tensor]:
        changed = dict(parts.tensors)
        for name in ("q", "k", "v"):
            key = f"layers.0.self_attn.{name}_proj.weight"
            changed[key] = parts.tensors[key].roll(parts.spec.hidden_size, dims=1)
        return changed


class TargetEmbedding(_Wiring):
    """An embedding that was never trained or never loaded."""

    id = "target_embedding"
    changes = "takes the target's embedding in place of the checkpoint's"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return spec.has_own_embedding and spec.hidden_size == target.hidden_size

    def build(self, parts: Parts, target: TargetFacts) -> Drafter | None:
        own, theirs = parts.tensors["embed_tokens.weight"], target.embedding
        if theirs is None or own.shape != theirs.shape or bool((own == theirs.to(own.dtype)).all()):
            return None
        return super().build(parts, target)

    def tensors(self, parts: Parts, target: TargetFacts) -> Mapping[str, Tensor]:
        assert target.embedding is not None
        return {**parts.tensors, "embed_tokens.weight": target.embedding}


class TargetLmHead(_Wiring):
    """An lm_head that was never trained, never loaded, or cut with the wrong ids."""

    id = "target_lm_head"
    keeps_slots = True
    changes = "takes the target's lm_head rows of the draft vocabulary in place of the checkpoint's"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return spec.has_own_lm_head and spec.hidden_size == target.hidden_size

    def tensors(self, parts: Parts, target: TargetFacts) -> Mapping[str, Tensor]:
        assert target.lm_head is not None
        ids = parts.target_ids.clamp(0, len(target.lm_head) - 1)
        return {**parts.tensors, "lm_head.weight": target.lm_head[ids]}


WIRING: tuple[DrafterIntervention, ...] = (
    ShiftedAuxIds(-1),
    ShiftedAuxIds(+1),
    DefaultAuxIds(),
    *(PermutedAux(order) for order in ((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))),
    *(Flag(flag, value) for flag in FLAGS for value in (True, False)),
    DoubleHiddenNorm(),
    UnnormedLogits(),
    StateFirst(),
    TargetEmbedding(),
    TargetLmHead(),
)
