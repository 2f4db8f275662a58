"""Every number that a statement of driftscope hangs on, in one place, with the reason for its value.

Knows no data. Units and meaning stand beside each constant; nothing else in the package may hide such a number.
"""

from __future__ import annotations

# Degenerate text: a looping answer is easy to draft and inflates acceptance, so it leaves the headline.
DEGENERATE_MIN_TOKENS = 24  # shorter responses are never called degenerate
DEGENERATE_TAIL_TOKENS = 48  # the last tokens that are searched for a period
DEGENERATE_MAX_PERIOD_TOKENS = 16  # longest loop, also at most a third of the tail
DEGENERATE_NGRAM_TOKENS = 4
DEGENERATE_MIN_DISTINCT_NGRAM_SHARE = 0.4  # distinct n-grams / n-grams below this is degenerate

# Intervals: the prompt is the unit that is resampled, since rounds of one prompt are not independent.
INTERVAL_CONFIDENCE = 0.95
INTERVAL_MIN_PROMPTS = 5  # fewer: no interval
BOOTSTRAP_MIN_PROMPTS = 20  # fewer: jackknife with Student's t; from here: BCa bootstrap
BOOTSTRAP_RESAMPLES = 9_999
BOOTSTRAP_SEED = 20_260_501

# Several gains at once: driftscope.stats.family.
SIGN_FLIP_MAX_ENUMERATED = 13  # prompts; with more, patterns of signs are drawn
SIGN_FLIP_DRAWS = 9_999
SIGN_FLIP_SEED = 20_260_502

# Self-checks of a stored run.
MASS_SUM_TOLERANCE = 1e-3  # per head; attention masses of disjoint regions sum to 1
FUSION_SUM_TOLERANCE = 1e-5  # times sum |share|; signed shares of the fused state sum to 1

# Diagnosis, in dense tokens_per_round where not said otherwise.
COUNTED_MIN_GAIN_TOKENS = 0.05  # a smaller gain of an intervention is not counted, however certain
VERDICT_MIN_TOKENS = 0.15  # a cause that costs less than this makes no verdict
VERDICT_MIN_ROUNDS = 50  # dense rounds (walk where there is no dense); with fewer nothing is said
VERDICT_MIN_POSITIONS = 30  # at one depth, before a rule reads a conditional rate there
DEGENERATE_VERDICT_SHARE = 0.5  # of a condition's prompts
UNWIRED_MAX_FIRST_ACCEPTANCE = 0.1  # at depth 1 under the reference prompt: no trained drafter is that bad
DOUBTFUL_MAX_FIRST_ACCEPTANCE = 0.2  # the same beside an error found in the checkpoint
VOCABULARY_GAP_MIN_SHARE = 0.2  # of the emitted tokens; a cut vocabulary leaves out some by design, not one in five
FEEDBACK_MIN_SHARE_OF_FRESH = 0.5  # acceptance_conditional[2] below this share of fresh there is a feedback_fault
DRIFT_MIN_RECOVERED_SHARE = 0.5  # of the excess chain_gap that a path patch must recover to be its carrier
TARGET_SAME_COSINE = 0.999  # mean cosine of this target's states with the reference's; rounding stays above it
TARGET_SAME_NORM_CHANGE = 0.01  # of the mean ratio of their norms
TARGET_MIN_COSINE = 0.9  # below it they are other states, which no drafter knows
TARGET_MAX_NORM_CHANGE = 0.1
ROTATION_MAX_COSINE = 0.5  # a rotated basis leaves hardly any of the direction
ROTATION_MIN_GRAM_SIMILARITY = 0.95  # with a cosine below ROTATION_MAX_COSINE: the same states in another basis
