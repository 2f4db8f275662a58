"""What must be known of a target's family before it is measured: its auto class, its decoder layers, its cache.

Knows no text and no drafter. Verification takes rejected tokens out of the cache again, so every layer must keep keys and
values by position: recurrent states (Mamba, linear attention, convolutions) hold all tokens in one and are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DynamicCache,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from probes.attention.chunk import attend_chunk
from probes.errors import InputError

FULL_LAYER_TYPES = frozenset({"full_attention", "attention"})
WINDOW_LAYER_TYPES = frozenset({"sliding_attention", "chunked_attention"})
# DeepSeek sparse attention, softmax over the slots that an indexer picks, as newer and older transformers call it
INDEXED_LAYER_TYPES = frozenset({"indexed_attention", "deepseek_sparse_attention"})
LOCAL_IMPLEMENTATIONS = {
    "attn_implementation": ("eager", "sdpa", "flex_attention"),
    "experts_implementation": ("eager", "batched_mm", "grouped_mm"),
}
"""What comes with torch and transformers; anything else a config asks for may be fetched."""
WITHOUT_CACHE_LAYER_TYPES = frozenset({"mlp", "moe"})


def auto_class(config: PretrainedConfig) -> Any:
    """The auto class that loads this target: a multimodal model without a text-only class is read for its text part."""
    is_multimodal_only = (
        type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    )
    return AutoModelForImageTextToText if is_multimodal_only else AutoModelForCausalLM


def attention_options(config: PretrainedConfig) -> dict[str, str]:
    """Attention to load with where transformers' default choice computes another function than the model's.

    torch's SDPA knows no soft cap of attention logits (Gemma 2): older transformers leave the cap out silently.
    """
    is_capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    return {"attn_implementation": "eager"} if is_capped else {}


def refuse_foreign_kernels(config: PretrainedConfig) -> None:
    """Raises InputError `remote_code` where config.json chooses an implementation that transformers would fetch from the
    Hub as code (`attn_implementation: "owner/kernel"`). A checkpoint is data: code comes from the command line alone."""
    parts = [config, *(value for value in vars(config).values() if isinstance(value, PretrainedConfig))]
    for part in parts:
        for key, known in LOCAL_IMPLEMENTATIONS.items():
            asked = getattr(part, f"_{key}", None)
            if asked is not None and asked not in known:
                raise InputError(
                    f"its config.json asks for {key} {str(asked)[:80]!r}, which may be code from the Hub",
                    code="remote_code",
                    where=str(config.name_or_path),
                    remedy="Take it out of config.json. If you trust it, add --trust-remote-code.",
                )


def find_decoder(model: PreTrainedModel, num_layers: int) -> tuple[nn.Module, nn.ModuleList]:
    """The text decoder (its output is the post-norm state) and its layers. Raises InputError `unsupported_target`."""
    for module in model.get_decoder().modules():
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child) == num_layers:
                _refuse_bidirectional(model, child)
                return module, child
    raise _unsupported(model, f"no list of {num_layers} decoder layers was found in it")


def _refuse_bidirectional(model: PreTrainedModel, layers: nn.ModuleList) -> None:
    if any(getattr(module, "is_causal", True) is False for layer in layers for module in layer.modules()):
        raise _unsupported(model, "its attention also sees later tokens, so it is no causal language model")


def refuse_recurrent(model: PreTrainedModel) -> None:
    """Raises InputError `unsupported_target` for layers whose state cannot go back by some tokens."""
    config = model.config.get_text_config()
    types = _layer_types(config) | set(getattr(config, "layers_block_type", None) or ())
    others = sorted(types - FULL_LAYER_TYPES - WINDOW_LAYER_TYPES - WITHOUT_CACHE_LAYER_TYPES - INDEXED_LAYER_TYPES)
    if others or getattr(model, "_is_stateful", False):
        what = f" ({', '.join(others)})" if others else ""
        raise _unsupported(
            model,
            f"it has recurrent or compressed states{what}: rejected drafts cannot be taken out of its cache again",
        )


def refuse_other_states(model: PreTrainedModel, state: Tensor, token_ids: Tensor) -> None:
    """Raises InputError `unsupported_target` where a layer does not pass on one state for each token (Gemma 3n)."""
    if state.dim() != 3 or state.shape[:2] != token_ids.shape:
        shape = " x ".join(map(str, state.shape))
        raise _unsupported(
            model, f"its layers pass on {shape} numbers for {token_ids.shape[1]} tokens, not one state each"
        )


def _unsupported(model: PreTrainedModel, why: str) -> InputError:
    config = model.config.get_text_config()
    return InputError(
        f"targets of the family {config.model_type} cannot be measured: {why}",
        code="unsupported_target",
        where=type(model).__name__,
        remedy="driftscope needs a decoder whose layers keep softmax attention's keys and values",
    )


def _layer_types(config: PretrainedConfig) -> set[str]:
    return set(getattr(config, "layer_types", None) or ())


def new_cache(config: PretrainedConfig) -> DynamicCache:
    """An empty cache that keeps every slot. (`DynamicCache(config)` drops slots behind a window: no way back.)"""
    text_config = config.get_text_config()
    if INDEXED_LAYER_TYPES & _layer_types(text_config):  # its layers also keep the indexer's keys; none drops slots
        return DynamicCache(config=text_config)
    return DynamicCache()


def last_positions(config: PretrainedConfig, token_ids: Tensor, num_logits: int) -> int | Tensor:
    """What `logits_to_keep` is to be: how many, or which ones where layers share keys and values (Gemma 4).

    Such a family computes its upper layers for the kept positions only, when it is told how many: no states to capture.
    """
    if not getattr(config, "num_kv_shared_layers", 0):
        return num_logits
    return torch.arange(token_ids.shape[1] - num_logits, token_ids.shape[1], device=token_ids.device)


def max_padded_tokens(model: PreTrainedModel) -> int | None:
    """How long a text may be, padding included, in a batch of prompts of unequal length; None = any length, 0 = none.

    A window sees padding as text, which is harmless while everything fits into it. Chunks and positions that are counted
    by slot are shifted by any padding.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return 0
    config = model.config.get_text_config()
    types = _layer_types(config) - WITHOUT_CACHE_LAYER_TYPES
    if (types and types <= FULL_LAYER_TYPES) or (not types and not _windows(config)):
        return None
    is_windowed_only = types <= FULL_LAYER_TYPES | {"sliding_attention"} and set(_windows(config)) == {"sliding_window"}
    return _windows(config)["sliding_window"] if is_windowed_only else 0


