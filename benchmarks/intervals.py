"""`python -m benchmarks.intervals [--runs 2000]`: do the intervals and p-values of driftscope.stats keep their promises?

Simulated runs with a known truth. Prompts are skewed (each has its own acceptance, Beta(2, 3) or log-normal-like), and have
unequal numbers of rounds (2 to 60), drawn apart from the acceptance so that the true ratio is known. Printed: the share
of 95 % intervals that hold the truth, and the share of runs in which any of 24 useless changes counts as a gain. Takes
minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from driftscope.stats.family import family_p_values, paired_contributions
from driftscope.stats.intervals import ratio_intervals
from driftscope.stats.paired import NO_DIFFERENCE, holm, paired_difference
from driftscope.stats.thresholds import COUNTED_MIN_GAIN_TOKENS

DEPTH = 7  # K
NUM_CHANGES = 24
LEVEL = 0.05

Prompts = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def beta_prompts(num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and rounds of each prompt; every draft of a round accepted apart. E[tokens] / E[rounds] = 1 + K * 2 / 5."""
    rounds = rng.integers(2, 61, num)
    return rng.binomial(DEPTH * rounds, rng.beta(2, 3, num)) + rounds, rounds


def skewed_prompts(num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A few prompts accept nearly all, most very little: acceptance u^4, so E[tokens] / E[rounds] = 1 + K / 5."""
    rounds = rng.integers(2, 61, num)
    return rng.binomial(DEPTH * rounds, rng.random(num) ** 4) + rounds, rounds


TRUTHS: dict[str, tuple[Prompts, float]] = {
    "acceptance Beta(2, 3)": (beta_prompts, 1 + DEPTH * 2 / 5),
    "acceptance u^4": (skewed_prompts, 1 + DEPTH / 5),
}


def coverage(prompts: Prompts, truth: float, num_prompts: int, num_runs: int, seed: int = 0) -> float:
    """Share of `num_runs` intervals of pooled tokens_per_round that hold the truth."""
    held = 0
    for run in range(num_runs):
        tokens, rounds = prompts(num_prompts, np.random.default_rng([seed, num_prompts, run]))
        [interval] = ratio_intervals(tokens[None], rounds[None])
        assert interval.low is not None
        assert interval.high is not None
        held += interval.low <= truth <= interval.high
    return held / num_runs


def useless_changes(
    num_prompts: int, skew: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> tokens of each change [change, prompt], the baseline's, rounds. Two thirds of the changes have a mean of 0 and
    share much of their noise, the others hurt. `skew`: +1 a few prompts gain much, -1 a few lose much, 0 symmetric."""
    rounds = rng.integers(5, 61, num_prompts).astype(float)
    baseline = rounds * (1 + rng.gamma(1.5, 1.0, num_prompts))

    def noise(num: int) -> np.ndarray:
        if skew == 0:
            return rng.normal(0, 0.3, (num, num_prompts))
        return skew * 0.3 * (rng.exponential(1, (num, num_prompts)) - 1)

    useless = 0.7 * noise(1) + 0.7 * noise(NUM_CHANGES * 2 // 3)
    harmful = -0.5 * rng.uniform(0.5, 1.5, (NUM_CHANGES // 3, num_prompts)) * baseline / rounds
    return baseline + rounds * np.concatenate([useless, harmful]), baseline, rounds


def _is_counted(changed: np.ndarray, baseline: np.ndarray, rounds: np.ndarray) -> list[bool]:
    """The rule of docs/verdicts.md for one family."""
    parts = np.stack([paired_contributions(tokens, rounds, baseline, rounds) for tokens in changed])
    counted = []
    for tokens, p in zip(changed, family_p_values(parts), strict=True):
        difference = paired_difference(tokens, rounds, baseline, rounds) if p <= LEVEL else NO_DIFFERENCE
        counted.append((difference.estimate or 0.0) >= COUNTED_MIN_GAIN_TOKENS and difference.is_above_zero)
    return counted


def false_gains(num_prompts: int, skew: float, num_runs: int) -> float:
    """Share of runs in which any useless change is counted as a gain."""
    false = 0
    for run in range(num_runs):
        changed, baseline, rounds = useless_changes(num_prompts, skew, np.random.default_rng([1, num_prompts, run]))
        false += any(_is_counted(changed, baseline, rounds))
    return false / num_runs


def power(num_prompts: int, num_runs: int) -> tuple[float, float]:
    """A repair of half of each prompt's acceptance among the useless changes: share of runs in which it counts, by sign
    flips over the family and by Holm's correction of separate t-tests."""
    flips = separate = 0
    for run in range(num_runs):
        rng = np.random.default_rng([2, num_prompts, run])
        changed, baseline, rounds = useless_changes(num_prompts, 0, rng)
        repaired = baseline + 0.5 * (baseline - rounds) * rng.uniform(0.5, 1.5, num_prompts)
        every = [*changed, repaired]
        flips += _is_counted(np.stack(every), baseline, rounds)[-1]
        separate += holm([paired_difference(tokens, rounds, baseline, rounds).p_value for tokens in every])[-1]
    return flips / num_runs, separate / num_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    num_runs = parser.parse_args().runs
    print("| prompts | " + " | ".join(TRUTHS) + " |\n|" + "---|" * (1 + len(TRUTHS)))
    for num in (5, 8, 12, 20, 40):
        shares = [coverage(prompts, truth, num, num_runs) for prompts, truth in TRUTHS.values()]
        print(f"| {num} | " + " | ".join(f"{share:.1%}" for share in shares) + " |", flush=True)
    print("\n| prompts | symmetric | a few gain much | a few lose much |\n|---|---|---|---|")
    for num in (6, 8, 16, 40):
        shares = [false_gains(num, skew, num_runs) for skew in (0, 1, -1)]
        print(f"| {num} | " + " | ".join(f"{share:.1%}" for share in shares) + " |", flush=True)
    print("\n| prompts | sign flips | Holm |\n|---|---|---|")
    for num in (5, 6, 8, 12, 16):
        print(
            f"| {num} | " + " | ".join(f"{share:.1%}" for share in power(num, max(1, num_runs // 4))) + " |", flush=True
        )


if __name__ == "__main__":
    main()
