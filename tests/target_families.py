"""Tiny targets of many families, each mostly following `next_token(SEED)` so that a matched drafter is right at times.

A family that the installed transformers does not have is left out by name (`Family.is_known`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from probes.checkpoint.spec import DrafterSpec
from probes.target.family import auto_class
from tests.tiny_models import VOCAB_SIZE, matched_drafter, next_token, tiny_tokenizer

SEED = 0
HIDDEN_SIZE = 64
WINDOW = 7  # shorter than every text, than the prefix that prompts share, and than a round of 8 tokens
NOISES = [0.7 * 2 ** (i / 4) for i in range(14)]
MAX_RULE_SHARE = 0.7  # the first noise that breaks the rule this often: the text then depends on the whole context
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
DEEPSEEK_MOE: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
GEMMA4: dict[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ALTERNATING,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "num_global_key_value_heads": None,
}
GEMMA3N: dict[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ALTERNATING,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "intermediate_size": 96,
    "laurel_rank": 8,
    "altup_num_inputs": 2,
    "activation_sparsity_pattern": [0.0] * 4,
}
SMALL_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """`config` are fields on top of SMALL (of `text_config` when `vision` is given); None takes a field of SMALL away."""

    name: str
    config_class: str
    config: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] | None = None
    max_padded_tokens: int | None = None
    final_norm: str = "norm"  # attribute of the decoder
    has_watched_attention: bool = True  # through transformers' attention interface
    embedding_gain: float = 1.0  # where the family scales embeddings up and norms what its layers add

    @property
    def is_known(self) -> bool:
        return hasattr(transformers, self.config_class)

    @property
    def has_tight_window(self) -> bool:
        """Whether its windows or chunks are shorter than the tests' texts."""
        return self.max_padded_tokens in (0, WINDOW)

    def build(self, folder: Path) -> nn.Module:
        """The model, float32; saved with its tokenizer."""
        model = self._empty().float().eval()
        for noise in NOISES:
            _fill(model, noise, self.embedding_gain)
            if _rule_share(model) <= MAX_RULE_SHARE:
                break
        model.generation_config = transformers.GenerationConfig()
        model.save_pretrained(folder)
        tokenizer = tiny_tokenizer()
        tokenizer.eos_token = None  # no text ends before its length
        tokenizer.save_pretrained(folder)
        return model

    def _empty(self) -> nn.Module:
        values = {key: value for key, value in (SMALL | self.config).items() if value is not None or key not in SMALL}
        values |= {key: None for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        config_class = getattr(transformers, self.config_class)
        if self.vision is None:
            config = config_class(**values)
        else:
            config = config_class(text_config=values, vision_config=self.vision, tie_word_embeddings=False)
        return auto_class(config).from_config(config)


@torch.no_grad()
def _fill(model: nn.Module, noise: float, embedding_gain: float) -> None:
    """`noise` is the size of the layers' weights beside the rule that embedding and lm_head hold."""
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            random = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * random / parameter.shape[-1] ** 0.5)
        elif name.endswith("sinks"):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    embedding = torch.randn(VOCAB_SIZE, HIDDEN_SIZE, generator=generator)
    model.get_input_embeddings().weight[:VOCAB_SIZE] = embedding_gain * embedding
    head = torch.zeros(VOCAB_SIZE, HIDDEN_SIZE)
    head[next_token(SEED)] = embedding / HIDDEN_SIZE**0.5
    model.get_output_embeddings().weight[:VOCAB_SIZE] = head


@torch.no_grad()
def _rule_share(model: nn.Module) -> float:
    """How often the model answers a random token with `next_token`."""
    ids = torch.randint(VOCAB_SIZE, (4, 64), generator=torch.Generator().manual_seed(SEED))
    return float((model(input_ids=ids, use_cache=False).logits.argmax(dim=-1) == next_token(SEED)[ids]).float().mean())


def drafter_for(model: nn.Module, **flags: Any) -> tuple[DrafterSpec, dict[str, Tensor]]:
    """A matched drafter for a target of `Family.build`."""
    weight = model.get_input_embeddings().weight[:VOCAB_SIZE]
    embed_tokens = SimpleNamespace(weight=weight / weight.std())
    like_llama = SimpleNamespace(
        config=SimpleNamespace(hidden_size=HIDDEN_SIZE), model=SimpleNamespace(embed_tokens=embed_tokens)
    )
    return matched_drafter(like_llama, SEED, **flags)  # type: ignore[arg-type]


SEVERAL_STREAMS = Family(name="gemma3n", config_class="Gemma3nTextConfig", config=GEMMA3N)

