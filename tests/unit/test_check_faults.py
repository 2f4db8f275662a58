"""One fault at a time in a pair with nothing wrong: the check that must find it, and nothing where nothing is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from driftscope.check import check_pair
from driftscope.check.check_report import Severity
from probes.errors import CheckpointError
from tests.check_pairs import (
    DEFAULT,
    IDS,
    TINY,
    Fault,
    Settings,
    checked,
    ids,
    target_tensors,
    write_drafter,
    write_target,
)
from tests.checkpoint_writers import PRODUCERS, Arrays, save

EAGLE31 = replace(TINY, fc_norm=True)
FULL_VOCAB = replace(TINY, draft_vocab=TINY.vocab)


def test_a_sound_pair_is_clean(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert report.is_clean
    assert ids(report) == set()
    assert report.drafter.kind == "eagle3"
    assert {row.setting for row in report.settings if not row.is_certain} == {"norm_output", "norm_before_residual"}


def test_a_sound_eagle31_pair_is_clean(tmp_path: Path) -> None:
    """What SafeAILab and an old SGLang cannot do is a note, not a fault."""
    report = checked(tmp_path, tiny=EAGLE31, norm_output=True)
    assert report.is_clean
    assert ids(report) == {"DS202", "DS205", "DS206", "DS511"}
    assert all(set(f.engines) <= {"SGLang before PR 24663", "SafeAILab/EAGLE"} for f in report.findings)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_producer_is_read(tmp_path: Path, producer: str) -> None:
    report = checked(tmp_path, producer)
    assert report.drafter.producer == producer
    assert ids(report, "error") <= {"DS509"}  # NeMo writes the target's number of layers
    assert "DS599" not in ids(report)


def _set(**values: object) -> Fault:
    return lambda settings, _arrays: settings.update(values)


def _drop(*names: str) -> Fault:
    def fault(settings: Settings, arrays: Arrays) -> None:
        for name in names:
            assert settings.pop(name, None) is not None or arrays.pop(name, None) is not None

    return fault


def _ids(values: list[int]) -> Fault:
    def fault(settings: Settings, _arrays: Arrays) -> None:
        settings[IDS] = values
        del settings["eagle_config"]

    return fault


def _nested(values: list[int]) -> Fault:
    def fault(settings: Settings, _arrays: Arrays) -> None:
        del settings[IDS]
        settings["eagle_config"] = {IDS: values}

    return fault


def _d2t(change: str) -> Fault:
    def fault(settings: Settings, arrays: Arrays) -> None:
        row = np.arange(len(arrays["d2t"]))
        arrays["d2t"] = {
            "zero": np.zeros_like(arrays["d2t"]),
            "absolute": arrays["d2t"] + row,
            "beyond": arrays["d2t"] + 40,
            "reversed": (arrays["d2t"] + row)[::-1] - row,
        }[change]

    return fault


def _random_embedding(_settings: Settings, arrays: Arrays) -> None:
    arrays["embed_tokens.weight"] = np.random.default_rng(5).standard_normal((TINY.vocab, 16), dtype=np.float32)


def _trained_embedding(_settings: Settings, arrays: Arrays) -> None:
    noise = np.random.default_rng(5).standard_normal((TINY.vocab, 16), dtype=np.float32)
    arrays["embed_tokens.weight"] = arrays["embed_tokens.weight"] + np.float32(0.1) * noise


def _dead_slice(_settings: Settings, arrays: Arrays) -> None:
    arrays["fc.weight"][:, 16:32] = 0


def _nan(_settings: Settings, arrays: Arrays) -> None:
    arrays["norm.weight"][3] = np.nan


def _heads_rows_without_map(_settings: Settings, arrays: Arrays) -> None:
    arrays["lm_head.weight"] = target_tensors()["lm_head.weight"][: TINY.draft_vocab]


def _heads_rows_by_map(_settings: Settings, arrays: Arrays) -> None:
    rows = arrays["d2t"] + np.arange(TINY.draft_vocab)
    arrays["lm_head.weight"] = target_tensors()["lm_head.weight"][rows]


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (_ids([3, 7, 10]), {"DS101", "DS105"}),  # shifted
        (_ids([1, 5, 8]), {"DS101", "DS102", "DS105"}),
        (_ids([9, 2, 6]), {"DS104"}),  # permuted
        (_ids([3, 7, 12]), {"DS101"}),
        (_ids([0, 5, 9]), {"DS101", "DS111"}),
        (_ids([2, 6, 99]), {"DS107"}),
        (_ids([2, 6, 6]), {"DS107"}),
        (_ids([2, 4, 6, 9]), {"DS108"}),
        (_nested([1, 5, 8]), {"DS101"}),  # the default as outputs: vLLM's V1 runner takes them one layer early
        (_nested([3, 7, 9]), {"DS101"}),
        (_set(**{IDS: [2, 5, 9]}), {"DS101", "DS103"}),
        (_d2t("zero"), {"DS302", "DS306"}),
        (_d2t("absolute"), {"DS303"}),
        (_d2t("beyond"), {"DS304"}),
        (_d2t("reversed"), {"DS305"}),
        (_drop("d2t"), {"DS301"}),
        (_drop("d2t", "t2d"), {"DS301"}),
        (_set(norm_output=True), {"DS204"}),
        (_set(norm_before_residual=True), {"DS207", "DS209"}),
        (_set(attention_bias=True), {"DS201", "DS513"}),
        (_set(fc_norm=True), {"DS504"}),
        (_random_embedding, {"DS312", "DS313"}),
        (_trained_embedding, {"DS313"}),
        (_drop("lm_head.weight"), {"DS507"}),
        (_drop("hidden_size"), {"DS507"}),
        (_drop("norm.weight"), {"DS504"}),
        (_set(rope_theta=10000.0), {"DS401"}),
        (_drop("rope_theta"), {"DS401"}),
        (_set(rope_scaling={"rope_type": "yarn"}), {"DS407"}),
        (_set(rope_parameters={"rope_type": "default", "rope_theta": 1000.0}), {"DS401", "DS403"}),
        (_set(max_position_embeddings=512), {"DS409"}),
        (_set(sliding_window=128), {"DS411"}),
        (_set(sliding_window=128, layer_types=["sliding_attention"]), {"DS412"}),
        (_set(layer_types=["full_attention"] * 3), {"DS413"}),
        (_set(num_hidden_layers=3), {"DS509", "DS511"}),
        (_set(intermediate_size=99), {"DS505"}),
        (_set(draft_vocab_size=9), {"DS310"}),
        (_set(target_hidden_size=99), {"DS512", "DS601"}),
        (_set(tie_word_embeddings=True), {"DS314"}),
        (_dead_slice, {"DS112"}),
        (_nan, {"DS510"}),
        (_heads_rows_without_map, {"DS308"}),
        (_heads_rows_by_map, set()),
    ],
)
def test_a_fault_is_found(tmp_path: Path, fault: Fault, found: set[str]) -> None:
    report = checked(tmp_path, fault=fault)
    assert ids(report, "warning", "error") == found
    assert report.is_clean == (not found)
    for finding in report.findings:
        assert finding.where
        assert finding.evidence
        assert finding.remedy


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (_drop("fc_norm"), {"DS201", "DS202", "DS511", "DS512"}),  # the flag alone: SGLang skips, vLLM refuses
        (_drop("norm_output"), {"DS204"}),
        (_set(norm_output=False), {"DS204"}),
        (lambda s, a: [s.pop("fc_norm"), *[a.pop(f"fc_norm.{i}.weight") for i in range(3)]], {"DS204"}),
    ],
)
def test_a_lost_flag_of_eagle31_is_found(tmp_path: Path, fault: Fault, found: set[str]) -> None:
    assert ids(checked(tmp_path, tiny=EAGLE31, fault=fault, norm_output=True), "warning", "error") == found


@pytest.mark.parametrize(
    ("fault", "note"),
    [
        (_ids([2, 6, 12]), "DS110"),
        (lambda s, _: [s.pop(IDS), s.pop("eagle_config")], "DS106"),
        (_set(rms_norm_eps=1e-6), "DS212"),
        (_set(norm_output=False), "DS206"),
        (_set(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "DS408"),
    ],
)
def test_a_note(tmp_path: Path, fault: Fault, note: str) -> None:
    assert note in ids(checked(tmp_path, fault=fault), "info")


def test_both_norms_before_fc(tmp_path: Path) -> None:
    tiny = replace(TINY, fc_norm=True, norm_before_fc=True)
    report = checked(tmp_path, "speculators", tiny, norm_output=True, norm_before_residual=False)
    assert "DS203" in ids(report, "warning")


def test_nvidias_norm_before_fc_without_norm_output_is_a_note(tmp_path: Path) -> None:
    report = checked(tmp_path, "modelopt", replace(TINY, norm_before_fc=True))
    assert "DS204" in ids(report, "info")
    assert "DS210" in ids(report, "info")


def test_a_speculators_head_that_does_not_state_its_residual(tmp_path: Path) -> None:
    report = checked(tmp_path, "speculators")
    assert "DS208" in ids(report, "warning")
    assert "DS208" not in ids(checked(tmp_path / "stated", "speculators", norm_before_residual=True))


def test_a_converted_modelopt_head(tmp_path: Path) -> None:
    """The conversion's true, in a layout without embedding and t2d."""
    tiny = replace(TINY, own_embedding=False)
    report = checked(tmp_path, "speculators", tiny, _drop("t2d"), norm_before_residual=True)
    assert "DS209" in ids(report, "warning")


