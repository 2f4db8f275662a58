"""Text to token ids with the characters that each token covers, and documents cut to a number of tokens.

What this module does not know: chat templates, regions, models. It takes transformers tokenizers, fast ones (which say
what each token covers) and slow ones (where it is found by decoding).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from probes.errors import InputError, SelfCheckError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
"""Characters [start, stop) of the text."""

_MAX_TOKENS_OF_ONE_CHARACTER = 8  # byte-level: up to 4 bytes, and their neighbours where a token holds parts of two
_MAX_CUT_TRIES = 8  # tokens either way: a cut inside a word may tokenize to one more or one less


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[frozenset[int], re.Pattern[str]]:
    """The ids of the tokenizer's special tokens, and a pattern that finds them in a text."""
    special = {index: str(token) for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    longest_first = sorted({token for token in special.values() if token}, key=len, reverse=True)
    return frozenset(special), re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def count_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """Tokens of `text` alone, without BOS or other additions."""
    return len(_ids(tokenizer, text))


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], list[Span | None], tuple[str, ...]]:
    """Token ids of `text` as it stands, the characters of each token (None where not known), and notes.

    Tokens of one byte-split character all have that character's span. Raises SelfCheckError where the tokenizer's
    offsets are not an order of the text or its ids differ between two calls.
    """
    ids = _ids(tokenizer, text)
    if not getattr(tokenizer, "is_fast", False):
        return _spans_by_decoding(tokenizer, ids, text)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans: list[Span | None] = [(int(start), int(stop)) for start, stop in encoding["offset_mapping"]]
    bounds = np.array(spans, np.int64).reshape(-1, 2)
    is_ordered = bool((np.diff(bounds[:, 0]) >= 0).all() and (bounds[:, 0] <= bounds[:, 1]).all())
    if list(encoding["input_ids"]) != ids or not is_ordered or bounds.max(initial=0) > len(text):
        raise SelfCheckError(
            "the tokenizer's offsets do not fit its own tokens of the prompt",
            code="token_offsets_inconsistent",
            where=type(tokenizer).__name__,
            remedy="Use the tokenizer files of the target as published, or report this tokenizer",
        )
    depth = np.zeros(len(text) + 1, np.int64)  # how many tokens cover a character
    np.add.at(depth, bounds[:, 0], 1)
    np.add.at(depth, bounds[:, 1], -1)
    num_lost = sum(not text[index].isspace() for index in np.flatnonzero(np.cumsum(depth)[:-1] == 0))
    notes = (f"the tokenizer has no token for {num_lost} characters of the prompt: they are lost",) if num_lost else ()
    return ids, spans, notes


def _spans_by_decoding(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], text: str
) -> tuple[list[int], list[Span | None], tuple[str, ...]]:
    """A slow tokenizer's spans: decode the fewest tokens that give the next characters of the text."""
    spans: list[Span | None] = []
    cursor = 0
    while len(spans) < len(ids):
        begin = len(spans)
        for num_tokens in range(1, min(_MAX_TOKENS_OF_ONE_CHARACTER, len(ids) - begin) + 1):
            group = ids[begin : begin + num_tokens]
            piece = str(tokenizer.decode(group, skip_special_tokens=False, clean_up_tokenization_spaces=False))
            # Some decoders drop the space that a piece begins with.
            piece = next((p for p in (piece, " " + piece) if piece and text.startswith(p, cursor)), "")
            if piece:
                spans += [(cursor, cursor + len(piece))] * num_tokens
                cursor += len(piece)
                break
        else:
            num_lost = len(ids) - begin
            note = f"a slow tokenizer: {num_lost} tokens could not be matched with the prompt, their region is unknown"
            return ids, [*spans, *([None] * num_lost)], (note,)
    return ids, spans, ()


def insert_context(documents: Sequence[str], num_tokens: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """The leading text of the documents, in order and joined by blank lines, that is `num_tokens` tokens long.

    Exactly so where a cut between two characters gives it; else the nearest shorter cut near there (`count_tokens` says
    what it came to). White space at a document's ends is dropped: templates trim it. Never cuts inside a character.
    Raises InputError where all documents together are shorter.
    """
    if num_tokens < 0:
        raise InputError(
            f"a context of {num_tokens} tokens", code="negative_context", remedy="Give 0 or a positive number of tokens"
        )
    if num_tokens == 0:
        return ""
    text = ""
    num_available = 0
    for document in documents:
        text = "\n\n".join(piece for piece in (text, document.strip()) if piece)
        ids, spans, _ = tokenize(tokenizer, text)
        num_available = len(ids)
        if num_available >= num_tokens:
            return _cut(text, spans, num_tokens, tokenizer)
    raise InputError(
        f"the documents hold {num_available} tokens, {num_tokens} were asked for",
        code="documents_too_short",
        remedy="Give longer or more documents, or a shorter context",
    )


def _cut(text: str, spans: Sequence[Span | None], num_tokens: int, tokenizer: PreTrainedTokenizerBase) -> str:
    if num_tokens == len(spans):
        return text
    known = [span for span in spans if span is not None]
    # Cuts between two tokens; where both hold bytes of one character, before it.
    cuts = [min(left[1], right[0]) if left[1] > right[0] else left[1] for left, right in pairwise(known)]
    order = sorted(range(len(cuts)), key=lambda index: abs(index + 1 - num_tokens))
    best = ""
    best_count = 0
    for index in order[: 2 * _MAX_CUT_TRIES + 1]:
        candidate = text[: cuts[index]]
        count = count_tokens(tokenizer, candidate)
        if count == num_tokens:
            return candidate
        if best_count < count < num_tokens:
            best, best_count = candidate, count
    return best
