"""The weights themselves: equal in all three layouts, and our header reader against the safetensors library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probes.checkpoint.files import open_checkpoint
from probes.checkpoint.layout import expected_shapes
from probes.checkpoint.read import read_spec
from probes.checkpoint.safetensors_file import read_array, read_header
from probes.checkpoint.spec import DrafterSpec
from probes.checkpoint.tensors import load_tensors
from probes.drafter.model import Drafter
from probes.errors import CheckpointError
from tests.checkpoint_writers import PRODUCERS, Tiny, config, weights, write_checkpoint

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
    expected = weights(TINY)
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors[name].numpy(), array)
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].dtype == torch.bool


@pytest.mark.parametrize("producer", PRODUCERS)
def test_the_drafter_loads_and_computes_the_same(tmp_path: Path, producer: str) -> None:
    path = written(tmp_path / producer, producer)
    reference = written(tmp_path / "reference", "specforge")
    drafters = [Drafter.load(spec_of(p), load_tensors(p, spec_of(p))) for p in (path, reference)]
    aux = torch.randn(5, 48, generator=torch.Generator().manual_seed(0))
    fused = [drafter.fuse(aux) for drafter in drafters]
    logits = [drafter.predict(f)[0] for drafter, f in zip(drafters, fused, strict=True)]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=0)
    ids = torch.from_numpy(weights(TINY)["d2t"]) + torch.arange(12)
    assert drafters[0].target_ids().tolist() == ids.tolist()


def test_dtype_is_for_weights_only(tmp_path: Path) -> None:
    path = written(tmp_path)
    tensors = load_tensors(path, spec_of(path), dtype=torch.bfloat16)
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)


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
    entries = read_header(path)
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
