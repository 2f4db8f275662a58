"""vLLM 0.25.1, 0.26.0, 0.32.0 and 0.33.0, both model runners.

Read: config/speculative.py, transformers_utils/configs/{eagle,speculators/*}.py, model_executor/models/{llama_eagle3,
qwen3_eagle3,llama,registry,utils}.py, v1/worker/gpu_model_runner.py (V1), v1/worker/gpu/spec_decode/eagle/ and
v1/worker/gpu/model_runner.py (V2), each in the released wheels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from driftscope.check.engines.engine import (
    DEFAULT_IDS,
    Engine,
    Reading,
    Readings,
    default_ids,
    flag,
    full_attention,
    has,
    ids_of,
    is_on,
    map_reading,
    nested,
    num_layers,
    refuses,
    rope_of,
)
from driftscope.check.pair import Pair
from probes.checkpoint.families import FAMILIES, FAMILY_OF_CLASS
from probes.checkpoint.producer import architectures
from probes.checkpoint.spec import FINAL_NORMED
from probes.checkpoint.values import whole_number

IDS = "eagle_aux_hidden_state_layer_ids"
SPECULATORS_FLAGS = {"norm_before_residual": True, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
CACHE_ONLY_ROPE = frozenset({"default", "linear", "llama3"})
"""The rope types, of those read here, that use max_position_embeddings for the size of the table alone (0.33)."""

PARTS = frozenset(
    {"layers", "midlayer", "fc", "fc_norm", "input_norm", "norm", "embed_tokens", "lm_head", "d2t", "t2d"}
)


@dataclass(frozen=True, kw_only=True)
class Version:
    name: str
    raises_positions: str = "no"  # "no" | "any" rope type | "cache_only" rope types
    has_qwen3_window: bool = True
    v2_reads_layer_ids: bool = True  # eagle_config.layer_ids
    v2_knows_no_aux: bool = False  # honours use_aux_hidden_state: false
    is_current: bool = True


VERSIONS = (
    Version(name="0.25.1", has_qwen3_window=False, v2_reads_layer_ids=False, is_current=False),
    Version(name="0.26.0", v2_reads_layer_ids=False, is_current=False),
    Version(name="0.32.0", raises_positions="any"),
    Version(name="0.33.0", raises_positions="cache_only", v2_knows_no_aux=True),
)


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """The draft config as vLLM's loader leaves it. `reason` says why it loads none."""

    config: Mapping[str, object]
    family: str
    is_speculators: bool = False
    defaulted: frozenset[str] = frozenset()  # speculators flags that the loader filled in
    reason: str = ""


def load(config: Mapping[str, object]) -> _Loaded:
    """config.json -> the attributes that the model classes see."""
    if config.get("speculators_config") is not None:
        return _load_speculators(config)
    claimed = architectures(config)
    first = claimed[0] if claimed else ""
    name = first if first.startswith("Eagle3") or first.endswith("Eagle3") else f"Eagle3{first}"
    if name not in FAMILY_OF_CLASS:
        return _Loaded(config=config, family="", reason=f"no EAGLE-3 class is registered as {name}")
    return _Loaded(config=config, family=FAMILY_OF_CLASS[name])


def _load_speculators(config: Mapping[str, object]) -> _Loaded:
    layer = config.get("transformer_layer_config")
    if config.get("speculators_model_type") != "eagle3" or not isinstance(layer, Mapping):
        return _Loaded(config=config, family="", reason="not an eagle3 config with transformer_layer_config")
    kind = layer.get("model_type", "llama")
    if not isinstance(kind, str) or kind not in FAMILIES:
        return _Loaded(config=config, family="", reason=f"transformer_layer_config.model_type {kind!r}")
    flat: dict[str, object] = {**layer, "draft_vocab_size": config.get("draft_vocab_size")}
    if config.get("target_hidden_size") is not None:
        flat["target_hidden_size"] = config["target_hidden_size"]
    flat |= {key: config.get(key, default) for key, default in SPECULATORS_FLAGS.items()}
    if config.get(IDS):
        flat[IDS] = config[IDS]
    return _Loaded(
        config=flat,
        family=kind,
        is_speculators=True,
        defaulted=frozenset(SPECULATORS_FLAGS) - config.keys(),
    )


