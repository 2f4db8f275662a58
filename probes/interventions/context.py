"""Context: other rope and sliding windows of the drafter. What a wrong one costs grows with distance. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.checkpoint.rope import DEFAULT_THETA, LENGTH_DEPENDENT_ROPE
from probes.checkpoint.spec import DrafterSpec
from probes.interventions.changed_drafter import DrafterIntervention
from probes.interventions.parts import TargetFacts

if TYPE_CHECKING:
    from probes.interventions.acceptance import Counts
    from probes.interventions.finished_text import FinishedText

YARN_FACTORS = (4, 8, 32)
"""Usual stretches; 32 is what ModelOpt's exporter injects."""
WINDOWS = (512, 1024, 2048, 4096)
"""Usual draft windows in tokens; 2,048 is the default of speculators' training."""


class _OtherRope(DrafterIntervention):
    kind = "context"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        rope = self.rope(spec, target)
        if rope is None or rope["rope_type"] in LENGTH_DEPENDENT_ROPE:  # a replay cannot have stored keys of these
            return False
        return dict(rope) != dict(spec.rope_parameters)

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        rope = self.rope(spec, target)
        assert rope is not None
        return replace(spec, rope_parameters=rope)

    def rope(self, spec: DrafterSpec, target: TargetFacts) -> Mapping[str, object] | None:
        """The rope to try; None where there is none."""
        raise NotImplementedError


def _target_rope(target: TargetFacts) -> Mapping[str, object] | None:
    """The target's, where all its layers share a plain one."""
    rope = target.config.get("rope_parameters")
    if not isinstance(rope, Mapping) or any(isinstance(v, Mapping) for v in rope.values()):
        return None
    return {k: v for k, v in rope.items() if v is not None} if "rope_theta" in rope and "rope_type" in rope else None


class TargetRope(_OtherRope):
    id = "rope_target"
    changes = "takes the target's rope, theta and scaling"

    def rope(self, spec: DrafterSpec, target: TargetFacts) -> Mapping[str, object] | None:
        return _target_rope(target)


class TargetTheta(_OtherRope):
    id = "rope_target_theta"
    changes = "takes the target's rope theta, keeping the drafter's scaling"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        rope = _target_rope(target)  # with the same scaling it is rope_target
        return super().applies(spec, target) and rope is not None and self.rope(spec, target) != dict(rope)

    def rope(self, spec: DrafterSpec, target: TargetFacts) -> Mapping[str, object] | None:
        theirs = _target_rope(target)
        return None if theirs is None else {**spec.rope_parameters, "rope_theta": theirs["rope_theta"]}


class DefaultTheta(_OtherRope):
    id = "rope_theta_10000"
    changes = "takes rope theta 10,000, which configs without a theta mean"

    def rope(self, spec: DrafterSpec, target: TargetFacts) -> Mapping[str, object] | None:
        return {**spec.rope_parameters, "rope_theta": DEFAULT_THETA}


class UnscaledRope(_OtherRope):
    id = "rope_unscaled"
    changes = "drops the drafter's rope scaling"

    def rope(self, spec: DrafterSpec, target: TargetFacts) -> Mapping[str, object] | None:
        return {"rope_type": "default", "rope_theta": spec.rope_parameters["rope_theta"]}


class YarnRope(_OtherRope):
    """Scaling that was lost on the way."""

    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.id = f"rope_yarn_{factor}"
        self.changes = f"adds YaRN scaling by {factor} to an unscaled rope (original = max positions / {factor})"

    def rope(self, spec: DrafterSpec, target: TargetFacts) -> Mapping[str, object] | None:
        if spec.rope_parameters["rope_type"] != "default" or spec.max_position_embeddings < self.factor:
            return None
        return {
            "rope_type": "yarn",
            "rope_theta": spec.rope_parameters["rope_theta"],
            "factor": float(self.factor),
            "original_max_position_embeddings": spec.max_position_embeddings // self.factor,
        }


class WindowOff(DrafterIntervention):
    id = "window_off"
    kind = "context"
    changes = "lets the drafter see every slot"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return any(window is not None for window in spec.sliding_window)

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        return replace(spec, sliding_window=(None,) * spec.num_layers)


class WindowOn(DrafterIntervention):
    """Changes nothing in a text that the window covers: nothing is computed there."""

    kind = "context"

    def __init__(self, window: int) -> None:
        self.window = window
        self.id = f"window_{window}"
        self.changes = f"lets the drafter see only the last {window:,} slots"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return all(window is None for window in spec.sliding_window)

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        return replace(spec, sliding_window=(self.window,) * spec.num_layers)

    def count(self, on: FinishedText) -> Counts | None:
        return on.baseline.beside(on.baseline) if on.slots.num_slots <= self.window else super().count(on)


CONTEXT: tuple[DrafterIntervention, ...] = (
    TargetRope(),
    TargetTheta(),
    DefaultTheta(),
    UnscaledRope(),
    *(YarnRope(factor) for factor in YARN_FACTORS),
    WindowOff(),
    *(WindowOn(window) for window in WINDOWS),
)
