"""How many prompts `driftscope compare` needs to call a difference certain, from the spread between the prompts of a run.

`python -m benchmarks.compare_power RUN --by drafter|system_prompt`. Prompts of all cells of the comparison are pooled
after each cell's own difference is taken off; sets of n are drawn from them with replacement, a true difference is put on
every prompt, and the share of sets is counted whose p-value against 0 is below 0.05 on the right side: what the gate
`tokens_per_round < 0` does in one cell alone. The p-value is the jackknife's, which the gate uses at every n.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import stats

from driftscope.compare.differences import PairedSides
from driftscope.compare.metrics import metric_of
from driftscope.compare.sides import match_values, sides_of
from driftscope.runs import read_run

NUM_PROMPTS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
TRUE_DIFFERENCES = (-0.1, -0.2, -0.3, -0.5)
NUM_SETS = 4_000
BLOCK = 500
SEED = 20_261_128


def pooled_prompts(cells: list[PairedSides]) -> np.ndarray:
    """[4, prompt]: tokens and rounds of the candidate, then of the baseline; no cell differs on the whole."""
    parts = []
    for cell in cells:
        tokens, rounds, base_tokens, base_rounds = cell.sums(metric_of("tokens_per_round"))
        difference = tokens.sum() / rounds.sum() - base_tokens.sum() / base_rounds.sum()
        parts.append(np.stack([tokens - difference * rounds, rounds, base_tokens, base_rounds]))
    return np.concatenate(parts, axis=1)


def power(prompts: np.ndarray, num_prompts: int, difference: float, rng: np.random.Generator) -> float:
    """Share of the sets in which the gate would fail in this cell alone."""
    found = 0
    for _ in range(NUM_SETS // BLOCK):
        sums = prompts[:, rng.integers(prompts.shape[1], size=(BLOCK, num_prompts))]  # [4, set, prompt]
        sums[0] += difference * sums[1]
        total = sums.sum(axis=-1, keepdims=True)
        estimate = (total[0] / total[1] - total[2] / total[3])[:, 0]  # [set]
        rest = total - sums
        left_out = rest[0] / rest[1] - rest[2] / rest[3]  # [set, prompt]
        centred = left_out - left_out.mean(axis=1, keepdims=True)
        error = np.sqrt((num_prompts - 1) / num_prompts * (centred**2).sum(axis=1))
        found += int((estimate + stats.t.ppf(0.975, num_prompts - 1) * error < 0).sum())
    return found / NUM_SETS


def main() -> None:
    """Prints one row for each number of prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--by", default="system_prompt", choices=("drafter", "system_prompt", "template", "context"))
    parser.add_argument("--baseline")
    options = parser.parse_args()
    run = read_run(options.run)
    matching = match_values(sides_of(run, "run"), options.by, options.baseline)
    cells = [PairedSides.of(*match) for match in matching.matches]
    prompts = pooled_prompts([cell for cell in cells if len(cell.kept) > 1])
    rounds = prompts[[1, 3]].sum(axis=1)
    common = prompts[[0, 2]].sum() / rounds.sum()
    influence = prompts.shape[1] * (
        (prompts[0] - common * prompts[1]) / rounds[0] - (prompts[2] - common * prompts[3]) / rounds[1]
    )
    print(f"{len(cells)} cells, {prompts.shape[1]} pairs of prompts, {prompts[1].mean():.1f} rounds a prompt")
    print(f"standard deviation of a prompt's contribution: {influence.std(ddof=1):.3f} tokens per round")
    print("prompts   no difference " + "".join(f"{difference:>8}" for difference in TRUE_DIFFERENCES))
    rng = np.random.default_rng(SEED)
    for num_prompts in NUM_PROMPTS:
        shares = [power(prompts, num_prompts, difference, rng) for difference in (0.0, *TRUE_DIFFERENCES)]
        print(f"{num_prompts:>7}   {shares[0]:>13.1%} " + "".join(f"{share:>8.0%}" for share in shares[1:]))


if __name__ == "__main__":
    main()
