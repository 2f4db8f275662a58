"""The words of a conversation: token ids into text, and what speculation did to each token.

Knows no Streamlit page. Text comes from the target's own tokenizer.json, read by `tokenizers`; where it is not found,
ids are shown and the reason is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import streamlit as st
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from driftscope.runs import RunInfo

MAX_TOKENIZER_BYTES = 128 << 20
KINDS = ("prompt", "first", "accepted", "corrected", "bonus", "past")
"""prompt; first: written by the prefill, before any round; accepted: an accepted draft; corrected: the target's token in
place of a rejected draft; bonus: the target's token after all drafts were accepted; past: after the end of the text."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer, or why there is none."""

    tokenizer: Tokenizer | None
    reason: str = ""

    def one(self, token_id: int | None) -> str:
        """A single token, as text that shows its blanks; its id without a tokenizer."""
        if token_id is None or token_id < 0:
            return ""
        if self.tokenizer is None:
            return f"#{token_id}"
        return visible(self.tokenizer.decode([token_id], skip_special_tokens=False))

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text that each token adds, in order; a character made of several tokens stands with its last one."""
        if self.tokenizer is None:
            return [f"#{token_id} " for token_id in token_ids]
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self.tokenizer, token_id) or "" for token_id in token_ids]


def visible(piece: str) -> str:
    """Blanks at the ends and line breaks of a single token made visible."""
    text = piece.replace("\n", "⏎").replace("\t", "⇥")
    body = text.strip(" ")
    if not body:
        return "␣" * len(text)
    return "␣" * (len(text) - len(text.lstrip(" "))) + body + "␣" * (len(text) - len(text.rstrip(" ")))


def vocabulary(info: RunInfo) -> Vocabulary:
    """The tokenizer of the run's target: in its folder, or in the local cache of the Hub. Nothing is downloaded."""
    for path in (info.target.path, info.target.name):
        if not path:
            continue
        file = Path(path) / "tokenizer.json"
        if file.is_file():
            return _load(str(file), file.stat().st_mtime_ns)
        cached = _cached_on_this_machine(path)
        if cached is not None:
            return _load(str(cached), cached.stat().st_mtime_ns)
    return Vocabulary(
        None, f"the target's tokenizer.json is not on this machine ({info.target.path or info.target.name})"
    )


@st.cache_resource(max_entries=8, show_spinner="Loading the tokenizer")
def _load(file: str, mtime_ns: int) -> Vocabulary:
    path = Path(file)
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        return Vocabulary(None, f"{file} is larger than {MAX_TOKENIZER_BYTES >> 20} MiB")
    try:
        return Vocabulary(Tokenizer.from_file(file))
    except Exception as error:  # tokenizers raises nothing narrower
        return Vocabulary(None, f"{file} cannot be read: {error}")


def _cached_on_this_machine(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, _, revision = name.partition("@")
    try:
        found = try_to_load_from_cache(repository, "tokenizer.json", revision=revision or None)
    except HFValidationError:  # a folder that is not here
        return None
    return Path(found) if isinstance(found, str) else None


@dataclass(frozen=True)
class TokenFates:
    """For each token of a conversation: index into KINDS, and the walk round that wrote it (-1: none)."""

    kind: np.ndarray  # int8 [token]
    round_index: np.ndarray  # int32 [token]


def token_fates(rounds: pa.Table, *, num_tokens: int, num_prompt_tokens: int, num_response_tokens: int) -> TokenFates:
    """`rounds`: the walk, in order (`aggregates.walk_rounds`).

    A round that starts at t drafts for positions t+2 on: its accepted drafts stand at t+2 .. t+1+accepted, the target's
    own token at t+2+accepted. Position P, the first of the response, is the prefill's.
    """
    kind = np.full(num_tokens, KINDS.index("past"), dtype=np.int8)
    round_index = np.full(num_tokens, -1, dtype=np.int32)
    end = num_prompt_tokens + num_response_tokens
    kind[:num_prompt_tokens] = KINDS.index("prompt")
    kind[num_prompt_tokens : num_prompt_tokens + 1] = KINDS.index("first")
    columns = (rounds[name].to_pylist() for name in ("start", "num_drafts", "accepted_drafts"))
    for index, (start, num_drafts, accepted) in enumerate(zip(*columns, strict=True)):
        own = start + 2 + accepted  # the target's token
        kind[start + 2 : min(own, end)] = KINDS.index("accepted")
        round_index[start + 2 : min(own + 1, end)] = index
        if own < end:
            kind[own] = KINDS.index("bonus" if accepted >= num_drafts else "corrected")
    return TokenFates(kind, round_index)


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
