"""Which target layers are fused, as boundary ids: id i = the residual stream entering layer i, n = after the last.

Knows no tensors. Two conventions are in use and a file does not say which (the mark of layer-output ids is
a first id of 1, that of boundary ids a first id of 2); what cannot be decided is marked and reported, never guessed
silently. The default is the same layers in both: boundary {2, n//2, n-3} = output {1, n//2-1, n-4}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from probes.checkpoint.producer import AuxIdConvention, AuxIdKey, Producer
from probes.checkpoint.spec import Finding, Origin, Source
from probes.checkpoint.values import Section, Settings, Value
from probes.errors import CheckpointError

DEFAULT_DETAIL = "(2, n//2, n-3): SafeAILab's hard-coded layers, vLLM's and SGLang's default"


def default_aux_ids(num_target_layers: int, *, where: str) -> tuple[int, ...]:
    """Boundary ids {2, n//2, n-3}. Raises CheckpointError when the target is too shallow to have three of them."""
    n = num_target_layers
    ids = (2, n // 2, n - 3)
    if not ids[0] < ids[1] < ids[2]:
        raise CheckpointError(
            f"no layer ids are given and a target of {n} layers has no three default ones {ids}",
            code="aux_ids_missing",
            where=where,
            remedy="Give `eagle_aux_hidden_state_layer_ids` in config.json, or the override `aux_layer_ids`",
        )
    return ids


def resolve_aux_ids(
    config: Mapping[str, object],
    producer: Producer,
    *,
    num_target_layers: int | None,
    override: object = None,
    where: str,
) -> tuple[Value[tuple[int, ...]], list[Finding]]:
    """The boundary ids in ascending order, with their origin, and what is doubtful about them.

    Raises CheckpointError: ids of a wrong type, twice, beyond the target's layers, or absent with the target unknown.
    """
    findings: list[Finding] = []
    claims = _claims(config, producer, where)
    if override is not None:
        section = Section(values={"aux_layer_ids": override}, source=Source.override)
        chosen = Settings(where, [section]).integers("aux_layer_ids")
        if chosen is None:
            raise CheckpointError(
                "the override `aux_layer_ids` is empty",
                code="config_wrong_type",
                where="overrides",
                remedy="Give boundary ids",
            )
    elif claims:
        chosen, finding = _reading(*claims[0], num_target_layers, where)
        if finding is not None:
            findings.append(finding)
        if len(claims) > 1:
            chosen, findings = _agreed(chosen, findings, claims, num_target_layers, where)
    elif num_target_layers is None:
        raise CheckpointError(
            "config.json gives no layer ids, and their default depends on the target's number of layers",
            code="target_needed",
            where=where,
            remedy="Give the target too, or the override `aux_layer_ids`",
        )
    else:
        chosen = Value(
            value=default_aux_ids(num_target_layers, where=where),
            origin=Origin(source=Source.engine_default, detail=DEFAULT_DETAIL),
        )
    ids = chosen.value
    if len(set(ids)) != len(ids):
        raise _bad_ids(f"layer ids {list(ids)} name a layer twice", chosen, where)
    if num_target_layers is not None and max(ids) > num_target_layers:
        raise _bad_ids(f"boundary ids {list(ids)} go beyond the target's {num_target_layers} layers", chosen, where)
    if list(ids) != sorted(ids):
        findings.append(
            Finding(
                code="aux_ids_not_ascending",
                severity="warning",
                message=f"layer ids {list(ids)} are not ascending; engines concatenate the states in ascending order, "
                "so a drafter trained in another order gets them swapped",
                where=f"{where}: {chosen.origin.detail}",
                remedy="Check the order that training used",
            )
        )
    return Value(value=tuple(sorted(ids)), origin=chosen.origin), findings


Claim = tuple[AuxIdKey, tuple[int, ...]]


def _claims(config: Mapping[str, object], producer: Producer, where: str) -> list[Claim]:
    claims = []
    for key in producer.aux_id_keys:
        values = config.get(key.section) if key.section else config
        if isinstance(values, Mapping):
            prefix = f"{key.section}." if key.section else ""
            ids = Settings(where, [Section(values=values, prefix=prefix)]).integers(key.key)
            if ids is not None:
                has_mark = key.boundary_with is not None and values.get(key.boundary_with) is True
                if has_mark and min(ids.value) != 1:
                    key = replace(key, convention=AuxIdConvention.boundary)
                claims.append((key, ids.value))
    return claims


def _reading(
    key: AuxIdKey, ids: tuple[int, ...], num_target_layers: int | None, where: str
) -> tuple[Value[tuple[int, ...]], Finding | None]:
    """How one key's ids are read, and the doubt about it, if any."""
    as_boundary, as_output = ids, tuple(i + 1 for i in ids)
    first = min(ids)
    cannot_be_outputs = num_target_layers is not None and max(as_output) > num_target_layers

    def read(
        value: tuple[int, ...], doubt: str = "", severity: str = "info"
    ) -> tuple[Value[tuple[int, ...]], Finding | None]:
        convention = "boundary ids" if value is as_boundary else "layer-output ids, +1"
        origin = Origin(source=Source.file_key, detail=f"{key.label} ({convention})", is_certain=not doubt)
        if not doubt:
            return Value(value=value, origin=origin), None
        other = as_output if value is as_boundary else as_boundary
        finding = Finding(
            code="aux_ids_ambiguous",
            severity=severity,
            message=f"{list(ids)} are taken as {convention}: boundary {list(value)}. {doubt}",
            where=f"{where}: {key.label}",
            remedy=f"If depth-1 acceptance is low, try the other reading, boundary {list(other)}",
        )
        return Value(value=value, origin=origin), finding

    if key.convention is AuxIdConvention.boundary:
        if key.is_settled or first == 2 or cannot_be_outputs:
            return read(as_boundary)
        if first == 1:
            doubt = "A first id of 1 is the mark of layer-output ids, and vLLM, which never converts, would capture "
            return read(as_boundary, doubt + "one layer early", "warning")
        return read(as_boundary, f"{_sentence(key.because)}; the numbers themselves do not tell")
    if key.is_settled or first == 1:
        return read(as_output)
    if first == 2:
        return read(
            as_boundary, "A first id of 2 is the mark of boundary ids, though this key holds outputs", "warning"
        )
    if cannot_be_outputs:
        return read(as_boundary, f"As outputs they would go beyond the target's {num_target_layers} layers", "warning")
    return read(as_output, f"{_sentence(key.because)}; the numbers themselves do not tell")


def _sentence(clause: str) -> str:
    return clause[0].upper() + clause[1:]


def _agreed(
    chosen: Value[tuple[int, ...]],
    findings: list[Finding],
    claims: list[Claim],
    num_target_layers: int | None,
    where: str,
) -> tuple[Value[tuple[int, ...]], list[Finding]]:
    """Two keys: agreement settles a doubt, disagreement is one."""
    others = [(key, _reading(key, ids, num_target_layers, where)[0]) for key, ids in claims[1:]]
    differing = [(key, value) for key, value in others if sorted(value.value) != sorted(chosen.value)]
    if not differing:
        origin = Origin(source=Source.file_key, detail=chosen.origin.detail)
        return Value(value=chosen.value, origin=origin), []
    key, value = differing[0]
    conflict = Finding(
        code="aux_ids_conflict",
        severity="warning",
        message=f"{chosen.origin.detail} gives boundary {list(chosen.value)}, but {value.origin.detail} gives "
        f"{list(value.value)}; the former is used, as vLLM does",
        where=where,
        remedy=f"Remove the wrong one of {claims[0][0].label} and {key.label}",
    )
    origin = Origin(source=Source.file_key, detail=chosen.origin.detail, is_certain=False)
    return Value(value=chosen.value, origin=origin), [*findings, conflict]


def _bad_ids(what: str, chosen: Value[tuple[int, ...]], where: str) -> CheckpointError:
    return CheckpointError(
        what,
        code="aux_ids_invalid",
        where=f"{where}: {chosen.origin.detail}",
        remedy="Correct the list, or check that this is the drafter's target",
    )
