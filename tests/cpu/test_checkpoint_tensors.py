"""The weights themselves: equal in every layout, the same logits from each, and our header reader against the library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probes.chain.step import prefill, step
from probes.checkpoint.files import open_checkpoint
from probes.checkpoint.layout import expected_shapes
from probes.checkpoint.read import read_spec
from probes.checkpoint.safetensors_file import LocalFile, read_array, read_header
from probes.checkpoint.spec import DrafterSpec
from probes.checkpoint.tensors import load_tensors
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.errors import CheckpointError
from tests.checkpoint_writers import PRODUCERS, Tiny, config, file_name, weights, write_checkpoint

TINY = Tiny(fc_norm=True, num_layers=2, attention_bias=True)


def written(folder: Path, producer: str = "specforge", tiny: Tiny = TINY, *, num_shards: int = 1) -> str:
    settings = config(producer, tiny, norm_output=True, norm_before_residual=False)
    return str(write_checkpoint(folder, producer, weights(tiny), settings, num_shards=num_shards))


def spec_of(path: str, tiny: Tiny = TINY) -> DrafterSpec:
    return read_spec(path, target_config=tiny.target_config)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("producer", PRODUCERS)
def test_tensors_are_those_that_were_written(tmp_path: Path, producer: str, num_shards: int) -> None:
    path = written(tmp_path, producer, num_shards=num_shards)
    tensors = load_tensors(path, spec_of(path))
    expected = {name: array for name, array in weights(TINY).items() if file_name(producer, name) is not None}
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors[name].numpy(), array)
    assert tensors["d2t"].dtype == torch.int64
    assert ("t2d" in tensors) is (producer != "modelopt")
    assert all(tensors[name].dtype == torch.bool for name in tensors.keys() & {"t2d"})


def two_depths(drafter: Drafter) -> tuple[torch.Tensor, ...]:
    """(logits at depth 1, the state fed back, logits at depth 2) of one chain on a random text."""
    spec = drafter.spec
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(spec.vocab_size, (12,), generator=generator)
    aux = {i: torch.randn(12, spec.target_hidden_size, generator=generator) for i in spec.aux_layer_ids}
    cache = prefill(drafter, token_ids, aux)
    regions = torch.zeros(cache.num_slots, dtype=torch.uint8)
    hidden = drafter.true_state(torch.cat([aux[i][10:11] for i in spec.aux_layer_ids], -1))
    first = step(drafter, cache, regions, token_ids[11:12], hidden, start=10)
    draft = drafter.to_target_ids(first.logits.argmax(-1))
    second = step(drafter, cache, regions, draft, first.feedback, start=10, own=first.own)
    return first.logits, first.feedback, second.logits


@pytest.mark.parametrize(
    "tiny",
    [
        Tiny(own_embedding=False),
        replace(TINY, own_embedding=False),
        Tiny(own_embedding=False, norm_before_fc=True),
        Tiny(own_embedding=False, qk_norm=True, fc_norm=True),
    ],
    ids=["eagle3", "two layers, biases, eagle3.1", "norm_before_fc", "qwen3"],
)
def test_every_layout_gives_identical_logits(tmp_path: Path, tiny: Tiny) -> None:
    embedding = torch.randn(tiny.vocab, tiny.hidden, generator=torch.Generator().manual_seed(1))
    outputs = {}
    for producer in PRODUCERS:
        path = written(tmp_path / producer, producer, tiny)
        drafter = Eagle3.load(spec_of(path, tiny), load_tensors(path, spec_of(path, tiny)), target_embedding=embedding)
        outputs[producer] = two_depths(drafter)
    for producer in PRODUCERS:
        for actual, expected in zip(outputs[producer], outputs["specforge"], strict=True):
            assert actual.isfinite().all()
            assert torch.equal(actual, expected), producer
    assert outputs["specforge"][0].std() > 0.1
    ids = torch.from_numpy(weights(tiny)["d2t"]) + torch.arange(12)
    assert drafter.target_ids().tolist() == ids.tolist()


def test_dtype_is_for_weights_only(tmp_path: Path) -> None:
    path = written(tmp_path)
    tensors = load_tensors(path, spec_of(path), dtype=torch.bfloat16)
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)


def test_one_tensor_alone_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, num_shards=3)
    [(name, offsets)] = load_tensors(path, spec_of(path), names=("d2t",)).items()
    assert name == "d2t"
    np.testing.assert_array_equal(offsets.numpy(), weights(TINY)["d2t"])


def test_borrowed_parts_and_changed_flags(tmp_path: Path) -> None:
    path = written(tmp_path / "a", tiny=replace(TINY, own_embedding=False))
    spec = spec_of(path)
    assert "embed_tokens.weight" not in load_tensors(path, spec)
    without_norm = load_tensors(path, replace(spec, has_fc_norm=False))  # an intervention
    assert set(load_tensors(path, spec)) - set(without_norm) == {f"fc_norm.{i}.weight" for i in range(3)}
    with pytest.raises(CheckpointError, match=r"input_norm\.weight") as caught:
        load_tensors(path, replace(spec, norm_before_fc=True))
    assert caught.value.code == "tensor_missing"
    with pytest.raises(CheckpointError, match=r"mlp\.\w+_proj\.weight` has shape") as caught:
        load_tensors(path, replace(spec, intermediate_size=99))
    assert caught.value.code == "tensor_shape"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_our_header_reader_agrees_with_the_library(tmp_path: Path, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "a": torch.randn(3, 5, generator=generator).to(dtype),
        "scalar": torch.tensor(2.5).to(dtype),
        "d2t": torch.arange(4),
        "t2d": torch.tensor([True, False]),
        "eight": torch.randn(2, generator=generator).to(torch.float8_e4m3fn),
    }
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    entries = read_header(LocalFile(path))
    assert {name: entry.shape for name, entry in entries.items()} == {n: tuple(t.shape) for n, t in tensors.items()}
    for name in ("a", "scalar", "d2t", "t2d"):
        expected = tensors[name].float() if tensors[name].is_floating_point() else tensors[name]
        np.testing.assert_array_equal(read_array(entries[name]).astype(expected.numpy().dtype), expected.numpy())
    with pytest.raises(CheckpointError, match="F8_E4M3") as caught:
        read_array(entries["eight"])
    assert caught.value.code == "unsupported_dtype"


def test_a_checkpoint_saved_by_the_library(tmp_path: Path) -> None:
    folder = Path(written(tmp_path))
    arrays = {name: torch.from_numpy(array) for name, array in weights(TINY).items()}
    names = {name: name.replace("layers.0.", "midlayer.") for name in arrays}
    save_file(
        {names[n]: t.bfloat16() if t.is_floating_point() else t for n, t in arrays.items()},
        folder / "model.safetensors",
    )
    spec = spec_of(str(folder))
    assert {e.dtype for e in open_checkpoint(str(folder)).tensors.values()} == {"BF16", "I64", "BOOL"}
    assert set(load_tensors(str(folder), spec)) == {*expected_shapes(spec), "t2d"}
    assert spec.kind == "eagle3.1"
