"""The same weights in every producer's layout give the same spec, and each trap that producers share has its own case.

What is one producer's alone is in `test_checkpoint_producers`.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.checkpoint.files import file_hashes
from probes.checkpoint.layout import expected_shapes
from probes.checkpoint.read import read_spec
from probes.checkpoint.spec import FINAL_NORMED, DrafterSpec, Source
from probes.errors import CheckpointError, InputError
from tests.checkpoint_writers import PRODUCERS, Arrays, Tiny, config, save, weights, write_checkpoint

TINY = Tiny()


def write(
    folder: Path,
    producer: str = "specforge",
    tiny: Tiny = TINY,
    *,
    change: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    arrays: Arrays | None = None,
    extra: Arrays | None = None,
    **flags: object,
) -> Path:
    """A tiny checkpoint with config keys changed (None removes) and tensors dropped or added."""
    settings = config(producer, tiny, **flags)
    for key, value in (change or {}).items():
        if value is None:
            settings.pop(key, None)
        else:
            settings[key] = value
    tensors = {k: v for k, v in (arrays or weights(tiny)).items() if k not in drop} | (extra or {})
    return write_checkpoint(folder, producer, tensors, settings)


def read(folder: Path, tiny: Tiny = TINY, **options: Any) -> DrafterSpec:
    return read_spec(str(folder), target_config=tiny.target_config, **options)


def codes(spec: DrafterSpec) -> list[str]:
    return [finding.code for finding in spec.findings]


def comparable(spec: DrafterSpec) -> dict[str, Any]:
    """Everything but who made it and how we know."""
    values = dataclasses.asdict(spec)
    return {k: v for k, v in values.items() if k not in ("producer", "origins", "findings")}


KNOWN_FINDINGS = {  # what reading each layout as its producer writes it always reports
    "nemo": ["num_layers_disagrees", "aux_ids_not_recorded"],
    "angelslim": ["rope_theta_unused_in_training"],
}
SHARED = Tiny(own_embedding=False)  # ModelOpt writes no embedding


@pytest.mark.parametrize(
    ("tiny", "flags"),
    [
        (SHARED, {}),
        (dataclasses.replace(SHARED, fc_norm=True), {"norm_output": True}),
        (dataclasses.replace(SHARED, norm_before_fc=True), {"norm_output": False}),
        (dataclasses.replace(SHARED, num_layers=2, heads=8, kv_heads=1, head_dim=6, attention_bias=True), {}),
        (Tiny(target_hidden=24), {}),
        (dataclasses.replace(SHARED, draft_vocab=40), {"logit_scale": 0.5}),
        (dataclasses.replace(SHARED, qk_norm=True), {"norm_output": True}),
    ],
)
def test_every_layout_gives_one_spec(tmp_path: Path, tiny: Tiny, flags: dict[str, object]) -> None:
    arrays = weights(tiny)
    producers = [p for p in PRODUCERS if not (tiny.own_embedding and p == "modelopt")]
    specs = {}
    for producer in producers:
        settings = config(producer, tiny, norm_before_residual=False, **flags)
        specs[producer] = read(write_checkpoint(tmp_path / producer, producer, arrays, settings), tiny)
    assert [s.producer for s in specs.values()] == producers
    spec = specs["specforge"]
    for producer in producers:
        assert comparable(specs[producer]) == comparable(spec), producer
        known = KNOWN_FINDINGS.get(producer, [])
        if tiny.qk_norm and producer not in ("speculators", "vllm"):  # the others' classes have no such norms
            known = ["family_disagrees", *known]
        assert codes(specs[producer]) == known, producer
    assert expected_shapes(spec) == {name: array.shape for name, array in arrays.items() if name != "t2d"}
    assert spec.family == ("qwen3" if tiny.qk_norm else "llama")
    assert spec.aux_layer_ids == (2, 4, 5)
    assert spec.num_aux == 3
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (tiny.heads, tiny.kv_heads, tiny.head_dim)
    assert (spec.vocab_size, spec.draft_vocab_size) == (40, tiny.draft_vocab)
    assert spec.target_hidden_size == tiny.target_hidden
    assert spec.rope_parameters == {"rope_type": "default", "rope_theta": 500000.0}
    assert spec.rms_norm_eps == 1e-5
    assert (spec.has_fc_norm, spec.norm_before_fc) == (tiny.fc_norm, tiny.norm_before_fc)
    assert spec.norm_output is flags.get("norm_output", False)
    assert spec.attention_bias is tiny.attention_bias
    assert spec.has_own_embedding is tiny.own_embedding
    assert spec.has_vocab_map is (tiny.draft_vocab < tiny.vocab)
    assert spec.logit_scale == flags.get("logit_scale", 1.0)
    assert spec.num_layers == tiny.num_layers


@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_value_has_an_origin(tmp_path: Path, producer: str) -> None:
    spec = read(write(tmp_path, producer))
    fields = {field.name for field in dataclasses.fields(spec)} - {"origins", "findings"}
    assert set(spec.origins) == fields
    assert spec.origins["has_fc"].source is Source.tensor
    assert spec.origins["has_fc"].detail == ("model." if producer == "nemo" else "") + "fc.weight [16, 48]"
    assert spec.origins["hidden_size"].source is Source.file_key
    prefix = "transformer_layer_config." if producer == "speculators" else ""
    assert spec.origins["hidden_size"].detail == prefix + "hidden_size"
    assert json.loads(json.dumps(dataclasses.asdict(spec)))["hidden_size"] == 16  # can stand in run.json


@pytest.mark.parametrize("producer", PRODUCERS)
def test_shards_and_bf16_give_the_same_spec(tmp_path: Path, producer: str) -> None:
    arrays, settings = weights(TINY), config(producer, TINY)
    single = read(write_checkpoint(tmp_path / "single", producer, arrays, settings))
    sharded = read(write_checkpoint(tmp_path / "sharded", producer, arrays, settings, num_shards=3, is_bf16=True))
    assert comparable(single) == comparable(sharded)


# -- flags that leave no trace in tensors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("producer", "expected", "engine"),
    [
        ("safeailab", False, "cnets.py"),
        ("specforge", False, "vLLM llama_eagle3.py"),
        ("speculators", True, "algos.py"),
        ("torchspec", False, "vLLM llama_eagle3.py"),
        ("nemo", False, "vLLM llama_eagle3.py"),
        ("modelopt", False, "vLLM llama_eagle3.py"),
        ("angelslim", False, "vLLM llama_eagle3.py"),
        ("sglang", False, "SGLang llama_eagle3.py"),
        ("vllm", False, "vLLM llama_eagle3.py"),
    ],
)
def test_norm_before_residual_default_is_the_engines(
    tmp_path: Path, producer: str, expected: bool, engine: str
) -> None:
    spec = read(write(tmp_path, producer))
    origin = spec.origins["norm_before_residual"]
    assert spec.norm_before_residual is expected
    assert (origin.source, origin.is_certain) == (Source.engine_default, False)
    assert engine in origin.detail
    assert spec.norm_output is False
    assert spec.origins["norm_output"].is_certain is False


def test_stated_flags_are_certain(tmp_path: Path) -> None:
    spec = read(write(tmp_path, "speculators", norm_output=True, norm_before_residual=False))
    assert (spec.norm_output, spec.norm_before_residual) == (True, False)
    assert spec.origins["norm_output"].is_certain
    assert spec.origins["norm_before_residual"].source is Source.file_key


def test_eagle31_is_recognised(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a", tiny=Tiny(fc_norm=True), norm_output=True), TINY).kind == "eagle3.1"
    assert read(write(tmp_path / "b", tiny=Tiny(fc_norm=True)), TINY).kind == "eagle3"


# -- flags that tensors show -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "key"), [("fc_norm", "fc_norm"), ("norm_before_fc", "norm_before_fc")])
@pytest.mark.parametrize("stated", [None, False])
def test_a_norm_in_the_weights_beats_config(tmp_path: Path, field: str, key: str, stated: bool | None) -> None:
    tiny = dataclasses.replace(TINY, **{field: True})
    spec = read(write(tmp_path, tiny=tiny, change={key: stated}))
    assert getattr(spec, "has_fc_norm" if field == "fc_norm" else field) is True
    assert codes(spec) == ["flag_disagrees"]
    assert key in spec.findings[0].message


@pytest.mark.parametrize("key", ["fc_norm", "norm_before_fc"])
def test_a_stated_norm_without_weights_is_an_error(tmp_path: Path, key: str) -> None:
    with pytest.raises(CheckpointError, match=key) as caught:
        read(write(tmp_path, change={key: True}))
    assert caught.value.code == "tensor_missing"


def test_attention_bias_copied_from_the_target_without_weights(tmp_path: Path) -> None:
    spec = read(write(tmp_path, change={"attention_bias": True}))
    assert spec.attention_bias is False
    assert codes(spec) == ["flag_disagrees"]


def test_both_fusion_norms_are_reported(tmp_path: Path) -> None:
    spec = read(write(tmp_path, tiny=Tiny(fc_norm=True, norm_before_fc=True)))
    assert spec.has_fc_norm
    assert spec.norm_before_fc
    assert codes(spec) == ["two_fusion_norms"]


@pytest.mark.parametrize("has_hidden_norm", [True, False])
def test_drafter_on_the_targets_last_state(tmp_path: Path, has_hidden_norm: bool) -> None:
    drop = ("fc.weight",) if has_hidden_norm else ("fc.weight", "layers.0.hidden_norm.weight")
    spec = read(write(tmp_path, change={"eagle_config": {"use_aux_hidden_state": False}}, drop=drop))
    assert (spec.use_aux_hidden_state, spec.has_fc, spec.aux_layer_ids) == (False, False, (FINAL_NORMED,))
    assert spec.has_hidden_norm is has_hidden_norm
    assert codes(spec) == ([] if has_hidden_norm else ["hidden_norm_absent"])


def test_fc_missing_without_saying_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"fc\.weight") as caught:
        read(write(tmp_path, drop=("fc.weight",)))
    assert caught.value.code == "tensor_missing"


def test_embedding_and_lm_head_of_the_target(tmp_path: Path) -> None:
    full = Tiny(draft_vocab=40)
    spec = read(write(tmp_path / "full", tiny=full, drop=("embed_tokens.weight", "lm_head.weight")))
    assert (spec.has_own_embedding, spec.has_own_lm_head, spec.draft_vocab_size) == (False, False, 40)
    with pytest.raises(CheckpointError, match="lm_head") as caught:
        read(write(tmp_path / "pruned", drop=("lm_head.weight",)))
    assert caught.value.code == "config_inconsistent"
    wide = Tiny(target_hidden=24, own_embedding=False)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight.*24 wide") as caught:
        read(write(tmp_path / "wide", tiny=wide), wide)
    assert caught.value.code == "tensor_missing"


# -- layer ids -------------------------------------------------------------------------------------------------------

TOP = "eagle_aux_hidden_state_layer_ids"


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {TOP: list(ids)}}


@pytest.mark.parametrize(
    ("producer", "change", "expected", "is_certain", "finding"),
    [
        # our demo pair: SpecForge's names, ids at the top level as vLLM's V2 runner reads them
        ("specforge", {"eagle_config": None, TOP: [2, 4, 5]}, (2, 4, 5), True, []),
        ("specforge", {"eagle_config": None, TOP: [1, 3, 4]}, (1, 3, 4), False, ["aux_ids_ambiguous"]),
        ("specforge", {"eagle_config": None, TOP: [3, 5, 7]}, (3, 5, 7), False, ["aux_ids_ambiguous"]),
        ("specforge", {"eagle_config": None, TOP: [3, 5, 8]}, (3, 5, 8), True, []),  # layer 8 of 0..7 has no output
        ("specforge", nested(1, 3, 4), (2, 4, 5), True, []),
        ("specforge", nested(1, 5, 7), (2, 6, 8), True, []),
        ("specforge", nested(2, 4, 5), (2, 4, 5), False, ["aux_ids_ambiguous"]),
        ("specforge", nested(3, 5, 7), (4, 6, 8), False, ["aux_ids_ambiguous"]),
        ("specforge", nested(4, 6, 8), (4, 6, 8), False, ["aux_ids_ambiguous"]),  # 8 + 1 has no layer: boundary
        ("specforge", nested(1, 3, 4) | {TOP: [2, 4, 5]}, (2, 4, 5), True, []),
        ("specforge", nested(1, 3, 4) | {TOP: [2, 5, 7]}, (2, 5, 7), False, ["aux_ids_conflict"]),
        ("specforge", {"eagle_config": None}, (2, 4, 5), True, []),
        ("specforge", {"eagle_config": {TOP: []}}, (2, 4, 5), True, []),
        ("specforge", {"eagle_config": None, TOP: [5, 2, 4]}, (2, 4, 5), True, ["aux_ids_not_ascending"]),
        ("safeailab", {}, (2, 4, 5), True, []),
        ("safeailab", {TOP: [1, 3, 4]}, (1, 3, 4), False, ["aux_ids_ambiguous"]),
        ("speculators", {TOP: [1, 3, 4]}, (1, 3, 4), True, []),
        ("speculators", {TOP: None}, (2, 4, 5), True, []),
    ],
)
def test_layer_ids_become_boundary_ids(
    tmp_path: Path,
    producer: str,
    change: dict[str, Any],
    expected: tuple[int, ...],
    is_certain: bool,
    finding: list[str],
) -> None:
    spec = read(write(tmp_path, producer, change=change))
    assert spec.aux_layer_ids == expected
    assert spec.origins["aux_layer_ids"].is_certain is is_certain
    assert codes(spec) == finding


def test_a_top_level_first_id_of_1_is_a_warning(tmp_path: Path) -> None:
    finding = read(write(tmp_path, change={"eagle_config": None, TOP: [1, 3, 4]})).findings[0]
    assert finding.severity == "warning"
    assert "one layer early" in finding.message
    assert "[2, 4, 5]" in finding.remedy


def test_the_default_needs_the_target(tmp_path: Path) -> None:
    folder = write(tmp_path, "safeailab")
    with pytest.raises(CheckpointError, match="number of layers") as caught:
        read_spec(str(folder))
    assert caught.value.code == "target_needed"
    spec = read_spec(str(folder), overrides={"aux_layer_ids": [1, 2, 3]})
    assert spec.aux_layer_ids == (1, 2, 3)
    assert spec.origins["aux_layer_ids"].source is Source.override
    multimodal = {"model_type": "vl", "text_config": {"num_hidden_layers": 30, "hidden_size": 16, "vocab_size": 40}}
    spec = read_spec(str(folder), target_config=multimodal)
    assert spec.aux_layer_ids == (2, 15, 27)
    assert spec.origins["aux_layer_ids"].source is Source.engine_default


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (nested(1, 3, 8), "aux_ids_invalid"),  # the output of layer 8 of 8 (0 to 7)
        (nested(1, 3, 3), "aux_ids_invalid"),
        (nested(1, 3), "fc_width"),
        (nested(1, 3, 4, 5), "fc_width"),
        ({"eagle_config": {TOP: [1, -3, 4]}}, "config_wrong_type"),
        ({"eagle_config": {TOP: [1, True, 4]}}, "config_wrong_type"),
        ({"eagle_config": {TOP: "1,3,4"}}, "config_wrong_type"),
        ({"eagle_config": [1, 2]}, "config_wrong_type"),
        ({"target_hidden_size": 15}, "target_mismatch"),
    ],
)
def test_impossible_layer_ids(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json|model\.safetensors") as caught:
        read(write(tmp_path, change=change))
    assert caught.value.code == code


def test_more_than_three_states(tmp_path: Path) -> None:
    spec = read(write(tmp_path, tiny=Tiny(num_aux=4), change=nested(1, 3, 4, 6)))
    assert spec.aux_layer_ids == (2, 4, 5, 7)


def test_fc_of_an_impossible_width(tmp_path: Path) -> None:
    arrays = weights(TINY) | {"fc.weight": np.zeros((16, 50), np.float32)}
    with pytest.raises(CheckpointError, match="50 features") as caught:
        read(write(tmp_path, arrays=arrays))
    assert caught.value.code == "fc_width"
    assert caught.value.where.endswith("model.safetensors")


def test_a_shallow_target_has_no_default_layers(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="5 layers") as caught:
        read(write(tmp_path, "safeailab"), Tiny(target_layers=5))
    assert caught.value.code == "aux_ids_missing"


# -- sizes, windows, tensors -----------------------------------------------------------------------------------------


def test_head_dim_is_explicit_or_derived(tmp_path: Path) -> None:
    odd = Tiny(heads=2, kv_heads=1, head_dim=6)
    assert read(write(tmp_path / "explicit", tiny=odd), odd).head_dim == 6
    spec = read(write(tmp_path / "derived", change={"head_dim": None}))
    assert spec.head_dim == 4
    assert spec.origins["head_dim"].source is Source.engine_default


@pytest.mark.parametrize(
    ("change", "expected", "finding"),
    [
        ({}, (None,), []),
        ({"layer_types": ["sliding_attention"], "sliding_window": 64}, (64,), []),
        ({"layer_types": ["full_attention"], "sliding_window": 64}, (None,), []),
        ({"sliding_window": 64}, (None,), ["sliding_window_ignored"]),
        ({"sliding_window": 64, "use_sliding_window": False}, (None,), []),
        (
            {"layer_types": ["sliding_attention"], "sliding_window": 64, "use_sliding_window": False},
            (None,),
            ["sliding_window_ignored"],
        ),
        (
            {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64},
            (64,),
            ["layer_types_too_long"],
        ),
    ],
)
def test_sliding_window(
    tmp_path: Path, change: dict[str, Any], expected: tuple[int | None, ...], finding: list[str]
) -> None:
    spec = read(write(tmp_path, change=change))
    assert spec.sliding_window == expected
    assert codes(spec) == finding


SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": 64}


@pytest.mark.parametrize(
    ("change", "expected", "finding"),
    [
        (SLIDING | {"use_sliding_window": True}, (64,), []),
        (SLIDING | {"use_sliding_window": False}, (None,), ["sliding_window_ignored"]),
        (SLIDING, (None,), ["sliding_window_ignored"]),  # absent is false in Qwen's config classes
        ({"sliding_window": 64}, (None,), []),
        ({"sliding_window": 64, "use_sliding_window": True}, (None,), []),  # layers below 28 have full attention
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, (64,), []),
    ],
)
def test_sliding_window_of_qwens_config_classes(
    tmp_path: Path, change: dict[str, Any], expected: tuple[int | None, ...], finding: list[str]
) -> None:
    spec = read(write(tmp_path, "vllm", tiny=Tiny(qk_norm=True), change=change))
    assert spec.sliding_window == expected
    assert spec.origins["sliding_window"].is_certain
    assert codes(spec) == finding


def test_windows_by_layer(tmp_path: Path) -> None:
    types = ["full_attention", "sliding_attention"]
    spec = read(write(tmp_path, tiny=Tiny(num_layers=2), change={"layer_types": types, "sliding_window": 9}))
    assert spec.sliding_window == (None, 9)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["sliding_attention"]},
        {"layer_types": ["linear_attention"]},
        {"layer_types": []},
        {"num_key_value_heads": 3},
        {"head_dim": 5},
        {"draft_vocab_size": 12, "vocab_size": 8},
    ],
)
def test_settings_that_do_not_fit_together(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(write(tmp_path, change=change))
    assert caught.value.code == "config_inconsistent"


def test_counts_in_config_that_weights_contradict(tmp_path: Path) -> None:
    spec = read(write(tmp_path, change={"draft_vocab_size": 13, "num_hidden_layers": 2}))
    assert (spec.draft_vocab_size, spec.num_layers) == (12, 1)
    assert codes(spec) == ["num_layers_disagrees", "draft_vocab_size_disagrees"]
    assert spec.findings[0].severity == "error"
    fewer = read(write(tmp_path / "fewer", tiny=Tiny(num_layers=2), change={"num_hidden_layers": 1}))
    assert (fewer.num_layers, fewer.findings[0].severity) == (2, "warning")


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.up_proj\.weight.*norm\.weight") as caught:
        read(write(tmp_path, drop=("norm.weight", "layers.0.mlp.up_proj.weight")))
    assert caught.value.code == "tensor_missing"


def test_a_missing_hidden_norm_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"layers\.0\.hidden_norm\.weight") as caught:
        read(write(tmp_path, drop=("layers.0.hidden_norm.weight",)))
    assert caught.value.code == "tensor_missing"


def test_misshaped_tensors_are_named_with_both_shapes(tmp_path: Path) -> None:
    arrays = weights(TINY) | {"layers.0.self_attn.k_proj.weight": np.zeros((8, 16), np.float32)}
    with pytest.raises(
        CheckpointError, match=r"midlayer\.self_attn\.k_proj\.weight` has shape \[8, 16\], expected \[8, 32\]"
    ):
        read(write(tmp_path, arrays=arrays))


def test_unused_tensors_are_reported(tmp_path: Path) -> None:
    extra = {
        "midlayer.self_attn.rotary_emb.inv_freq": np.zeros(2, np.float32),
        "mystery.weight": np.zeros(2, np.float32),
    }
    spec = read(write(tmp_path, extra=extra))
    assert [(f.code, f.severity) for f in spec.findings] == [
        ("harmless_tensors", "info"),
        ("unused_tensors", "warning"),
    ]
    assert "mystery.weight" in spec.findings[1].message
    extra = {"verifier_lm_head.weight": np.zeros(2, np.float32)}
    assert codes(read(write(tmp_path / "s", "speculators", extra=extra))) == ["harmless_tensors"]


@pytest.mark.parametrize("name", ["midlayer.mlp.up_proj.bias", "lm_head.bias", "fc.weight_scale"])
def test_unknown_parts_of_the_forward_pass_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=name) as caught:
        read(write(tmp_path, extra={name: np.zeros(2, np.float32)}))
    assert caught.value.code == "unsupported_tensor"


def test_a_bias_of_the_output_projection_is_read(tmp_path: Path) -> None:
    extra = {"midlayer.self_attn.o_proj.bias": np.zeros(16, np.float32)}
    assert read(write(tmp_path, extra=extra)).has_o_proj_bias
    assert not read(write(tmp_path / "without")).has_o_proj_bias


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    arrays = weights(TINY) | {"norm.weight": np.zeros(16, np.int8)}
    with pytest.raises(CheckpointError, match=r"norm\.weight.*I8") as caught:
        read(write(tmp_path, arrays=arrays))
    assert caught.value.code == "unsupported_dtype"


def test_one_part_under_two_names(tmp_path: Path) -> None:
    arrays = weights(TINY)
    named = {k.replace("layers.0.", "midlayer."): v for k, v in arrays.items()}
    folder = write(tmp_path)
    save(folder / "model.safetensors", named | {"layers.0.hidden_norm.weight": arrays["layers.0.hidden_norm.weight"]})
    with pytest.raises(CheckpointError, match=r"layers\.0\.hidden_norm\.weight") as caught:
        read(folder)
    assert caught.value.code == "duplicate_tensor"


def test_a_vocabulary_of_another_target(tmp_path: Path) -> None:
    spec = read(write(tmp_path), Tiny(vocab=41))
    assert codes(spec) == ["vocab_size_disagrees"]
    assert spec.vocab_size == 40


# -- overrides, hashes, imports --------------------------------------------------------------------------------------


def test_overrides_replace_what_tensors_do_not_settle(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    spec = read(write(tmp_path), overrides={"norm_output": True, "norm_before_residual": True, "rope_parameters": rope})
    assert (spec.norm_output, spec.norm_before_residual, spec.rope_parameters) == (True, True, rope)
    assert spec.origins["norm_output"].source is Source.override
    assert spec.origins["norm_output"].is_certain
    assert spec.origins["rope_parameters"].source is Source.override
    with pytest.raises(InputError, match="has_fc") as caught:
        read(tmp_path, overrides={"has_fc": False})
    assert caught.value.code == "unknown_override"
    with pytest.raises(CheckpointError, match="norm_output") as wrong:
        read(tmp_path, overrides={"norm_output": "yes"})
    assert wrong.value.where == "overrides"


def test_file_hashes_are_sha256_of_config_and_weights(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "specforge", weights(TINY), config("specforge", TINY), num_shards=2)
    hashes = file_hashes(str(folder))
    assert sorted(hashes) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert all(len(digest) == 64 for digest in hashes.values())
    before = hashes["config.json"]
    (folder / "config.json").write_text("{}")
    assert file_hashes(str(folder))["config.json"] == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert before != file_hashes(str(folder))["config.json"]


def test_stray_weight_files_are_reported(tmp_path: Path) -> None:
    folder = write(tmp_path)
    save(folder / "old.safetensors", {"norm.weight": np.zeros(16, np.float32)})
    spec = read(folder)
    assert codes(spec) == ["unused_weight_file"]
    assert "old.safetensors" in spec.findings[0].message


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    folder = write(tmp_path)
    program = (
        "import sys\n"
        "from probes.checkpoint.read import read_spec\n"
        f"read_spec({str(folder)!r}, target_config={TINY.target_config!r})\n"
        "print([m for m in ('torch', 'transformers', 'safetensors', 'huggingface_hub') if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
