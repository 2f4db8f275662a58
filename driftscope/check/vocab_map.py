"""Which target ids can be drafted, and which tokens end a turn. Knows no check."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from driftscope.check.pair import Pair, Target
from probes.checkpoint.files import MAX_CONFIG_BYTES, read_json_object
from probes.checkpoint.safetensors_file import INTEGER_DTYPES, TensorEntry, read_array
from probes.checkpoint.values import whole_number

GENERATION_CONFIG = "generation_config.json"


def draft_target_ids(pair: Pair) -> frozenset[int] | None:
    """The target ids that d2t reaches; None where every id can be drafted, or nothing says which."""
    entry = pair.tensors.get("d2t")
    if entry is None or entry.dtype not in INTEGER_DTYPES or len(entry.shape) != 1:
        return None
    return _reached(entry)


@lru_cache(maxsize=2)
def _reached(entry: TensorEntry) -> frozenset[int]:
    offsets = read_array(entry).astype(np.int64)
    return frozenset((offsets + np.arange(len(offsets))).tolist())


def generation_config(target: Target) -> Mapping[str, object]:
    """generation_config.json, empty where there is none."""
    path = target.file(GENERATION_CONFIG)
    return {} if path is None else read_json_object(path, MAX_CONFIG_BYTES)


def stop_tokens(target: Target) -> tuple[int, ...]:
    """The ids that end a turn, as engines take them from the target's configs."""
    value = generation_config(target).get("eos_token_id", target.settings.get("eos_token_id"))
    values = value if isinstance(value, list) else [value]
    return tuple(number for number in map(whole_number, values) if number is not None)
