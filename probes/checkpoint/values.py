"""Typed values out of config.json, each with its Origin. Knows neither producers nor tensors.

A checkpoint keeps its settings in one or more sections of config.json (`eagle_config`, `transformer_layer_config`, the
top level). `Settings` looks through them in order; a null counts as absent, a value of the wrong type is an error.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from probes.checkpoint.spec import Origin, Source
from probes.errors import CheckpointError

T = TypeVar("T")

MAX_INTEGER = 2**31 - 1  # no size, count or id of a model is larger
MAX_LIST = 256  # layer ids: one for each layer at most


@dataclass(frozen=True, kw_only=True)
class Value(Generic[T]):
    """A value and where it came from."""

    value: T
    origin: Origin


@dataclass(frozen=True, kw_only=True)
class Section:
    """One place where settings stand. `prefix` is how its keys are named to the user ("" at the top level)."""

    values: Mapping[str, object]
    prefix: str = ""
    source: Source = Source.file_key


class Settings:
    """Typed look-ups in `sections`, the first that has the key, or its alias, wins. `where` is the file, for messages."""

    def __init__(self, where: str, sections: Sequence[Section], aliases: Mapping[str, str] | None = None) -> None:
        self.where = where
        self.sections = tuple(sections)
        self.aliases = aliases or {}

    def find(self, key: str) -> Value[object] | None:
        names = (key, self.aliases[key]) if key in self.aliases else (key,)
        for section in self.sections:
            for name in names:
                value = section.values.get(name)
                if value is not None:
                    return Value(value=value, origin=Origin(source=section.source, detail=section.prefix + name))
        return None

    def integer(self, key: str, *, minimum: int = 1) -> Value[int] | None:
        """A whole number of at least `minimum`; 8.0 is accepted as 8, a bool is not."""
        found = self.find(key)
        if found is None:
            return None
        number = whole_number(found.value)
        if number is None or not minimum <= number <= MAX_INTEGER:
            self.refuse(found, f"a whole number from {minimum} to {MAX_INTEGER}")
        return Value(value=number, origin=found.origin)

    def positive_number(self, key: str) -> Value[float] | None:
        found = self.find(key)
        if found is None:
            return None
        number = finite_number(found.value)
        if number is None or number <= 0:
            self.refuse(found, "a finite number above 0")
        return Value(value=number, origin=found.origin)

    def flag(self, key: str) -> Value[bool] | None:
        found = self.find(key)
        if found is None:
            return None
        if not isinstance(found.value, bool):
            self.refuse(found, "true or false")
        return Value(value=found.value, origin=found.origin)

    def text(self, key: str) -> Value[str] | None:
        found = self.find(key)
        if found is None:
            return None
        if not isinstance(found.value, str):
            self.refuse(found, "a string")
        return Value(value=found.value, origin=found.origin)

    def mapping(self, key: str) -> Value[Mapping[str, object]] | None:
        found = self.find(key)
        if found is None:
            return None
        if not isinstance(found.value, Mapping):
            self.refuse(found, "an object")
        return Value(value=found.value, origin=found.origin)

    def texts(self, key: str) -> Value[tuple[str, ...]] | None:
        found = self.find(key)
        if found is None:
            return None
        if not isinstance(found.value, (list, tuple)) or not all(isinstance(v, str) for v in found.value):
            self.refuse(found, "a list of strings")
        return Value(value=tuple(found.value), origin=found.origin)

    def integers(self, key: str) -> Value[tuple[int, ...]] | None:
        """A list of whole numbers of at least 0; an empty one counts as absent, as in every engine."""
        found = self.find(key)
        if found is None or found.value in ([], ()):
            return None
        if not isinstance(found.value, (list, tuple)) or len(found.value) > MAX_LIST:
            self.refuse(found, f"a list of at most {MAX_LIST} whole numbers")
        numbers = []
        for item in found.value:
            number = whole_number(item)
            if number is None or not 0 <= number <= MAX_INTEGER:
                self.refuse(found, f"a list of whole numbers from 0 to {MAX_INTEGER}")
            numbers.append(number)
        return Value(value=tuple(numbers), origin=found.origin)

    def needed(self, value: Value[T] | None, key: str) -> Value[T]:
        """`value`, or the error that `key` is missing."""
        if value is None:
            raise CheckpointError(
                f"the key `{key}` is missing and nothing else in the checkpoint shows its value",
                code="config_key_missing",
                where=self.where,
                remedy=f"Add `{key}` to config.json as it was in training",
            )
        return value

    def refuse(self, found: Value[object], expected: str) -> NoReturn:
        """Raise the error that this setting has a wrong type or range."""
        is_override = found.origin.source is Source.override
        raise CheckpointError(
            f"`{found.origin.detail}` must be {expected}, found {reprlib.repr(found.value)}",
            code="config_wrong_type",
            where="overrides" if is_override else self.where,
            remedy="Correct the override" if is_override else "Correct this key; see the producer's own example config",
        )


def whole_number(value: object) -> int | None:
    """`value` as an int, None if it is anything else (bool included)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    return None


def finite_number(value: object) -> float | None:
    """`value` as a finite float, None if it is anything else (bool included)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
