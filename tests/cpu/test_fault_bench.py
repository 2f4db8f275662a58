"""A third of the fault bench, on the tiny trained pair, and the bench's own parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.fault_bench.cases import PAIRS, TARGET_CHANGES, cases_of
from benchmarks.fault_bench.faults import noisy_target, quantised_target, rotated_target, stale_keys, zeroed_feedback
from benchmarks.fault_bench.prompts import SETS
from benchmarks.fault_bench.run import Answer, Options, run_case
from benchmarks.fault_bench.table import confusion, counts, judged, table
from driftscope.stats.thresholds import VERDICT_MIN_TOKENS
from probes.chain.draft_loop import DraftLoop
from probes.drafter.algorithms.eagle3 import Eagle3
from tests.tiny_models import random_tensors, tiny_spec, tiny_target

CASES = {case.name: case for case in cases_of(PAIRS["tiny"]())}
STATIC = ("fc_permuted", "d2t_zeroed", "norm_output_lost", "rope_theta_wrong", "window_dropped")
DYNAMIC = ("feedback-zeroed", "stale-draft-KV", "context", "uncovered", "loops")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def answers_of(folder: Path, *names: str) -> dict[str, Answer]:
    """Fault -> answer, of the faults alone; small texts of a set of their own."""
    options = Options(folder=str(folder), prompt_set="A", num_prompts=10, max_new_tokens=40, depth=5)
    found = [answer for name in names for answer in run_case(CASES[f"tiny-{name}"], options)]
    return {a.fault: a for a in found if a.right != ("healthy",)} | {
        f"sound {a.case}": a for a in found if a.right == ("healthy",)
    }


def test_static_faults_are_named_by_the_first_verdict_or_by_check(folder: Path) -> None:
    found = answers_of(folder, "plain", *STATIC)
    assert found["sound tiny-plain"].verdicts == ("healthy",)
    for name in STATIC:
        answer = found[f"tiny {name}"]
        assert answer.verdicts[0] in answer.right or answer.named_by_check, answer
    assert found["tiny d2t_zeroed"].new_checks == ("DS302", "DS306")
    assert found["tiny d2t_zeroed"].evidence.startswith("d2t_from_")
    assert found["tiny fc_permuted"].verdicts[0] == "wiring_fault"
    assert found["tiny fc_permuted"].evidence == "aux_order_high_low_mid"
    assert found["tiny norm_output_lost"].verdicts[0] == "feedback_fault"


def test_dynamic_faults_get_the_right_cause_first(folder: Path) -> None:
    found = answers_of(folder, "plain", "live", *DYNAMIC)
    bases = {case.name: case.base for case in CASES.values()}
    for j in judged(list(found.values()), bases):
        assert j.is_diagnosed, j
        if "stale" in j.answer.fault or "zeroed" in j.answer.fault:
            assert j.cost is not None
            assert j.cost > VERDICT_MIN_TOKENS
            assert j.answer.evidence == "replayed_rounds"


def test_changed_targets_are_found_by_their_states(folder: Path) -> None:
    found = answers_of(folder, *TARGET_CHANGES)
    assert {a.verdicts[0] for a in found.values()} == {"target_changed"}
    assert "rotated" in found["tiny, rotation"].detail
    assert found["tiny, rotation"].confidence == "high"
    assert "rotated" not in found["tiny, noise"].detail
    assert "rotated" not in found["tiny, 4-bit"].detail


def test_sets_of_prompts_are_disjoint() -> None:
    for make in PAIRS.values():
        pair = make()
        for texts in (pair.turns, pair.plain, pair.loops):
            sets = [set(texts(name, 1000)) for name in SETS]
            assert min(map(len, sets)) >= 16
            assert not sets[0] & sets[1] | sets[0] & sets[2] | sets[1] & sets[2]


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
    for change, name in ((noisy_target, "noisy"), (lambda a, b: quantised_target(a, b, group=16), "4bit")):
        other = AutoModelForCausalLM.from_pretrained(change(tmp_path / "target", tmp_path / name))
        assert (other(ids).logits - expected.logits).abs().max() > 1e-2


def test_a_4_bit_matrix_has_16_values_a_group(tmp_path: Path) -> None:
    tiny_target(seed=0, folder=tmp_path / "target")
    quantised_target(tmp_path / "target", tmp_path / "4bit", group=16)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "4bit")
    row = model.model.layers[0].self_attn.q_proj.weight[0, :16]
    assert len(row.unique()) <= 16
    assert torch.allclose(row / (row.abs().max() / 7), (row / (row.abs().max() / 7)).round(), atol=1e-4)


def test_broken_engines_last_only_as_long_as_asked() -> None:
    spec = tiny_spec()
    drafter = Eagle3.load(spec, random_tensors(spec, 0))
    stream = torch.ones(1, spec.hidden_size)
    logits, feedback = drafter.predict(stream)
    with zeroed_feedback():
        broken_logits, nothing = drafter.predict(stream)
    assert torch.equal(broken_logits, logits)
    assert not nothing.any()
    assert torch.equal(drafter.predict(stream)[1], feedback)
    before = DraftLoop._draft
    with stale_keys():
        assert DraftLoop._draft is not before
    assert DraftLoop._draft is before


EMPTY = Answer("A", "c", "static", "x", "x", "sound", "", ("wiring_fault",), ("healthy",), "high", "e", {"p": (10, 20)})


@pytest.mark.parametrize(
    ("part", "cost", "first", "is_right"),
    [
        ("static", 0.0, "healthy", False),
        ("static", 0.0, "wiring_fault", True),
        ("dynamic", 0.1, "healthy", True),
        ("dynamic", 0.3, "healthy", False),
        ("dynamic", 0.3, "wiring_fault", True),
        ("dynamic", 0.1, "template_shift", False),
    ],
)
def test_answers_are_judged_as_said(part: str, cost: float, first: str, is_right: bool) -> None:
    sound = replace(EMPTY, case="base", drafter="sound", part="untouched", right=("healthy",))
    worse = {"p": (10, round(20 - 10 * cost)), "only here": (10, 90)}  # the second prompt has no partner
    answer = replace(EMPTY, part=part, verdicts=(first, "vocabulary_gap"), sums=worse)
    found = judged([sound, answer], {"c": "base"})
    assert found[1].cost == pytest.approx(cost)
    assert found[1].is_right is is_right
    assert f"{part}: {int(is_right)} of 1 by the first verdict" in counts(found)
    assert "untouched: 0 of 1" in counts(found)
    assert first in confusion(found)
    assert ("| yes |" in table(found[1:])) is is_right
    json.dumps(table(found))
