"""The table "setting x engine -> effective value, source, agrees?", and a finding for each setting that engines differ on.

Knows no engine by name. The checkpoint's own value is the reader's (`DrafterSpec`), tensors before config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from driftscope.check.check_report import Cell, Finding, SettingRow, Severity
from driftscope.check.definition import Check
from driftscope.check.engines import ENGINES, Engine, Reading
from driftscope.check.engines.engine import Readings, rope_key, unknown
from driftscope.check.pair import Pair
from probes.checkpoint.spec import FINAL_NORMED, DrafterSpec

Value = object


@dataclass(frozen=True, kw_only=True)
class Setting:
    """`of` gives the checkpoint's value in the form that engine readings have; `field` names its origin."""

    name: str
    field: str
    of: Callable[[DrafterSpec], Value]
    text: Callable[[object], str] = str


def _bool(value: object) -> str:
    return str(value).lower()


def _ids(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return "the final state, normed" if value == (FINAL_NORMED,) else str(list(value))


def _rope(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    items = dict(value)
    head = f"{items.pop('rope_type', 'default')}, theta {_number(items.pop('rope_theta', None))}"
    rest = (f"{key} {_number(item)}" for key, item in items.items() if not isinstance(item, tuple))
    return ", ".join([head, *rest])


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _window(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if not any(value):
        return "full attention"
    return ", ".join("full" if w is None else f"{w:,}" for w in value)


def _positions(value: object) -> str:
    return f"{value:,}"


def _map(value: object) -> str:
    return {"offsets": "d2t, as offsets", "identity": "the first target ids", "none": "not needed"}.get(
        str(value), str(value)
    )


def _whose(value: object) -> str:
    return {"own": "its own", "target": "the target's", "embedding": "embed_tokens (tied)"}.get(str(value), str(value))


def _skipped(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if not value:
        return "every tensor"
    return f"not {', '.join(value[:3])}{f' and {len(value) - 3} more' if len(value) > 3 else ''}"


SETTINGS = (
    Setting(name="layer_ids", field="aux_layer_ids", of=lambda s: s.aux_layer_ids, text=_ids),
    Setting(name="num_aux", field="has_fc", of=lambda s: s.num_aux),
    Setting(name="fc_norm", field="has_fc_norm", of=lambda s: s.has_fc_norm, text=_bool),
    Setting(name="norm_before_fc", field="norm_before_fc", of=lambda s: s.norm_before_fc, text=_bool),
    Setting(name="norm_output", field="norm_output", of=lambda s: s.norm_output, text=_bool),
    Setting(name="norm_before_residual", field="norm_before_residual", of=lambda s: s.norm_before_residual, text=_bool),
    Setting(name="d2t", field="has_vocab_map", of=lambda s: _map_of(s), text=_map),
    Setting(
        name="embeddings",
        field="has_own_embedding",
        of=lambda s: "own" if s.has_own_embedding else "target",
        text=_whose,
    ),
    Setting(
        name="lm_head", field="has_own_lm_head", of=lambda s: "own" if s.has_own_lm_head else "target", text=_whose
    ),
    Setting(name="rope", field="rope_parameters", of=lambda s: rope_key(s.rope_parameters), text=_rope),
    Setting(
        name="max_positions",
        field="max_position_embeddings",
        of=lambda s: s.max_position_embeddings,
        text=_positions,
    ),
    Setting(name="sliding_window", field="sliding_window", of=lambda s: s.sliding_window, text=_window),
    Setting(name="qkv_bias", field="attention_bias", of=lambda s: s.attention_bias, text=_bool),
    Setting(name="weights", field="", of=lambda _: (), text=_skipped),
)


def _map_of(spec: DrafterSpec) -> str:
    if spec.has_vocab_map:
        return "offsets"
    return "identity" if spec.draft_vocab_size != spec.vocab_size else "none"


def setting_rows(
    pair: Pair, *, is_targets_embedding: bool | None, engines: Sequence[Engine] = ENGINES
) -> list[SettingRow]:
    """Every setting by every engine. `is_targets_embedding`: the drafter's own is a copy of it; None: not known."""
    readings = {
        engine.name: _of_engine(engine.read(pair) if pair.algorithm in engine.algorithms else {"weights": unknown()})
        for engine in engines
    }
    rows = []
    for setting in SETTINGS:
        value = None if pair.spec is None else setting.of(pair.spec)
        cells = []
        for engine in engines:
            found = readings[engine.name][setting.name]
            cells.append(_cell(pair, setting, engine, value, found, is_targets_embedding=is_targets_embedding))
        origin = pair.spec.origins.get(setting.field) if pair.spec is not None else None
        rows.append(
            SettingRow(
                setting=setting.name,
                value=None if value is None else setting.text(value),
                source=origin.detail if origin is not None else ("every tensor of the files" if value == () else ""),
                is_certain=origin.is_certain if origin is not None else True,
                engines=tuple(cells),
            )
        )
    return rows


def _of_engine(readings: Readings) -> Readings:
    """Every setting. An engine that loads nothing, or in a way that is not known, makes nothing of the others."""
    weights = readings["weights"]
    absent = Reading(value=None, source=weights.source, refuses=weights.refuses)
    return {setting.name: absent if weights.refuses else readings.get(setting.name, absent) for setting in SETTINGS}


def _cell(
    pair: Pair, setting: Setting, engine: Engine, value: Value, found: Reading, *, is_targets_embedding: bool | None
) -> Cell:
    agrees: bool | None = None
    if found.value is not None and value is not None and not found.refuses:
        agrees = found.value == value
        if setting.name == "max_positions":
            agrees = _reaches(pair, found.value)
        elif setting.name == "embeddings" and (value, found.value) == ("own", "target"):
            agrees = is_targets_embedding
    text = found.text or (None if found.value is None else setting.text(found.value))
    return Cell(
        setting=setting.name,
        engine=engine.name,
        value="refuses to load" if found.refuses else text,
        source=found.source,
        agrees=agrees,
        refuses=found.refuses,
    )


def _reaches(pair: Pair, positions: object) -> bool:
    """A larger table than the checkpoint's is no fault; one that ends before the target's positions is."""
    needed = pair.target.integer("max_position_embeddings")
    return needed is None or (isinstance(positions, int) and positions >= needed)


def engine_findings(
    pair: Pair, rows: Sequence[SettingRow], checks: dict[str, Check], refusal_check: Check
) -> Iterator[Finding]:
    """One finding for each setting that an engine reads differently in silence, one for engines that refuse.

    `checks`: setting -> its check. A disagreement of engines that nobody starts today is an info.
    """
    current = {engine.name for engine in ENGINES if engine.is_current}
    for row in rows:
        cells = [cell for cell in row.engines if cell.agrees is False]
        if cells:
            yield checks[row.setting].finding(
                f"checkpoint: {row.value} ({row.source}). " + "; ".join(grouped(cells)),
                where=pair.where,
                severity=Severity.warning if any(cell.engine in current for cell in cells) else Severity.info,
                engines=tuple(cell.engine for cell in cells),
            )
    weights = next(row for row in rows if row.setting == "weights")
    refusing = [cell for cell in weights.engines if cell.refuses]
    if refusing:
        yield refusal_check.finding(
            "; ".join(grouped(refusing)),
            where=pair.where,
            severity=Severity.warning if any(cell.engine in current for cell in refusing) else Severity.info,
            engines=tuple(cell.engine for cell in refusing),
        )


def grouped(cells: Sequence[Cell]) -> list[str]:
    """ "A, B: value (source)" for each distinct value and source."""
    groups: dict[tuple[str | None, str], list[str]] = {}
    for cell in cells:
        groups.setdefault((cell.value, cell.source), []).append(cell.engine)
    return [f"{short_names(names)}: {value} ({source})" for (value, source), names in groups.items()]


def short_names(names: Sequence[str]) -> str:
    """ "vLLM 0.25.1-0.33.0 V1+V2, SGLang after PR 24663": versions and runners of one engine together."""
    order = [engine.name for engine in ENGINES]
    parts: list[str] = []
    for family in dict.fromkeys(name.split(" ")[0] for name in order):
        mine = [name for name in order if name in names and name.split(" ")[0] == family]
        everything = [name for name in order if name.split(" ")[0] == family]
        if not mine:
            continue
        if family == "vLLM":
            parts += _vllm_names(mine)
        elif len(mine) == len(everything):
            parts.append(family)
        else:
            parts.append(f"{family} {', '.join(name.split(' ', 1)[1] for name in mine)}")
    return ", ".join(parts)


def _vllm_names(names: Sequence[str]) -> list[str]:
    """Neighbouring versions with the same runners as one range."""
    runners: dict[str, list[str]] = {}
    for engine in ENGINES:
        family, *rest = engine.name.split(" ")
        if family == "vLLM":
            version, *runner = rest
            runners.setdefault(version, []).extend(runner if engine.name in names else [])
    spans: list[tuple[list[str], list[str]]] = []  # (versions, runners)
    for version, found in runners.items():
        if spans and spans[-1][1] == found:
            spans[-1][0].append(version)
        else:
            spans.append(([version], found))
    return [
        f"vLLM {versions[0]}{f'-{versions[-1]}' if len(versions) > 1 else ''}"
        + (f" {found[0]}" if len(found) == 1 else "")
        for versions, found in spans
        if found
    ]
