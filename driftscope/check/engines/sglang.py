"""SGLang's Llama-type drafter in three states of its llama_eagle3.py: before PR 24663 (fc_norm, norm_output), after it,
and after PR 32334 (norm_before_fc, gpt-oss ids as boundaries).

Read: models/llama_eagle3.py (before and after PR 24663), model_executor/model_runner.py, speculative/eagle_worker.py, the
models' set_eagle3_layers_to_capture. What PR 32334 changed is taken from the PR's own text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from driftscope.check.engines.engine import (
    DEFAULT_IDS,
    NOT_READ,
    Engine,
    Reading,
    Readings,
    default_ids,
    flag,
    full_attention,
    ids_of,
    is_on,
    map_reading,
    nested,
    rope_key,
    rope_of,
    shared_embedding,
    unknown,
)
from driftscope.check.pair import Pair
from probes.checkpoint.producer import architectures
from probes.checkpoint.spec import FINAL_NORMED
from probes.checkpoint.values import finite_number, whole_number

IDS = "eagle_aux_hidden_state_layer_ids"
CLASS = "LlamaForCausalLMEagle3"
DEEPSEEK = ("deepseek", "kimi")
OLD_NAMES = r"(model\.)?(embed_tokens|fc|norm|midlayer|additional_layers)\..*|lm_head\..*"
NEW_NAMES = r"(model\.)?(embed_tokens|fc|fc_norm\.\d+|norm|layers\.\d+)\..*|lm_head\..*"
LEGACY = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}


@dataclass(frozen=True, kw_only=True)
class Version:
    name: str
    has_fc_norm: bool  # and norm_output
    has_norm_before_fc: bool
    is_current: bool


VERSIONS = (
    Version(name="before PR 24663", has_fc_norm=False, has_norm_before_fc=False, is_current=False),
    Version(name="after PR 24663", has_fc_norm=True, has_norm_before_fc=False, is_current=False),
    Version(name="after PR 32334", has_fc_norm=True, has_norm_before_fc=True, is_current=True),
)


def read(pair: Pair, *, version: Version) -> Readings:
    config = pair.config
    if CLASS not in architectures(config):
        return {"weights": unknown(f"architectures {list(architectures(config))}: {NOT_READ}")}
    off = "no such switch"
    return {
        "layer_ids": _layer_ids(pair, version),
        "num_aux": _num_aux(config, version),
        "fc_norm": _fc_norm(config) if version.has_fc_norm else Reading(value=False, source=off),
        "norm_before_fc": (
            flag(nested(config), "norm_before_fc", prefix="eagle_config.")
            if version.has_norm_before_fc
            else Reading(value=False, source=off)
        ),
        "norm_output": flag(config, "norm_output") if version.has_fc_norm else Reading(value=False, source=off),
        "norm_before_residual": Reading(value=False, source=off),
        "d2t": map_reading(pair, config, identity="no d2t: draft ids are taken for target ids"),
        "embeddings": shared_embedding(config, "set_embed: always the target's"),
        "lm_head": _lm_head(config),
        "rope": rope_of(pair, config) if version.has_fc_norm else _old_rope(config),
        "max_positions": _max_positions(pair, version),
        "sliding_window": Reading(value=full_attention(pair), source="only by --speculative-draft-window-size"),
        "qkv_bias": Reading(value=False, source="hard-coded"),
        "weights": _weights(pair, version),
    }


def _layer_ids(pair: Pair, version: Version) -> Reading:
    inner = nested(pair.config)
    if not inner.get("use_aux_hidden_state", True):
        return Reading(value=(FINAL_NORMED,), source="eagle_config.use_aux_hidden_state")
    found = ids_of(inner, IDS)
    if found is None:
        unread = f"; a top-level {IDS} is not read" if ids_of(pair.config, IDS) is not None else ""
        return Reading(value=default_ids(pair), source=DEFAULT_IDS + unread)
    kind = pair.target.model_type
    is_boundary = (kind.startswith(DEEPSEEK) and min(found) != 1) or (kind == "gpt_oss" and version.has_norm_before_fc)
    ids = found if is_boundary else tuple(i + 1 for i in found)
    how = "as boundary ids" if is_boundary else "+1"
    return Reading(value=tuple(sorted(ids)), source=f"eagle_config.{IDS}, {how}")


def _num_aux(config: Mapping[str, object], version: Version) -> Reading:
    inner = nested(config)
    if not inner.get("use_aux_hidden_state", True):
        return Reading(value=1, source="eagle_config.use_aux_hidden_state")
    if version.has_fc_norm:
        if (number := whole_number(config.get("num_aux_hidden_states"))) is not None:
            return Reading(value=number, source="num_aux_hidden_states")
        if (ids := ids_of(inner, IDS)) is not None:
            return Reading(value=len(ids), source=f"length of eagle_config.{IDS}")
    return Reading(value=3, source="default 3")


def _fc_norm(config: Mapping[str, object]) -> Reading:
    key = "fc_norm" if is_on(config, "fc_norm") or "use_aux_norm" not in config else "use_aux_norm"
    return flag(config, key)


def _lm_head(config: Mapping[str, object]) -> Reading:
    if is_on(config, "tie_word_embeddings"):
        return Reading(value="embedding", source="tie_word_embeddings")
    if config.get("draft_vocab_size") is None:
        return Reading(value="target", source="no draft_vocab_size")
    return Reading(value="own", source="draft_vocab_size")


def _old_rope(config: Mapping[str, object]) -> Reading:
    scaling = config.get("rope_scaling")
    theta = finite_number(config.get("rope_theta"))
    stated = dict(scaling) if isinstance(scaling, Mapping) else {}
    kind = stated.pop("rope_type", None) or stated.pop("type", None) or "default"
    stated.pop("type", None)
    source = ", ".join(key for key in ("rope_theta", "rope_scaling") if config.get(key) is not None)
    rope = stated | {"rope_type": kind, "rope_theta": 10000.0 if theta is None else theta}
    return Reading(value=rope_key(rope), source=source or "no rope_theta: 10000")


def _max_positions(pair: Pair, version: Version) -> Reading:
    target = pair.target.integer("max_position_embeddings")
    if not version.has_fc_norm or target is None:
        return unknown()
    return Reading(value=target, source="the table is grown to the target's context length")


def _weights(pair: Pair, version: Version) -> Reading:
    """Names without a parameter are skipped in silence."""
    config, skipped = pair.config, []
    for name in sorted(pair.files.tensors):
        if "d2t" in name or "t2d" in name or "rotary_emb." in name:
            continue
        new = name
        if version.has_fc_norm:
            for legacy, current in LEGACY.items():
                new = new.replace(legacy, current)
        pattern = NEW_NAMES if version.has_fc_norm else OLD_NAMES
        is_input_norm = version.has_norm_before_fc and new.removeprefix("model.").startswith("input_norm.")
        known = re.fullmatch(pattern, new) is not None or is_input_norm
        inside = new.removeprefix("model.")
        if (
            not known
            or (inside.startswith("fc_norm.") and not _fc_norm(config).value)
            or (inside == "fc.bias" and not is_on(config, "bias"))
            or re.search(r"[qkv]_proj\.bias$|[qk]_norm\.weight$", inside)
            or re.fullmatch(r"layers\.[1-9]\d*\.input_layernorm\.weight", inside)  # later layers use hidden_norm
        ):
            skipped.append(name)
    return Reading(value=tuple(skipped), source="weight names" if not skipped else "skipped silently")


ENGINES = tuple(
    Engine(name=f"SGLang {version.name}", is_current=version.is_current, read=partial(read, version=version))
    for version in VERSIONS
)
