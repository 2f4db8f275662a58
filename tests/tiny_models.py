"""Builders of tiny targets and drafters: random ones for numerics, a matched pair whose drafts are accepted at times.

They know nothing of checkpoint layouts on disk beyond the canonical tensor names of `probes.checkpoint.spec`.

The matched pair is built, not trained. The target mostly answers token i with NEXT[i], a fixed permutation that its
lm_head holds; its layers add enough noise to break the rule now and then. The drafter attends to its own slot, where it
finds embed(x[t+1]), and looks NEXT up in the same way; what it drags along from its earlier states costs accuracy.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from probes.checkpoint.spec import DrafterSpec

VOCAB_SIZE = 160
SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<unk>")
STOP_TOKEN = SPECIAL_TOKENS.index("<|im_end|>")
PAIRS = [(" ", "t"), *((a, b) for a in "bdfghlmnrstw" for b in "aeiou")]  # merges, so that tokens are not characters
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ROPE: dict[str, dict[str, object]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    # Contexts as short as the tests' texts, so that both ends of the ramps are reached.
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 8.0,
        "beta_slow": 1.0,
    },
}


def tiny_spec(*, rope: str = "default", **flags: Any) -> DrafterSpec:
    """A valid `DrafterSpec` of a tiny Llama-type drafter; `rope` names a row of ROPE, `flags` are spec fields.

    `use_aux_hidden_state=False` takes fc away with it (id -1: the target's post-norm state); `sliding_window` may be
    one number for all layers.
    """
    values: dict[str, Any] = {
        "producer": "test",
        "hidden_size": 48,
        "target_hidden_size": 48,
        "intermediate_size": 64,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": 96,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "rope_parameters": ROPE[rope],
        "aux_layer_ids": (1, 2, 3),
        "has_own_embedding": True,
        "has_own_lm_head": True,
        "has_vocab_map": True,
    }
    if flags.get("use_aux_hidden_state") is False:
        values |= {"has_fc": False, "aux_layer_ids": (-1,)}
    values |= flags
    window = values.get("sliding_window")
    if not isinstance(window, tuple):
        values["sliding_window"] = (window,) * values.get("num_layers", 1)
    return DrafterSpec(**values)


def aux_width(spec: DrafterSpec) -> int:
    """Width of the target states that this drafter reads."""
    return spec.num_aux * spec.target_hidden_size


def random_tensors(spec: DrafterSpec, seed: int) -> dict[str, Tensor]:
    """Every tensor of `spec` under its canonical name, float64. Attention is far from uniform, norms' gains from 1."""
    generator = torch.Generator().manual_seed(seed)

    def linear(num_out: int, num_in: int, gain: float = 1.0) -> Tensor:
        return torch.randn(num_out, num_in, generator=generator, dtype=torch.float64) * gain / num_in**0.5

    def norm_gain(size: int) -> Tensor:
        return 0.5 + torch.rand(size, generator=generator, dtype=torch.float64)

    hidden, q_size, kv_size = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    tensors = {
        "embed_tokens.weight": linear(spec.vocab_size, hidden, hidden**0.5),
        "norm.weight": norm_gain(hidden),
        "lm_head.weight": linear(spec.draft_vocab_size, hidden, 2.0),
    }
    if spec.has_fc:
        tensors["fc.weight"] = linear(hidden, aux_width(spec), 2.0)
    if spec.has_fc_bias:
        tensors["fc.bias"] = linear(1, hidden, 2.0)[0]
    if spec.norm_before_fc:
        tensors["input_norm.weight"] = norm_gain(aux_width(spec))
    if spec.has_fc_norm:
        tensors |= {f"fc_norm.{i}.weight": norm_gain(spec.target_hidden_size) for i in range(spec.num_aux)}
    for i in range(spec.num_layers):
        at = f"layers.{i}."
        width = 2 * hidden if i == 0 else hidden
        if i == 0 and spec.has_hidden_norm:
            tensors[at + "hidden_norm.weight"] = norm_gain(hidden)
        tensors[at + "input_layernorm.weight"] = norm_gain(hidden)
        tensors[at + "post_attention_layernorm.weight"] = norm_gain(hidden)
        for name, num_out in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            weight = linear(num_out, width, 1.5)
            if (
                i == 0 and not spec.has_hidden_norm
            ):  # nothing holds the state's size down: keep softmax out of saturation
                weight[:, hidden:] /= 5
            tensors[at + f"self_attn.{name}_proj.weight"] = weight
        tensors[at + "self_attn.o_proj.weight"] = linear(hidden, q_size)
        if spec.family == "qwen3":
            tensors |= {at + f"self_attn.{name}_norm.weight": norm_gain(spec.head_dim) for name in ("q", "k")}
        if spec.attention_bias:
            for name, num_out in (("q", q_size), ("k", kv_size), ("v", kv_size)):
                tensors[at + f"self_attn.{name}_proj.bias"] = linear(1, num_out, num_out**0.5 / 2)[0]
        if spec.has_o_proj_bias:
            tensors[at + "self_attn.o_proj.bias"] = linear(1, hidden, hidden**0.5 / 2)[0]
        tensors[at + "mlp.gate_proj.weight"] = linear(spec.intermediate_size, hidden)
        tensors[at + "mlp.up_proj.weight"] = linear(spec.intermediate_size, hidden)
        tensors[at + "mlp.down_proj.weight"] = linear(hidden, spec.intermediate_size)
    if spec.has_vocab_map:
        tensors |= vocab_map(spec, torch.randperm(spec.vocab_size, generator=generator)[: spec.draft_vocab_size])
    return tensors


def vocab_map(spec: DrafterSpec, target_ids: Tensor) -> dict[str, Tensor]:
    """`d2t` (offsets) and `t2d` of a draft vocabulary that holds `target_ids`."""
    target_ids = target_ids.sort().values
    t2d = torch.zeros(spec.vocab_size, dtype=torch.bool)
    t2d[target_ids] = True
    return {"d2t": target_ids - torch.arange(spec.draft_vocab_size), "t2d": t2d}


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE over printable ASCII with 61 merges, VOCAB_SIZE ids; ChatML without a default system prompt."""
    spelled = dict(zip(map(chr, range(128)), _byte_level_alphabet(), strict=True))
    merges = [(spelled[a], spelled[b]) for a, b in PAIRS]
    tokens = [*SPECIAL_TOKENS, *(spelled[c] for c in "\n" + string.printable[:95]), *(a + b for a, b in merges)]
    bpe = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, unk_token="<unk>")
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _byte_level_alphabet() -> list[str]:
    """How `pre_tokenizers.ByteLevel` spells the bytes 0..127: the unprintable ones are moved above 255."""
    spelled, moved = [], 0
    for byte in range(128):
        is_kept = 33 <= byte <= 126
        spelled.append(chr(byte) if is_kept else chr(256 + moved))
        moved += not is_kept
    return spelled


def next_token(seed: int) -> Tensor:
    """NEXT [vocab]: what the target with this seed mostly answers to each token; one cycle through all ids."""
    order = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed + 7))
    successor = torch.empty_like(order)
    successor[order] = order.roll(-1)
    return successor


def tiny_target(
    seed: int,
    *,
    num_layers: int = 4,
    hidden_size: int = 64,
    noise: float = 1.0,
    folder: Path | None = None,
    **config: Any,
) -> LlamaForCausalLM:
    """A float32 Llama with GQA that mostly follows `next_token(seed)`; saved with its tokenizer when `folder` is given.

    `noise` is the size of a layer's weights: 0 follows the rule always. `config` are `LlamaConfig` fields.
    """
    values: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": hidden_size,
        "intermediate_size": 96,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": STOP_TOKEN,
        "pad_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attn_implementation": "eager",
    }
    model = LlamaForCausalLM(LlamaConfig(**(values | config))).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                gain = noise * (1.0 if name.startswith("model.layers") else 0.0)
                random = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(random * gain / parameter.shape[1] ** 0.5)
        embedding = torch.randn(values["vocab_size"], hidden_size, generator=generator)
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight[next_token(seed)] = embedding / hidden_size**0.5
    if folder is not None:
        model.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    return model


def matched_drafter(
    target: LlamaForCausalLM, seed: int, *, noise: float = 0.3, **flags: Any
) -> tuple[DrafterSpec, dict[str, Tensor]]:
    """A drafter for `tiny_target(seed)` that is right at times: some rounds accept all drafts, some none.

    `noise` scales random tensors that are added to the built ones. Its draft vocabulary is three quarters of the
    target's ids, the stop token among them. `flags` go to `tiny_spec`; the target's hidden size is kept.
    """
    hidden = target.config.hidden_size
    base: dict[str, Any] = {
        "hidden_size": hidden,
        "target_hidden_size": hidden,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": hidden // 4,
        "draft_vocab_size": 3 * VOCAB_SIZE // 4,
    }
    spec = tiny_spec(**(base | flags))
    random = random_tensors(spec, seed + 1)
    tensors = {name: torch.ones_like(t) if "norm" in name else noise * t for name, t in random.items()}
    embedding = target.model.embed_tokens.weight.detach().double()  # [vocab, hidden]
    tensors["embed_tokens.weight"] = embedding

    at, group, kv_size = "layers.0.self_attn.", spec.num_heads // spec.num_kv_heads, spec.num_kv_heads * spec.head_dim
    generator = torch.Generator().manual_seed(seed + 2)
    basis = torch.linalg.qr(torch.randn(hidden, kv_size, generator=generator, dtype=torch.float64))[
        0
    ].T  # [kv_size, hidden]
    nothing = torch.zeros_like(basis)
    # Query and key are the same function of the embedding: a slot's best match is itself.
    sharp = 2.5 * torch.cat([basis, nothing], 1).unflatten(0, (spec.num_kv_heads, spec.head_dim))
    tensors[at + "k_proj.weight"] += sharp.flatten(0, 1)
    tensors[at + "q_proj.weight"] += sharp.repeat_interleave(group, 0).flatten(0, 1)
    # The value brings the embedding in and takes half of the old state out.
    tensors[at + "v_proj.weight"] += torch.cat([2 * basis, -basis], 1)
    heads = basis.unflatten(0, (spec.num_kv_heads, spec.head_dim)).repeat_interleave(group, 0).flatten(0, 1)
    tensors[at + "o_proj.weight"] += heads.T / group
    if spec.has_fc:
        tensors["fc.weight"] += 0.5 * torch.eye(hidden, dtype=torch.float64).repeat(1, spec.num_aux) / spec.num_aux

    if spec.has_vocab_map:
        others = torch.randperm(VOCAB_SIZE, generator=generator)
        target_ids = torch.cat([torch.tensor([STOP_TOKEN]), others[others != STOP_TOKEN]])[: spec.draft_vocab_size]
        tensors |= vocab_map(spec, target_ids)
    known = torch.arange(spec.draft_vocab_size) + tensors.get("d2t", torch.tensor(0))
    previous = torch.argsort(next_token(seed))  # the token that each id follows
    tensors["lm_head.weight"] = embedding[previous[known]] / hidden**0.5 + tensors["lm_head.weight"] / hidden**0.5
    return spec, tensors


def random_text(spec: DrafterSpec, num_tokens: int, seed: int) -> tuple[Tensor, Tensor]:
    """(token ids [token], aux [token, n_aux*Ht] float64) that no target made; layers' norms differ as real ones do."""
    generator = torch.Generator().manual_seed(seed)
    token_ids = torch.randint(spec.vocab_size, (num_tokens,), generator=generator)
    scale = torch.linspace(0.5, 3.0, spec.num_aux, dtype=torch.float64).repeat_interleave(spec.target_hidden_size)
    return token_ids, torch.randn(num_tokens, aux_width(spec), generator=generator, dtype=torch.float64) * scale


def captured(target: LlamaForCausalLM, token_ids: Tensor | Sequence[int], spec: DrafterSpec) -> tuple[Tensor, Tensor]:
    """(aux [token, n_aux*Ht], logits [token, vocab]) of one text, by plain hidden states of transformers.

    Only for boundary ids below the number of layers, and -1, the post-norm state.
    """
    assert max(spec.aux_layer_ids) < target.config.num_hidden_layers
    with torch.no_grad():
        out = target(torch.as_tensor(token_ids)[None], output_hidden_states=True)
    return torch.cat([out.hidden_states[i][0] for i in spec.aux_layer_ids], -1), out.logits[0]
