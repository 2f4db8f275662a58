"""One case, as a user would go about it: probe, then diagnose with all interventions, and check on the files.

Everything stays in the case's folder: a finished case is read back, a stopped one goes on where it ended.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.fault_bench import prompts
from benchmarks.fault_bench.cases import ENGINE_FAULTS, HEADINGS, PAIRS, TARGET_CHANGES, Case, cases_of
from benchmarks.fault_bench.faults import CUT_VOCABULARY, StaticFault, break_checkpoint
from driftscope.check import check_pair
from driftscope.check.check_report import Severity
from driftscope.diagnosis.diagnose import diagnose
from driftscope.diagnosis.diagnosis import ConditionDiagnosis
from driftscope.diagnosis.facts import ConditionFacts, run_facts
from driftscope.diagnosis.intervene import intervene, missing_interventions
from driftscope.measure.run import measure
from driftscope.plan import Plan
from driftscope.plan_files import read_job
from driftscope.runs import Run, RunStatus, read_run
from probes.checkpoint.read import read_spec
from probes.errors import CheckpointError


@dataclass(frozen=True)
class Options:
    """Of the whole bench."""

    folder: str
    prompt_set: str
    num_prompts: int = 20
    max_new_tokens: int = 64
    depth: int = 7
    device: str = "cpu"


@dataclass(frozen=True)
class Answer:
    """What was said of one drafter in one condition."""

    prompt_set: str
    case: str
    part: str  # static | dynamic | reference | untouched
    fault: str
    drafter: str
    base: str  # sound drafter that the cost is against
    condition: str  # "" for default template and context 0
    right: tuple[str, ...]
    verdicts: tuple[str, ...]
    confidence: str
    evidence: str  # the first verdict's first
    sums: dict[str, tuple[int, int]]  # prompt -> rounds, tokens; dense, of the walk in live runs; without looping text
    new_checks: tuple[str, ...] = ()  # findings of `driftscope check` that the sound pair has not
    named_by_check: bool | None = None  # None: not a fault of files
    detail: str = ""


def run_case(case: Case, options: Options) -> list[Answer]:
    """Measure and judge, or read what was found before."""
    folder = Path(options.folder) / options.prompt_set / case.name
    done = folder / "answers.json"
    if done.exists():
        return [_answer(values) for values in json.loads(done.read_text(encoding="utf-8"))]
    folder.mkdir(parents=True, exist_ok=True)
    answers = _judged(case, folder, options)
    done.write_text(json.dumps([asdict(a) for a in answers], indent=1), encoding="utf-8")
    return answers


def run_named(pair: str, name: str, options: Options) -> list[Answer]:
    """The case of this name, in a process of its own: faults are functions, which do not travel."""
    return run_case(next(case for case in cases_of(PAIRS[pair]()) if case.name == name), options)


def _answer(values: dict) -> Answer:  # type: ignore[type-arg]
    for name in ("right", "verdicts", "new_checks"):
        values[name] = tuple(values[name])
    values["sums"] = {prompt: tuple(sums) for prompt, sums in values["sums"].items()}
    return Answer(**values)


def _judged(case: Case, folder: Path, options: Options) -> list[Answer]:
    fault, drafters, new_checks = case.fault, dict(case.drafters), ()
    if fault is not None:
        sound = Path(case.pair.drafters[fault.kind])
        broken = folder / "checkpoints" / fault.name.replace(" ", "-")
        if not broken.exists():
            break_checkpoint(sound, broken, fault)
        new_checks = _new_checks(case.pair.target, sound, broken)
        try:
            read_spec(str(broken), target_config=_config(case.pair.target))
        except CheckpointError as error:
            return [_refused(case, fault, error, new_checks, options)]
        drafters = {fault.name: str(broken)}
    run = _run(case, drafters, folder, options)
    answers = []
    facts = run_facts(run).conditions
    for condition in diagnose(run).conditions:
        key = (condition.drafter, condition.system_prompt, condition.template, condition.context_tokens)
        label = _condition(condition)
        right = case.right.get(f"{condition.drafter}, {label}" if label else condition.drafter, ("healthy",))
        is_fault = right != ("healthy",)
        first = condition.verdicts[0]
        answers.append(
            Answer(
                prompt_set=options.prompt_set,
                case=case.name,
                part=("dynamic" if fault is CUT_VOCABULARY else case.part) if is_fault else "untouched",
                fault=_fault_name(case, condition) if is_fault else f"sound ({case.name})",
                drafter=condition.drafter,
                base=condition.drafter if fault is None else fault.kind,
                condition=label,
                right=right,
                verdicts=tuple(v.id.value for v in condition.verdicts),
                confidence=first.confidence,
                evidence=first.evidence[0].name,
                sums=_sums(facts[key]),
                new_checks=new_checks,
                named_by_check=None if fault is None or fault is CUT_VOCABULARY else _is_named(fault, new_checks),
                detail="; ".join(e.statement for e in first.evidence)[:400],
            )
        )
    return answers


def _sums(facts: ConditionFacts) -> dict[str, tuple[int, int]]:
    rounds, tokens = facts.num_rounds.tolist(), (facts.num_accepted + facts.num_rounds).tolist()
    return dict(zip(facts.prompt_ids, zip(rounds, tokens, strict=True), strict=True))


def _is_named(fault: StaticFault, new_checks: tuple[str, ...]) -> bool:
    return bool(set(new_checks) & set(fault.checks))


def _refused(
    case: Case, fault: StaticFault, error: CheckpointError, new_checks: tuple[str, ...], options: Options
) -> Answer:
    """Nothing is measured then: the message is the answer, and it names the tensor or key."""
    return Answer(
        prompt_set=options.prompt_set,
        case=case.name,
        part="static",
        fault=fault.name,
        drafter=fault.name,
        base=fault.kind,
        condition="",
        right=(*fault.right, "refused"),
        verdicts=("refused",),
        confidence="",
        evidence=error.code,
        sums={},
        new_checks=new_checks,
        named_by_check=_is_named(fault, new_checks),
        detail=error.message,
    )


def _new_checks(target: str, sound: Path, broken: Path) -> tuple[str, ...]:
    """Warnings and errors that the sound drafter's files do not get."""

    def found(drafter: Path) -> set[tuple[str, tuple[str, ...]]]:
        report = check_pair(target, str(drafter))
        return {(f.id, f.engines) for f in report.findings if f.severity is not Severity.info}

    return tuple(sorted({id for id, _ in found(broken) - found(sound)}))


