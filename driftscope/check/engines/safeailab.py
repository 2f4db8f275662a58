"""SafeAILab/EAGLE's own code (cb7e084): eagle/model/cnets.py and ea_model.py. Layers and flags are hard-coded."""

from __future__ import annotations

import re

from driftscope.check.engines.engine import (
    DEFAULT_IDS,
    Engine,
    Reading,
    Readings,
    default_ids,
    full_attention,
    map_reading,
    refuses,
    rope_key,
)
from driftscope.check.pair import Pair
from probes.checkpoint.values import finite_number

NAMES = r"midlayer\..*|fc\.weight|norm\.weight|lm_head\.weight|d2t|t2d|embed_tokens\.weight"


def read(pair: Pair) -> Readings:
    config = pair.config
    off = "no such switch"
    has_own_embedding = "target_hidden_size" in config
    return {
        "layer_ids": Reading(value=default_ids(pair), source=DEFAULT_IDS.replace("default", "hard-coded")),
        "num_aux": Reading(value=3, source="hard-coded"),
        **{
            name: Reading(value=False, source=off)
            for name in ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual")
        },
        "d2t": map_reading(pair, config, identity="no d2t: a buffer of zeros"),
        "embeddings": Reading(
            value="own" if has_own_embedding else "target",
            source="target_hidden_size" if has_own_embedding else "no target_hidden_size",
        ),
        "lm_head": Reading(value="own", source="lm_head.weight"),
        "rope": _rope(pair),
        "max_positions": Reading(
            value=pair.target.integer("max_position_embeddings"), source="the table grows with the text"
        ),
        "sliding_window": Reading(value=full_attention(pair), source=off),
        "qkv_bias": Reading(value=False, source="hard-coded"),
        "weights": _weights(pair),
    }


def _rope(pair: Pair) -> Reading:
    """rope_theta and rope_scaling (linear, dynamic) at the top level only."""
    config = pair.config
    theta = finite_number(config.get("rope_theta"))
    scaling = config.get("rope_scaling")
    source = "rope_theta" if theta is not None else "no rope_theta: 10000"
    theta = 10000.0 if theta is None else theta
    if not isinstance(scaling, dict):
        return Reading(value=rope_key({"rope_type": "default", "rope_theta": theta}), source=source)
    kind, factor = scaling.get("type"), finite_number(scaling.get("factor"))
    if kind not in ("linear", "dynamic") or factor is None:
        return refuses(f"rope_scaling of type {scaling.get('rope_type', kind)!r}")
    # a scaled rope never gets rope_theta there: the class's own base
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": factor}
    return Reading(value=rope_key(rope), source="rope_scaling, base 10000")


def _weights(pair: Pair) -> Reading:
    """strict=False: names without a parameter are skipped in silence."""
    skipped = tuple(
        name for name in sorted(pair.files.tensors) if not re.fullmatch(NAMES, name) or name.endswith(".bias")
    )
    return Reading(value=skipped, source="weight names" if not skipped else "skipped silently (strict=False)")


ENGINES = (Engine(name="SafeAILab/EAGLE", is_current=False, read=read),)
