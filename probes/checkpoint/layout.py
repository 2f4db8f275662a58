"""Canonical tensor names and the shape each must have; what is missing, mis-shaped or unused. One row per layer family.

Knows the finished DrafterSpec and the files' headers, no data. A new family is a row of FAMILY_SHAPES and FAMILY_MARKS
here and one of `probes.drafter.model.LAYER_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from probes.checkpoint.producer import Producer
from probes.checkpoint.safetensors_file import FLOAT_DTYPES, INTEGER_DTYPES, TensorEntry
from probes.checkpoint.spec import DrafterSpec, Finding
from probes.errors import CheckpointError

Shapes = dict[str, tuple[int, ...]]
MAX_NAMED = 5  # tensors named in one message


def canonical_names(names: Iterable[str], producer: Producer, *, where: str) -> dict[str, str]:
    """File tensor name -> canonical name (`spec`). Raises CheckpointError when two names mean the same tensor."""
    result: dict[str, str] = {}
    seen: dict[str, str] = {}
    for name in names:
        canonical = producer.canonical_name(name)
        if canonical in seen:
            raise CheckpointError(
                f"the tensors `{seen[canonical]}` and `{name}` are the same part of the drafter",
                code="duplicate_tensor",
                where=where,
                remedy="Keep one of them",
            )
        seen[canonical] = name
        result[name] = canonical
    return result


def expected_shapes(spec: DrafterSpec) -> Shapes:
    """Every tensor the forward pass needs from the checkpoint, with its shape."""
    hidden, fused = spec.hidden_size, spec.num_aux * spec.target_hidden_size
    shapes: Shapes = {"norm.weight": (hidden,)}
    if spec.has_own_embedding:
        shapes["embed_tokens.weight"] = (spec.vocab_size, hidden)
    if spec.has_own_lm_head:
        shapes["lm_head.weight"] = (spec.draft_vocab_size, hidden)
    if spec.has_vocab_map:
        shapes["d2t"] = (spec.draft_vocab_size,)
    if spec.has_fc:
        shapes["fc.weight"] = (hidden, fused)
    if spec.has_fc_bias:
        shapes["fc.bias"] = (hidden,)
    if spec.norm_before_fc:
        shapes["input_norm.weight"] = (fused,)
    if spec.has_fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (spec.target_hidden_size,) for i in range(spec.num_aux)}
    for index in range(spec.num_layers):
        shapes |= FAMILY_SHAPES[spec.family](spec, index)
    return shapes


def _llama_layer_shapes(spec: DrafterSpec, index: int) -> Shapes:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    read = 2 * hidden if index == 0 else hidden  # layer 0 reads [embedding, state]
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_size, read),
        "self_attn.k_proj.weight": (kv_size, read),
        "self_attn.v_proj.weight": (kv_size, read),
        "self_attn.o_proj.weight": (hidden, q_size),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if index == 0 and spec.has_hidden_norm:
        shapes["hidden_norm.weight"] = (hidden,)
    if spec.attention_bias:
        shapes |= {f"self_attn.{x}_proj.bias": (size,) for x, size in (("q", q_size), ("k", kv_size), ("v", kv_size))}
    if spec.has_o_proj_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    return {f"layers.{index}.{name}": shape for name, shape in shapes.items()}


def _qwen3_layer_shapes(spec: DrafterSpec, index: int) -> Shapes:
    """Llama's, and a norm over each head of q and k."""
    norms = {f"layers.{index}.self_attn.{x}_norm.weight": (spec.head_dim,) for x in ("q", "k")}
    return _llama_layer_shapes(spec, index) | norms


FAMILY_SHAPES: dict[str, Callable[[DrafterSpec, int], Shapes]] = {
    "llama": _llama_layer_shapes,
    "qwen3": _qwen3_layer_shapes,
}
FAMILY_MARKS: dict[str, tuple[str, ...]] = {"qwen3": (".self_attn.q_norm.", ".self_attn.k_norm.")}
"""Parts of a tensor's name that only this family's layers have; without any the family is llama."""


def marked_family(names: Iterable[str]) -> tuple[str, str | None]:
    """The layer family that these tensor names show, and the first name that shows it."""
    for name in names:
        for family, marks in FAMILY_MARKS.items():
            if any(mark in name for mark in marks):
                return family, name
    return "llama", None


def check_tensors(
    spec: DrafterSpec, tensors: Mapping[str, TensorEntry], producer: Producer, *, where: str
) -> list[Finding]:
    """Compare the files' tensors (by canonical name) with what `spec` needs; unused ones become findings.

    Raises CheckpointError: a tensor is missing, has another shape, a dtype that cannot be computed with, or belongs to a
    part that the forward pass computes but is not one it knows (a bias, a quantisation scale).
    """
    expected = expected_shapes(spec)
    missing = sorted(expected.keys() - tensors.keys())
    if missing:
        raise CheckpointError(
            f"missing: {_listed(missing)}",
            code="tensor_missing",
            where=where,
            remedy="Save the drafter again with all its weights; check that config.json belongs to these weights",
        )
    checked = expected | ({"t2d": (spec.vocab_size,)} if "t2d" in tensors else {})
    wrong = [
        f"`{tensors[name].name}` has shape {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in sorted(checked.items())
        if tensors[name].shape != shape
    ]
    if wrong:
        raise CheckpointError(
            _listed(wrong, quote=""),
            code="tensor_shape",
            where=where,
            remedy="config.json and weights do not belong together, or the weights are not a drafter of this kind",
        )
    for name in sorted(checked):
        wanted = {"d2t": INTEGER_DTYPES, "t2d": INTEGER_DTYPES | {"BOOL"}}.get(name, FLOAT_DTYPES)
        if tensors[name].dtype not in wanted:
            raise CheckpointError(
                f"`{tensors[name].name}` is stored as {tensors[name].dtype}; read are {', '.join(sorted(wanted))}",
                code="unsupported_dtype",
                where=where,
                remedy="Quantised drafters are not supported yet: save it in bf16, fp16 or fp32",
            )
    return _unused(spec, sorted(tensors.keys() - checked.keys()), tensors, producer, where)


def _unused(
    spec: DrafterSpec, names: list[str], tensors: Mapping[str, TensorEntry], producer: Producer, where: str
) -> list[Finding]:
    harmless = [name for name in names if producer.is_harmless(tensors[name].name)]
    others = [name for name in names if name not in harmless]
    parts = {name.split(".")[0] for name in expected_shapes(spec)}
    entangled = [tensors[name].name for name in others if name.split(".")[0] in parts]
    if entangled:
        raise CheckpointError(
            f"not a part of the {spec.family} drafter that is supported: {_listed(entangled)}",
            code="unsupported_tensor",
            where=where,
            remedy="Biases, quantisation scales and other layer types are not supported yet",
        )
    findings = []
    for code, severity, group, remedy in (
        ("harmless_tensors", "info", harmless, ""),
        ("unused_tensors", "warning", others, "Find out what they are for: the drafter may need them"),
    ):
        if group:
            listed = _listed([tensors[name].name for name in group])
            findings.append(
                Finding(code=code, severity=severity, message=f"not used: {listed}", where=where, remedy=remedy)
            )
    return findings


def _listed(items: list[str], quote: str = "`") -> str:
    text = ", ".join(f"{quote}{item[:120]}{quote}" for item in items[:MAX_NAMED])
    return text if len(items) <= MAX_NAMED else f"{text} and {len(items) - MAX_NAMED} more"