def test_a_qwen3_layer_that_config_json_calls_llama(tmp_path: Path) -> None:
    tiny = replace(TINY, qk_norm=True)
    report = checked(tmp_path, "vllm", tiny, lambda s, _: s.update(architectures=["LlamaForCausalLMEagle3"]))
    assert {"DS508", "DS511", "DS512"} <= ids(report, "warning")


def test_unused_and_harmless_tensors_and_files(tmp_path: Path) -> None:
    def fault(_settings: Settings, arrays: Arrays) -> None:
        arrays["mystery.weight"] = np.zeros(3, np.float32) + 1
        arrays["layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)

    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "eagle3", fault=fault)
    save(drafter / "other.safetensors", {"x": np.ones(1, np.float32)})
    report = check_pair(str(target), str(drafter))
    assert {"DS501", "DS503"} <= ids(report, "warning")
    assert "DS502" in ids(report, "info")


def test_an_eos_token_outside_the_draft_vocabulary(tmp_path: Path) -> None:
    reached = set((weights_d2t := _reached())[:3])
    inside, outside = int(weights_d2t[0]), next(i for i in range(TINY.vocab) if i not in set(weights_d2t))
    assert inside in reached
    drafter = write_drafter(tmp_path / "eagle3")
    for value, is_found in ((inside, False), (outside, True), ([inside, outside], True), ("junk", False)):
        target = write_target(tmp_path / "target")
        (target / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        assert ("DS315" in ids(check_pair(str(target), str(drafter)))) == is_found


def _reached() -> np.ndarray:
    from tests.checkpoint_writers import weights

    d2t = weights(TINY)["d2t"]
    return d2t + np.arange(len(d2t))


def test_the_target(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "eagle3")
    quantised = write_target(tmp_path / "a", quantization_config={"quant_method": "fp8"})
    assert ids(check_pair(str(quantised), str(drafter)), "info") == {"DS603"}
    rotated = write_target(
        tmp_path / "b", quantization_config={"quant_method": "compressed-tensors", "transform_config": {}}
    )
    assert ids(check_pair(str(rotated), str(drafter)), "warning") == {"DS603"}
    sampling = write_target(tmp_path / "c")
    (sampling / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.6}))
    report = check_pair(str(sampling), str(drafter))
    assert [(f.id, f.evidence) for f in report.findings] == [("DS605", "do_sample true, temperature 0.6")]


