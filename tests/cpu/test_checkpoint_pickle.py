"""pytorch_model.bin: the same spec and tensors as from safetensors, and nothing but tensors ever comes out of one."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.checkpoint.files import file_hashes
from probes.checkpoint.pickle_file import load_pickle, read_pickle
from probes.checkpoint.read import read_spec
from probes.checkpoint.safetensors_file import read_array
from probes.checkpoint.tensors import load_tensors
from probes.errors import CheckpointError
from tests.checkpoint_writers import PRODUCERS, Tiny, config, named, weights, write_checkpoint

TINY = Tiny(fc_norm=True)


def tensors(producer: str = "safeailab") -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in named(producer, weights(TINY)).items()}


def write(folder: Path, content: Any, producer: str = "safeailab", **how: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(producer, TINY)))
    torch.save(content, folder / "pytorch_model.bin", **how)
    return folder


def write_shards(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config("safeailab", TINY)))
    parts, names = tensors(), list(tensors())
    weight_map = {}
    for i in range(2):
        shard = f"pytorch_model-{i + 1:05d}-of-00002.bin"
        torch.save({name: parts[name] for name in names[i::2]}, folder / shard)
        weight_map |= dict.fromkeys(names[i::2], shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def spec_of(folder: Path) -> Any:
    return read_spec(str(folder), target_config=TINY.target_config)


def refused(folder: Path, code: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        spec_of(folder)
    assert (caught.value.code, caught.value.exit_code) == (code, 2)
    assert "pytorch_model" in caught.value.where
    assert caught.value.remedy
    assert "weights_only=False" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_pickle_gives_what_safetensors_give(tmp_path: Path, producer: str) -> None:
    pickled = write(tmp_path / "pickle", tensors(producer), producer)
    plain = write_checkpoint(tmp_path / "plain", producer, weights(TINY), config(producer, TINY))
    spec, other = spec_of(pickled), spec_of(plain)
    assert (spec.producer, spec.aux_layer_ids, spec.has_fc_norm) == (producer, other.aux_layer_ids, True)
    assert spec.origins == other.origins
    assert [f.code for f in spec.findings] == [f.code for f in other.findings]
    ours, theirs = load_tensors(str(pickled), spec), load_tensors(str(plain), other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    assert sorted(file_hashes(str(pickled))) == ["config.json", "pytorch_model.bin"]


@pytest.mark.parametrize("how", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "before torch 1.6"])
def test_parameters_views_and_dtypes(tmp_path: Path, how: dict[str, Any]) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    content = OrderedDict(
        parameter=torch.nn.Parameter(whole),
        transposed=whole.T,
        bf16=torch.tensor([1.0, -2.5, 3.1415927]).bfloat16(),
        half=torch.tensor([0.5], dtype=torch.float16),
        d2t=torch.tensor([3, 2**40]),
        t2d=torch.tensor([True, False]),
        scalar=torch.tensor(2.5),
    )
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path, **how)
    entries = read_pickle(path)
    assert {name: (entry.dtype, entry.shape) for name, entry in entries.items()} == {
        "parameter": ("F32", (4, 6)),
        "transposed": ("F32", (6, 4)),
        "bf16": ("BF16", (3,)),
        "half": ("F16", (1,)),
        "d2t": ("I64", (2,)),
        "t2d": ("BOOL", (2,)),
        "scalar": ("F32", ()),
    }
    np.testing.assert_array_equal(read_array(entries["transposed"]), whole.numpy().T)
    np.testing.assert_array_equal(read_array(entries["bf16"]), np.float32([1.0, -2.5, 3.140625]))
    np.testing.assert_array_equal(read_array(entries["d2t"]), [3, 2**40])
    np.testing.assert_array_equal(read_array(entries["t2d"]), [True, False])
    assert not load_pickle(path)["parameter"].requires_grad


def test_shards_with_an_index(tmp_path: Path) -> None:
    folder = write_shards(tmp_path)
    spec = spec_of(folder)
    loaded = load_tensors(str(folder), spec)
    np.testing.assert_array_equal(loaded["fc.weight"].numpy(), weights(TINY)["fc.weight"])
    assert len(file_hashes(str(folder))) == 4
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    error = refused(folder, "shard_missing")
    assert "pytorch_model.bin.index.json" in error.where


@pytest.mark.parametrize("shard", ["model.safetensors", "../pytorch_model.bin", "/etc/passwd"])
def test_an_index_that_names_something_else(tmp_path: Path, shard: str) -> None:
    folder = write_shards(tmp_path)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"fc.weight": shard}}))
    refused(folder, "bad_index")


def test_safetensors_win_over_a_pickle_beside_them(tmp_path: Path) -> None:
    folder = write(tmp_path, {"nothing": torch.zeros(1)})
    write_checkpoint(folder, "safeailab", weights(TINY), config("safeailab", TINY))
    assert [f.code for f in spec_of(folder).findings] == ["unused_weight_file"]


class Touch:
    """Unpickled by an ordinary reader, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("where", ["alone", "beside tensors"])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path: Path, where: str) -> None:
    evil = Touch(tmp_path / "ran")
    folder = write(tmp_path / "drafter", evil if where == "alone" else tensors() | {"extra": evil})
    error = refused(folder, "pickle_refused")
    assert "system" in error.message
    assert not (tmp_path / "ran").exists()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(evil))  # without torch's container
    with pytest.raises(CheckpointError) as caught:
        spec_of(folder)
    assert caught.value.code in ("pickle_refused", "pickle_broken")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ([torch.zeros(2)], "map of tensors"),
        ({3: torch.zeros(2)}, "map of tensors"),
        ({"state_dict": {"fc.weight": torch.zeros(2)}}, "`state_dict` is a dict"),
        ({"epoch": 3}, "`epoch` is a int"),
        ({"fc.weight": torch.zeros(1).expand(10**9)}, "ordinary dense tensor"),
        ({"fc.weight": torch.zeros(3, 3).to_sparse()}, "ordinary dense tensor"),
        ({"fc.weight": torch.zeros(3, device="meta")}, "ordinary dense tensor"),
    ],
)
def test_what_is_not_a_flat_map_of_tensors(tmp_path: Path, content: Any, what: str) -> None:
    error = refused(write(tmp_path, content), "pickle_refused")
    assert what in error.message
    assert "safetensors" in error.remedy


