"""Fields of the Probe page for options of a plan: bounds, choices, default and help are those of `Plan`'s field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import streamlit as st

from driftscope.plan import Plan, described

FORM = {  # option -> label, width in pixels
    "num_prompts": ("How many prompts at most", 220),
    "context_tokens": ("Context lengths (tokens)", 220),
    "depth": ("Depth K", 130),
    "max_new_tokens": ("Longest response (tokens)", 200),
    "engine": ("Engine", 130),
    "temperature": ("Temperature", 140),
    "device": ("Device", 120),
    "dtype": ("Numbers", 140),
    "top_k": ("Top k (0: all)", 140),
    "top_p": ("Top p", 140),
    "draft_sample_method": ("Drafts", 160),
}
MEASURED = ("context_tokens", "depth", "max_new_tokens", "engine", "temperature", "device", "dtype")  # always asked for


def ask(option: str, *, first: Any = None, only: Sequence[str] = ()) -> Any:
    """Draw the option's field -> its value. `first` replaces the plan's default, `only` its choices; a list is a text."""
    field = Plan.model_fields[option]
    label, width = FORM[option]
    default = field.get_default() if first is None else first
    look: dict[str, Any] = {"key": f"probe_{option}", "width": width, "help": described(option)}
    if isinstance(default, str):
        values = list(only or get_args(field.annotation))
        return st.selectbox(label, values, values.index(default), persist_state="session", **look)
    if isinstance(default, list):
        return st.text_input(label, ",".join(map(str, default)), persist_state="session", **look).replace(" ", "")
    bounds = {
        name: getattr(bound, name) for bound in field.metadata for name in ("ge", "gt", "le") if hasattr(bound, name)
    }
    kind, step = (float, 0.05) if isinstance(default, float) else (int, 1)
    low = kind(bounds["ge"]) if "ge" in bounds else bounds["gt"] + 0.01
    high = kind(bounds["le"]) if "le" in bounds else None
    return st.number_input(label, low, high, default, step, persist_state="session", **look)
