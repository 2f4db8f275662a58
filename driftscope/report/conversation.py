"""The words of a conversation: token ids into text, and what speculation did to each token. Shared with the app.

Knows no display. Text comes from the target's own tokenizer.json, read by `tokenizers`; where it is not found, ids are
shown and the reason is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from driftscope.report.text import single
from driftscope.runs import RunInfo
from probes.regular_file import read_regular

MAX_TOKENIZER_BYTES = 128 << 20
NETWORK_NAMES = ("//", "\\\\")  # asking another machine for a file tells it who asks
KINDS = ("prompt", "first", "accepted", "corrected", "bonus", "past")
"""prompt; first: written by the prefill, before any round; accepted: an accepted draft; corrected: the target's token in
place of a rejected draft; bonus: the target's token after all drafts were accepted; past: after the end of the text."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer, or why there is none."""

    tokenizer: Tokenizer | None
    reason: str = ""

    def one(self, token_id: int | None) -> str:
        """A single token, as text that shows its blanks; its id without a tokenizer; empty where it was not recorded."""
        if token_id is None or token_id < 0:
            return ""
        if self.tokenizer is None:
            return f"#{token_id}"
        return single(self.tokenizer.decode([token_id], skip_special_tokens=False))

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text that each token adds, in order; a character made of several tokens stands with its last one."""
        if self.tokenizer is None:
            return [f"#{token_id} " for token_id in token_ids]
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self.tokenizer, token_id) or "" for token_id in token_ids]


def load_vocabulary(file: Path) -> Vocabulary:
    """From a tokenizer.json."""
    try:
        return Vocabulary(Tokenizer.from_buffer(read_regular(file, max_bytes=MAX_TOKENIZER_BYTES)))
    except Exception as error:  # tokenizers raises nothing narrower
        return Vocabulary(None, f"{file} cannot be read: {error}")


def vocabulary(info: RunInfo, load: Callable[[Path], Vocabulary] = load_vocabulary) -> Vocabulary:
    """The tokenizer of the run's target: in its folder, or in the local cache of the Hub. Nothing is downloaded.

    This one small file is read where a run names it, to show words: it is data, opened only where it is a regular file,
    never through a network name, and nothing but tokens is taken from it (docs/security.md).
    """
    for path in (info.target.path, info.target.name):
        file = _tokenizer_file(path) if path else None
        if file is not None:
            return load(file)
    where = info.target.path or info.target.name or "no target is named"
    return Vocabulary(None, f"the target's tokenizer.json is not on this machine ({where})")


def _tokenizer_file(path: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if path.startswith(NETWORK_NAMES):
        return None
    file = Path(path) / "tokenizer.json"
    if file.is_file():
        return file
    repository, _, revision = path.partition("@")
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
    """`rounds`: the walk in order, with the columns start, num_drafts and accepted_drafts.

    A round that starts at t drafts for positions t+2 on: its accepted drafts stand at t+2 .. t+1+accepted, the target's
    own token at t+2+accepted. Position P, the first of the response, is the prefill's.
    """
    kind = np.full(num_tokens, KINDS.index("past"), dtype=np.int8)
    round_index = np.full(num_tokens, -1, dtype=np.int32)
    end = num_prompt_tokens + num_response_tokens
    kind[:num_prompt_tokens] = KINDS.index("prompt")
    kind[num_prompt_tokens : num_prompt_tokens + 1] = KINDS.index("first")
    columns = (rounds[name].to_pylist() for name in ("start", "num_drafts", "accepted_drafts"))
    for index, (t, drafts, accepted) in enumerate(zip(*columns, strict=True)):
        own = t + 2 + accepted  # the target's token
        kind[t + 2 : min(own, end)] = KINDS.index("accepted")
        round_index[t + 2 : min(own + 1, end)] = index
        if own < end:
            kind[own] = KINDS.index("bonus" if accepted >= drafts else "corrected")
    return TokenFates(kind, round_index)
