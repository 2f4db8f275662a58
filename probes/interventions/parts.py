"""What a drafter is made of, what may be known of its target, and a drafter made of parts. No torch at import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from probes.checkpoint.spec import DrafterSpec

if TYPE_CHECKING:
    from torch import Tensor

    from probes.drafter.model import Drafter


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """What an intervention may know of the target."""

    num_layers: int
    hidden_size: int
    config: Mapping[str, Any]  # its text config
    embedding: Tensor | None = None  # [vocab, hidden]
    lm_head: Tensor | None = None  # [vocab, hidden]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a drafter is made of. `tensors` by canonical name, the embedding, lm_head and d2t in use always there."""

    spec: DrafterSpec
    tensors: Mapping[str, Tensor]

    @property
    def rows(self) -> Tensor:
        """int64 [draft_vocab]: 0, 1, 2, ..."""
        d2t = self.tensors["d2t"]
        return d2t.new_ones(len(d2t)).cumsum(0) - 1

    @property
    def target_ids(self) -> Tensor:
        """int64 [draft_vocab]: the target id of each row."""
        return self.rows + self.tensors["d2t"]


def load(kind: type[Drafter], spec: DrafterSpec, tensors: Mapping[str, Tensor]) -> Drafter:
    """A drafter of this spec: gains that a switched-on norm lacks are 1, what is not needed is dropped."""
    from probes.checkpoint.layout import expected_shapes

    some = tensors["norm.weight"]
    spec = replace(spec, has_own_embedding=True, has_own_lm_head=True)  # both are in `tensors`, whoever owns them
    state = {
        name: some.new_ones(shape) if name not in tensors and "norm" in name else tensors[name]
        for name, shape in expected_shapes(spec).items()
    }
    return kind.load(spec, state, dtype=some.dtype, device=some.device)