def test_a_target_without_weights(tmp_path: Path) -> None:
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "eagle3")
    (target / "model.safetensors").unlink()
    report = check_pair(str(target), str(drafter))
    assert ids(report) == {"DS606"}
    assert report.is_clean
    assert any("embedding and lm_head were not compared" in sentence for sentence in report.not_checked)


def test_another_chat_template_and_tokenizer_beside_the_drafter(tmp_path: Path) -> None:
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "eagle3")
    for folder, template, vocabulary in (
        (target, "{{ messages }}", {"a": 0, "b": 1}),
        (drafter, "[INST]{{ messages }}", {"a": 1, "b": 0}),
    ):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    assert ids(check_pair(str(target), str(drafter)), "warning") == {"DS604", "DS316"}
    for name in ("tokenizer_config.json", "tokenizer.json"):
        (drafter / name).write_bytes((target / name).read_bytes())
    assert ids(check_pair(str(target), str(drafter))) == set()


def test_another_verifier(tmp_path: Path) -> None:
    def named(name: str, architecture: str) -> Fault:
        verifier = {"name_or_path": name, "architectures": [architecture]}
        return lambda s, _: s["speculators_config"].update(verifier=verifier)

    def found(folder: str, name: str, architecture: str) -> list[Severity]:
        fault = named(name, architecture)
        report = checked(tmp_path / folder, "speculators", fault=fault, norm_before_residual=False)
        return [f.severity for f in report.findings if f.id == "DS602"]

    assert found("a", "acme/target", "LlamaForCausalLM") == []
    assert found("b", "acme/other", "LlamaForCausalLM") == [Severity.info]
    assert found("c", "acme/other", "Qwen3ForCausalLM") == [Severity.warning]


