"""JSON from other people's files, no deeper than what copies, checks and renders it can follow."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 100
"""Objects and arrays inside each other. Chats have ten, schemas of tools some thirty; Python stops at a few hundred."""


def read_json(text: str) -> Any:
    """Raises json.JSONDecodeError, or ValueError for what nests too deep and for numbers of thousands of digits."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from error
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return True
