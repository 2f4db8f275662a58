"""One object of a prompt file, and the error that names its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Line:
    path: Path
    number: int  # from 1
    item: Mapping[str, Any]
    kind: str = "line"  # "line" of JSON Lines, "item" of a JSON array

    def bad(self, what: str, *, remedy: str = "mend or remove it") -> InputError:
        return bad_line(self.path, self.number, what, kind=self.kind, remedy=remedy)

    def id_of(self, *keys: str) -> str:
        """The first of these keys as text, else the line's number."""
        for key in keys:
            if isinstance(value := self.item.get(key), str | int) and not isinstance(value, bool):
                return str(value)
        return f"{self.kind}{self.number}"


def bad_line(
    path: Path, number: int, what: str, *, kind: str = "line", remedy: str = "mend or remove it"
) -> InputError:
    return InputError(f"{kind} {number} {what}", code="bad_prompt_line", where=f"{path}:{number}", remedy=remedy)
