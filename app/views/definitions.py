"""Definitions: every word and quantity of the app, in one place."""

from __future__ import annotations

import streamlit as st

from driftscope.figures import METRICS, REGION_MEANINGS
from driftscope.stats.thresholds import (
    BOOTSTRAP_MIN_PROMPTS,
    BOOTSTRAP_RESAMPLES,
    DEGENERATE_MAX_PERIOD_TOKENS,
    DEGENERATE_MIN_DISTINCT_NGRAM_SHARE,
    DEGENERATE_MIN_TOKENS,
    DEGENERATE_TAIL_TOKENS,
    INTERVAL_MIN_PROMPTS,
)

WORDS = {
    "target": "The model that is served. Its tokens are what counts.",
    "drafter": "The small model that proposes tokens (EAGLE-3, EAGLE-3.1).",
    "round": "One draft and one verify: the drafter proposes K tokens, the target checks them all in one pass.",
    "depth": "k = 1..K: which draft of a round. At depth 1 the drafter has the target's true features, deeper its own.",
    "bonus": "The token that the target adds after all drafts of a round were accepted.",
    "corrected": "The target's token in the place of the first rejected draft.",
    "slot": "A position of the drafter's KV cache: the pair of a token and the target's state before it.",
    "region": "A set of slots, for instance the system prompt; attention is summed by region.",
    "condition": "One drafter under one system prompt, template and context length.",
    "run": "A folder NAME.drift with everything that was measured.",
    "walk": "The rounds that an engine would make: each begins where the one before ended. The headline.",
    "dense": "A round from every position of the response: many more rounds, hence smoother curves over depth.",
    "replay / live / vllm": "All chains over a finished text at once / the real draft-verify loop / inside vLLM's "
    "own engine.",
    "fresh": "What depth 1 predicts at the same slot with the target's true features.",
    "forced": "A text that this target did not write; it has no walk.",
}
REASONS = {
    "out_of_draft_vocab": "the token that the target emits is outside the draft vocabulary",
    "grammar": "the draft was excluded by a grammar",
    "sampled_out": "temperature > 0: the draft was the target's most probable token, another was sampled",
    "limit": "no draft was allowed at this depth",
    "past_end": "the text ends here and could not be continued",
    "unverified": "drafted, never verified",
    "not_reached": "an earlier depth of the round was rejected",
    "disagreement": "none of the others: the target prefers another token",
}


def main() -> None:
    """The page."""
    st.title("Definitions", anchor=False)
    st.markdown("Ratios are 0..1. Depth 1 is the first draft. A number that was not measured is empty, never 0.")
    st.header("Words", anchor=False)
    _list(WORDS)
    st.header("Quantities", anchor=False)
    for metric in METRICS.values():
        st.markdown(
            f"**{metric.title}** · `{metric.name}`  \n{_escaped(metric.definition)} {_escaped(metric.how_to_read)}"
        )
    st.header("Regions of attention", anchor=False)
    _list(REGION_MEANINGS)
    st.header("Why a draft was not accepted", anchor=False)
    _list(REASONS)
    st.header("Intervals", anchor=False)
    st.markdown(
        f"95 %, by resampling prompts: the rounds of one prompt depend on each other. Fewer than "
        f"{INTERVAL_MIN_PROMPTS} prompts: "
        f"no interval. Fewer than {BOOTSTRAP_MIN_PROMPTS}: jackknife with Student's t. From there on: BCa bootstrap "
        f"with "
        f"{BOOTSTRAP_RESAMPLES:,} seeded resamples. A difference is *not distinguishable* when its interval holds 0. "
        f"Pooled means "
        "weigh every round alike."
    )
    st.header("Looping responses", anchor=False)
    st.markdown(
        f"A loop is easy to draft and would flatter the drafter. A response of at least {DEGENERATE_MIN_TOKENS} "
        f"tokens loops when "
        f"its last {DEGENERATE_TAIL_TOKENS} tokens repeat with a period of at most {DEGENERATE_MAX_PERIOD_TOKENS}, "
        f"or fewer than "
        f"{DEGENERATE_MIN_DISTINCT_NGRAM_SHARE:.0%} of its 4-grams are distinct. Such prompts are counted and left "
        f"out of every mean."
    )


def _list(meanings: dict[str, str]) -> None:
    st.markdown("\n".join(f"- **{_escaped(word)}**: {_escaped(meaning)}" for word, meaning in meanings.items()))


def _escaped(text: str) -> str:
    """Our own text; only what Markdown would eat."""
    for character in "*_|<>$~":
        text = text.replace(character, "\\" + character)
    return text


main()
