"""What the loaded engine really uses, read from its modules, against what the checkpoint says.

vLLM takes some settings from other keys than the checkpoint has them under and says nothing (nested layer ids, a lost norm
flag, no d2t): each disagreement is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from probes.checkpoint.spec import FINAL_NORMED, DrafterSpec, Finding
from probes.vllm.attach import num_head_ranks


def drafter_model(runner: Any) -> Any:
    """vLLM's drafter module, of either runner."""
    proposer = getattr(runner, "speculator", None) or runner.drafter
    return proposer.model


def runner_settings(runner: Any) -> dict[str, object]:
    """JSON values; keys as in DrafterSpec where it has them. From inside the worker."""
    config, model = runner.vllm_config, drafter_model(runner)
    inner, layer = model.model, model.model.layers[0]
    attention = layer.self_attn
    speculative, compilation = config.speculative_config, config.compilation_config
    return {
        "aux_layer_ids": _captured_layers(runner, inner),
        "has_fc_norm": getattr(inner, "fc_norm", None) is not None,
        "norm_before_fc": bool(getattr(inner, "norm_before_fc", False)),
        "norm_output": bool(getattr(inner, "norm_output", False)),
        "norm_before_residual": getattr(layer._residual_norm, "__name__", "") == "_norm_before_residual",
        "has_vocab_map": _has_map(model),
        "has_own_embedding": not _is_shared(runner, inner),
        "rope_theta": float(getattr(attention.rotary_emb, "base", 0.0)),
        "rope": type(attention.rotary_emb).__name__,
        "sliding_window": _json(attention.attn.impl.sliding_window),
        "attention_backend": type(attention.attn.impl).__name__.removesuffix("Impl"),
        "device": str(runner.device),
        "gpu_name": torch.cuda.get_device_name(runner.device) if runner.device.type == "cuda" else None,
        "runner": "V2" if hasattr(runner, "speculator") else "V1",
        "compilation_mode": getattr(compilation.mode, "name", str(compilation.mode)),
        "cuda_graph_mode": getattr(compilation.cudagraph_mode, "name", str(compilation.cudagraph_mode)),
        "draft_sample_method": getattr(speculative, "draft_sample_method", None),
        "rejection_sample_method": getattr(speculative, "rejection_sample_method", None),
        "num_speculative_tokens": speculative.num_speculative_tokens,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "drafter_tensor_parallel_size": num_head_ranks(attention),
        "draft_tensor_parallel_size": speculative.draft_tensor_parallel_size,  # as asked for
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "quantization": config.model_config.quantization,
        "kv_cache_dtype": config.cache_config.cache_dtype,
        "max_model_len": config.model_config.max_model_len,
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "chunked_prefill_tokens": config.scheduler_config.max_num_batched_tokens,
    }


def disagreements(effective: Mapping[str, object], spec: DrafterSpec, d2t: torch.Tensor | None) -> Iterator[Finding]:
    """Where the engine's settings are not the checkpoint's. `d2t`: the file's offsets, None without any."""
    names = ("has_fc_norm", "norm_before_fc", "norm_output", "norm_before_residual")
    expected: dict[str, object] = {name: getattr(spec, name) for name in names}
    if spec.aux_layer_ids != (FINAL_NORMED,):
        expected["aux_layer_ids"] = list(spec.aux_layer_ids)
    if d2t is not None:
        expected["has_vocab_map"] = bool(d2t.any())
    theta = spec.rope_parameters.get("rope_theta")
    if isinstance(theta, int | float):
        expected["rope_theta"] = float(theta)
    if not spec.has_own_embedding:
        expected["has_own_embedding"] = False
    asked, real = effective["draft_tensor_parallel_size"], effective["drafter_tensor_parallel_size"]
    if asked != real:
        yield Finding(
            code="engine_draft_tensor_parallel_size",
            severity="info",
            message=f"vLLM splits the drafter's heads over {real} workers, not over draft_tensor_parallel_size = {asked}",
            where="draft_tensor_parallel_size",
            remedy="what was measured is right; leave the option out",
        )
    for name, value in expected.items():
        if effective[name] != value:
            origin = spec.origins.get(name)
            source = f" ({origin.detail})" if origin is not None else ""
            yield Finding(
                code=f"engine_{name}",
                severity="warning",
                message=f"vLLM runs with {name} = {effective[name]}, the checkpoint says {value}{source}",
                where=name,
                remedy="`driftscope check` says which key each engine reads it from",
            )


def _captured_layers(runner: Any, inner: Any) -> list[int]:
    """Boundary ids; FINAL_NORMED for a drafter that gets the target's last state."""
    if not getattr(inner, "use_aux_hidden_state", True):
        return [FINAL_NORMED]
    for module in runner.get_model().modules():
        layers = getattr(module, "aux_hidden_state_layers", None)
        if layers:
            return sorted(int(i) for i in layers)
    return []


def _has_map(model: Any) -> bool:
    offsets = getattr(model, "draft_id_to_target_id", None)
    return offsets is not None and bool(offsets.any())


def _is_shared(runner: Any, inner: Any) -> bool:
    """Whether the drafter reads the target's embedding."""
    ours = inner.embed_tokens.weight.data_ptr()
    return any(
        ours == module.embed_tokens.weight.data_ptr()
        for module in runner.get_model().modules()
        if hasattr(getattr(module, "embed_tokens", None), "weight")
    )


def _json(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
