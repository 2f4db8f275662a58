"""config.json, tensor headers, index files and damaged weight files of drafters and targets."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.check_pairs import write_target
from tests.checkpoint_writers import PRODUCERS, Tiny, config, named, weights, write_checkpoint
from tests.fuzz.conftest import Reader
from tests.fuzz.hostile import damaged, damaged_bytes, json_text, make_pipe

ANY_SPEED = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
TINY = Tiny(fc_norm=True, target_layers=12)
ARRAYS = weights(TINY)
CONFIGS = [config(producer, TINY) for producer in PRODUCERS]
TARGET_CONFIG = {**TINY.target_config, "model_type": "llama", "rope_theta": 500000.0, "max_position_embeddings": 2048}


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


with tempfile.TemporaryDirectory() as _name:
    _folder = write_checkpoint(Path(_name), "specforge", ARRAYS, CONFIGS[0], num_shards=2)
    INDEX = json.loads((_folder / "model.safetensors.index.json").read_text())
    _folder = write_checkpoint(Path(_name) / "one", "specforge", ARRAYS, CONFIGS[0])
    WHOLE_FILE = (_folder / "model.safetensors").read_bytes()
    HEADER, DATA = header_of(_folder / "model.safetensors")


configs = st.sampled_from(PRODUCERS).flatmap(lambda p: st.tuples(st.just(p), damaged([config(p, TINY)])))


@ANY_SPEED
@given(changed=configs, has_target=st.booleans())
def test_config(reader: Reader, changed: tuple[str, Any], has_target: bool) -> None:
    producer, document = changed
    with tempfile.TemporaryDirectory() as name:
        folder = write_checkpoint(Path(name), producer, ARRAYS, {})
        (folder / "config.json").write_text(json_text(document))
        reader("drafter", folder, target_config=TARGET_CONFIG if has_target else None)


@ANY_SPEED
@given(document=damaged([TARGET_CONFIG, {"text_config": TARGET_CONFIG}]), producer=st.sampled_from(PRODUCERS))
def test_target_config(reader: Reader, document: Any, producer: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        target = write_target(Path(name) / "target", TINY)
        (target / "config.json").write_text(json_text(document))
        drafter = write_checkpoint(Path(name) / "drafter", producer, ARRAYS, config(producer, TINY))
        reader("check", drafter, target=str(target))


@ANY_SPEED
@given(header=damaged([HEADER]), length=st.none() | st.sampled_from([0, 7, 2**24, 2**31, 2**63, 2**64 - 1]))
def test_tensor_header(reader: Reader, header: Any, length: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_checkpoint(Path(name), "specforge", ARRAYS, CONFIGS[0])
        text = json_text(header).encode()
        stated = len(text) if length is None else length
        (folder / "model.safetensors").write_bytes(stated.to_bytes(8, "little") + text + DATA)
        reader("drafter", folder, target_config=None)


@ANY_SPEED
@given(index=damaged([INDEX]))
def test_index(reader: Reader, index: Any) -> None:
    """Shards that are missing, outside the folder, devices, or a pipe that nobody writes to."""
    with tempfile.TemporaryDirectory() as name:
        folder = write_checkpoint(Path(name), "specforge", ARRAYS, CONFIGS[0], num_shards=2)
        make_pipe(folder)
        (folder / "model.safetensors.index.json").write_text(json_text(index))
        reader("drafter", folder, target_config=None)


@pytest.mark.parametrize("shard", ["/dev/zero", "pipe", ".", "../model.safetensors", "n" * 5_000, ""])
def test_shards_that_are_no_files_of_the_folder_are_refused(reader: Reader, shard: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_checkpoint(Path(name), "specforge", ARRAYS, CONFIGS[0], num_shards=2)
        make_pipe(folder)
        index = {"metadata": {}, "weight_map": INDEX["weight_map"] | {"fc.weight": shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert reader("drafter", folder, target_config=None) == "refused"


@ANY_SPEED
@given(
    data=damaged_bytes([WHOLE_FILE, json.dumps(CONFIGS[0]).encode(), json.dumps(INDEX).encode()]),
    file=st.sampled_from(["config.json", "model.safetensors", "model.safetensors.index.json"]),
)
def test_damaged_bytes(reader: Reader, data: bytes, file: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_checkpoint(Path(name), "specforge", ARRAYS, CONFIGS[0], num_shards=2 if "index" in file else 1)
        (folder / file).write_bytes(data)
        reader("drafter", folder, target_config=TARGET_CONFIG)


def test_the_valid_ones_are_read(reader: Reader) -> None:
    """Else the damage would be done to files that nobody looks into."""
    for producer, settings_ in zip(PRODUCERS, CONFIGS, strict=True):
        with tempfile.TemporaryDirectory() as name:
            folder = write_checkpoint(Path(name) / "drafter", producer, ARRAYS, settings_, num_shards=2)
            assert reader("drafter", folder, target_config=TARGET_CONFIG) == "read"
            target = write_target(Path(name) / "target", TINY)
            assert reader("check", folder, target=str(target)) == "read"
    assert named("specforge", ARRAYS).keys() == HEADER.keys() - {"__metadata__"}
