"""Text from files on a page of ours: shown as it is, never as markup.

Streamlit renders Markdown (links and images too) in labels, captions and metrics; names of drafters, system prompts and
runs come from files, so they pass through `plain` before they reach one.
"""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~:$])")
MAX_CHARACTERS = 600  # more than any name or message needs; a label is no place for a document


def plain(text: str) -> str:
    """`text` for a Markdown place: every character that could be markup is escaped, line breaks become spaces."""
    return _MARKDOWN.sub(r"\\\1", shortened(" ".join(text.split())))


def shortened(text: str, limit: int = MAX_CHARACTERS) -> str:
    """At most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def tokens_label(context_tokens: int) -> str:
    """A context length as it is written everywhere."""
    return f"{context_tokens:,}"
