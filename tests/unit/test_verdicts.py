"""Every rule on facts made by hand: what it needs, what it must not be fooled by, and the order of what it says."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driftscope.check.check_report import Finding, Severity
from driftscope.diagnosis.diagnosis import NotJudged, Verdict, VerdictId
from driftscope.diagnosis.facts import ConditionFacts, RunFacts, StateChange, run_facts
from driftscope.diagnosis.files import changed_files, check_files
from driftscope.diagnosis.gains import Counts, gains
from driftscope.diagnosis.intervene import why_not
from driftscope.diagnosis.verdicts import RULES, judge
from driftscope.diagnosis.waterfall import PARTS, Waterfall
from driftscope.runs import read_run
from driftscope.stats.paired import holm, paired_difference
from probes.errors import RunError
from probes.record import REGIONS, ConditionKey
from tests.synthetic_run import make_info, make_records, write_run

NUM_PROMPTS, NUM_STARTS, DEPTH = 12, 50, 4
PROMPTS = tuple(f"p{i}" for i in range(NUM_PROMPTS))
DEFAULT, OTHER, LONG = ("default", "default", 0), ("other", "default", 0), ("default", "default", 1024)


def counts_of(shares: list[float], *, spread: float = 0.02, num: int = NUM_STARTS) -> np.ndarray:
    """int [prompt, depth]: `num` times these shares, a little different from prompt to prompt."""
    wiggle = np.linspace(-spread, spread, NUM_PROMPTS)[:, None]
    return np.round(num * np.clip(np.array(shares)[None, :] + wiggle, 0, 1)).astype(np.int64)


def facts_of(
    where: tuple[str, str, int] = DEFAULT,
    *,
    conditional: tuple[float, ...] = (0.6, 0.55, 0.5, 0.5),
    fresh: tuple[float, ...] = (0.6, 0.6, 0.6, 0.6),
    outside: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0),
    chain_decay: float = 0.3,
    interventions: dict[str, tuple[str, list[float]]] | None = None,
    paths: dict[str, list[float]] | None = None,
    **changes: Any,
) -> ConditionFacts:
    """`interventions`: id -> kind and marginal acceptance by depth; `paths`: id -> share right at each depth."""
    marginal = list(np.cumprod(conditional))
    accepted = counts_of(marginal)
    reached = np.concatenate([np.full((NUM_PROMPTS, 1), NUM_STARTS), accepted[:, :-1]], axis=1)
    loss = np.zeros((NUM_PROMPTS, len(PARTS)))
    loss[:, PARTS.index("chain_decay")] = NUM_STARTS * (chain_decay + np.linspace(-0.02, 0.02, NUM_PROMPTS))
    loss[:, PARTS.index("hard_token")] = NUM_STARTS * 2.0
    ones = np.full(NUM_PROMPTS, NUM_STARTS)
    start = np.full((NUM_PROMPTS, DEPTH), NUM_STARTS)
    tried: list[Counts] = []
    if interventions is not None:
        tried.append(Counts("baseline", "baseline", PROMPTS, start, accepted, accepted))
        for id, (kind, shares) in interventions.items():
            tried.append(Counts(id, kind, PROMPTS, start, counts_of(shares) if shares else accepted, accepted))
    for id, shares in (paths or {}).items():
        right = np.round(reached * np.array(shares)).astype(np.int64)
        tried.append(Counts(id, "path", PROMPTS, reached, right, accepted))
    values = {
        "key": ConditionKey("d", *where),
        "prompt_ids": PROMPTS,
        "num_prompts": NUM_PROMPTS,
        "num_degenerate": 0,
        "basis": "dense",
        "num_rounds": ones,
        "num_accepted": accepted.sum(axis=1),
        "reached": reached,
        "accepted": accepted,
        "gap": reached * (np.array(fresh) - np.array(conditional))[None, :],
        "num_gap": reached.astype(float),
        "out_of_vocab": reached * np.array(outside)[None, :],
        "waterfall": Waterfall(loss, ones),
        "counts": tuple(tried),
        "gains": tuple(gains(tried, rounds=tried[0] if tried else None)),
    }
    return ConditionFacts(**(values | changes))


def ids_of(facts: ConditionFacts, *others: ConditionFacts, reference: RunFacts | None = None) -> list[str]:
    return [v.id.value for v in verdicts_of(facts, *others, reference=reference)[0]]


def verdicts_of(
    facts: ConditionFacts, *others: ConditionFacts, reference: RunFacts | None = None
) -> tuple[list[Verdict], list[NotJudged]]:
    run = RunFacts({f.key: f for f in (facts, *others)})
    return judge(facts, run, reference)


TRIED: dict[str, tuple[str, list[float]]] = {"aux_ids_plus_1": ("wiring", [])}  # tried, and it changed nothing


def test_healthy_needs_interventions_to_be_sure() -> None:
    [verdict], not_judged = verdicts_of(facts_of(interventions=TRIED))
    assert (verdict.id, verdict.confidence) == (VerdictId.healthy, "high")
    assert {n.id: n.reason for n in not_judged} == {VerdictId.target_changed: "needs_reference"}
    [verdict], not_judged = verdicts_of(facts_of())
    assert (verdict.id, verdict.confidence) == (VerdictId.healthy, "low")
    assert {n.id for n in not_judged if n.reason == "needs_interventions"} == {VerdictId.wiring_fault}


def test_too_few_prompts_or_rounds() -> None:
    few = facts_of(prompt_ids=PROMPTS[:4], num_rounds=np.full(4, 50))
    assert ids_of(few) == ["not_enough_data"]
    num_rounds = np.full(NUM_PROMPTS, 50)
    num_rounds[4:] = 0  # a prompt counts when it has a round
    [verdict], _ = verdicts_of(facts_of(num_rounds=num_rounds))
    assert (verdict.id.value, verdict.evidence[0].value) == ("not_enough_data", 4.0)
    assert verdict.evidence[0].statement.startswith("4 prompts with 200 dense rounds")
    assert ids_of(facts_of(num_rounds=np.full(NUM_PROMPTS, 4))) == ["not_enough_data"]
    assert ids_of(facts_of(prompt_ids=(), num_degenerate=NUM_PROMPTS)) == ["degenerate_text"]
    assert ids_of(facts_of(num_degenerate=7, interventions=TRIED)) == ["degenerate_text"]


@pytest.mark.parametrize(
    ("id", "kind", "where", "expected"),
    [
        ("aux_ids_plus_1", "wiring", DEFAULT, "wiring_fault"),
        ("norm_output_on", "wiring", DEFAULT, "feedback_fault"),
        ("norm_before_residual_off", "wiring", DEFAULT, "feedback_fault"),
        ("d2t_absolute", "vocabulary", DEFAULT, "wiring_fault"),
        ("rope_target", "context", DEFAULT, "wiring_fault"),
        ("window_off", "context", LONG, "context_limit"),
        ("reference_system_prompt", "template", OTHER, "template_shift"),
        ("reference_target", "target", DEFAULT, "target_changed"),
        ("rescale_state", "sensitivity", DEFAULT, "healthy"),
        ("hide_own_keys", "sensitivity", DEFAULT, "healthy"),
    ],
)
def test_a_repair_names_its_cause(id: str, kind: str, where: tuple[str, str, int], expected: str) -> None:
    better = [0.75, 0.5, 0.3, 0.2]
    verdicts, _ = verdicts_of(facts_of(where, interventions={**TRIED, id: (kind, better)}))
    assert [v.id.value for v in verdicts] == [expected]
    assert verdicts[0].confidence == "high"
    if expected != "healthy":
        assert verdicts[0].evidence[0].value == pytest.approx(0.57, abs=0.05)


def test_small_or_uncertain_gains_make_no_verdict() -> None:
    small = {"aux_ids_plus_1": ("wiring", [0.64, 0.35, 0.18, 0.09])}  # +0.08: counted, not a verdict
    facts = facts_of(interventions=small)
    assert facts.gains[0].is_counted
    assert ids_of(facts) == ["healthy"]
    one_prompt = facts_of(interventions=TRIED)
    baseline, tried = one_prompt.counts
    lucky = tried.accepted.copy()
    lucky[0] = NUM_STARTS  # +0.24 on average, all of it from one prompt
    counts = [baseline, replace(tried, accepted=lucky)]
    result = gains(counts)
    assert result[0].difference.estimate is not None
    assert result[0].difference.estimate > 0.15
    assert not result[0].is_counted
    [verdict], not_judged = verdicts_of(replace(one_prompt, gains=tuple(result)))
    assert (verdict.id, verdict.confidence) == (VerdictId.healthy, "low")  # and what is open is said
    assert {n.id for n in not_judged if n.reason == "not_enough_data"} == {VerdictId.wiring_fault}


def test_holm_is_over_the_conditions_interventions() -> None:
    assert holm([0.04]) == [True]
    assert holm([0.04, 0.5]) == [False, False]
    assert holm([0.001, 0.02, 0.04, None]) == [True, True, True, False]
    assert holm([0.03, 0.001, 0.9]) == [False, True, False]


def test_a_rope_that_helps_short_text_too_is_wiring() -> None:
    better = {"rope_target": ("context", [0.75, 0.5, 0.3, 0.2])}
    short, long = facts_of(interventions=better), facts_of(LONG, interventions=better)
    assert ids_of(long, short) == ["wiring_fault"]
    assert ids_of(long, facts_of(interventions=TRIED)) == ["context_limit"]


def test_a_long_document_that_costs_is_a_context_limit() -> None:
    worse = facts_of(LONG, conditional=(0.45, 0.4, 0.4, 0.4), interventions=TRIED)
    verdicts, _ = verdicts_of(worse, facts_of(interventions=TRIED))
    assert [v.id.value for v in verdicts] == ["context_limit"]
    assert verdicts[0].confidence == "medium"  # measured, not repaired
    _, not_judged = verdicts_of(worse)
    assert VerdictId.context_limit in {n.id for n in not_judged if n.reason == "needs_reference"}


def test_depth_one_as_bad_as_no_trained_drafter_is() -> None:
    assert ids_of(facts_of(conditional=(0.03, 0, 0, 0), fresh=(0.03, 0, 0, 0), interventions=TRIED)) == ["wiring_fault"]
    doubtful = facts_of(
        conditional=(0.15, 0.1, 0, 0),
        fresh=(0.15, 0.1, 0, 0),
        interventions=TRIED,
        checkpoint_errors=("d2t is all zero",),
    )
    verdicts, _ = verdicts_of(doubtful)
    assert (verdicts[0].id.value, verdicts[0].confidence) == ("wiring_fault", "medium")
    # bad under one prompt only: the prompt's fault, not the wiring's
    bad = facts_of(OTHER, conditional=(0.05, 0, 0, 0), fresh=(0.05, 0, 0, 0), interventions=TRIED)
    assert "wiring_fault" not in ids_of(bad, facts_of(interventions=TRIED))


def test_a_collapse_at_depth_two_is_a_feedback_fault_in_any_condition() -> None:
    collapsed = {"conditional": (0.6, 0.2, 0.2, 0.2), "interventions": TRIED}
    assert ids_of(facts_of(**collapsed)) == ["feedback_fault"]
    assert "feedback_fault" in ids_of(facts_of(OTHER, **collapsed), facts_of(interventions=TRIED))
    assert ids_of(facts_of(conditional=(0.6, 0.32, 0.3, 0.3), interventions=TRIED)) == ["healthy"]  # 0.32 > 0.6 / 2


def test_a_vocabulary_that_misses_the_text() -> None:
    gap = facts_of(outside=(0.25, 0.25, 0.25, 0.25), interventions=TRIED)
    verdicts, _ = verdicts_of(gap)
    assert [(v.id.value, v.confidence) for v in verdicts] == [("vocabulary_gap", "medium")]
    # 0.6 / 0.75, 0.55 / 0.75, 0.5 / 0.75 twice
    expected = 0.8 + 0.8 * 0.7333 + 0.8 * 0.7333 * 0.6667 * (1 + 0.6667) - (0.6 + 0.33 + 0.165 + 0.0825)
    assert verdicts[0].evidence[0].value == pytest.approx(expected, abs=0.02)
    # what a cut vocabulary costs by design is said, and no fault
    verdicts, _ = verdicts_of(facts_of(outside=(0.1, 0.1, 0.1, 0.1), interventions=TRIED))
    assert [v.id.value for v in verdicts] == ["healthy"]
    tokens, gain = verdicts[0].evidence
    assert tokens.statement == (
        f"2.18 dense tokens per round over {NUM_PROMPTS * NUM_STARTS} dense rounds of {NUM_PROMPTS} prompts; no fault was "
        "found that costs 0.15 (the size of the draft vocabulary is no fault)"
    )
    assert gain.name == "vocabulary_loss"
    assert gain.statement == (
        f"estimated gain of a full draft vocabulary: {gain.value:+.2f} dense tokens per round, if the tokens that it lacks "
        "are as easy as the others"
    )
    live = facts_of(outside=(0.1, 0.1, 0.1, 0.1), basis="walk")
    assert all(" walk tokens per round" in e.statement for e in verdicts_of(live)[0][0].evidence)
    repaired = {**TRIED, "full_draft_vocab": ("vocabulary", [0.75, 0.5, 0.3, 0.2])}
    verdicts, _ = verdicts_of(facts_of(outside=(0.25, 0.25, 0.25, 0.25), interventions=repaired))
    assert [(v.id.value, v.confidence) for v in verdicts] == [("vocabulary_gap", "high")]
    assert ids_of(facts_of(outside=(0.1, 0.1, 0.1, 0.1), interventions=repaired)) == ["healthy"]


DRIFTED = {"conditional": (0.6, 0.5, 0.35, 0.2), "chain_decay": 0.8, "interventions": TRIED}
CHAIN, FRESH = [0.6, 0.5, 0.35, 0.2], [0.6, 0.6, 0.6, 0.6]
REFERENCE_PATHS = {n: [0.6, 0.55, 0.5, 0.5] for n in ("patch_attention", "patch_state")} | {"fresh": FRESH}


@pytest.mark.parametrize(
    ("attention", "state", "expected"),
    [
        (FRESH, CHAIN, ["attention_drift"]),
        (CHAIN, FRESH, ["state_drift"]),
        (FRESH, FRESH, ["state_drift", "attention_drift"]),
        (CHAIN, CHAIN, ["healthy"]),
    ],
)
def test_drift_is_what_carries_the_excess(attention: list[float], state: list[float], expected: list[str]) -> None:
    paths = {"fresh": FRESH, "patch_attention": attention, "patch_state": state}
    drifted = facts_of(OTHER, paths=paths, **DRIFTED)
    reference = facts_of(paths=REFERENCE_PATHS, interventions=TRIED)
    assert ids_of(drifted, reference) == expected


def test_drift_needs_an_excess_growth_and_a_reference() -> None:
    paths = {"fresh": FRESH, "patch_attention": FRESH, "patch_state": FRESH}
    reference = facts_of(paths=REFERENCE_PATHS, interventions=TRIED)
    drifted = facts_of(OTHER, paths=paths, **DRIFTED)
    no_excess = facts_of(OTHER, paths=paths, **(DRIFTED | {"chain_decay": 0.4}))
    assert ids_of(no_excess, reference) == ["healthy"]
    no_growth = facts_of(OTHER, paths=paths, **DRIFTED, fresh=(0.6, 0.6, 0.45, 0.3))
    assert ids_of(no_growth, reference) == ["healthy"]
    _, not_judged = verdicts_of(drifted)
    assert {n.id for n in not_judged if n.reason == "needs_reference"} >= {
        VerdictId.attention_drift,
        VerdictId.state_drift,
    }
    _, not_judged = verdicts_of(facts_of(OTHER, **DRIFTED), reference)  # no path patches
    assert {n.id for n in not_judged if n.reason == "needs_interventions"} >= {VerdictId.attention_drift}
    # the reference condition itself, however it decays, is not drift: every drafter has a chain_gap
    assert ids_of(facts_of(paths=paths, **DRIFTED)) == ["healthy"]
    # unless another run of the same condition says what it was
    before = RunFacts({reference.key: reference})
    assert ids_of(facts_of(paths=paths, **DRIFTED), reference=before) == ["state_drift", "attention_drift"]


def test_a_changed_target_is_told_from_a_rotated_one() -> None:
    better = {"reference_target": ("target", [0.75, 0.5, 0.3, 0.2]), **TRIED}

    def remedy(cosine: float, gram: float) -> str:
        change = StateChange(aux_layer_id=2, cosine=cosine, norm_ratio=1.0, gram_similarity=gram)
        verdicts, _ = verdicts_of(facts_of(interventions=better, state_changes=(change,)))
        assert [v.id.value for v in verdicts] == ["target_changed"]
        return verdicts[0].remedy

    assert "Rotate" in remedy(0.01, 0.999)
    assert "Rotate" not in remedy(0.6, 0.7)
    assert "Rotate" not in remedy(0.97, 0.98)


def test_what_is_proven_comes_before_what_is_only_measured() -> None:
    better = {"reference_system_prompt": ("template", [0.68, 0.42, 0.22, 0.12]), **TRIED}
    facts = facts_of(OTHER, conditional=(0.6, 0.2, 0.2, 0.2), outside=(0.3, 0, 0, 0), interventions=better)
    assert ids_of(facts, facts_of(interventions=TRIED))[0] == "template_shift"


def test_strong_recency_without_drift_is_not_attention_drift(tmp_path: Path) -> None:
    """Own mass rises steeply with depth and the sink is left, but nothing more is lost than in the reference."""

    def recent(batch: Any) -> Any:
        if not hasattr(batch, "mass"):
            return batch
        mass = {name: np.zeros_like(batch.mass["own"]) for name in REGIONS}
        rising = np.linspace(0, 0.9, batch.depth)[None, :, None, None]
        mass["own"] = np.broadcast_to(rising, mass["own"].shape).astype(np.float32)
        mass["user"] = 1 - mass["own"]
        return replace(batch, mass=mass, recent_mass=mass["own"], own_excess=mass["own"] * 0.5)

    records = [recent(r) for r in make_records(num_prompts=8, num_response_tokens=40, drafters=("eagle3",))]
    facts = run_facts(read_run(write_run(tmp_path / "a.drift", records)))
    for condition in facts.conditions.values():
        verdicts, _ = judge(condition, facts, None)
        assert not {v.id.value for v in verdicts} & {"attention_drift", "state_drift"}


def test_paired_difference_pools_and_pairs() -> None:
    found = paired_difference(np.array([3, 10]), np.array([2, 4]), np.array([2, 8]), np.array([2, 4]))
    assert found.estimate == pytest.approx(13 / 6 - 10 / 6)
    assert (found.low, found.p_value, found.num_prompts) == (None, None, 2)
    ones = np.full(8, 4)
    same = paired_difference(ones + 2, ones, ones, ones)
    assert (same.estimate, same.low, same.high, same.p_value) == (0.5, 0.5, 0.5, 0.0)
    left_out = paired_difference(np.array([3, 10]), np.array([2, 0]), np.array([2, 8]), np.array([2, 4]))
    assert left_out.num_prompts == 1


def finding(id: str, severity: Severity = Severity.warning) -> Finding:
    return Finding(id=id, name=id, severity=severity, what="what", where="config.json", evidence="seen", remedy="do")


def test_what_the_files_name_beforehand_is_its_own_family() -> None:
    """Two dozen harmful rewirings of the same prompts, and one repair of the kind that the files name."""
    rng = np.random.default_rng(0)
    start = np.full((6, 1), 50)
    base = np.array([[5], [30], [2], [12], [20], [8]])

    def counts(id: str, kind: str, accepted: np.ndarray) -> Counts:
        return Counts(id, kind, PROMPTS[:6], start, accepted, base)

    harmful = [counts(f"aux_order_{i}", "wiring", np.maximum(base - rng.integers(3, 9, (6, 1)), 0)) for i in range(24)]
    repair = counts("rope_target", "context", base + np.array([[2], [15], [9], [4], [11], [3]]))
    tried = [counts("baseline", "baseline", base), *harmful, repair]
    blind, named = gains(tried)[0], gains(tried, suspects=("rope_",))[0]
    assert (blind.id, blind.suspected_by, named.suspected_by) == ("rope_target", "", "files")
    assert blind.p_value is not None
    assert named.p_value == pytest.approx(1 / 64)  # all six gain: the surest that six prompts can be
    assert blind.p_value > named.p_value
    assert named.is_counted
    assert gains(tried, context_tokens=1024)[0].suspected_by == "condition"
    assert not any(g.is_counted for g in gains([replace(c, prompt_ids=PROMPTS[:4]) for c in _first(tried, 4)]))


def _first(tried: list[Counts], num: int) -> list[Counts]:
    cut = ("num_starts", "accepted", "baseline_accepted")
    return [replace(c, **{name: getattr(c, name)[:num] for name in cut}) for c in tried]


def test_files_and_the_largest_gain_make_a_verdict_of_medium_confidence() -> None:
    uncertain = {**TRIED, "rope_target": ("context", [0.75, 0.5, 0.3, 0.2])}
    facts = facts_of(interventions=uncertain, file_findings=(finding("DS401"),))
    open_gains = tuple(replace(g, is_counted=False) for g in facts.gains)
    [verdict], _ = verdicts_of(replace(facts, gains=open_gains))
    assert (verdict.id, verdict.confidence) == (VerdictId.wiring_fault, "medium")
    assert [e.name for e in verdict.evidence] == ["rope_target", "DS401"]
    # the files name something else, or the interval reaches 0: an open question
    assert ids_of(replace(facts, gains=open_gains, file_findings=(finding("DS302"),))) == ["healthy"]
    wide = tuple(replace(g, difference=g.difference._replace(low=-0.1)) for g in open_gains)
    assert ids_of(replace(facts, gains=wide)) == ["healthy"]
    # the feedback's flags make a feedback_fault
    flags = {**TRIED, "norm_output_on": ("wiring", [0.75, 0.5, 0.3, 0.2])}
    facts = facts_of(interventions=flags, file_findings=(finding("DS204"),))
    open_gains = tuple(replace(g, is_counted=False) for g in facts.gains)
    assert ids_of(replace(facts, gains=open_gains)) == ["feedback_fault"]


def test_an_engine_whose_rounds_a_replay_betters_has_a_feedback_fault() -> None:
    better = {**TRIED, "replayed_rounds": ("wiring", [0.75, 0.5, 0.3, 0.2])}
    [verdict], _ = verdicts_of(facts_of(interventions=better))
    assert (verdict.id, verdict.confidence) == (VerdictId.feedback_fault, "high")
    assert "The checkpoint is sound" in verdict.remedy


def test_a_sign_says_nothing_beside_a_proven_cause() -> None:
    change = StateChange(aux_layer_id=2, cosine=0.01, norm_ratio=1.0, gram_similarity=0.999)
    repaired = {"reference_target": ("target", [0.6, 0.3, 0.2, 0.1]), **TRIED}
    unwired = {"conditional": (0.02, 0, 0, 0), "fresh": (0.02, 0, 0, 0)}
    assert ids_of(facts_of(interventions=repaired, state_changes=(change,), **unwired)) == ["target_changed"]
    assert ids_of(facts_of(interventions=TRIED, **unwired)) == ["wiring_fault"]
    # nor where the first drafts fail because their tokens cannot be drafted
    outside = facts_of(
        interventions=TRIED, outside=(0.95, 0.9, 0, 0), conditional=(0.03, 0, 0, 0), fresh=(0.03, 0, 0, 0)
    )
    assert ids_of(outside) == ["vocabulary_gap"]


@pytest.mark.parametrize(
    ("cosine", "norm_ratio", "expected"),
    [
        (0.9999, 1.001, ("healthy", "high")),
        (0.993, 1.001, ("target_changed", "low")),
        (0.9999, 1.05, ("target_changed", "low")),
        (0.85, 1.0, ("target_changed", "medium")),
        (0.9999, 1.3, ("target_changed", "medium")),
    ],
)
def test_a_target_that_is_another_is_said_even_where_it_costs_nothing(
    cosine: float, norm_ratio: float, expected: tuple[str, str]
) -> None:
    change = StateChange(aux_layer_id=2, cosine=cosine, norm_ratio=norm_ratio, gram_similarity=0.99)
    same = {"reference_target": ("target", list[float]()), **TRIED}
    [verdict], _ = verdicts_of(facts_of(interventions=same, state_changes=(change,)))
    assert (verdict.id.value, verdict.confidence) == expected


def test_drift_is_no_verdict_where_nothing_more_is_lost() -> None:
    paths = {"fresh": FRESH, "patch_attention": FRESH, "patch_state": FRESH}
    reference = facts_of(paths=REFERENCE_PATHS, interventions=TRIED)
    better = facts_of(OTHER, paths=paths, **(DRIFTED | {"conditional": (0.75, 0.6, 0.45, 0.3)}))
    assert ids_of(better, reference) == ["healthy"]


def test_looping_text_is_said_first() -> None:
    repaired = {**TRIED, "aux_ids_plus_1": ("wiring", [0.75, 0.5, 0.3, 0.2])}
    assert ids_of(facts_of(num_degenerate=7, interventions=repaired)) == ["degenerate_text", "wiring_fault"]


TINY_PAIR = Path(__file__).parents[1] / "fixtures" / "tiny_pair"


def test_diagnose_takes_checks_findings_from_the_run_and_needs_no_torch(tmp_path: Path) -> None:
    """What `driftscope check` found when the pair was measured; the files themselves are not looked at again."""
    run = write_run(tmp_path / "a.drift", make_records(num_prompts=6, drafters=("eagle3",)))
    info = json.loads((run / "run.json").read_text())
    found = check_files(str(TINY_PAIR / "target"), str(TINY_PAIR / "drafter"))
    assert found is not None
    assert check_files("owner/target", str(TINY_PAIR / "drafter")) is None  # a Hub id is not asked for
    for drafter in info["drafters"]:
        drafter |= {"path": "/nowhere", "file_findings": found}
    (run / "run.json").write_text(json.dumps(info))
    code = (
        f"import sys, driftscope.cli\ndriftscope.cli.main(['diagnose', {str(run)!r}, '--no-interventions', '--json'])\n"
        "sys.stderr.write(repr([n for n in ('torch', 'transformers', 'vllm', 'streamlit') if n in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr.splitlines()[-1] == "[]"
    for condition in json.loads(done.stdout)["conditions"]:
        assert [f["id"] for f in condition["file_findings"]] == ["DS102"]
    for drafter in info["drafters"]:  # a run from before, or of files that could not be read
        drafter["file_findings"] = None
    (run / "run.json").write_text(json.dumps(info))
    assert all(c.file_findings == () for c in run_facts(read_run(run)).conditions.values())
    for drafter in info["drafters"]:
        drafter["file_findings"] = [{"id": 3}]
    (run / "run.json").write_text(json.dumps(info))
    with pytest.raises(RunError, match="findings of the files"):
        run_facts(read_run(run))


def test_files_that_changed_since_they_were_measured_are_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights").write_text("w")
    recorded = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("config.json", "weights")}
    assert changed_files(str(tmp_path), recorded) == []
    (tmp_path / "weights").write_text("v")
    assert changed_files(str(tmp_path), recorded | {"gone": "0"}) == ["gone", "weights"]
    assert changed_files("owner/name", recorded) == []


def test_every_verdict_has_its_row_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip(" `") for line in text.splitlines() if line.startswith("| `")]
    assert [r for r in rows if r in set(VerdictId)] == [v.value for v in VerdictId]
    assert {rule.__name__ for rule in RULES} | {"healthy", "not_enough_data"} == {v.value for v in VerdictId}


def test_why_no_intervention_can_be_run(tmp_path: Path) -> None:
    plan = {"target": "demo", "drafter": {"d": "demo:eagle3"}}
    info = make_info().model_copy(update={"plan": plan})
    reasons = {
        "fits": {},
        "import": {"engine": "import"},
        "no_text": {"has_text": False},
        "drawn": {"draft_sample_method": "probabilistic"},
        "no_plan": {"plan": {"depth": 4}},
    }
    said = {}
    for name, change in reasons.items():
        run = write_run(tmp_path / f"{name}.drift", make_records(), info.model_copy(update=change))
        said[name] = why_not(read_run(run))
    assert said["fits"] is None
    assert [word in str(said[name]) for name, word in {"import": "imported", "no_text": "--no-text"}.items()] == [
        True
    ] * 2
    assert "interventions count greedy drafts" in str(said["drawn"])
    assert "no plan" in str(said["no_plan"])
