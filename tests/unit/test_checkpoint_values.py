"""The vocabulary map and RoPE: every trap with the value it must give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.checkpoint.read import read_spec
from probes.checkpoint.spec import DrafterSpec, Source
from probes.checkpoint.vocab import check_vocab_map
from probes.errors import CheckpointError
from tests.checkpoint_writers import Tiny, config, weights, write_checkpoint

TINY = Tiny()
IDS = np.array([0, 1, 2, 5, 9, 10, 20, 30])  # target ids of 8 draft ids among 40
OFFSETS = IDS - np.arange(8)
MASK = np.isin(np.arange(40), IDS)


def findings(d2t: Any, t2d: Any, *, vocab: int = 40, draft: int = 8) -> list[tuple[str, str]]:
    d2t = None if d2t is None else np.asarray(d2t, np.int64)
    result = check_vocab_map(d2t, t2d, vocab_size=vocab, draft_vocab_size=draft, where="drafter: d2t")
    assert all(f.where == "drafter: d2t" and f.remedy for f in result)
    return [(f.code, f.severity) for f in result]


def test_a_right_map_has_no_findings() -> None:
    assert findings(OFFSETS, MASK) == []
    assert findings(OFFSETS, None) == []
    assert findings(OFFSETS, MASK.astype(np.int8)) == []
    assert findings(None, None, draft=40) == []
    assert findings(np.zeros(40), np.ones(40, bool), draft=40) == []


def test_missing_and_empty_maps() -> None:
    assert findings(None, None) == [("d2t_missing", "error")]
    assert findings(None, MASK) == [("d2t_missing", "error")]
    assert findings(np.zeros(8), None) == [("d2t_all_zero", "error")]
    assert findings(np.zeros(8), MASK) == [("t2d_disagrees", "error"), ("d2t_all_zero", "error")]
    assert findings(np.zeros(8), np.arange(40) < 8) == [("d2t_all_zero", "error")]


def test_an_absolute_map() -> None:
    assert findings(IDS, MASK) == [("d2t_absolute", "error")]
    rising = np.array([1, 3, 5, 7, 9, 11, 13, 15])  # stays inside as offsets too
    assert findings(rising, None) == [("d2t_maybe_absolute", "warning")]
    with pytest.raises(CheckpointError, match="holds target ids, not offsets") as caught:
        findings(np.array([0, 1, 2, 5, 9, 10, 20, 39]), None)
    assert caught.value.code == "d2t_absolute"
    assert "arange" in caught.value.remedy


@pytest.mark.parametrize("bad", [-1, 40, 2**62, -(2**63)])
def test_out_of_range(bad: int) -> None:
    offsets = OFFSETS.copy()
    offsets[0] = bad
    with pytest.raises(CheckpointError, match=f"row 0: 0 \\+ {bad} is not in 0..39") as caught:
        findings(offsets, MASK)
    assert caught.value.code == "d2t_out_of_range"
    assert caught.value.where == "drafter: d2t"


def test_repeated_and_unordered_ids() -> None:
    twice = np.array([0, 1, 2, 2, 9, 10, 20, 30]) - np.arange(8)
    assert findings(twice, None) == [("d2t_not_increasing", "error")]
    swapped = np.array([1, 0, 2, 5, 9, 10, 20, 30]) - np.arange(8)
    assert findings(swapped, MASK) == [("d2t_not_increasing", "warning")]


def test_t2d_of_another_vocabulary() -> None:
    other = np.isin(np.arange(40), IDS + 1)
    assert findings(OFFSETS, other) == [("t2d_disagrees", "error")]


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_the_map_is_read_from_the_files(tmp_path: Path, dtype: Any) -> None:
    def write(ids: list[int]) -> str:
        arrays = weights(TINY) | {"d2t": np.array(ids, dtype), "t2d": np.isin(np.arange(40), ids)}
        return str(write_checkpoint(tmp_path, "specforge", arrays, config("specforge", TINY)))

    spec = read_spec(write([*range(11), 20]))  # row 11 + 20 stays inside: read as offsets, and reported
    assert [f.code for f in spec.findings] == ["d2t_absolute"]
    with pytest.raises(CheckpointError) as caught:
        read_spec(write([*range(11), 39]))
    assert caught.value.code == "d2t_absolute"
    assert caught.value.where.endswith("model.safetensors: d2t")


@pytest.mark.parametrize(
    ("name", "array", "code"),
    [
        ("d2t", np.zeros(11, np.int64), "tensor_shape"),
        ("d2t", np.zeros(12, np.float32), "unsupported_dtype"),
        ("t2d", np.zeros(41, bool), "tensor_shape"),
        ("t2d", np.zeros(40, np.float32), "unsupported_dtype"),
        ("lm_head.weight", np.zeros((0, 16), np.float32), "tensor_shape"),
    ],
)
def test_maps_of_a_wrong_kind(tmp_path: Path, name: str, array: np.ndarray, code: str) -> None:
    folder = write_checkpoint(tmp_path, "specforge", weights(TINY) | {name: array}, config("specforge", TINY))
    with pytest.raises(CheckpointError, match=name) as caught:
        read_spec(str(folder))
    assert caught.value.code == code


def test_a_missing_map_means_identity(tmp_path: Path) -> None:
    arrays = {name: array for name, array in weights(TINY).items() if name not in ("d2t", "t2d")}
    spec = read_spec(str(write_checkpoint(tmp_path, "specforge", arrays, config("specforge", TINY))))
    assert spec.has_vocab_map is False
    assert [(f.code, f.severity) for f in spec.findings] == [("d2t_missing", "error")]


# -- RoPE ------------------------------------------------------------------------------------------------------------

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def with_rope(folder: Path, rope: dict[str, object]) -> DrafterSpec:
    settings = config("specforge", TINY)
    del settings["rope_theta"]
    return read_spec(str(write_checkpoint(folder, "specforge", weights(TINY), settings | rope)))


@pytest.mark.parametrize(
    ("rope", "expected", "finding"),
    [
        ({"rope_theta": 500000}, {"rope_type": "default", "rope_theta": 500000.0}, []),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, LLAMA3 | {"rope_theta": 5e5}, []),
        ({"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, LLAMA3 | {"rope_theta": 5e5}, []),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 2},
            [],
        ),
        (
            {
                "rope_theta": 1e4,
                "rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 2.0, "beta_fast": None},
            },
            {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0},
            [],
        ),
        ({"rope_theta": 1e4, "rope_scaling": {}}, {"rope_type": "default", "rope_theta": 1e4}, []),
        ({"rope_theta": 1e4, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 1e4}, []),
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            {"rope_type": "default", "rope_theta": 5e5},
            ["rope_conflict"],
        ),
        (
            {
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
            },
            {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
            ["rope_conflict"],
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "longrope", "short_factor": [1, 2], "long_factor": [2, 4]}},
            {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1, 2], "long_factor": [2, 4]},
            [],
        ),
    ],
)
def test_rope_takes_the_new_form(
    tmp_path: Path, rope: dict[str, object], expected: dict[str, object], finding: list[str]
) -> None:
    spec = with_rope(tmp_path, rope)
    assert spec.rope_parameters == expected
    assert [f.code for f in spec.findings] == finding
    assert spec.origins["rope_parameters"].source is Source.file_key
    json.dumps(spec.rope_parameters)


@pytest.mark.parametrize("rope", [{}, {"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}])
def test_an_absent_theta_is_10000_whatever_the_target_has(tmp_path: Path, rope: dict[str, object]) -> None:
    spec = with_rope(tmp_path, rope)
    assert spec.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert spec.origins["rope_parameters"].source is Source.engine_default
    assert "10000" in spec.origins["rope_parameters"].detail


@pytest.mark.parametrize(
    ("rope", "code", "part"),
    [
        ({"rope_scaling": {"type": "spiral"}}, "unsupported_rope", "spiral"),
        ({"rope_scaling": {"type": 3}}, "unsupported_rope", "rope_type 3"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "unsupported_rope", "layer type"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1, 1]}}, "unsupported_rope", "multimodal"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "unsupported_rope", "partial"),
        ({"rope_scaling": {"type": "linear"}}, "rope_invalid", "factor"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_invalid", "'2'"),
        ({"rope_scaling": {"type": "yarn", "factor": -1}}, "rope_invalid", "-1"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": None}}, "rope_invalid", "low_freq_factor"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1, 2]}}, "rope_invalid", "short"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": True}}, "rope_invalid", "rope_theta"),
    ],
)
def test_rope_that_cannot_be_computed(tmp_path: Path, rope: dict[str, object], code: str, part: str) -> None:
    with pytest.raises(CheckpointError, match=part) as caught:
        with_rope(tmp_path, rope)
    assert caught.value.code == code
    assert caught.value.where.endswith("config.json")
