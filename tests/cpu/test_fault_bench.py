"""The fault bench's own parts: a rotated target computes the same, a noisy one does not, answers are judged as said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.fault_bench.__main__ import Answer, table
from benchmarks.fault_bench.faults import noisy_target, rotated_target, zeroed_feedback
from probes.drafter.model import Drafter
from tests.tiny_models import random_tensors, tiny_spec, tiny_target


def test_a_rotated_target_is_the_same_function_in_another_basis(tmp_path: Path) -> None:
    model = tiny_target(seed=0, folder=tmp_path / "target")
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains that must be folded
            if "norm" in name:
                parameter.copy_(torch.rand(parameter.shape) + 0.5)
    model.save_pretrained(tmp_path / "target")
    ids = torch.arange(20)[None]
    expected = model(ids, output_hidden_states=True)
    rotated = AutoModelForCausalLM.from_pretrained(rotated_target(tmp_path / "target", tmp_path / "rotated"))
    found = rotated(ids, output_hidden_states=True)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-3, atol=1e-3)
    ours, theirs = found.hidden_states[2][0], expected.hidden_states[2][0]
    torch.testing.assert_close(ours.norm(dim=-1), theirs.norm(dim=-1), rtol=1e-3, atol=1e-3)
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).abs().max() < 0.6
    noisy = AutoModelForCausalLM.from_pretrained(noisy_target(tmp_path / "target", tmp_path / "noisy"))
    assert (noisy(ids).logits - expected.logits).abs().max() > 1e-2


def test_zeroed_feedback_lasts_only_as_long_as_asked() -> None:
    spec = tiny_spec()
    drafter = Drafter.load(spec, random_tensors(spec, 0))
    stream = torch.ones(1, spec.hidden_size)
    logits, feedback = drafter.predict(stream)
    with zeroed_feedback():
        broken_logits, nothing = drafter.predict(stream)
    assert torch.equal(broken_logits, logits)
    assert not nothing.any()
    assert torch.equal(drafter.predict(stream)[1], feedback)


@pytest.mark.parametrize(
    ("part", "cost", "first", "is_right"),
    [
        ("static", 0.01, "healthy", False),
        ("static", 0.01, "wiring_fault", True),
        ("dynamic", 0.10, "healthy", True),
        ("dynamic", 0.30, "healthy", False),
        ("dynamic", 0.30, "wiring_fault", True),
        ("dynamic", 0.10, "template_shift", False),
    ],
)
def test_answers_are_judged_as_said(part: str, cost: float, first: str, is_right: bool) -> None:
    answer = Answer(part, "x", cost, (first, "vocabulary_gap"), ("wiring_fault",), "e")
    assert answer.is_right is is_right
    assert f"{int(is_right)} of 1 right." in table([answer])
    json.dumps(table([answer]))
