"""Whatever stands in config.json, in a header or in the bytes of a file: a spec or a CheckpointError, nothing else."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.checkpoint.read import read_spec
from probes.checkpoint.spec import DrafterSpec
from probes.errors import CheckpointError
from tests.checkpoint_writers import PRODUCERS, Tiny, config, named, save, weights, write_checkpoint, write_raw

TINY = Tiny(fc_norm=True)
ARRAYS = weights(TINY)
FIELDS = {field.name for field in dataclasses.fields(DrafterSpec)} - {"origins", "findings"}
KEYS = sorted(
    {key for p in PRODUCERS for key in config(p, TINY)}
    | set(config("speculators", TINY)["transformer_layer_config"])
    | {"rope_scaling", "rope_parameters", "layer_types", "sliding_window", "norm_output", "norm_before_residual"}
    | {"eagle_aux_hidden_state_layer_ids", "norm_before_fc", "logit_scale", "use_sliding_window", "mlp_bias"}
    | {"return_hidden_post_norm", "fc_norm"}
)
INNER_KEYS = ("rope_type", "type", "factor", "rope_theta", "use_aux_hidden_state", "eagle_aux_hidden_state_layer_ids")

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 50)
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "default", "yarn", "llama3", "eagle3", "sliding_attention", "LlamaForCausalLM", "silu"])
    | st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(INNER_KEYS), inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=8,
)


def outcome(folder: Path, target_config: dict[str, Any] | None) -> DrafterSpec | CheckpointError:
    """What reading gives; any other exception fails the test."""
    try:
        return read_spec(str(folder), target_config=target_config)
    except CheckpointError as error:
        return error


def check(result: DrafterSpec | CheckpointError) -> None:
    if isinstance(result, CheckpointError):
        assert result.where
        assert result.remedy
        assert len(str(result)) < 3000
    else:
        assert set(result.origins) == FIELDS
        assert list(result.aux_layer_ids) == sorted(set(result.aux_layer_ids))
        assert result.num_heads % result.num_kv_heads == 0
        json.dumps(dataclasses.asdict(result))


@settings(max_examples=300, deadline=None)
@given(
    producer=st.sampled_from(PRODUCERS),
    change=st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=4),
    dropped=st.sets(st.sampled_from(KEYS), max_size=2),
    has_target=st.booleans(),
)
def test_random_settings(producer: str, change: dict[str, Any], dropped: set[str], has_target: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        layout = config(producer, TINY)
        layer = layout.get("transformer_layer_config", {})
        for key, value in change.items():
            (layer if key in layer else layout)[key] = value
        for key in dropped:
            layout.pop(key, None)
        folder = write_checkpoint(Path(name), producer, ARRAYS, layout)
        check(outcome(folder, TINY.target_config if has_target else None))


@settings(max_examples=100, deadline=None)
@given(config=values, target_config=st.dictionaries(st.sampled_from(KEYS), values, max_size=3))
def test_random_json(config: Any, target_config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_checkpoint(Path(name), "specforge", ARRAYS, {})
        (folder / "config.json").write_text(json.dumps(config))
        check(outcome(folder, target_config))


entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I64", "BOOL", "F8_E4M3", "X"]) | scalars,
        "shape": st.lists(st.integers(-1, 20) | scalars, max_size=4) | scalars,
        "data_offsets": st.lists(st.integers(-1, 64) | scalars, max_size=3) | scalars,
    }
)


@settings(max_examples=200, deadline=None)
@given(
    header=st.dictionaries(st.sampled_from(["fc.weight", "d2t", "layers.0.a", "__metadata__"]), entries | values),
    num_bytes=st.integers(0, 64),
)
def test_random_headers(header: dict[str, Any], num_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_checkpoint(Path(name), "speculators", ARRAYS, config("speculators", TINY))
        write_raw(folder / "model.safetensors", header, b"\1" * num_bytes)
        check(outcome(folder, TINY.target_config))


@settings(max_examples=200, deadline=None)
@given(
    producer=st.sampled_from(PRODUCERS),
    name=st.sampled_from(sorted(ARRAYS)),
    shape=st.lists(st.integers(0, 20), max_size=3),
    dtype=st.sampled_from(["float32", "int64", "bool", "float16"]),
    has_target=st.booleans(),
)
def test_random_shapes(producer: str, name: str, shape: list[int], dtype: str, has_target: bool) -> None:
    """One tensor of another shape and dtype."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = write_checkpoint(Path(folder_name), producer, ARRAYS, config(producer, TINY))
        changed = ARRAYS | {name: np.ones(shape, dtype)}
        save(folder / "model.safetensors", named(producer, changed))
        check(outcome(folder, TINY.target_config if has_target else None))


@settings(max_examples=200, deadline=None)
@given(where=st.integers(0, 2500), patch=st.binary(min_size=1, max_size=12), cut=st.none() | st.integers(0, 4000))
def test_random_bytes(where: int, patch: bytes, cut: int | None) -> None:
    """Damage in the header's bytes, and a file cut anywhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = write_checkpoint(Path(name), "specforge", ARRAYS, config("specforge", TINY))
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[where : where + len(patch)] = patch
        (folder / "model.safetensors").write_bytes(bytes(data[:cut]))
        check(outcome(folder, TINY.target_config))
