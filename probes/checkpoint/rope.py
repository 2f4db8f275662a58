"""RoPE of the drafter in transformers' `rope_parameters` form, from the *draft* config only.

Knows no angles: transformers' own rope functions compute them. Older configs have `rope_theta` and `rope_scaling`,
transformers >= 5 writes `rope_parameters`; where both stand, `rope_scaling` wins and a theta inside wins over one
outside, as in transformers 5.5-5.24 (`convert_rope_params_to_dict`).
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

from probes.checkpoint.spec import Finding, Origin, Source
from probes.checkpoint.values import Settings, Value, finite_number
from probes.errors import CheckpointError

DEFAULT_THETA = 10000.0
DEFAULT_DETAIL = "no rope_theta in the draft config: 10000 (transformers LlamaConfig, SafeAILab cnets.py)"
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Types whose frequencies change with the text's length: stored keys are then not those of a replay."""
NEEDED_NUMBERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
NUMBERS = {
    *("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor"),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
}


def read_rope(settings: Settings, head_dim: int) -> tuple[Value[dict[str, object]], list[Finding]]:
    """`{"rope_type", "rope_theta", ...}` with its origin. Raises CheckpointError for an unknown or incomplete one."""
    findings: list[Finding] = []
    scaling, parameters = settings.mapping("rope_scaling"), settings.mapping("rope_parameters")
    inner = scaling if scaling is not None and scaling.value else parameters
    stated: Mapping[str, object] = inner.value if inner is not None else {}
    details = [inner.origin.detail] if inner is not None else []
    if scaling is not None and scaling.value and parameters is not None and parameters.value:
        if _plain(scaling.value) | {"rope_theta": 0} != _plain(parameters.value) | {"rope_theta": 0}:
            findings.append(_conflict(settings, "rope_scaling", "rope_parameters"))
        stated = {"rope_theta": parameters.value.get("rope_theta")} | dict(stated)
    result = _plain(stated)
    _check(result, settings.where, details[0] if details else "rope_parameters", head_dim)

    outer = settings.positive_number("rope_theta")
    theta = finite_number(result.get("rope_theta"))
    if theta is not None:
        if outer is not None and outer.value != theta:
            findings.append(_conflict(settings, details[0], outer.origin.detail))
    elif outer is not None:
        theta = outer.value
        details.insert(0, outer.origin.detail)
    source = inner.origin.source if inner is not None else Source.file_key
    origin = Origin(source=source, detail=", ".join(details))
    if theta is None:
        theta = DEFAULT_THETA
        origin = Origin(source=Source.engine_default, detail=", ".join([*details, DEFAULT_DETAIL]))
    return Value(value=result | {"rope_theta": theta}, origin=origin), findings


def _plain(stated: Mapping[str, object]) -> dict[str, object]:
    """Without nulls, `type` renamed to `rope_type`."""
    result = {key: value for key, value in stated.items() if value is not None and key != "type"}
    rope_type = result.get("rope_type", stated.get("type") or "default")
    return result | {"rope_type": "longrope" if rope_type == "su" else rope_type}  # Phi-3's older name


def _check(rope: dict[str, object], where: str, key: str, head_dim: int) -> None:
    def bad(what: str, code: str = "rope_invalid") -> CheckpointError:
        return CheckpointError(
            f"`{key}` {what}", code=code, where=where, remedy="Correct it in the drafter's config.json, as in training"
        )

    if any(isinstance(value, Mapping) for value in rope.values()):
        raise bad("differs by layer type, which is not supported yet", "unsupported_rope")
    rope_type = rope["rope_type"]
    if not isinstance(rope_type, str) or rope_type not in NEEDED_NUMBERS:
        known = ", ".join(NEEDED_NUMBERS)
        raise bad(f"has the unknown rope_type {reprlib.repr(rope_type)} (known: {known})", "unsupported_rope")
    if "mrope_section" in rope or finite_number(rope.get("partial_rotary_factor", 1)) != 1:
        raise bad("asks for multimodal or partial rotation, which is not supported yet", "unsupported_rope")
    for name in sorted({*NEEDED_NUMBERS[rope_type], *((NUMBERS | {"rope_theta"}) & rope.keys())}):
        number = finite_number(rope.get(name))
        if number is None or number < 0 or (number == 0 and not name.startswith("mscale")):
            raise bad(f"of type {rope_type} needs `{name}` as a number above 0, found {reprlib.repr(rope.get(name))}")
    if rope_type == "longrope":
        for name in ("short_factor", "long_factor"):
            factors = rope.get(name)
            if (
                not isinstance(factors, (list, tuple))
                or len(factors) != head_dim // 2
                or not all((finite_number(f) or 0) > 0 for f in factors)
            ):
                raise bad(f"of type longrope needs `{name}` as {head_dim // 2} numbers above 0")


def _conflict(settings: Settings, used: str, ignored: str) -> Finding:
    return Finding(
        code="rope_conflict",
        severity="warning",
        message=f"`{used}` and `{ignored}` disagree; the former is used, as transformers does",
        where=settings.where,
        remedy="Keep the one that training used",
    )
