"""The drafter's sliding window per layer, as vLLM's drafters read it: `layer_types` with `sliding_window`.

A window of W tokens: a query at slot s attends to slots above s - W, itself included. The config class, chosen by
`model_type`, has a say too: Qwen's drop the window unless `use_sliding_window` is true.
"""

from __future__ import annotations

from probes.checkpoint.spec import Finding, Origin, Source
from probes.checkpoint.values import Settings, Value
from probes.errors import CheckpointError

Windows = tuple[int | None, ...]

QWEN_CONFIGS = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
QWEN_MAX_WINDOW_LAYERS = 28  # transformers' default: layers below it have full attention where layer_types is absent


def read_sliding_window(settings: Settings, num_layers: int) -> tuple[Value[Windows], list[Finding]]:
    """Tokens for each layer, None = full attention. Raises CheckpointError when layer_types and the rest do not fit."""
    window, types = settings.integer("sliding_window"), settings.texts("layer_types")
    switch, model_type = settings.flag("use_sliding_window"), settings.text("model_type")
    is_qwen = model_type is not None and model_type.value in QWEN_CONFIGS
    is_off = is_qwen if switch is None else not switch.value
    if types is None and is_qwen and not is_off:
        types = _types_by_depth(settings, num_layers)
    if types is None:
        return _without_types(settings, num_layers, None if is_off else window)
    kinds = types.value[:num_layers]
    if len(kinds) < num_layers or set(types.value) - {"full_attention", "sliding_attention"}:
        raise _inconsistent(
            settings,
            f"`{types.origin.detail}` must give full_attention or sliding_attention for each of {num_layers} layer(s)",
            "Correct layer_types",
        )
    is_sliding = [kind == "sliding_attention" for kind in kinds]
    if any(is_sliding) and window is None and not is_off:
        raise _inconsistent(
            settings,
            "`layer_types` asks for sliding_attention, but `sliding_window` is absent",
            "Add sliding_window (tokens) as in training",
        )
    findings = []
    if len(types.value) > num_layers:
        said = f"`{types.origin.detail}` has {len(types.value)} entries for {num_layers} layer(s)"
        what, remedy = "the first ones count, as in vLLM", "Cut the list: it may have been copied from the target"
        findings.append(_finding(settings, "layer_types_too_long", f"{said}; {what}", remedy))
    if any(is_sliding) and is_off:
        what = "`layer_types` asks for sliding_attention, but `use_sliding_window` is not true: taken as full attention"
        whose = "Qwen's config classes drop sliding_window, and so does vLLM"
        if not is_qwen:
            whose = "vLLM's Llama-type drafter does not read use_sliding_window"
        findings.append(_finding(settings, "sliding_window_ignored", what, f"Make the two agree: {whose}"))
    size = None if window is None or is_off else window.value
    origin = Origin(
        source=Source.file_key,
        detail=", ".join(v.origin.detail for v in (types, window, switch) if v is not None),
        is_certain=is_qwen or not (any(is_sliding) and is_off),
    )
    return Value(value=tuple(size if sliding else None for sliding in is_sliding), origin=origin), findings


def _types_by_depth(settings: Settings, num_layers: int) -> Value[tuple[str, ...]]:
    """Qwen's config classes: full attention below `max_window_layers`, the window from there on."""
    stated = settings.integer("max_window_layers", minimum=0)
    first = QWEN_MAX_WINDOW_LAYERS if stated is None else stated.value
    kinds = tuple("sliding_attention" if i >= first else "full_attention" for i in range(num_layers))
    return Value(value=kinds, origin=Origin(source=Source.file_key, detail=f"max_window_layers {first}"))


def _without_types(
    settings: Settings, num_layers: int, window: Value[int] | None
) -> tuple[Value[Windows], list[Finding]]:
    """Full attention; a window that nothing switches off is then ignored, which is reported."""
    full: Windows = (None,) * num_layers
    if window is None:
        origin = Origin(source=Source.engine_default, detail="no layer_types: full attention")
        return Value(value=full, origin=origin), []
    ignored = _finding(
        settings,
        "sliding_window_ignored",
        f"`{window.origin.detail}` is {window.value} but there are no `layer_types`: taken as full attention, as "
        "vLLM's Llama-type drafter does",
        "If training used the window, add layer_types with sliding_attention",
    )
    detail = "vLLM llama.py: no layer_types, full attention"
    origin = Origin(source=Source.engine_default, detail=detail, is_certain=False)
    return Value(value=full, origin=origin), [ignored]


def _finding(settings: Settings, code: str, message: str, remedy: str) -> Finding:
    return Finding(code=code, severity="warning", message=message, where=settings.where, remedy=remedy)


def _inconsistent(settings: Settings, message: str, remedy: str) -> CheckpointError:
    return CheckpointError(message, code="config_inconsistent", where=settings.where, remedy=remedy)
