"""Losslessness: what a live loop wrote is what plain decoding writes, up to ties and rounding. Computes no text."""

from __future__ import annotations

from probes.conditions import Job, SelfCheck
from probes.errors import SelfCheckError
from probes.target.sampler import Sampler
from probes.target.trace import TIE_LOGIT_GAP, TargetTrace

LOW_PRECISION_GAP_SHARE = 2.0**-6
"""bfloat16/float16: a first difference between live and plain text with a logit gap above this share of the logits' range
is more than rounding."""
LOW_PRECISION_MAX_GAP_SHARE = 2.0**-4


def compare_with_plain(
    plain: TargetTrace, live: TargetTrace, sampler: Sampler, check: SelfCheck, *, is_float32: bool, prompt_id: str
) -> bool:
    """Losslessness: the live text equals plain decoding, up to ties -> whether it is the same.

    Raises SelfCheckError in float32 when a first difference is no tie; low precision is judged over the whole run.
    """
    num_prompt = plain.num_prompt_tokens
    a = plain.token_ids[num_prompt : num_prompt + plain.num_response_tokens].tolist()
    b = live.token_ids[num_prompt : num_prompt + live.num_response_tokens].tolist()
    check.num_texts += 1
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if first is None and len(a) == len(b):
        check.num_identical += 1
        return True
    first = min(len(a), len(b)) - 1 if first is None else first
    logits = plain.logits[first].float()
    gap = sampler.gap(logits, (prompt_id, num_prompt + first), a[first], b[first])
    check.max_first_difference_gap = max(check.max_first_difference_gap, gap)
    if gap < TIE_LOGIT_GAP:
        check.num_first_differences_tied += 1
    elif is_float32:
        raise SelfCheckError(
            f"live output differs from plain decoding at response token {first}, with a logit gap of {gap:.3g}",
            code="not_lossless",
            where=f"prompt {prompt_id}",
            remedy="speculative decoding must not change the text: please report this with the target and drafter",
        )
    spread = float(logits.max() - logits.min())
    if gap > LOW_PRECISION_MAX_GAP_SHARE * spread:
        raise SelfCheckError(
            f"live output differs from plain decoding by {gap / spread:.3f} of the logits' range",
            code="not_lossless",
            where=f"prompt {prompt_id}, response token {first}",
            remedy="low precision does not explain this: run with --dtype float32 and report the difference",
        )
    check.num_large_gaps += gap > LOW_PRECISION_GAP_SHARE * spread
    return False


def judge(job: Job, check: SelfCheck) -> None:
    if check.num_texts and check.num_large_gaps > check.num_texts / 2:
        raise SelfCheckError(
            f"{check.num_large_gaps} of {check.num_texts} live texts differ from plain decoding by more than rounding",
            code="not_lossless",
            where=f"{job.target} in {job.dtype}",
            remedy="run with --dtype float32",
        )
