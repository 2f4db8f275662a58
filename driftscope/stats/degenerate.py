"""Is a response degenerate (looping) text? Decided from its token ids alone.

Does not know why the text loops, nor who wrote it. A loop is easy to draft, so such prompts would inflate acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from driftscope.stats.thresholds import (
    DEGENERATE_MAX_PERIOD_TOKENS,
    DEGENERATE_MIN_DISTINCT_NGRAM_SHARE,
    DEGENERATE_MIN_TOKENS,
    DEGENERATE_NGRAM_TOKENS,
    DEGENERATE_TAIL_TOKENS,
)


def is_degenerate(response_token_ids: Sequence[int] | np.ndarray) -> bool:
    """True when the response's tail repeats with a short period, or few of its 4-grams are distinct.

    `response_token_ids` [token]: the response only, without the prompt and without what was run past its end.
    With n tokens and a tail of m = min(n, 48): some period p <= min(16, m // 3) maps the whole tail onto itself, or
    distinct 4-grams / 4-grams < 0.4. Responses of fewer than 24 tokens never are.
    """
    tokens = np.asarray(response_token_ids)
    num_tokens = len(tokens)
    if num_tokens < DEGENERATE_MIN_TOKENS:
        return False
    tail = tokens[-DEGENERATE_TAIL_TOKENS:]
    longest_period = min(DEGENERATE_MAX_PERIOD_TOKENS, len(tail) // 3)
    if any(np.array_equal(tail[period:], tail[:-period]) for period in range(1, longest_period + 1)):
        return True
    ngrams = np.lib.stride_tricks.sliding_window_view(tokens, DEGENERATE_NGRAM_TOKENS)  # [ngram, 4]
    num_distinct = len(np.unique(ngrams, axis=0))
    return num_distinct / len(ngrams) < DEGENERATE_MIN_DISTINCT_NGRAM_SHARE
