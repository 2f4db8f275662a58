"""A run -> its diagnosis: facts, then the rules, then what is printed. Runs nothing, writes nothing."""

from __future__ import annotations

from driftscope.diagnosis.diagnosis import ConditionDiagnosis, Diagnosis, FileFinding, InterventionResult
from driftscope.diagnosis.facts import ConditionFacts, RunFacts, run_facts
from driftscope.diagnosis.gains import Gain
from driftscope.diagnosis.verdicts import judge
from driftscope.diagnosis.waterfall import mean_parts
from driftscope.runs import Run
from probes.errors import RunError


def diagnose(run: Run, reference: Run | None = None) -> Diagnosis:
    """Verdicts of every condition. `reference`: a run of the same conditions to compare with.

    Raises RunError for an unreadable part, and when the run holds no rounds.
    """
    facts = run_facts(run)
    if not facts.conditions:
        raise RunError(
            "there are no rounds to judge",
            code="no_rounds",
            where=str(run.path),
            remedy="Finish the run first: `driftscope runs recover` and `driftscope probe --resume`.",
        )
    other = None if reference is None else run_facts(reference)
    return Diagnosis(conditions=[_condition(c, facts, other) for c in facts.conditions.values()])


def _condition(condition: ConditionFacts, run: RunFacts, reference: RunFacts | None) -> ConditionDiagnosis:
    verdicts, not_judged = judge(condition, run, reference)
    return ConditionDiagnosis(
        **condition.key._asdict(),
        verdicts=verdicts,
        not_judged=not_judged,
        waterfall={} if condition.waterfall is None else mean_parts(condition.waterfall),
        interventions=[_result(gain) for gain in condition.gains],
        file_findings=[
            FileFinding(id=f.id, severity=f.severity.value, what=f.what, statement=f"{f.what} ({f.evidence})")
            for f in condition.file_findings
        ],
    )


def _result(gain: Gain) -> InterventionResult:
    difference = gain.difference
    return InterventionResult(
        id=gain.id,
        kind=gain.kind,
        gain=difference.estimate,
        low=difference.low,
        high=difference.high,
        num_prompts=difference.num_prompts,
        p_value=gain.p_value,
        is_counted=gain.is_counted,
    )
