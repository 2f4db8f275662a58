"""The loss waterfall: each round's cause by hand, and parts that add up whatever the rounds are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.diagnosis.waterfall import (
    LEFT_OUT,
    LOSS_NAMES,
    NO_LOSS,
    PARTS,
    collect,
    join,
    mean_parts,
    part_of_rounds,
    waterfalls,
)
from driftscope.report.glossary import LOSSES
from driftscope.runs import read_run
from driftscope.summary import summarise
from probes.record import RejectionReason
from tests.synthetic_run import make_batch, make_prompt, write_run

CASES = [
    # K, D, A, reason at A + 1, fresh right there, part
    (4, 4, 4, None, -1, "no loss"),
    (4, 2, 2, "limit", -1, "limit"),
    (4, 2, 1, "disagreement", 1, "chain_decay"),  # a limit that was not reached is not the cause
    (4, 4, 0, "out_of_draft_vocab", 0, "out_of_draft_vocab"),
    (4, 4, 2, "out_of_draft_vocab", 1, "out_of_draft_vocab"),
    (4, 4, 1, "grammar", 1, "grammar"),
    (4, 4, 1, "sampled_out", 1, "sampled_out"),
    (4, 4, 0, "disagreement", 0, "hard_token"),
    (4, 4, 0, "disagreement", 1, "hard_token"),  # depth 1 is fresh itself
    (4, 4, 1, "disagreement", 0, "hard_token"),
    (4, 4, 3, "disagreement", 1, "chain_decay"),
    (4, 4, 3, "disagreement", -1, "hard_token_or_chain_decay"),
    (4, 4, 0, "disagreement", -1, "hard_token"),
    (4, 4, 2, "past_end", 1, "left out"),
    (4, 4, 2, "unverified", -1, "left out"),
    (4, 4, 2, None, -1, "unattributed"),
]


@pytest.mark.parametrize("case", CASES)
def test_the_cause_of_a_round(case: tuple[int, int, int, str | None, int, str]) -> None:
    depth, num_drafts, accepted, reason, fresh, expected = case
    [part] = part_of_rounds(
        np.array([depth]), np.array([num_drafts]), np.array([accepted]), np.array([reason], object), np.array([fresh])
    )
    named = {LEFT_OUT: "left out", NO_LOSS: "no loss"} | dict(enumerate(PARTS))
    assert named[int(part)] == expected


@st.composite
def rounds(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    reasons = [r.name for r in RejectionReason] + [None]
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(1, 9),
                st.floats(0, 1),
                st.floats(0, 1),
                st.sampled_from(reasons),
                st.integers(-1, 1),
                st.integers(0, 3),
            ),
            min_size=1,
            max_size=60,
        )
    )
    depth = np.array([r[0] for r in rows])
    num_drafts = np.array([round(r[0] * r[1]) for r in rows])
    accepted = np.array([round(n * r[2]) for n, r in zip(num_drafts, rows, strict=True)])
    reason = np.array([r[3] for r in rows], object)
    return depth, num_drafts, accepted, reason, np.array([r[4] for r in rows]), np.array([r[5] for r in rows])


@given(rounds())
def test_the_parts_add_up(made: tuple[np.ndarray, ...]) -> None:
    depth, num_drafts, accepted, reason, fresh, prompt = made
    part = part_of_rounds(depth, num_drafts, accepted, reason, fresh)
    fall = collect(part, prompt, depth=depth, accepted=accepted, num_prompts=4)
    kept = part != LEFT_OUT
    assert fall.num_rounds.sum() == kept.sum()
    if not kept.any():
        assert mean_parts(fall) == {}
        return
    tokens_per_round = (accepted[kept] + 1).mean()
    assert sum(mean_parts(fall).values()) == pytest.approx((depth[kept] + 1).mean() - tokens_per_round, abs=1e-9)
    for p in range(4):  # and prompt by prompt
        of = kept & (prompt == p)
        assert fall.loss[p].sum() == (depth[of] - accepted[of]).sum()


def test_a_run_gives_k_plus_one_less_the_walk(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a.drift"))
    falls = waterfalls(run)
    for condition in summarise(run).conditions:
        key = (condition.drafter, condition.system_prompt, condition.template, condition.context_tokens)
        parts = mean_parts(join([f for k, f in falls.items() if k[:4] == key]))
        assert condition.walk is not None
        assert condition.walk.tokens_per_round is not None
        assert sum(parts.values()) == pytest.approx(4 + 1 - condition.walk.tokens_per_round, abs=1e-9)
        assert parts["out_of_draft_vocab"] > 0
        assert parts["chain_decay"] > 0


def test_fewer_drafts_than_k_count_as_limit_only_when_all_are_accepted(tmp_path: Path) -> None:
    prompt = make_prompt(num_response_tokens=14)
    batch = make_batch(
        prompt, engine="live", accepted_drafts=np.array([4, 2, 1, 0]), num_drafts=np.array([4, 2, 2, 4]), depth=4
    )
    [fall] = waterfalls(read_run(write_run(tmp_path / "b.drift", [prompt, batch]))).values()
    assert fall.loss[0, PARTS.index("limit")] == 2
    assert fall.loss[0].sum() == 0 + 2 + 3 + 4
    assert fall.num_rounds[0] == 4


def test_every_part_has_a_name_that_says_lost_and_a_meaning() -> None:
    assert list(LOSS_NAMES) == list(PARTS) == list(LOSSES)
    assert LOSS_NAMES["out_of_draft_vocab"] == "lost to vocabulary"
    assert all(name.startswith("lost") for name in LOSS_NAMES.values())
    assert len(set(LOSS_NAMES.values())) == len(PARTS)
