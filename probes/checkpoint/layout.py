"""Canonical tensor names and the shape each must have; what is missing, mis-shaped or unused.

Knows the finished DrafterSpec and the files' headers, no data; `families` and `algorithms` say which tensors there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probes.checkpoint.algorithms import LAYOUTS
from probes.checkpoint.families import DEFAULT_FAMILY, FAMILIES, Shapes
from probes.checkpoint.producer import Producer
from probes.checkpoint.safetensors_file import FLOAT_DTYPES, INTEGER_DTYPES, TensorEntry
from probes.checkpoint.spec import DrafterSpec, Finding
from probes.errors import CheckpointError

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
    hidden = spec.hidden_size
    shapes: Shapes = {"norm.weight": (hidden,)}
    if spec.has_own_embedding:
        shapes["embed_tokens.weight"] = (spec.vocab_size, hidden)
    if spec.has_own_lm_head:
        shapes["lm_head.weight"] = (spec.draft_vocab_size, hidden)
    if spec.has_vocab_map:
        shapes["d2t"] = (spec.draft_vocab_size,)
    layout = LAYOUTS[spec.algorithm]
    for index in range(spec.num_layers):
        num_read = 2 * hidden if index == 0 and layout.reads_embedding else hidden
        layer = FAMILIES[spec.family].shapes(spec, num_read)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | layout.input_shapes(spec)


def marked_family(names: Iterable[str]) -> tuple[str, str | None]:
    """The layer family that these tensor names show, and the first name that shows it."""
    for name in names:
        for family, row in FAMILIES.items():
            if any(mark in name for mark in row.marks):
                return family, name
    return DEFAULT_FAMILY, None


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
