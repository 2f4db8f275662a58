"""Gathers a spec's values with their origins and findings while `read` goes through them. Knows no field's meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.checkpoint.safetensors_file import TensorEntry
from probes.checkpoint.spec import Finding, Origin, Source
from probes.checkpoint.values import MAX_INTEGER, Settings, Value
from probes.errors import CheckpointError


class Collector:
    """`tensors` by canonical name; `where` names config.json in messages."""

    def __init__(self, settings: Settings, tensors: Mapping[str, TensorEntry], *, where: str) -> None:
        self.settings = settings
        self.tensors = tensors
        self.where = where
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.findings: list[Finding] = []

    def put(self, field: str, value: Value[Any]) -> None:
        self.values[field] = value.value
        self.origins[field] = value.origin

    def from_tensor(self, field: str, value: object, name: str) -> None:
        """A value that the presence or shape of tensor `name` shows."""
        entry = self.tensors.get(name)
        detail = f"no {name}" if entry is None else f"{entry.name} {list(entry.shape)}"
        self.put(field, Value(value=value, origin=Origin(source=Source.tensor, detail=detail)))

    def default(self, field: str, value: object, whose: str, *, is_certain: bool = True) -> None:
        """A value that the files do not give; `whose` names the engine that assumes it."""
        origin = Origin(source=Source.engine_default, detail=whose, is_certain=is_certain)
        self.put(field, Value(value=value, origin=origin))

    def put_or_default(self, field: str, value: Value[Any] | None, default: object, whose: str) -> None:
        if value is not None:
            self.put(field, value)
        else:
            self.default(field, default, whose)

    def tensor_flag(self, field: str, key: str, name: str, *, is_often_copied: bool = False) -> None:
        """A flag that tensor `name` shows; config.json may only repeat it under `key`.

        A true flag without its tensor is an error, unless the key `is_often_copied` from the target's config.
        """
        is_present = name in self.tensors
        stated = self.settings.flag(key)
        if stated is not None and stated.value and not is_present:
            if is_often_copied:
                self.report(
                    "flag_disagrees",
                    "warning",
                    f"`{stated.origin.detail}` is true, but there is no tensor `{name}`; the tensors count",
                    f"Set `{key}` to false: engines that go by config.json make a part that no weights fill",
                )
                self.from_tensor(field, False, name)
                return
            raise self.error(
                "tensor_missing",
                f"`{stated.origin.detail}` is true, but there is no tensor `{name}`",
                "Save the drafter again with all its weights, or correct the flag",
            )
        if is_present and (stated is None or not stated.value):
            said = "absent" if stated is None else "false"
            self.report(
                "flag_disagrees",
                "warning",
                f"the tensor `{self.tensors[name].name}` is there, so it is applied, but `{key}` is {said} in "
                "config.json: engines that go by config.json leave it out or refuse the checkpoint",
                f"Set `{key}` to true",
            )
        self.from_tensor(field, is_present, name)

    def size(self, name: str, axis: int, num_axes: int = 2) -> int:
        """The length of one axis of a tensor that is there."""
        entry = self.tensors[name]
        if len(entry.shape) != num_axes or not 0 < entry.shape[axis] <= MAX_INTEGER:
            raise self.error(
                "tensor_shape",
                f"`{entry.name}` has shape {list(entry.shape)}, expected {num_axes} axes of at least 1",
                "The weights are not a drafter of this kind, or were saved wrongly",
                where=str(entry.path),
            )
        return entry.shape[axis]

    def report(self, code: str, severity: str, message: str, remedy: str = "") -> None:
        self.findings.append(Finding(code=code, severity=severity, message=message, where=self.where, remedy=remedy))

    def error(self, code: str, message: str, remedy: str, where: str = "") -> CheckpointError:
        return CheckpointError(message, code=code, where=where or self.where, remedy=remedy)
