"""Drafting algorithms by what files show of them: one row each. `probes.drafter.algorithms` has the class of each.

A producer says which algorithm its checkpoints are; the row says what then stands in them beside the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from probes.checkpoint.families import Shapes
from probes.checkpoint.inputs import read_inputs
from probes.checkpoint.spec import DrafterSpec


@dataclass(frozen=True, kw_only=True)
class Layout:
    read_inputs: Callable[..., None]  # `inputs.read_inputs`: puts the spec's fields on what the drafter reads
    input_shapes: Callable[[DrafterSpec], Shapes]  # the tensors between the target's states and the layers
    reads_embedding: bool  # layer 0 reads [embedding, state]; else the two are joined before it


def _eagle3(spec: DrafterSpec) -> Shapes:
    fused, shapes = spec.num_aux * spec.target_hidden_size, Shapes()
    if spec.has_fc:
        shapes["fc.weight"] = (spec.hidden_size, fused)
    if spec.has_fc_bias:
        shapes["fc.bias"] = (spec.hidden_size,)
    if spec.norm_before_fc:
        shapes["input_norm.weight"] = (fused,)
    if spec.has_fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (spec.target_hidden_size,) for i in range(spec.num_aux)}
    if spec.has_hidden_norm:
        shapes["layers.0.hidden_norm.weight"] = (spec.hidden_size,)
    return shapes


LAYOUTS: dict[str, Layout] = {
    "eagle3": Layout(read_inputs=read_inputs, input_shapes=_eagle3, reads_embedding=True),
}
"""By `DrafterSpec.algorithm`."""