def test_quantised_and_unknown_dtypes_are_named(tmp_path: Path) -> None:
    content = tensors() | {"norm.weight": torch.zeros(16, dtype=torch.float8_e4m3fn)}
    with pytest.raises(CheckpointError, match="float8_e4m3fn") as caught:
        spec_of(write(tmp_path, content))
    assert caught.value.code == "unsupported_dtype"


def test_compressed_parts_are_refused(tmp_path: Path) -> None:
    """torch stores; a compressed part could unfold to any size."""
    folder = write(tmp_path, tensors())
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    assert "compressed" in refused(folder, "pickle_refused").message


def test_a_git_lfs_pointer_and_an_empty_file(tmp_path: Path) -> None:
    folder = write(tmp_path, tensors())
    (folder / "pytorch_model.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n")
    refused(folder, "git_lfs_pointer")
    (folder / "pytorch_model.bin").write_bytes(b"")
    refused(folder, "pickle_broken")


def loaded_or_error(path: Path) -> dict[str, Any] | CheckpointError:
    try:
        return load_pickle(path)
    except CheckpointError as error:
        return error


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@settings(max_examples=150, deadline=None)
@given(
    is_zip=st.booleans(),
    where=st.floats(0, 1),
    patch=st.binary(min_size=1, max_size=16),
    cut=st.none() | st.floats(0, 1),
)
def test_damaged_pickles_end_in_one_error(
    tmp_path_factory: pytest.TempPathFactory, is_zip: bool, where: float, patch: bytes, cut: float | None
) -> None:
    content = {"fc.weight": torch.arange(6.0).reshape(2, 3), "d2t": torch.tensor([3, 4])}
    path = tmp_path_factory.mktemp("pickle") / "pytorch_model.bin"
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    data[at : at + len(patch)] = patch
    path.write_bytes(bytes(data if cut is None else data[: int(cut * len(data))]))
    outcome = loaded_or_error(path)
    if isinstance(outcome, CheckpointError):
        assert outcome.where == str(path)
        assert outcome.remedy
        assert len(str(outcome)) < 1500
    else:
        assert all(isinstance(tensor, torch.Tensor) for tensor in outcome.values())


def test_without_torch_a_pickle_says_what_to_install(tmp_path: Path) -> None:
    folder = write(tmp_path, tensors())
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from probes.checkpoint.read import read_spec\n"
        "from probes.errors import CheckpointError\n"
        "try:\n"
        f"    read_spec({str(folder)!r})\n"
        "except CheckpointError as error:\n"
        "    print(error.code, error.remedy)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("torch_needed Install driftscope[probe]")
