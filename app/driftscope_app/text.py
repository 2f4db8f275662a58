"""Text from files on a page of ours: shown as it is, never as markup.

Streamlit renders Markdown (links and images too) in labels, captions and metrics; names of drafters, system prompts and
runs come from files, so they pass through `plain` before they reach one.
"""

from __future__ import annotations

import re

from probes.errors import bounded

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~:$])")
_QUOTED = re.compile(r"`([^`]+)`")
MAX_CHARACTERS = 600  # more than any name or message needs; a label is no place for a document


def plain(text: str) -> str:
    """`text` for a Markdown place: every character that could be markup is escaped, line breaks become spaces. Backticks
    around a command go: code in a caption's grey has too little contrast."""
    return _MARKDOWN.sub(r"\\\1", bounded(_QUOTED.sub(r"\1", " ".join(text.split())), MAX_CHARACTERS))


def code(text: str) -> str:
    """`text` as code in a Markdown place, where nothing is markup but the backticks around it."""
    return f"`{bounded(' '.join(text.split()), MAX_CHARACTERS).replace('`', chr(39))}`"


def shortened(text: str, limit: int = MAX_CHARACTERS) -> str:
    """At most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def tokens_label(context_tokens: int) -> str:
    """A context length as it is written everywhere."""
    return f"{context_tokens:,}"