def read(pair: Pair, *, version: Version, runner: str) -> Readings:
    loaded = load(pair.config)
    if loaded.reason:
        return {"weights": refuses(loaded.reason)}
    config = loaded.config
    return {
        "layer_ids": _layer_ids(pair, config, version, runner),
        "num_aux": _num_aux(config, loaded.family),
        "fc_norm": _flag(loaded, "fc_norm"),
        "norm_before_fc": _norm_before_fc(loaded),
        "norm_output": _flag(loaded, "norm_output"),
        "norm_before_residual": _flag(loaded, "norm_before_residual"),
        "d2t": map_reading(pair, config, identity="no d2t: a buffer of zeros"),
        "embeddings": _own_or_target(pair, "embed_tokens.weight"),
        "lm_head": _own_or_target(pair, "lm_head.weight"),
        "rope": rope_of(pair, config),
        "max_positions": _max_positions(pair, config, version),
        "sliding_window": _sliding_window(pair, loaded, version),
        "qkv_bias": flag(config, "attention_bias"),
        "weights": _weights(pair, loaded),
    }


def _flag(loaded: _Loaded, key: str) -> Reading:
    if key in loaded.defaulted:
        default = SPECULATORS_FLAGS[key]
        return Reading(value=default, source=f"{key} is absent: default of configs/speculators/algos.py")
    return flag(loaded.config, key)


def _norm_before_fc(loaded: _Loaded) -> Reading:
    inner = nested(loaded.config)
    if "norm_before_fc" in inner:
        return flag(inner, "norm_before_fc", prefix="eagle_config.")
    return _flag(loaded, "norm_before_fc")


def _layer_ids(pair: Pair, config: Mapping[str, object], version: Version, runner: str) -> Reading:
    inner = nested(config)
    honours = runner == "V1" or version.v2_knows_no_aux
    if not inner.get("use_aux_hidden_state", True) and honours:
        return Reading(value=(FINAL_NORMED,), source="eagle_config.use_aux_hidden_state")
    found = ids_of(config, IDS)
    if found is not None:
        return Reading(value=tuple(sorted(found)), source=f"{IDS}, as boundary ids")
    if runner == "V1" and (found := ids_of(inner, IDS)) is not None:
        return Reading(value=tuple(sorted(found)), source=f"eagle_config.{IDS}, as boundary ids")
    if runner == "V2" and version.v2_reads_layer_ids and (found := ids_of(inner, "layer_ids")) is not None:
        return Reading(value=tuple(sorted(found)), source="eagle_config.layer_ids, as boundary ids")
    unread = f"; eagle_config.{IDS} is not read" if ids_of(inner, IDS) is not None else ""
    return Reading(value=default_ids(pair), source=DEFAULT_IDS + unread)


def _num_aux(config: Mapping[str, object], family: str) -> Reading:
    inner = nested(config)
    if not inner.get("use_aux_hidden_state", True):
        return Reading(value=1, source="eagle_config.use_aux_hidden_state")
    for key in ("num_aux_layers", "num_aux_hidden_states") if family == "qwen3" else ("num_aux_hidden_states",):
        if (number := whole_number(config.get(key))) is not None:
            return Reading(value=number, source=key)
    if family == "qwen3" and (ids := ids_of(config, IDS)) is not None:
        return Reading(value=len(ids), source=f"length of {IDS}")
    if (ids := ids_of(inner, IDS)) is not None:
        return Reading(value=len(ids), source=f"length of eagle_config.{IDS}")
    return Reading(value=3, source="default 3")


def _own_or_target(pair: Pair, name: str) -> Reading:
    if has(pair, name):
        return Reading(value="own", source=name)
    return Reading(value="target", source=f"no {name}")


