"""What an engine runs with against the checkpoint: each disagreement is one finding that names both."""

from __future__ import annotations

import pytest
import torch

from probes.vllm.settings import disagreements
from tests.tiny_models import tiny_spec

SPEC = tiny_spec()
AGREES: dict[str, object] = {
    **{name: getattr(SPEC, name) for name in ("has_fc_norm", "norm_before_fc", "norm_output", "norm_before_residual")},
    "aux_layer_ids": list(SPEC.aux_layer_ids),
    "rope_theta": SPEC.rope_parameters["rope_theta"],
    "has_vocab_map": True,
    "has_own_embedding": SPEC.has_own_embedding,
    "draft_tensor_parallel_size": 1,
    "drafter_tensor_parallel_size": 1,
}
D2T = torch.tensor([0, 3, 3, 7])


def test_an_engine_that_agrees_has_no_finding() -> None:
    assert list(disagreements(AGREES, SPEC, D2T)) == []
    assert list(disagreements(AGREES | {"has_vocab_map": False}, SPEC, torch.zeros(4, dtype=torch.int64))) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("has_vocab_map", False),
        ("aux_layer_ids", [0, 1, 2]),
        ("norm_output", not SPEC.norm_output),
        ("has_fc_norm", not SPEC.has_fc_norm),
        ("rope_theta", 5.0),
        ("drafter_tensor_parallel_size", 2),
    ],
)
def test_what_differs_is_named_with_both_values(name: str, value: object) -> None:
    [finding] = disagreements(AGREES | {name: value}, SPEC, D2T)
    code = "draft_tensor_parallel_size" if name == "drafter_tensor_parallel_size" else name
    assert (finding.code, finding.where) == (f"engine_{code}", code)
    assert str(value) in finding.message