def _run(case: Case, drafters: dict[str, str], folder: Path, options: Options) -> Run:
    turns = {
        "turns": case.pair.turns,
        "plain": case.pair.plain,
        "logged loops": case.pair.loops,
        "greek": prompts.tiny_greek,
    }[case.prompts](options.prompt_set, options.num_prompts)
    write = prompts.write_loops if case.prompts == "logged loops" else prompts.write_turns
    target = case.pair.target
    if case.target_change:
        changed = folder / "target"
        if not changed.exists():
            TARGET_CHANGES[case.target_change](Path(target), changed)
        target = str(changed)
    (folder / "headings.jinja").write_text(HEADINGS, encoding="utf-8")
    plan_options = dict(case.options)
    if "headings.jinja" in plan_options.get("template", {}).values():
        plan_options["template"] = {
            name: str(folder / path) if path else None for name, path in plan_options["template"].items()
        }
    if case.pair.document is not None and "context_tokens" in plan_options:
        (folder / "document.txt").write_text(case.pair.document(options.prompt_set), encoding="utf-8")
        plan_options["documents"] = [str(folder / "document.txt")]
    plan = Plan(
        target=target,
        drafter=drafters,
        prompts=write(folder / "prompts.jsonl", turns),
        max_new_tokens=options.max_new_tokens,
        depth=options.depth,
        device=options.device,
        batch_size=32 if options.device.startswith("cuda") else 8,
        **plan_options,
    )
    out = folder / "run.drift"
    if not out.exists() or read_run(out).status != RunStatus.complete:
        with ENGINE_FAULTS[case.engine_fault]():
            measure(plan, out, overwrite=out.exists())
    reference = case.pair.target if case.target_change else None
    missing = missing_interventions(read_run(out), reference_target=reference)
    if missing:
        job = replace(read_job(plan)[0], reference_target=reference)
        for note in intervene(out, missing, job):
            sys.stderr.write(f"{case.name}: {note}\n")
    return read_run(out)


def _config(target: str) -> dict:  # type: ignore[type-arg]
    from probes.target.source import target_config

    return target_config(target)  # type: ignore[return-value]


def _condition(condition: ConditionDiagnosis) -> str:
    if condition.template != "default":
        return f"template {condition.template}"
    return f"context {condition.context_tokens}" if condition.context_tokens else ""


def _fault_name(case: Case, condition: ConditionDiagnosis) -> str:
    if case.fault is not None:
        return condition.drafter
    what = case.engine_fault or case.target_change or _condition(condition) or case.name.split("-", 1)[1]
    return f"{condition.drafter}, {what}"