def _max_positions(pair: Pair, config: Mapping[str, object], version: Version) -> Reading:
    own = whole_number(config.get("max_position_embeddings"))
    own_source = "max_position_embeddings" if own is not None else "no max_position_embeddings: 2048"
    own = 2048 if own is None else own
    target = pair.target.integer("max_position_embeddings")
    if target is None or own >= target or version.raises_positions == "no":
        return Reading(value=own, source=own_source)
    rope = rope_of(pair, config)
    kind = dict(rope.value).get("rope_type") if isinstance(rope.value, tuple) else None
    if version.raises_positions == "any" or kind in CACHE_ONLY_ROPE:
        return Reading(value=target, source="raised to the target's max_model_len")
    return Reading(value=own, source=f"{own_source}; not raised for rope {kind}, max_model_len is cut to it")


def _sliding_window(pair: Pair, loaded: _Loaded, version: Version) -> Reading:
    config = loaded.config
    if loaded.family == "qwen3" and not version.has_qwen3_window:
        return Reading(value=full_attention(pair), source="qwen3_eagle3.py has no window")
    types = config.get("layer_types")
    if not isinstance(types, (list, tuple)) or not types:
        return Reading(value=full_attention(pair), source="no layer_types")
    window = whole_number(config.get("sliding_window"))
    if loaded.family == "qwen3" and not loaded.is_speculators and not is_on(config, "use_sliding_window"):
        window = None  # transformers' Qwen3Config drops it
    kinds = [types[i] if i < len(types) else None for i in range(num_layers(pair))]
    return Reading(
        value=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        source="layer_types, sliding_window",
    )


def _weights(pair: Pair, loaded: _Loaded) -> Reading:
    """What AutoWeightsLoader does with each tensor: unknown names stop it; a few are dropped on purpose."""
    config, inner = loaded.config, nested(loaded.config)
    has_aux = bool(inner.get("use_aux_hidden_state", True))
    dropped = []
    for name in sorted(pair.files.tensors):
        part = name.split(".")[0]
        if "rotary_emb." in name:
            continue
        if part not in PARTS:
            return refuses(f"no parameter for `{name}`")
        if part == "fc_norm" and not (has_aux and is_on(config, "fc_norm")):
            return refuses(f"`{name}` without `fc_norm: true`")
        if part == "fc" and name != "fc.weight":
            return refuses(f"no parameter for `{name}`")
        if loaded.family == "llama" and (".q_norm." in name or ".k_norm." in name):
            return refuses(f"no parameter for `{name}` in the Llama class")
        if name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias")) and not is_on(config, "attention_bias"):
            return refuses(f"`{name}` without `attention_bias: true`")
        if part == "fc" and not has_aux:
            dropped.append(name)
        if part == "input_norm" and not _norm_before_fc(loaded).value:
            dropped.append(name)
    stated, types = whole_number(config.get("num_hidden_layers")) or 1, config.get("layer_types")
    if loaded.family == "llama" and isinstance(types, (list, tuple)) and 0 < len(types) < stated:
        return refuses("layer_types is shorter than num_hidden_layers")
    missing = stated - num_layers(pair)
    if missing < 0:
        return refuses(f"the weights hold more layers than num_hidden_layers = {stated}")
    if missing > 0:
        dropped.append(f"{missing} layers that config.json asks for have no weights")
    reason = _fc_mismatch(pair, config, loaded.family) if has_aux else ""
    if reason:
        return refuses(reason)
    return Reading(value=tuple(dropped), source="weight names" if not dropped else "dropped silently")


def _fc_mismatch(pair: Pair, config: Mapping[str, object], family: str) -> str:
    fc = pair.tensors.get("fc.weight")
    if fc is None or len(fc.shape) != 2:
        return ""
    width = whole_number(config.get("target_hidden_size")) or whole_number(config.get("hidden_size"))
    num_aux = _num_aux(config, family)
    if not width or not isinstance(num_aux.value, int) or fc.shape[1] == width * num_aux.value:
        return ""
    return f"fc is built for {num_aux.value} states ({num_aux.source}), the file's reads {fc.shape[1] / width:g}"


ENGINES = tuple(
    Engine(
        name=f"vLLM {version.name} {runner}",
        is_current=version.is_current,
        read=partial(read, version=version, runner=runner),
    )
    for version in VERSIONS
    for runner in ("V1", "V2")
)
