"""What an engine is here: a function from a pair's files to what it makes of each setting. Knows no engine.

A reading's `value` is in the canonical form of `table.SETTINGS`; None = not known, which is never a disagreement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from driftscope.check.pair import Pair
from probes.checkpoint.rope import read_rope
from probes.checkpoint.values import Section, Settings, whole_number
from probes.errors import CheckpointError

DEFAULT_IDS = "default (2, n//2, n-3)"
NOT_READ = "not in the files of this engine that were read"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """`source`: the key, tensor or default that the engine takes it from. `text` replaces the printed value."""

    value: object | None
    source: str
    text: str = ""
    refuses: bool = False


Readings = Mapping[str, Reading]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """`is_current`: what people start today; a silent disagreement there is a warning, elsewhere an info."""

    name: str
    is_current: bool
    read: Callable[[Pair], Readings]
    algorithms: tuple[str, ...] = ("eagle3",)  # whose code was read


def refuses(reason: str) -> Reading:
    return Reading(value=None, source=reason, text="refuses to load", refuses=True)


def unknown(source: str = NOT_READ) -> Reading:
    return Reading(value=None, source=source)


def nested(config: Mapping[str, object]) -> Mapping[str, object]:
    """`eagle_config`, or nothing."""
    value = config.get("eagle_config")
    return value if isinstance(value, Mapping) else {}


def ids_of(values: Mapping[str, object], key: str) -> tuple[int, ...] | None:
    """A list of whole numbers; an absent or empty one is None, as in every engine."""
    value = values.get(key)
    if not isinstance(value, (list, tuple)) or not value:
        return None
    numbers = [whole_number(item) for item in value]
    return tuple(n for n in numbers if n is not None) if None not in numbers else None


def default_ids(pair: Pair) -> tuple[int, ...] | None:
    """Boundary ids (2, n//2, n-3) of the target; None when its depth is not known."""
    n = pair.target.num_layers
    return None if n is None else (2, n // 2, n - 3)


def is_on(values: Mapping[str, object], key: str) -> bool:
    return bool(values.get(key))


def flag(values: Mapping[str, object], key: str, *, default: bool = False, prefix: str = "") -> Reading:
    """As getattr(config, key, default) gives it."""
    if key in values:
        return Reading(value=bool(values[key]), source=f"{prefix}{key}")
    return Reading(value=default, source=f"{prefix}{key} is absent")


def rope_of(pair: Pair, values: Mapping[str, object]) -> Reading:
    """Rope as transformers makes it of these keys; the head size matters for longrope alone."""
    head_dim = pair.spec.head_dim if pair.spec is not None else 2
    settings = Settings(pair.where, [Section(values=values)])
    try:
        value, _ = read_rope(settings, head_dim)
    except CheckpointError as error:
        return unknown(error.message)
    return Reading(value=rope_key(value.value), source=value.origin.detail)


def rope_key(parameters: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """Comparable: sorted items, numbers as floats, lists as tuples."""

    def plain(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return tuple(plain(item) for item in value)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    return tuple(sorted((key, plain(value)) for key, value in parameters.items()))


def map_reading(pair: Pair, config: Mapping[str, object], *, identity: str) -> Reading:
    """What draft ids mean to an engine that adds d2t where it has one."""
    if has(pair, "d2t"):
        return Reading(value="offsets", source="d2t + row")
    if is_pruned(config, pair):
        return Reading(value="identity", source=identity)
    return Reading(value="none", source="the draft vocabulary is the target's")


def is_pruned(config: Mapping[str, object], pair: Pair) -> bool:
    """Whether config.json gives fewer draft ids than target ids."""
    draft, full = whole_number(config.get("draft_vocab_size")), whole_number(config.get("vocab_size"))
    full = pair.target.integer("vocab_size") if full is None else full
    return draft is not None and full is not None and draft != full


def shared_embedding(config: Mapping[str, object], source: str) -> Reading:
    """The reading of an engine that puts the target's in place of the drafter's, unless the widths differ."""
    width = whole_number(config.get("target_hidden_size"))
    if width is not None and width != whole_number(config.get("hidden_size")):
        return Reading(value="own", source="target_hidden_size differs from hidden_size")
    return Reading(value="target", source=source)


def has(pair: Pair, name: str) -> bool:
    return name in pair.tensors


def num_layers(pair: Pair) -> int:
    """Layers among the tensors."""
    return len({name.split(".")[1] for name in pair.tensors if name.startswith("layers.")})


def full_attention(pair: Pair) -> tuple[None, ...]:
    return (None,) * num_layers(pair)