def test_a_full_vocabulary_needs_no_map(tmp_path: Path) -> None:
    report = checked(tmp_path, tiny=FULL_VOCAB)
    assert report.is_clean
    assert next(row.value for row in report.settings if row.setting == "d2t") == "not needed"


def test_a_name_that_vllm_does_not_recognise(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    assert ids(check_pair(str(target), str(write_drafter(tmp_path / "head")))) == {"DS514"}


def test_findings_come_worst_first(tmp_path: Path) -> None:
    def faults(settings: Settings, arrays: Arrays) -> None:
        _d2t("zero")(settings, arrays)
        settings |= {"rope_theta": 10000.0, "rms_norm_eps": 1e-6}

    report = checked(tmp_path, fault=faults)
    assert [f.id for f in report.findings] == ["DS302", "DS306", "DS401", "DS212"]


def test_a_refused_checkpoint_is_compared_by_engines_alone(tmp_path: Path) -> None:
    report = checked(tmp_path, fault=_d2t("beyond"))
    assert report.drafter.producer is None
    assert all(row.value is None for row in report.settings)
    layers = next(row for row in report.settings if row.setting == "layer_ids")
    assert {c.value for c in layers.engines} == {str(DEFAULT)}
    assert all(c.agrees is None for c in layers.engines)
    assert any("refused" in sentence for sentence in report.not_checked)


@pytest.mark.parametrize("damage", ["no_config", "cut", "bad_json", "peagle", "no_folder"])
def test_unusable_input_is_an_error_not_a_finding(tmp_path: Path, damage: str) -> None:
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "eagle3")
    weights_path, config_path = drafter / "model.safetensors", drafter / "config.json"
    if damage == "no_config":
        config_path.unlink()
    elif damage == "cut":
        weights_path.write_bytes(weights_path.read_bytes()[:-7])
    elif damage == "bad_json":
        config_path.write_text("{")
    elif damage == "peagle":
        settings = json.loads(config_path.read_text()) | {"architectures": ["PEagleDraftModel"], "pard_token": 3}
        config_path.write_text(json.dumps(settings))
    elif damage == "no_folder":
        drafter = tmp_path / "nowhere"
    with pytest.raises(CheckpointError) as caught:
        check_pair(str(target), str(drafter))
    assert caught.value.exit_code == 2
    assert caught.value.where
    assert caught.value.remedy
