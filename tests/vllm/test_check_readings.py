"""`driftscope check`'s readings of vLLM against the installed vLLM's own code: no engine is started, no weights loaded."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)

from transformers import AutoConfig
from vllm.model_executor.models.registry import _SPECULATIVE_DECODING_MODELS
from vllm.transformers_utils.configs.eagle import EAGLEConfig
from vllm.transformers_utils.configs.speculators.base import SpeculatorsConfig
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.version import __version__

from driftscope.check.engines.vllm import VERSIONS, load, read
from driftscope.check.pair import read_pair
from probes.checkpoint.families import FAMILY_OF_CLASS

IDS = "eagle_aux_hidden_state_layer_ids"
NUM_LAYERS = 12
LAYER = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_hidden_layers": 1,
    "vocab_size": 40,
    "max_position_embeddings": 512,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"speculative_tokens": 3}], "verifier": {}},
    "draft_vocab_size": 12,
    "transformer_layer_config": LAYER,
}
PLAIN = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 12, **LAYER}
CONFIGS: dict[str, Mapping[str, Any]] = {
    "plain": PLAIN,
    "safeailab": PLAIN | {"architectures": ["LlamaForCausalLM"]},
    "angelslim": PLAIN | {"architectures": ["Eagle3LlamaForCausalLM"]},
    "nemo": PLAIN | {"architectures": ["LlamaEagle3DraftModel"]},
    "top": PLAIN | {IDS: [3, 5, 7]},
    "nested": PLAIN | {"eagle_config": {IDS: [3, 5, 7]}},
    "both": PLAIN | {IDS: [3, 5, 7], "eagle_config": {IDS: [2, 4, 6]}},
    "layer_ids": PLAIN | {"eagle_config": {"layer_ids": [3, 5, 7]}},
    "empty": PLAIN | {IDS: [], "eagle_config": {IDS: []}},
    "flags": PLAIN | {"fc_norm": True, "norm_output": True, "norm_before_residual": True, "norm_before_fc": True},
    "nested flags": PLAIN | {"eagle_config": {"fc_norm": True, "norm_output": True, "norm_before_residual": True}},
    "yarn": PLAIN | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "rope_parameters": {k: v for k, v in PLAIN.items() if k != "rope_theta"}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 7000.0}},
    "speculators": SPECULATORS,
    "speculators with ids": SPECULATORS | {IDS: [3, 5, 7], "norm_before_residual": False, "norm_output": True},
}


def vllms(config: Mapping[str, Any], folder: Path) -> Any:
    """The draft config as vLLM's SpeculativeConfig leaves it."""
    config = copy.deepcopy(dict(config))
    if "speculators_config" in config:
        return SpeculatorsConfig(**SpeculatorsConfig.extract_transformers_pre_trained_config(config))
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return EAGLEConfig(AutoConfig.from_pretrained(folder), method="eagle3", model_type="eagle")


def test_this_version_is_one_of_those_read() -> None:
    assert __version__ in {version.name for version in VERSIONS}


def test_the_registrys_classes() -> None:
    modules = {"llama": "llama_eagle3", "qwen3": "qwen3_eagle3"}
    for name, family in FAMILY_OF_CLASS.items():
        assert _SPECULATIVE_DECODING_MODELS[name][0] == modules[family]


@pytest.mark.parametrize("name", CONFIGS)
def test_architecture_and_flags(name: str, tmp_path: Path) -> None:
    config, loaded = vllms(CONFIGS[name], tmp_path), load(CONFIGS[name])
    is_registered = config.architectures[0] in _SPECULATIVE_DECODING_MODELS
    assert is_registered == (not loaded.reason)
    if is_registered:
        assert FAMILY_OF_CLASS[config.architectures[0]] == loaded.family
        for flag in ("fc_norm", "norm_output", "norm_before_residual", "norm_before_fc"):
            assert bool(getattr(config, flag, False)) == bool(loaded.config.get(flag, False)), flag


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "nemo"])
@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_layer_ids(name: str, runner: str, tmp_path: Path) -> None:
    spec_config = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=vllms(CONFIGS[name], tmp_path / "vllm")))
    if runner == "V1":
        found = GPUModelRunner._get_eagle3_aux_layers_from_config(SimpleNamespace(speculative_config=spec_config))
    else:
        found = get_eagle3_aux_layers_from_config(spec_config)
    default = (2, NUM_LAYERS // 2, NUM_LAYERS - 3)
    assert _reading(name, runner, tmp_path)["layer_ids"].value == tuple(found or default)


@pytest.mark.parametrize("name", ["plain", "yarn", "rope_parameters"])
def test_rope(name: str, tmp_path: Path) -> None:
    """What transformers makes of the keys, which is what vLLM's get_rope is given."""
    rope = dict(vllms(CONFIGS[name], tmp_path / "vllm").rope_parameters)
    value = _reading(name, "V2", tmp_path)["rope"].value
    assert isinstance(value, tuple)
    rope.pop("original_max_position_embeddings", None)  # filled in by transformers from max_position_embeddings
    assert dict(value) == rope


def _reading(name: str, runner: str, root: Path) -> Mapping[str, Any]:
    """What `check` says of a pair with this config and the tensors that it needs."""
    from tests.checkpoint_writers import Tiny, config, save, weights, write_checkpoint

    tiny = Tiny(target_layers=NUM_LAYERS)
    target = root / "target"
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps({"model_type": "llama", **tiny.target_config}))
    save(target / "model.safetensors", {"lm_head.weight": weights(tiny)["lm_head.weight"]})
    producer = "speculators" if "speculators" in name else "specforge"
    drafter = write_checkpoint(root / "eagle3", producer, weights(tiny), config(producer, tiny))
    (drafter / "config.json").write_text(json.dumps(CONFIGS[name]))
    version = next(v for v in VERSIONS if v.name == __version__)
    return read(read_pair(str(target), str(drafter)), version=version, runner=runner)
