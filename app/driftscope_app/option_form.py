"""Fields of the Probe page for options of a plan: bounds, choices, default and help are those of `Plan`'s field.

Every option of a plan is in `FORM`, is asked for by the page itself (`BY_THE_PAGE`), or has its reason in `NOT_IN_FORM`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import streamlit as st

from driftscope.plan import Plan

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
BY_THE_PAGE = ("target", "drafter", "system_prompt", "prompts", "turns")
NOT_IN_FORM = {
    **dict.fromkeys(("template", "documents", "vllm"), "needs files or a table of its own: write a plan file"),
    **dict.fromkeys(("prompt_format", "batch_size"), "its default fits nearly always"),
    **dict.fromkeys(("level", "sink_slots", "last_tokens", "target_attention", "seed"), "for a second, closer look"),
    **dict.fromkeys(("interventions", "reference_target"), "`driftscope diagnose` runs them on a finished run"),
    **dict.fromkeys(("costs", "costs_context_tokens"), "means nothing while the app shares the machine"),
    **dict.fromkeys(("text", "redact"), "the app shows prompts; who may not see them starts the probe elsewhere"),
    "trust_remote_code": "a page in a browser must not run foreign code",
}


def described(option: str) -> str:
    """What an option does, as the command line's help says it."""
    return str(Plan.model_fields[option].description)


def ask(option: str, *, first: Any = None, choices: Sequence[str] = ()) -> Any:
    """Draw the option's field -> its value. `first` replaces the plan's default, `choices` its own; a list is a text."""
    field = Plan.model_fields[option]
    label, width = FORM[option]
    default = field.get_default() if first is None else first
    look: dict[str, Any] = {"key": f"probe_{option}", "width": width, "help": described(option)}
    choices = choices or (get_args(field.annotation) if isinstance(default, str) else ())
    if choices:
        return st.selectbox(label, list(choices), list(choices).index(default), persist_state="session", **look)
    if isinstance(default, list):
        return st.text_input(label, ",".join(map(str, default)), persist_state="session", **look).replace(" ", "")
    bounds = {
        name: getattr(bound, name) for bound in field.metadata for name in ("ge", "gt", "le") if hasattr(bound, name)
    }
    kind, step = (float, 0.05) if isinstance(default, float) else (int, 1)
    low = kind(bounds["ge"]) if "ge" in bounds else bounds["gt"] + 0.01
    high = kind(bounds["le"]) if "le" in bounds else None
    return st.number_input(label, low, high, default, step, persist_state="session", **look)
