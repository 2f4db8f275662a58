"""Targets and drafters of real shapes with random weights, and texts of random tokens: for times and memory only."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from probes.checkpoint.spec import DrafterSpec
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.record import TEXT_REGIONS, PromptRecord
from probes.target.model import Target
from probes.target.trace import TargetTrace

SHAPES = {
    "Llama-3.1-8B": LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131072, rope_theta=500000.0, tie_word_embeddings=False,
    ),
    "SmolLM2-135M": LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=32768, rope_theta=100000.0, tie_word_embeddings=True,
    ),
}  # fmt: skip
DRAFT_VOCAB_SIZE = {"Llama-3.1-8B": 32000, "SmolLM2-135M": 6144}


def random_target(shape: str, device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Target:
    """Weights drawn on the device. No tokenizer: nothing here renders text, and no token stops it."""
    config = SHAPES[shape]
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(device):
        torch.set_default_dtype(dtype)
        try:
            model = LlamaForCausalLM(config)
        finally:
            torch.set_default_dtype(torch.float32)
    return Target(model, SimpleNamespace(eos_token_id=None), aux_layer_ids=drafter_spec(shape).aux_layer_ids)


def drafter_spec(shape: str, **flags: object) -> DrafterSpec:
    """One Llama layer of the target's own shape, as the published EAGLE-3 heads are."""
    config, n = SHAPES[shape], SHAPES[shape].num_hidden_layers
    values: dict[str, object] = {
        "producer": "benchmark",
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": DRAFT_VOCAB_SIZE[shape],
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "aux_layer_ids": (2, n // 2, n - 3),
        "has_own_embedding": True,
        "has_own_lm_head": True,
        "has_vocab_map": True,
        "sliding_window": (None,),
    }
    return DrafterSpec(**(values | flags))  # type: ignore[arg-type]


def random_drafter(shape: str, target: Target, seed: int = 0, **flags: object) -> Drafter:
    """Beside `target`, whose embedding it shares; its draft vocabulary is every n-th id."""
    spec = drafter_spec(shape, **flags)
    device, dtype = target.device, target.embedding.dtype
    torch.manual_seed(seed)
    with torch.device("meta"):
        empty = Eagle3(spec)
    tensors = {}
    for name, value in empty.state_dict().items():
        if name == "embed_tokens.weight":
            tensors[name] = target.embedding.detach()
        elif name == "d2t":
            step = spec.vocab_size // spec.draft_vocab_size
            tensors[name] = torch.arange(spec.draft_vocab_size, device=device) * (step - 1)
        elif not name.startswith("rotary."):
            gain = value.shape[-1] ** -0.5 if value.dim() == 2 else 1.0
            random = torch.randn(value.shape, device=device, dtype=dtype) if value.dim() == 2 else None
            tensors[name] = torch.ones(value.shape, device=device, dtype=dtype) if random is None else random * gain
    return Eagle3.load(spec, tensors, dtype=dtype, device=device)


def random_text(shape: str, num_tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, SHAPES[shape].vocab_size, num_tokens).astype(np.int32)


def prompt_record(trace: TargetTrace) -> PromptRecord:
    """System, context and user as long as each other, then the response."""
    num_tokens, num_prompt = len(trace.token_ids), trace.num_prompt_tokens
    region = np.full(num_tokens, TEXT_REGIONS.index("response"), np.uint8)
    parts = ("system", "context", "user")
    for i, name in enumerate(parts):
        region[i * num_prompt // 3 : (i + 1) * num_prompt // 3] = TEXT_REGIONS.index(name)
    return PromptRecord(
        prompt_id="0",
        system_prompt="none",
        template="raw",
        context_tokens=0,
        token_ids=trace.token_ids.cpu().numpy().astype(np.int32),
        region=region,
        num_prompt_tokens=num_prompt,
        num_response_tokens=trace.num_response_tokens,
        num_continuation_tokens=0,
        finish_reason="forced",
    )
