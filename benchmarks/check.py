"""Time and memory of `driftscope check` on a pair of the size of an 8B model: `python benchmarks/check.py [--prompts F]`.

The files have the shapes of Llama-3.1-8B-Instruct and an EAGLE-3 head for it, in SpecForge's layout with its own embedding:
16 GB in four shards and 2 GB. Small tensors and the map are random, large ones are holes of a sparse file with random rows
where they are looked at least often: the disk holds a few MB. Goal: under 3 s and 500 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HIDDEN, INNER, LAYERS, VOCAB, DRAFT_VOCAB = 4096, 14336, 32, 128256, 32000
Q_SIZE, KV_SIZE = 4096, 1024
ROPE = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
COMMON = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    **ROPE,
}
Shapes = dict[str, tuple[int, ...]]


def layer_shapes(prefix: str, read: int) -> Shapes:
    return {
        f"{prefix}.input_layernorm.weight": (HIDDEN,),
        f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
        f"{prefix}.self_attn.q_proj.weight": (Q_SIZE, read),
        f"{prefix}.self_attn.k_proj.weight": (KV_SIZE, read),
        f"{prefix}.self_attn.v_proj.weight": (KV_SIZE, read),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN, Q_SIZE),
        f"{prefix}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": (HIDDEN, INNER),
    }


def write_sparse(path: Path, shapes: Shapes, data: dict[str, bytes]) -> None:
    """bf16 tensors as holes with a random first row; one-axis tensors and `data` (int64) in full."""
    rng = np.random.default_rng(0)
    header: dict[str, object] = {}
    offset = 0
    for name, shape in shapes.items():
        size = len(data[name]) if name in data else 2 * int(np.prod(shape))
        dtype = "I64" if name in data else "BF16"
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = 8 + len(text)
        file.truncate(start + offset)
        for name, shape in shapes.items():
            values = (rng.standard_normal(shape[-1], dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
            file.seek(start)
            file.write(data.get(name, values.tobytes()))
            start += len(data[name]) if name in data else 2 * int(np.prod(shape))


def write_pair(root: Path) -> tuple[Path, Path]:
    target, drafter = root / "target", root / "eagle3-drafter"
    target.mkdir()
    drafter.mkdir()
    config = COMMON | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS}
    (target / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 131072}))
    shapes: Shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        shapes |= layer_shapes(f"model.layers.{i}", HIDDEN)
    shapes |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    names, weight_map = list(shapes), {}
    for shard in range(4):
        file = f"model-{shard + 1:05d}-of-00004.safetensors"
        part = names[shard * len(names) // 4 : (shard + 1) * len(names) // 4]
        write_sparse(target / file, {name: shapes[name] for name in part}, {})
        weight_map |= dict.fromkeys(part, file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    ids = np.sort(np.random.default_rng(1).choice(VOCAB, DRAFT_VOCAB, replace=False))
    d2t = (ids - np.arange(DRAFT_VOCAB)).astype(np.int64).tobytes()
    config = COMMON | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    config |= {"max_position_embeddings": 2048, "draft_vocab_size": DRAFT_VOCAB, "tie_word_embeddings": False}
    config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28], "use_aux_hidden_state": True}}
    (drafter / "config.json").write_text(json.dumps(config))
    shapes = {"embed_tokens.weight": (VOCAB, HIDDEN), "fc.weight": (HIDDEN, 3 * HIDDEN)}
    shapes |= layer_shapes("midlayer", 2 * HIDDEN) | {"midlayer.hidden_norm.weight": (HIDDEN,)}
    shapes |= {"norm.weight": (HIDDEN,), "lm_head.weight": (DRAFT_VOCAB, HIDDEN), "d2t": (DRAFT_VOCAB,)}
    write_sparse(drafter / "model.safetensors", shapes, {"d2t": d2t})
    return target, drafter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", help="prompt file; needs --tokenizer")
    parser.add_argument("--tokenizer", help="tokenizer.json to put into the target's folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target, drafter = write_pair(Path(folder))
        program = "import sys; from driftscope.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", program, "check", str(target), str(drafter), "--json"]
        if options.prompts:
            (target / "tokenizer.json").symlink_to(Path(options.tokenizer).resolve())
            command += ["--prompts", options.prompts]
        stored = sum(f.stat().st_blocks * 512 for f in Path(folder).rglob("*") if f.is_file())
        nominal = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
        print(f"pair of {nominal / 1e9:.1f} GB, {stored / 1e6:.1f} MB on disk")
        for _ in range(3):
            start = time.perf_counter()
            result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
            seconds = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            findings = json.loads(result.stdout)["findings"]
            print(f"{seconds:.2f} s, {peak:.0f} MB at most, exit {result.returncode}, {len(findings)} findings")


if __name__ == "__main__":
    main()