def _windows(config: PretrainedConfig) -> dict[str, int]:
    found = {name: getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")}
    return {name: int(value) for name, value in found.items() if value is not None}


@contextmanager
def chunked_attention(model: PreTrainedModel, *, is_first: bool, is_whole: bool) -> Iterator[None]:
    """Within: a chunk's queries on all slots before take `attend_chunk`. `is_whole`: the chunk has the usual length.

    transformers gives SDPA an explicit mask there, and SDPA then reads K and V once a query head by a slower kernel. Only
    on CUDA in 16 bits, where every layer sees all slots before and no padding is in the batch.
    """
    name = model.config.get_text_config()._attn_implementation
    known: Any = ALL_ATTENTION_FUNCTIONS.get(name)
    parameter = next(model.parameters())
    is_16_bit = parameter.dtype in (torch.bfloat16, torch.float16)
    if is_first or name != "sdpa" or not parameter.is_cuda or not is_16_bit or max_padded_tokens(model) is not None:
        yield
        return

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Any:
        has_more = any(options.get(n) is not None for n in ("softcap", "s_aux", "sliding_window", "position_bias"))
        if has_more or q.shape[-1] != v.shape[-1] or q.shape[-1] > 256 or q.shape[2] < 2:
            return known(module, q, k, v, mask, **options)
        out = attend_chunk(q, k, v, options.get("scaling"), is_whole=is_whole)
        return out.transpose(1, 2).contiguous(), None

    mapping = type(ALL_ATTENTION_FUNCTIONS)._global_mapping
    mapping[name] = attend
    try:
        yield
    finally:
        mapping[name] = known
