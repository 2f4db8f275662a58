"""Which key caches the recorder reads, by what vLLM's attention implementation says of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probes.vllm.depth_writer import key_view


class TritonAttentionImpl(SimpleNamespace):
    pass


def attention(**options: Any) -> Any:
    return SimpleNamespace(impl=TritonAttentionImpl(head_size=4, sinks=None, logits_soft_cap=0, **options))


@pytest.mark.parametrize("cache_dtype", ["fp8_e4m3", "int8_per_token_head", "nvfp4"])
def test_quantised_keys_are_not_read(cache_dtype: str) -> None:
    reason, _ = key_view(attention(kv_cache_dtype=cache_dtype))
    assert reason == f"the key cache is {cache_dtype}"


@pytest.mark.parametrize("cache_dtype", ["auto", "bfloat16"])
def test_keys_come_first_in_a_slot(cache_dtype: str) -> None:
    reason, keys_of = key_view(attention(kv_cache_dtype=cache_dtype))
    assert not reason
    cache = torch.arange(2 * 3 * 5 * 8).view(2, 3, 5, 8)  # block, head, slot, keys and values
    assert torch.equal(keys_of(cache), cache.permute(0, 2, 1, 3)[..., :4])
