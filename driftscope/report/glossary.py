"""Words, reasons and verdicts in one sentence each. Quantities are defined in `driftscope.quantities`."""

from __future__ import annotations

from driftscope.diagnosis.diagnosis import VerdictId
from driftscope.stats.thresholds import (
    BOOTSTRAP_MIN_PROMPTS,
    BOOTSTRAP_RESAMPLES,
    DEGENERATE_MAX_PERIOD_TOKENS,
    DEGENERATE_MIN_DISTINCT_NGRAM_SHARE,
    DEGENERATE_MIN_TOKENS,
    DEGENERATE_TAIL_TOKENS,
    INTERVAL_MIN_PROMPTS,
    VERDICT_MIN_TOKENS,
    VOCABULARY_GAP_MIN_SHARE,
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
    "replay / live / vllm / import": "All chains over a finished text at once / the real draft-verify loop / inside "
    "vLLM's own engine / an engine's counts, without what happened inside the drafter.",
    "n": "The prompts that a number is over: those that have such a round and do not loop. Of a difference: on both sides.",
    "fresh": "What depth 1 predicts at the same slot with the target's true features.",
    "forced": "A text that this target did not write; it has no walk.",
    "candidates": "The most probable tokens of the drafter and of the target at one depth, each with its probability.",
    "intervention": "One change to one thing, and acceptance measured again on the same prompts.",
    "gain": "Tokens per round with an intervention less those without, over dense starts, paired by prompt.",
    "lost to": "The drafts after a round's first rejection, K less the accepted ones, all given to the cause of that "
    "rejection, over the walk. An attribution, not what a repair gains: most drafts that deep are never accepted.",
    "estimated gain of a full draft vocabulary": "Tokens per round if the tokens that the draft vocabulary lacks were as "
    "easy to draft as the others, less those measured. The intervention full_draft_vocab measures that gain.",
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
VERDICTS = {
    VerdictId.healthy: f"No fault was found that costs {VERDICT_MIN_TOKENS:g} tokens per round. A draft vocabulary that "
    f"lacks fewer than {VOCABULARY_GAP_MIN_SHARE:.0%} of the emitted tokens is no fault.",
    VerdictId.wiring_fault: "The drafter is not wired as it was trained: layers, norms, vocabulary, rope.",
    VerdictId.vocabulary_gap: "The target emits tokens that the draft vocabulary does not hold.",
    VerdictId.template_shift: "The prompt is rendered otherwise than the drafter knows it.",
    VerdictId.context_limit: "The drafter does not hold at this context length.",
    VerdictId.target_changed: "The target is no longer the one that the drafter was trained for.",
    VerdictId.feedback_fault: "What is fed back from depth to depth is not what the drafter expects.",
    VerdictId.attention_drift: "With depth the chain's own keys pull attention away, and that costs tokens.",
    VerdictId.state_drift: "With depth the fed-back state goes astray, and that costs tokens.",
    VerdictId.degenerate_text: "Most responses loop: acceptance says little.",
    VerdictId.not_enough_data: "Too few prompts or rounds to say anything.",
}
LOSSES = {  # by part of the waterfall; `waterfall.LOSS_NAMES` has their names
    "limit": "fewer than K drafts were allowed, and all of them were accepted",
    "out_of_draft_vocab": "the token that ended the drafts cannot be drafted. A full draft vocabulary gains only a part of "
    "this: see the estimated gain of a full draft vocabulary",
    "grammar": "the draft was excluded by a grammar",
    "sampled_out": "temperature > 0: the target's most probable token was drafted, another was sampled",
    "hard_token": "at depth 1, or true features would have been wrong too",
    "chain_decay": "true features would have been right: lost to drafting from own states",
    "hard_token_or_chain_decay": "beyond depth 1, without a measurement of what true features would have said",
    "unattributed": "the engine gave no reason",
}
INTERVALS = (
    f"95 %, by resampling prompts: the rounds of one prompt depend on each other. n below {INTERVAL_MIN_PROMPTS}: no "
    f"interval. Below {BOOTSTRAP_MIN_PROMPTS}: jackknife with Student's t. From there on: BCa bootstrap "
    f"with {BOOTSTRAP_RESAMPLES:,} seeded resamples. A difference is not distinguishable when its interval holds 0. "
    "Pooled means weigh every round alike."
)
LOOPING = (
    f"A loop is easy to draft and would flatter the drafter. A response of at least {DEGENERATE_MIN_TOKENS} tokens loops "
    f"when its last {DEGENERATE_TAIL_TOKENS} tokens repeat with a period of at most {DEGENERATE_MAX_PERIOD_TOKENS}, or "
    f"fewer than {DEGENERATE_MIN_DISTINCT_NGRAM_SHARE:.0%} of its 4-grams are distinct. Such prompts are counted and left "
    "out of every mean."
)
