"""The draft vocabulary: other readings of d2t, and a vocabulary that reaches every id. No torch at import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.checkpoint.spec import DrafterSpec
from probes.interventions.changed_drafter import DrafterIntervention
from probes.interventions.parts import Parts, TargetFacts

if TYPE_CHECKING:
    from torch import Tensor

    from probes.drafter.model import Drafter

ROWS_AT_ONCE = 512
"""Rows compared with the whole vocabulary at once (bounds memory, changes nothing)."""


class _OtherMap(DrafterIntervention):
    """The same rows, other target ids."""

    kind = "vocabulary"
    keeps_slots = True

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return spec.draft_vocab_size < spec.vocab_size

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        return replace(spec, has_vocab_map=True)

    def tensors(self, parts: Parts, target: TargetFacts) -> Mapping[str, Tensor]:
        return {**parts.tensors, "d2t": self.target_ids(parts, target) - parts.rows}

    def target_ids(self, parts: Parts, target: TargetFacts) -> Tensor:
        """The target id of each row; empty where this reading has nothing to say."""
        raise NotImplementedError

    def build(self, parts: Parts, target: TargetFacts) -> Drafter | None:
        ids, now = self.target_ids(parts, target), parts.target_ids
        is_valid = len(ids) == len(now) and bool(((ids >= 0) & (ids < parts.spec.vocab_size)).all())
        return super().build(parts, target) if is_valid and bool((ids != now).any()) else None


class AbsoluteMap(_OtherMap):
    id = "d2t_absolute"
    changes = "reads d2t as target ids in place of offsets"

    def target_ids(self, parts: Parts, target: TargetFacts) -> Tensor:
        return parts.tensors["d2t"]


class MaskMap(_OtherMap):
    id = "d2t_from_t2d"
    changes = "takes the target ids that t2d marks, in ascending order, in place of d2t"

    def target_ids(self, parts: Parts, target: TargetFacts) -> Tensor:
        t2d = parts.tensors.get("t2d")
        return parts.tensors["d2t"][:0] if t2d is None else t2d.nonzero()[:, 0]


class NearestRowMap(_OtherMap):
    """Drafters' lm_heads start from the target's rows, so the nearest row tells the id of a map that was lost."""

    id = "d2t_from_lm_head"
    changes = (
        "gives each row the target id whose lm_head row is nearest by cosine (only for an all-zero or missing d2t)"
    )

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return super().applies(spec, target) and spec.has_own_lm_head and spec.hidden_size == target.hidden_size

    def target_ids(self, parts: Parts, target: TargetFacts) -> Tensor:
        import torch

        assert target.lm_head is not None
        if bool(parts.tensors["d2t"].any()):
            return parts.tensors["d2t"][:0]
        theirs = torch.nn.functional.normalize(target.lm_head.float(), dim=-1)
        rows = parts.tensors["lm_head.weight"].float()
        return torch.cat([(block @ theirs.T).argmax(dim=-1) for block in torch.split(rows, ROWS_AT_ONCE)])


class FullVocabulary(DrafterIntervention):
    """What a draft vocabulary that covers every emitted token would give, as far as untrained rows serve.

    The target's rows as they are drown the trained ones (measured on the demo drafters: -1.8 tokens per round), so they
    are first mapped onto the drafter's by the least-squares fit over the rows that both have.
    """

    id = "full_draft_vocab"
    kind = "vocabulary"
    keeps_slots = True
    changes = "drafts every target id: rows it lacks are the target's lm_head rows, fitted linearly to the drafter's"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return spec.draft_vocab_size < spec.vocab_size and spec.hidden_size == target.hidden_size

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        return replace(spec, draft_vocab_size=spec.vocab_size, has_vocab_map=False)

    def tensors(self, parts: Parts, target: TargetFacts) -> Mapping[str, Tensor]:
        assert target.lm_head is not None
        import torch

        own, ids = parts.tensors["lm_head.weight"], parts.target_ids
        theirs = target.lm_head[: parts.spec.vocab_size].float()
        fit = torch.linalg.lstsq(theirs[ids], own.float()).solution  # [hidden, hidden]
        rows = (theirs @ fit).to(own.dtype)
        rows[ids] = own
        return {**parts.tensors, "lm_head.weight": rows, "d2t": parts.tensors["d2t"].new_zeros(len(rows))}


VOCABULARY: tuple[DrafterIntervention, ...] = (
    AbsoluteMap(),
    MaskMap(),
    NearestRowMap(),
    FullVocabulary(),
)
