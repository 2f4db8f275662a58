"""Each producer's own traps, with the right value: prefixes, places, ids off by one, what is absent, what is not so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.checkpoint.producers import all_producers, choose_producer, producer_named
from probes.checkpoint.read import read_spec
from probes.checkpoint.spec import FINAL_NORMED, DrafterSpec, Source
from probes.errors import CheckpointError
from tests.checkpoint_writers import IDS, PRODUCERS, Arrays, Tiny, config, named, save, weights, write_checkpoint

TINY = Tiny()
ANGELSLIM_IDS = "aux_hidden_states_layer_ids"
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}


def write(
    folder: Path,
    producer: str,
    change: dict[str, Any] | None = None,
    *,
    tiny: Tiny = TINY,
    nested: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    extra: Arrays | None = None,
    **flags: object,
) -> Path:
    """A checkpoint with keys changed (None removes), of config.json and of its eagle_config; tensors by canonical name."""
    settings = config(producer, tiny, **flags) | (change or {})
    settings = {key: value for key, value in settings.items() if value is not None}
    if nested is not None:
        settings["eagle_config"] = settings.get("eagle_config", {}) | nested
    arrays = {name: array for name, array in weights(tiny).items() if name not in drop} | (extra or {})
    return write_checkpoint(folder, producer, arrays, settings)


def read(folder: Path, tiny: Tiny = TINY, **options: Any) -> DrafterSpec:
    return read_spec(str(folder), target_config=tiny.target_config, **options)


def codes(spec: DrafterSpec) -> list[str]:
    return [finding.code for finding in spec.findings]


def finding_of(spec: DrafterSpec, code: str) -> Any:
    return next(finding for finding in spec.findings if finding.code == code)


def test_the_registry_is_what_the_writer_writes() -> None:
    assert sorted(PRODUCERS) == [producer.name for producer in all_producers()]
    with pytest.raises(CheckpointError, match="angelslim"):
        producer_named("nobody")


@pytest.mark.parametrize("producer", PRODUCERS)
def test_exactly_one_producer_is_the_surest(producer: str) -> None:
    """No tie: the choice must not depend on the order of the files."""
    settings, names = config(producer, TINY), frozenset(named(producer, weights(TINY)))
    scores = sorted((p.score(settings, names) for p in all_producers()), reverse=True)
    assert choose_producer(settings, names, where="").name == producer
    assert scores[0] > scores[1]


# -- SafeAILab -------------------------------------------------------------------------------------------------------


def test_safeailab_without_rope_theta_means_10000_whatever_the_target_says(tmp_path: Path) -> None:
    target = TINY.target_config | {"rope_theta": 500000.0, "rope_parameters": {"rope_theta": 500000.0}}
    spec = read_spec(str(write(tmp_path, "safeailab", {"rope_theta": None})), target_config=target)
    assert spec.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert spec.origins["rope_parameters"].source is Source.engine_default


def test_a_pickle_that_safeailabs_own_loader_would_prefer_is_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, "safeailab")
    (folder / "pytorch_model.bin").write_bytes(b"old weights")
    (folder / "training_args.bin").write_bytes(b"no weights")
    finding = finding_of(read(folder), "unused_weight_file")
    assert "pytorch_model.bin" in finding.message
    assert "training_args" not in finding.message


# -- TorchSpec -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["torchspec", "modelopt"])  # its own names, and those of an export with --vllm
def test_torchspec_ids_are_layer_outputs_in_both_exports(tmp_path: Path, layout: str) -> None:
    tiny = Tiny(own_embedding=False)
    folder = write_checkpoint(tmp_path, layout, weights(tiny), config("torchspec", tiny))
    spec = read(folder)
    assert (spec.producer, spec.aux_layer_ids) == ("torchspec", (2, 4, 5))
    assert spec.origins["aux_layer_ids"].detail == f"eagle_config.{IDS} (layer-output ids, +1)"
    assert codes(spec) == []


def runs_of_ids(tiny: Tiny) -> tuple[np.ndarray, Arrays]:
    """(a full lm_head, d2t and t2d of a draft vocabulary with neighbours)."""
    ids = np.r_[3:9, 20:26]
    full = np.random.default_rng(5).standard_normal((tiny.vocab, tiny.hidden), dtype=np.float32)
    return full, {"d2t": ids - np.arange(len(ids)), "t2d": np.isin(np.arange(tiny.vocab), ids)}


@pytest.mark.parametrize("producer", ["torchspec", "specforge"])
def test_an_lm_head_cut_by_the_offsets_is_an_error(tmp_path: Path, producer: str) -> None:
    full, maps = runs_of_ids(TINY)
    right, wrong = full[maps["d2t"] + np.arange(12)], full[maps["d2t"]]
    assert codes(read(write(tmp_path / "right", producer, extra={"lm_head.weight": right, **maps}))) == []
    spec = read(write(tmp_path / "wrong", producer, extra={"lm_head.weight": wrong, **maps}))
    assert codes(spec) == ["lm_head_cut_by_offsets"]
    assert spec.findings[0].severity == "error"
    assert "rows 0 and 1" in spec.findings[0].message


def test_a_few_equal_rows_of_lm_head_prove_nothing(tmp_path: Path) -> None:
    full, maps = runs_of_ids(TINY)
    rows = full[maps["d2t"] + np.arange(12)]
    rows[1] = rows[0]
    assert codes(read(write(tmp_path, "torchspec", extra={"lm_head.weight": rows, **maps}))) == []


# -- NeMo Automodel --------------------------------------------------------------------------------------------------


def test_nemo_names_are_stripped_and_the_targets_config_is_not_believed(tmp_path: Path) -> None:
    spec = read(write(tmp_path, "nemo", {"layer_types": ["full_attention"] * 8, "tie_word_embeddings": True}))
    assert (spec.producer, spec.family, spec.num_layers) == ("nemo", "llama", 1)  # model_type is qwen3, depth 8
    assert spec.origins["has_own_embedding"].detail == "model.embed_tokens.weight [40, 16]"
    assert codes(spec) == ["num_layers_disagrees", "layer_types_too_long", "aux_ids_not_recorded"]
    finding = finding_of(spec, "num_layers_disagrees")
    assert finding.severity == "error"  # NeMo's own export for vLLM keeps the number: vLLM 0.32 computes NaN
    assert "builds the missing layers" in finding.message


def test_nemo_does_not_record_its_layers(tmp_path: Path) -> None:
    folder = write(tmp_path, "nemo")
    spec = read(folder)
    assert spec.aux_layer_ids == (2, 4, 5)
    assert spec.origins["aux_layer_ids"].source is Source.engine_default
    assert spec.origins["aux_layer_ids"].is_certain is False
    assert finding_of(spec, "aux_ids_not_recorded").severity == "info"
    spec = read(folder, overrides={"aux_layer_ids": [1, 3, 6]})
    assert spec.aux_layer_ids == (1, 3, 6)
    assert spec.origins["aux_layer_ids"].is_certain
    assert "aux_ids_not_recorded" not in codes(spec)


@pytest.mark.parametrize(
    "layout",
    [
        "nemo",  # `serve_sglang` renames the architecture in place, the prefix stays
        "vllm",  # `serve_vllm` strips the prefix too
    ],
)
def test_nemo_is_recognised_after_its_serving_scripts(tmp_path: Path, layout: str) -> None:
    settings = config("nemo", TINY) | {"architectures": ["LlamaForCausalLMEagle3"]}
    before = read(write(tmp_path / "before", "nemo"))
    after = read(write_checkpoint(tmp_path / "after", layout, weights(TINY), settings))
    assert after.producer == "nemo"
    assert after.aux_layer_ids == before.aux_layer_ids
    assert after.origins["aux_layer_ids"] == before.origins["aux_layer_ids"]


def test_nemo_with_eagle31_norms_under_the_prefix(tmp_path: Path) -> None:
    tiny = Tiny(fc_norm=True)
    spec = read(write(tmp_path, "nemo", tiny=tiny, norm_output=True), tiny)
    assert spec.kind == "eagle3.1"
    assert spec.origins["has_fc_norm"].detail == "model.fc_norm.0.weight [16]"


# -- ModelOpt / NVIDIA -----------------------------------------------------------------------------------------------


def test_modelopt_has_no_embedding_and_its_nested_settings_win(tmp_path: Path) -> None:
    spec = read(write(tmp_path, "modelopt", {"use_last_layernorm": False}))  # top level: engines read eagle_config
    assert (spec.producer, spec.has_own_embedding, spec.has_own_lm_head) == ("modelopt", False, True)
    assert (spec.aux_layer_ids, spec.origins["aux_layer_ids"].is_certain) == ((2, 4, 5), True)
    assert spec.vocab_size == 40
    assert codes(spec) == []
    with pytest.raises(CheckpointError, match=r"eagle_config\.use_last_layernorm"):
        read(write(tmp_path, "modelopt", nested={"use_last_layernorm": False}))


@pytest.mark.parametrize(
    ("ids", "expected", "is_certain", "finding"),
    [
        ([4, 6, 8], (4, 6, 8), True, []),  # gpt-oss v3: the last is n, the stream after the last layer
        ([2, 4, 5], (2, 4, 5), True, []),
        ([3, 5, 7], (3, 5, 7), False, ["aux_ids_ambiguous"]),
        ([1, 3, 4], (2, 4, 5), True, []),  # a first id of 1 is ModelOpt's own mark of outputs
    ],
)
def test_modelopt_with_norm_before_fc_has_boundary_ids(
    tmp_path: Path, ids: list[int], expected: tuple[int, ...], is_certain: bool, finding: list[str]
) -> None:
    tiny = Tiny(norm_before_fc=True)
    spec = read(write(tmp_path, "modelopt", tiny=tiny, nested={IDS: ids}), tiny)
    assert spec.norm_before_fc
    assert spec.origins["norm_before_fc"].detail == "input_norm.weight [48]"
    assert spec.aux_layer_ids == expected
    assert spec.origins["aux_layer_ids"].is_certain is is_certain
    assert codes(spec) == finding


def test_modelopt_v3_is_read_right_without_the_target(tmp_path: Path) -> None:
    tiny = Tiny(norm_before_fc=True)
    spec = read_spec(str(write(tmp_path, "modelopt", tiny=tiny, nested={IDS: [24, 30, 36]})))
    assert spec.aux_layer_ids == (24, 30, 36)
    assert "NVIDIA's heads with norm_before_fc boundary ids" in finding_of(spec, "aux_ids_ambiguous").message
    assert "[25, 31, 37]" in finding_of(spec, "aux_ids_ambiguous").remedy


def test_modelopt_on_the_targets_last_state(tmp_path: Path) -> None:
    nested = {IDS: [], "use_aux_hidden_state": False}
    spec = read(write(tmp_path, "modelopt", nested=nested, drop=("fc.weight", "layers.0.hidden_norm.weight")))
    assert (spec.aux_layer_ids, spec.use_aux_hidden_state) == ((FINAL_NORMED,), False)
    assert (spec.has_fc, spec.has_hidden_norm) == (False, False)
    assert codes(spec) == ["hidden_norm_absent"]


def test_modelopt_rope_set_at_export(tmp_path: Path) -> None:
    folder = write(tmp_path, "modelopt", {"rope_scaling": YARN, "rope_theta": 10000})
    spec = read(folder)
    assert spec.rope_parameters == YARN | {"rope_theta": 10000.0}  # as engines compute it
    assert spec.origins["rope_parameters"].is_certain is False
    assert codes(spec) == ["rope_set_at_export"]
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    assert codes(read(folder, overrides={"rope_parameters": plain})) == []
    other = YARN | {"factor": 8.0}
    assert codes(read(write(tmp_path / "other", "modelopt", {"rope_scaling": other}))) == []


def test_modelopt_norm_output_has_another_name_for_tensorrt_llm(tmp_path: Path) -> None:
    spec = read(write(tmp_path, "modelopt", nested={"return_hidden_post_norm": True}))
    assert spec.norm_output
    assert spec.origins["norm_output"].detail == "eagle_config.return_hidden_post_norm"
    assert not read(write(tmp_path, "specforge", nested={"return_hidden_post_norm": True})).norm_output


def test_modelopt_buffer_that_was_never_filled(tmp_path: Path) -> None:
    spec = read(write(tmp_path, "modelopt", extra={"d2t": np.zeros(12, np.int64)}))
    assert codes(spec) == ["d2t_all_zero"]
    assert "never filled" in spec.findings[0].message


# -- AngelSlim -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected", "is_certain", "finding"),
    [
        ({ANGELSLIM_IDS: [1, 3, 4]}, (2, 4, 5), True, []),
        ({ANGELSLIM_IDS: [3, 5, 6]}, (4, 6, 7), True, []),  # nobody else writes this key: no doubt
        ({ANGELSLIM_IDS: [2, 4, 5]}, (3, 5, 6), True, []),
        ({ANGELSLIM_IDS: None}, (2, 4, 5), True, []),
        ({ANGELSLIM_IDS: [1, 4, 6], IDS: [2, 5, 7]}, (2, 5, 7), True, []),
        ({ANGELSLIM_IDS: [1, 4, 6], IDS: [1, 4, 6]}, (1, 4, 6), False, ["aux_ids_ambiguous", "aux_ids_conflict"]),
    ],
)
def test_angelslim_ids_stand_under_its_own_key(
    tmp_path: Path, change: dict[str, Any], expected: tuple[int, ...], is_certain: bool, finding: list[str]
) -> None:
    spec = read(write(tmp_path, "angelslim", {"rope_theta": None} | change))
    assert (spec.producer, spec.aux_layer_ids) == ("angelslim", expected)
    assert spec.origins["aux_layer_ids"].is_certain is is_certain
    assert codes(spec) == finding


def test_angelslim_trains_with_base_10000_whatever_rope_theta_says(tmp_path: Path) -> None:
    folder = write(tmp_path, "angelslim", {"rope_theta": 1000000})
    spec = read(folder)
    assert spec.rope_parameters == {"rope_type": "default", "rope_theta": 1000000.0}  # as engines compute it
    assert spec.origins["rope_parameters"].is_certain is False
    finding = finding_of(spec, "rope_theta_unused_in_training")
    assert (finding.severity, finding.where.endswith("config.json: rope_theta")) == ("warning", True)
    trained = {"rope_type": "default", "rope_theta": 10000.0}
    assert codes(read(folder, overrides={"rope_parameters": trained})) == []
    assert codes(read(write(tmp_path / "same", "angelslim", {"rope_theta": 10000}))) == []


def test_angelslim_for_vision_is_refused_by_its_rope(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "mrope_section": [1, 1]}
    with pytest.raises(CheckpointError, match="multimodal") as caught:
        read(write(tmp_path, "angelslim", {"rope_scaling": rope}))
    assert caught.value.code == "unsupported_rope"


# -- SGLang's research checkpoints -----------------------------------------------------------------------------------


def test_sglang_norms_are_named_by_height(tmp_path: Path) -> None:
    tiny = Tiny(fc_norm=True)
    arrays = weights(tiny)
    folder = write(tmp_path, "sglang", tiny=tiny, norm_output=True)
    spec = read(folder, tiny)
    assert (spec.producer, spec.kind) == ("sglang", "eagle3.1")
    assert spec.origins["has_fc_norm"].detail == "aux_norm_low.weight [16]"
    assert codes(spec) == []  # the flag `use_aux_norm` counts as fc_norm
    mixed = named("sglang", arrays) | {"aux_norm_high.weight": np.ones(17, np.float32)}
    save(folder / "model.safetensors", mixed)
    with pytest.raises(CheckpointError, match=r"aux_norm_high\.weight` has shape \[17\], expected \[16\]"):
        read(folder, tiny)


def test_sglang_flag_without_its_norms(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="use_aux_norm") as caught:
        read(write(tmp_path, "sglang", {"use_aux_norm": True}))
    assert caught.value.code == "tensor_missing"


# -- Qwen3 layers ----------------------------------------------------------------------------------------------------

QWEN3 = Tiny(qk_norm=True)


@pytest.mark.parametrize("producer", ["speculators", "vllm"])
def test_qwen3_layers_are_seen_in_the_tensors(tmp_path: Path, producer: str) -> None:
    spec = read(write(tmp_path, producer, tiny=QWEN3), QWEN3)
    assert (spec.producer, spec.family) == (producer, "qwen3")
    assert spec.origins["family"].source is Source.tensor
    assert spec.origins["family"].detail == "layers.0.self_attn.q_norm.weight [4]"
    assert codes(spec) == []


def test_qwen3_tensors_under_an_architecture_without_the_norms(tmp_path: Path) -> None:
    spec = read(write(tmp_path, "vllm", {"architectures": ["LlamaForCausalLMEagle3"]}, tiny=QWEN3), QWEN3)
    assert spec.family == "qwen3"
    finding = finding_of(spec, "family_disagrees")
    assert finding.severity == "warning"
    assert "engines build a llama layer" in finding.message


@pytest.mark.parametrize(
    ("producer", "drop"),
    [
        ("speculators", ("layers.0.self_attn.k_norm.weight",)),
        ("speculators", ("layers.0.self_attn.k_norm.weight", "layers.0.self_attn.q_norm.weight")),
        ("vllm", ("layers.0.self_attn.k_norm.weight", "layers.0.self_attn.q_norm.weight")),
    ],
)
def test_qwen3_layers_need_both_norms(tmp_path: Path, producer: str, drop: tuple[str, ...]) -> None:
    """Engines that build the layer by config.json would fill the norms with ones."""
    with pytest.raises(CheckpointError, match="missing") as caught:
        read(write(tmp_path, producer, tiny=QWEN3, drop=drop), QWEN3)
    assert caught.value.code == "tensor_missing"
    assert all(f"`{name}`" in caught.value.message for name in drop)


def test_qwen3_norms_are_per_head(tmp_path: Path) -> None:
    extra = {"layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)}  # over all heads, as OLMo 2 has it
    with pytest.raises(CheckpointError, match=r"q_norm\.weight` has shape \[16\], expected \[4\]"):
        read(write(tmp_path, "speculators", tiny=QWEN3, extra=extra), QWEN3)


def test_an_unknown_layer_type_of_speculators_is_not_claimed(tmp_path: Path) -> None:
    settings = config("speculators", TINY)
    settings["transformer_layer_config"]["model_type"] = "gemma3"
    with pytest.raises(CheckpointError) as caught:
        read(write_checkpoint(tmp_path, "speculators", weights(TINY), settings))
    assert caught.value.code == "unsupported_family"