FAMILIES = (
    Family(name="llama", config_class="LlamaConfig"),
    Family(name="qwen2", config_class="Qwen2Config", config={"use_sliding_window": False}),
    Family(
        name="qwen2, window in its upper layers",
        config_class="Qwen2Config",
        config={"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
        max_padded_tokens=WINDOW,
    ),
    Family(name="qwen3", config_class="Qwen3Config"),
    Family(
        name="gemma2",
        config_class="Gemma2Config",
        config={"sliding_window": WINDOW, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
        embedding_gain=HIDDEN_SIZE**-0.5,
        max_padded_tokens=WINDOW,
    ),
    Family(
        name="gemma3",
        config_class="Gemma3TextConfig",
        config={"sliding_window": WINDOW, "layer_types": ALTERNATING, "query_pre_attn_scalar": 16},
        embedding_gain=HIDDEN_SIZE**-0.5,
        max_padded_tokens=WINDOW,
    ),
    Family(
        name="gemma3, multimodal",
        config_class="Gemma3Config",
        config={"sliding_window": WINDOW, "layer_types": ALTERNATING, "query_pre_attn_scalar": 16},
        embedding_gain=HIDDEN_SIZE**-0.5,
        vision=SMALL_VISION | {"image_size": 28, "patch_size": 14},
        max_padded_tokens=WINDOW,
    ),
    Family(
        name="gemma4",
        config_class="Gemma4TextConfig",
        config=GEMMA4,
        max_padded_tokens=WINDOW,
        embedding_gain=HIDDEN_SIZE**-0.5,
    ),
    Family(
        name="gemma4, shared keys and values",
        config_class="Gemma4TextConfig",
        config=GEMMA4 | {"num_kv_shared_layers": 2},
        embedding_gain=HIDDEN_SIZE**-0.5,
        max_padded_tokens=WINDOW,
    ),
    Family(name="mistral", config_class="MistralConfig", config={"sliding_window": None}),
    Family(
        name="mistral, window",
        config_class="MistralConfig",
        config={"sliding_window": WINDOW},
        max_padded_tokens=WINDOW,
    ),
    Family(
        name="mistral, wide window", config_class="MistralConfig", config={"sliding_window": 256}, max_padded_tokens=256
    ),
    Family(
        name="mistral3, multimodal",
        config_class="Mistral3Config",
        config={"model_type": "mistral", "sliding_window": None},
        vision=SMALL_VISION | {"model_type": "pixtral", "image_size": 28, "patch_size": 14, "head_dim": 16},
    ),
    Family(name="mixtral", config_class="MixtralConfig", config={"num_local_experts": 4}),
    Family(
        name="qwen2-moe",
        config_class="Qwen2MoeConfig",
        config={
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    Family(
        name="qwen3-moe",
        config_class="Qwen3MoeConfig",
        config={"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    Family(
        name="qwen3-vl",
        config_class="Qwen3VLConfig",
        config={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}},
        vision={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": HIDDEN_SIZE,
            "deepstack_visual_indexes": [0],
        },
    ),
    Family(
        name="gpt-oss",
        config_class="GptOssConfig",
        config={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
        max_padded_tokens=WINDOW,
    ),
    Family(
        name="llama4, chunked",
        config_class="Llama4TextConfig",
        config={
            "attention_chunk_size": WINDOW,
            "num_local_experts": 4,
            "intermediate_size_mlp": 96,
            "layer_types": ["chunked_attention", "full_attention"] * 2,
        },
        max_padded_tokens=0,
    ),
    Family(
        name="deepseek-v3",
        config_class="DeepseekV3Config",
        config=MLA | DEEPSEEK_MOE | {"first_k_dense_replace": 1},
    ),
    Family(
        name="deepseek-v3.2, indexed",
        config_class="DeepseekV32Config",
        config=MLA
        | DEEPSEEK_MOE
        | {"first_k_dense_replace": 1, "index_topk": 6, "index_n_heads": 16, "index_head_dim": 16},
        max_padded_tokens=0,
    ),
    Family(name="phi", config_class="PhiConfig", config={"head_dim": None}, final_norm="final_layernorm"),
    Family(name="phi3", config_class="Phi3Config", config={"sliding_window": None, "head_dim": None}),
    Family(
        name="phi3, window",
        config_class="Phi3Config",
        config={"sliding_window": WINDOW, "head_dim": None},
        max_padded_tokens=WINDOW,
    ),
    Family(name="glm", config_class="GlmConfig"),
    Family(name="glm4", config_class="Glm4Config"),
    Family(
        name="glm4-moe",
        config_class="Glm4MoeConfig",
        config=DEEPSEEK_MOE | {"first_k_dense_replace": 1},
    ),
    Family(name="olmo", config_class="OlmoConfig", config={"head_dim": None}),
    Family(name="olmo2", config_class="Olmo2Config", config={"head_dim": None}),
    Family(
        name="olmo3",
        config_class="Olmo3Config",
        config={"head_dim": None, "sliding_window": WINDOW, "layer_types": ALTERNATING},
        max_padded_tokens=WINDOW,
    ),
    Family(
        name="granite",
        config_class="GraniteConfig",
        config={
            "head_dim": None,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
    ),
    Family(name="cohere", config_class="CohereConfig", config={"head_dim": None, "logit_scale": 0.5}),
    Family(
        name="cohere2",
        config_class="Cohere2Config",
        config={"head_dim": None, "sliding_window": WINDOW, "layer_types": ALTERNATING, "logit_scale": 0.5},
        max_padded_tokens=WINDOW,
    ),
    Family(name="smollm3", config_class="SmolLM3Config", config={"head_dim": None}),
    Family(name="gpt-neox", config_class="GPTNeoXConfig", config={"head_dim": None}, final_norm="final_layer_norm"),
    Family(name="gpt2", config_class="GPT2Config", config={"head_dim": None}, final_norm="ln_f"),
)
