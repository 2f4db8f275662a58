"""What an engine says of one request, as rounds: drafted and accepted tokens of each.

A histogram of accepted counts is rounds without an order; how many drafts each round had must follow from it, or the
rounds are not determined. Knows no file and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MAX_ROUNDS = 250_000
"""The most rounds of one request or server: a run stores a row for each round and depth."""

MAX_DEPTH = 64


class BadCountsError(ValueError):
    """Numbers that contradict each other or mean nothing; the reader adds where they stand."""


class TooManyRoundsError(BadCountsError):
    """More rounds at once than a run can store."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """`num_drafts`, `accepted_drafts` int32 [round], `accepted_drafts` without the bonus token.

    `num_drafts` is None where it is not determined: then the rounds count in a report and are not stored.
    """

    depth: int  # K
    accepted_drafts: np.ndarray
    num_drafts: np.ndarray | None
    is_ordered: bool  # False: from a histogram


def from_steps(accepted: Sequence[int], drafted: Sequence[int], *, depth: int | None) -> Rounds:
    """Rounds one by one, in order. Raises BadCountsError."""
    if len(accepted) != len(drafted):
        raise BadCountsError(f"{len(accepted)} rounds with accepted drafts, {len(drafted)} with drafts")
    _check_size(len(accepted))
    if any(a > d for a, d in zip(accepted, drafted, strict=True)):
        raise BadCountsError("a round accepted more drafts than it had")
    depth = depth or max(drafted, default=0)
    _check_depth(depth)
    if max(drafted, default=0) > depth:
        raise BadCountsError(f"a round had {max(drafted)} drafts, the depth is {depth}")
    return Rounds(
        depth=depth,
        accepted_drafts=np.array(accepted, np.int32),
        num_drafts=np.array(drafted, np.int32),
        is_ordered=True,
    )


def from_histogram(
    num_rounds: Mapping[int, int],
    *,
    depth: int,
    num_draft_tokens: int | None,
    by_num_drafts: Mapping[int, Mapping[int, int]] | None = None,
) -> Rounds:
    """`num_rounds[j]` rounds accepted exactly j drafts; `by_num_drafts[d][j]` the same of the rounds with d drafts.

    Drafts per round follow from `by_num_drafts`, or from their total where all rounds had K or all drafts were accepted;
    a total of None means K everywhere. Raises BadCountsError where the numbers contradict each other.
    """
    num_rounds = {j: n for j, n in num_rounds.items() if n}
    total, accepted = sum(num_rounds.values()), sum(j * n for j, n in num_rounds.items())
    _check_size(total)
    _check_depth(depth)
    if max(num_rounds, default=0) > depth:
        raise BadCountsError(f"a round accepted {max(num_rounds)} drafts, the depth is {depth}")
    if by_num_drafts is not None:
        pairs = {(d, j): n for d, row in by_num_drafts.items() for j, n in row.items() if n}
        _check_pairs(pairs, num_rounds, depth, num_draft_tokens)
        drafts = np.repeat([d for d, _ in sorted(pairs)], [pairs[key] for key in sorted(pairs)])
        taken = np.repeat([j for _, j in sorted(pairs)], [pairs[key] for key in sorted(pairs)])
        return Rounds(
            depth=depth,
            accepted_drafts=taken.astype(np.int32),
            num_drafts=drafts.astype(np.int32),
            is_ordered=False,
        )
    taken = np.repeat(np.array(sorted(num_rounds), np.int32), [num_rounds[j] for j in sorted(num_rounds)])
    if num_draft_tokens is None or num_draft_tokens == total * depth:
        known: np.ndarray | None = np.full(total, depth, np.int32)
    elif num_draft_tokens == accepted:
        known = taken
    elif accepted < num_draft_tokens < total * depth:
        known = None
    else:
        raise BadCountsError(f"{num_draft_tokens} drafts in {total} rounds of at most {depth}, {accepted} accepted")
    return Rounds(depth=depth, accepted_drafts=taken, num_drafts=known, is_ordered=False)


def histogram_of_positions(num_rounds: int, accepted_at: Sequence[int]) -> dict[int, int]:
    """`accepted_at[i]` rounds accepted the draft at position i, and so all before it -> rounds by accepted drafts.

    Raises BadCountsError for counts that rise: they are of no chain, or of counters read at different moments.
    """
    survivors = [num_rounds, *accepted_at]
    if any(later > earlier for earlier, later in zip(survivors, accepted_at, strict=False)):
        raise BadCountsError("more drafts were accepted at a position than at the one before it")
    return {j: n - later for j, (n, later) in enumerate(zip(survivors, [*accepted_at, 0], strict=True))}


def _check_pairs(
    pairs: Mapping[tuple[int, int], int], num_rounds: Mapping[int, int], depth: int, num_draft_tokens: int | None
) -> None:
    summed: dict[int, int] = {}
    for (drafts, accepted), count in pairs.items():
        if accepted > drafts or drafts > depth:
            raise BadCountsError(f"a round accepted {accepted} of {drafts} drafts, the depth is {depth}")
        summed[accepted] = summed.get(accepted, 0) + count
    if summed != dict(num_rounds):
        raise BadCountsError("the histogram by drafts does not add up to the histogram")
    drafted = sum(drafts * count for (drafts, _), count in pairs.items())
    if num_draft_tokens is not None and drafted != num_draft_tokens:
        raise BadCountsError(f"the histogram by drafts holds {drafted} drafts, the total says {num_draft_tokens}")


def _check_size(num_rounds: int) -> None:
    if num_rounds > MAX_ROUNDS:
        raise TooManyRoundsError(f"{num_rounds:,} rounds at once, more than the {MAX_ROUNDS:,} that can be stored")


def _check_depth(depth: int) -> None:
    if not 1 <= depth <= MAX_DEPTH:
        raise BadCountsError(f"a depth of {depth} drafts, not 1 to {MAX_DEPTH}")
