"""The two drift verdicts: what carries the excess of chain decay over the reference. docs/verdicts.md has their rows."""

from __future__ import annotations

from driftscope.diagnosis import drift
from driftscope.diagnosis.case import Case, Outcome, found, needs_interventions
from driftscope.diagnosis.diagnosis import Evidence, NotJudged, VerdictId
from driftscope.diagnosis.evidence import difference_evidence
from driftscope.diagnosis.measures import dense_difference
from driftscope.stats.thresholds import VERDICT_MIN_TOKENS


def attention_drift(case: Case) -> Outcome:
    """The excess of chain decay is carried by what the chain's queries attend to."""
    remedy = "Train with more TTT depth, or a drafter that feeds back the normed state (EAGLE-3.1)."
    return _drift(case, VerdictId.attention_drift, ("patch_keys", "patch_attention"), remedy)


def state_drift(case: Case) -> Outcome:
    """The excess of chain decay is carried by the fed-back state: query and residual together, since either alone beside
    the other's fed-back value is a combination that no drafter was trained on (docs/verdicts.md has the measurement)."""
    remedy = "Train with more TTT depth or feed back the normed state (EAGLE-3.1); until then lower the draft depth."
    return _drift(case, VerdictId.state_drift, ("patch_state",), remedy)


def _drift(case: Case, id: VerdictId, patches: tuple[str, ...], remedy: str) -> Outcome:
    if case.is_own_reference:
        return None  # every drafter has a chain_gap; the reference condition is judged by feedback_fault alone
    if case.reference is None:
        detail = "no condition to compare with: the target's default system prompt at context 0, or --reference RUN"
        return NotJudged(id=id, reason="needs_reference", detail=detail)
    excess = drift.chain_decay_excess(case.facts, case.reference)
    if excess is None:
        return NotJudged(id=id, reason="needs_fresh_pass", detail="one of the two has no walk with a fresh pass")
    if (excess.estimate or 0.0) < VERDICT_MIN_TOKENS or not excess.is_above_zero:
        return None
    lost = dense_difference(case.reference, case.facts)
    if (lost.estimate or 0.0) < VERDICT_MIN_TOKENS:
        return None  # where no more is lost than in the reference there is nothing to explain
    growth = drift.gap_growth(case.facts)
    if not growth.is_above_zero:
        return None
    shares = [(drift.recovered_share(case.facts, case.reference, patch), patch) for patch in patches]
    known = [(share, patch) for share, patch in shares if share is not None]
    if not known:
        return needs_interventions(id)
    share, patch = max(known)
    if share < drift.MIN_SHARE:
        return None
    evidence = [
        difference_evidence(
            "chain_decay",
            f"{excess.estimate or 0.0:.2f} walk tokens per round more are lost to chain decay than in the reference",
            excess,
        ),
        difference_evidence(
            "chain_gap",
            f"chain_gap grows by {growth.estimate or 0.0:.3f} from depth 2 to the deeper ones",
            growth,
            threshold=0.0,
        ),
        Evidence(
            name=patch,
            statement=f"true features on this path recover {share:.0%} of the excess",
            value=share,
            threshold=drift.MIN_SHARE,
        ),
    ]
    return found(id, "high", evidence, remedy, excess.estimate, is_proven=True)
