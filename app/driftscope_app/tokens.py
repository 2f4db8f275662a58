"""The words of a conversation, as `driftscope.report.conversation` reads them; the tokenizer is kept between page runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import streamlit as st

from driftscope.report import conversation
from driftscope.report.conversation import KINDS, TokenFates, Vocabulary, token_fates
from driftscope.runs import RunInfo

__all__ = ["KINDS", "TokenFates", "Vocabulary", "find_all", "is_walk", "token_fates", "vocabulary"]


def vocabulary(info: RunInfo) -> Vocabulary:
    """The tokenizer of the run's target, kept once it is loaded."""
    return conversation.vocabulary(info, load=lambda file: _load(str(file), file.stat().st_mtime_ns))


@st.cache_resource(max_entries=8, show_spinner="Loading the tokenizer")
def _load(file: str, mtime_ns: int) -> Vocabulary:
    return conversation.load_vocabulary(Path(file))


def is_walk(rounds: pa.Table) -> bool:
    """Each round starts where the one before it ended: not so where an engine's metrics do not tell the rounds' order."""
    start, accepted = (rounds[name].to_numpy() for name in ("start", "accepted_drafts"))
    return bool((start[1:] == start[:-1] + accepted[:-1] + 1).all())


def find_all(pieces: Sequence[str], wanted: str, first: int = 0) -> list[int]:
    """Positions of the tokens at which `wanted` begins in the joined text, ignoring case, from token `first` on."""
    if not wanted:
        return []
    ends = np.cumsum([len(piece) for piece in pieces[first:]])
    text = "".join(pieces[first:])
    lowered, needle = text.lower(), wanted.lower()
    if len(lowered) != len(text):  # a few letters change their length in lower case: then positions would shift
        lowered, needle = text, wanted
    found, at = [], lowered.find(needle)
    while at >= 0:
        found.append(first + int(np.searchsorted(ends, at, side="right")))
        at = lowered.find(needle, at + len(needle))
    return sorted(set(found))
