"""Every broken input costs one CheckpointError that names the file, the place and a remedy; never another exception."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.checkpoint.files import name_and_revision
from probes.checkpoint.read import read_spec
from probes.checkpoint.safetensors_file import MAX_HEADER_BYTES, LocalFile, read_array, read_header
from probes.errors import CheckpointError
from tests.checkpoint_writers import Tiny, config, save, weights, write_checkpoint, write_raw

TINY = Tiny()
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12345\n"
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "drafter", "specforge", weights(TINY), config("specforge", TINY))


def refused(path: Path | str, code: str, where: str) -> CheckpointError:
    """Reads, expects this error, and checks that it says where and what to do."""
    with pytest.raises(CheckpointError) as caught:
        read_spec(str(path), target_config=TINY.target_config)
    error = caught.value
    assert error.code == code
    assert where in error.where
    assert error.remedy
    assert error.exit_code == 2
    assert len(str(error)) < 1500
    return error


# -- the folder ------------------------------------------------------------------------------------------------------


def test_missing_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "checkpoint_not_found", "nowhere")


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "~nobody-of-this-name/drafter", "a/b/c", "../none"])
def test_names_that_cannot_be_a_checkpoint(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "config_missing" if name == "" else "checkpoint_not_found"  # "" is the current folder
    with pytest.raises(CheckpointError) as caught:
        read_spec(name)
    assert caught.value.code == code


def test_a_hub_ids_revision_is_told_apart_and_a_folder_is_never_one(folder: Path) -> None:
    assert name_and_revision("owner/model@v1") == ("owner/model", "v1")
    assert name_and_revision("owner/model") == ("owner/model", None)
    at = folder.rename(folder.with_name("model@v1"))
    assert name_and_revision(str(at)) == (str(at), None)
    with pytest.raises(CheckpointError, match="no such folder"):
        name_and_revision(str(folder))


def test_a_file_is_not_a_folder(folder: Path) -> None:
    refused(folder / WEIGHTS, "not_a_folder", WEIGHTS)


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, "config_missing", "drafter")


def test_no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    refused(folder, "weights_missing", "drafter")


def test_only_pickles_that_are_not_read(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "draft_model.pt")
    error = refused(folder, "weights_not_safetensors", "drafter")
    assert "draft_model.pt" in error.message
    assert "weights_only=True" in error.remedy


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, INDEX])
def test_a_pipe_in_place_of_a_file_blocks_nobody(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(folder, "file_unreadable", name)


def test_a_folder_in_place_of_a_file(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()
    refused(folder, "file_unreadable", WEIGHTS)


# -- config.json -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b'{"hidden_size": 1' + b"0" * 5000 + b"}",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"a": ' * 200 + b"1" + b"}" * 200,
        b"{" + b" " * (5 * 2**20) + b"}",
    ],
    ids=["empty", "cut", "list", "string", "huge integer", "not utf-8", "deep list", "deep object", "too large"],
)
def test_bad_json(folder: Path, text: bytes) -> None:
    (folder / "config.json").write_bytes(text)
    refused(folder, "bad_json", "config.json")


def test_config_is_a_git_lfs_pointer(folder: Path) -> None:
    (folder / "config.json").write_bytes(POINTER)
    refused(folder, "git_lfs_pointer", "config.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "abc"),
        ("hidden_size", -16),
        ("hidden_size", 0),
        ("hidden_size", True),
        ("hidden_size", 16.5),
        ("hidden_size", [16]),
        ("hidden_size", 2**40),
        ("hidden_size", float("nan")),
        ("intermediate_size", "24"),
        ("num_attention_heads", {}),
        ("num_key_value_heads", -1),
        ("head_dim", "4"),
        ("vocab_size", False),
        ("draft_vocab_size", "many"),
        ("target_hidden_size", -1),
        ("num_hidden_layers", "one"),
        ("rms_norm_eps", "small"),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("inf")),
        ("rms_norm_eps", 10**400),
        ("logit_scale", "half"),
        ("max_position_embeddings", 0),
        ("norm_output", "true"),
        ("norm_before_residual", 1),
        ("attention_bias", "no"),
        ("fc_norm", [True]),
        ("hidden_act", 3),
        ("layer_types", "full_attention"),
        ("layer_types", [1]),
        ("sliding_window", -5),
        ("use_sliding_window", 0),
        ("rope_theta", "10000"),
        ("rope_theta", -1),
        ("rope_scaling", "linear"),
        ("rope_parameters", [1]),
        ("eagle_config", "x"),
        ("eagle_aux_hidden_state_layer_ids", "2,4,5"),
        ("eagle_aux_hidden_state_layer_ids", [2, 4, "5"]),
        ("eagle_aux_hidden_state_layer_ids", list(range(1000))),
        ("architectures", "LlamaForCausalLMEagle3"),
        ("architectures", [3]),
    ],
)
def test_wrong_types(folder: Path, key: str, value: object) -> None:
    settings = config("specforge", TINY) | {key: value}
    (folder / "config.json").write_text(json.dumps(settings))
    error = refused(folder, "config_wrong_type", "config.json")
    assert key in error.message


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_attention_heads"])
def test_missing_keys(folder: Path, key: str) -> None:
    settings = config("specforge", TINY)
    del settings[key]
    (folder / "config.json").write_text(json.dumps(settings))
    assert key in refused(folder, "config_key_missing", "config.json").message


def test_vocab_size_is_seen_in_the_weights(folder: Path) -> None:
    settings = config("specforge", TINY)
    del settings["vocab_size"], settings["draft_vocab_size"]
    (folder / "config.json").write_text(json.dumps(settings))
    spec = read_spec(str(folder))
    assert (spec.vocab_size, spec.draft_vocab_size) == (40, 12)
    assert spec.origins["vocab_size"].detail == "t2d [40]"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mlp_bias", True),
        ("partial_rotary_factor", 0.5),
        ("hidden_act", "gelu_swoosh"),
        ("eagle_config", {"use_last_layernorm": False}),
        ("eagle_config", {"parallel_draft_step": 4}),
        ("eagle_aux_injection_mode", "banded_mix_fc"),
    ],
)
def test_variants_that_are_not_supported(folder: Path, key: str, value: object) -> None:
    (folder / "config.json").write_text(json.dumps(config("specforge", TINY) | {key: value}))
    refused(folder, "unsupported_variant", "config.json")


def test_wrong_types_in_the_targets_config(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="num_hidden_layers") as caught:
        read_spec(str(folder), target_config={"num_hidden_layers": "many"})
    assert caught.value.where == "the target's config"


# -- weights ---------------------------------------------------------------------------------------------------------


def test_truncated_weights(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    for size in (0, 5, 8, 300, len(data) - 1):
        (folder / WEIGHTS).write_bytes(data[:size])
        refused(folder, "truncated", WEIGHTS)


def test_bytes_left_over(folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as file:
        file.write(b"\0")
    assert "left over" in refused(folder, "not_safetensors", WEIGHTS).message


def test_git_lfs_pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(POINTER)
    assert "git lfs pull" in refused(folder, "git_lfs_pointer", WEIGHTS).remedy


@pytest.mark.parametrize("first", [b"\xff" * 8, b"<!DOCTYPE html><html>", (MAX_HEADER_BYTES + 1).to_bytes(8, "little")])
def test_an_absurd_header_length(folder: Path, first: bytes) -> None:
    (folder / WEIGHTS).write_bytes(first + b"\0" * 64)
    refused(folder, "not_safetensors", WEIGHTS)


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "header",
    [
        [1],
        {"a": 1},
        {"a": {}},
        {"a": entry(dtype="F99")},
        {"a": entry(dtype=["F32"])},
        {"a": entry(shape="2")},
        {"a": entry(shape=[-2])},
        {"a": entry(shape=[True, 2])},
        {"a": entry(shape=[2.0])},
        {"a": entry(shape=[1] * 9 + [2])},
        {"a": entry(shape=[10**30])},
        {"a": entry(shape=[3])},
        {"a": entry(offsets=[0])},
        {"a": entry(offsets=[8, 0])},
        {"a": entry(offsets=[-8, 0])},
        {"a": entry(), "b": entry()},
        {"a": entry(shape=[1], offsets=[4, 8])},
    ],
)
def test_headers_that_contradict_themselves(tmp_path: Path, header: object) -> None:
    path = tmp_path / WEIGHTS
    write_raw(path, header, b"\0" * 8)
    with pytest.raises(CheckpointError) as caught:
        read_header(LocalFile(path))
    assert caught.value.code == "not_safetensors"
    assert caught.value.where == str(path)


@pytest.mark.parametrize("text", [b"{", b"\xff\xff", b"[" * 50_000, b'{"a": 1, "a": 2}'])
def test_headers_that_are_not_json(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / WEIGHTS
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CheckpointError) as caught:
        read_header(LocalFile(path))
    assert caught.value.code == "not_safetensors"


def test_a_tensor_beyond_the_files_end(tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS
    write_raw(path, {"a": entry(shape=[2**40], offsets=[0, 2**42])}, b"\0" * 8)
    with pytest.raises(CheckpointError) as caught:
        read_header(LocalFile(path))
    assert caught.value.code == "truncated"


def test_arrays_are_read_as_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "odd": np.array([1, 2, 3], np.int8),  # leaves the next one unaligned
        "single": rng.standard_normal((3, 2), dtype=np.float32),
        "half": rng.standard_normal(4).astype(np.float16),
        "long": np.array([-5, 2**40], np.int64),
        "flags": np.array([True, False, True]),
        "empty": np.zeros((0, 3), np.float32),
    }
    save(tmp_path / WEIGHTS, arrays)
    entries = read_header(LocalFile(tmp_path / WEIGHTS))
    for name, array in arrays.items():
        assert read_array(entries[name]).dtype == array.dtype
        np.testing.assert_array_equal(read_array(entries[name]), array)
    save(tmp_path / "b.safetensors", {"x": np.array([1.0, -2.5, 3.1415927], np.float32)}, is_bf16=True)
    value = read_array(read_header(LocalFile(tmp_path / "b.safetensors"))["x"])
    np.testing.assert_array_equal(value, np.array([1.0, -2.5, 3.140625], np.float32))


# -- shards ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "s", "specforge", weights(TINY), config("specforge", TINY), num_shards=2)


def change_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def test_a_missing_shard(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refused(sharded, "shard_missing", INDEX).message


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    other = sharded / "model-00002-of-00002.safetensors"
    save(
        other,
        {
            name: np.zeros(1, np.float32)
            for name in read_header(LocalFile(sharded / "model-00001-of-00002.safetensors"))
        },
    )
    refused(sharded, "duplicate_tensor", "model-00002-of-00002.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.pop("weight_map"),
        lambda index: index.update(weight_map=[1]),
        lambda index: index.update(weight_map={}),
        lambda index: index["weight_map"].update({"norm.weight": 3}),
        lambda index: index["weight_map"].update({"norm.weight": "../../etc/passwd"}),
        lambda index: index["weight_map"].update({"norm.weight": "/etc/x.safetensors"}),
        lambda index: index["weight_map"].update({"nothing.weight": "model-00001-of-00002.safetensors"}),
    ],
)
def test_an_index_that_does_not_fit(sharded: Path, change: Callable[[dict[str, Any]], object]) -> None:
    change_index(sharded, change)
    refused(sharded, "bad_index", INDEX)


def test_a_truncated_shard(sharded: Path) -> None:
    shard = sharded / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-3])
    refused(sharded, "truncated", "model-00002-of-00002.safetensors")


def test_an_index_that_is_not_json(sharded: Path) -> None:
    (sharded / INDEX).write_text("<html>")
    refused(sharded, "bad_json", INDEX)


# -- other kinds of checkpoint ---------------------------------------------------------------------------------------

NORM = np.ones(4, np.float32)
LAYER0 = "layers.0.self_attn.q_proj.weight"


MLA = "midlayer.self_attn.kv_a_proj_with_mqa.weight"


@pytest.mark.parametrize(
    ("settings", "names", "what"),
    [
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, [MLA, "fc.weight"], "MLA"),
        ({"architectures": ["LlamaForCausalLMEagle3"], "_torchspec_version": "0.1.0"}, [MLA, "fc.weight"], "MLA"),
        (
            {"architectures": ["DeepseekV3Eagle3DraftModel"]},
            ["model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "model.fc.weight"],
            "MLA",
        ),
        ({"speculators_model_type": "peagle"}, [LAYER0, "mask_hidden"], "P-EAGLE"),
        (
            {"architectures": ["LlamaEagle3DraftModel"], "parallel_drafting": True},
            ["model." + LAYER0, "mask_hidden"],
            "P-EAGLE",
        ),
        ({"architectures": ["PEagleDraftModel"], "pard_token": 3}, [LAYER0], "P-EAGLE"),
        (
            {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"parallel_draft_step": 4}},
            [LAYER0, "parallel_draft_heads.0.medusa_layers.0.linear.weight"],
            "Medusa",
        ),
        ({"speculators_model_type": "dflash"}, [LAYER0], "DFlash"),
        ({"architectures": ["LlamaForCausalLM"]}, [LAYER0, "fc.weight", "embed_tokens.weight"], "EAGLE-1"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, [LAYER0], "EAGLE-1"),
        ({"architectures": ["LlamaEagleDraftModel"]}, ["model." + LAYER0, "model.fc.weight"], "EAGLE-1"),
        (
            {"architectures": ["Glm4MoeForCausalLMEagle3"]},
            ["midlayer.mlp.experts.0.up_proj.weight", "fc.weight"],
            "mixture-of-experts",
        ),
        (
            {"architectures": ["LlamaForCausalLM"]},
            ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"],
            "whole language model",
        ),
        ({"architectures": ["MedusaModel"]}, ["medusa_head.0.weight"], "Medusa"),
        ({"architectures": ["BertModel"]}, ["pooler.weight"], "BertModel"),
        ({}, ["pooler.weight"], "pooler.weight"),
    ],
)
def test_unknown_families_are_named(tmp_path: Path, settings: dict[str, Any], names: list[str], what: str) -> None:
    write_checkpoint(tmp_path / "drafter", "speculators", dict.fromkeys(names, NORM), settings)
    error = refused(tmp_path / "drafter", "unsupported_family", "config.json")
    assert what in error.message
    assert "SpecForge" in error.remedy
    assert "NVIDIA ModelOpt" in error.remedy


def test_a_drafter_that_says_it_drafts_in_parallel_is_refused_with_or_without_its_tensors(folder: Path) -> None:
    settings = config("specforge", TINY) | {"parallel_drafting": True}
    (folder / "config.json").write_text(json.dumps(settings))
    assert "parallel_drafting" in refused(folder, "unsupported_variant", "config.json").message
