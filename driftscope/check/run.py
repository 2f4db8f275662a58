"""One check from start to end: read the pair, raise the checks, compare the engines, count the coverage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from driftscope.check.check_report import (
    SEVERITY_ORDER,
    CheckItem,
    CheckList,
    CheckReport,
    DrafterSummary,
    Finding,
    Severity,
    TargetSummary,
)
from driftscope.check.coverage import measure_coverage
from driftscope.check.pair import Pair, read_pair
from driftscope.check.registry import ENGINE_CHECKS, PAIR_MODULES, all_checks, check_of_reader_code
from driftscope.check.rules import prompts
from driftscope.check.rules.files import ENGINE_REFUSES, OTHER
from driftscope.check.rules.target import quantization
from driftscope.check.table import engine_findings, setting_rows

FAULTS = (Severity.error, Severity.warning)


def check_pair(
    target: str, drafter: str, *, prompt_file: Path | None = None, prompt_format: str | None = None
) -> CheckReport:
    """Everything that the files show about a target and a drafter (folders or Hub ids), and a prompt file's coverage.

    Raises CheckpointError or InputError for input that cannot be read; a drafter that can be opened but not be right is
    a report with findings of severity error.
    """
    pair = read_pair(target, drafter)
    embedding = pair.embedding_likeness
    rows = setting_rows(pair, is_targets_embedding=None if embedding is None else embedding.is_equal)
    findings = [*_reader_findings(pair), *engine_findings(pair, rows, ENGINE_CHECKS, ENGINE_REFUSES)]
    for module in PAIR_MODULES:
        findings += module.find(pair)
    coverage = None
    if prompt_file is not None:
        coverage, longest_tokens = measure_coverage(pair, prompt_file, format=prompt_format)
        findings += prompts.find(pair, coverage, longest_tokens)
    ordered = tuple(sorted(findings, key=lambda f: (SEVERITY_ORDER.index(f.severity), f.id, f.where)))
    return CheckReport(
        target=_target_summary(pair),
        drafter=_drafter_summary(pair),
        is_clean=not any(finding.severity in FAULTS for finding in ordered),
        findings=ordered,
        settings=tuple(rows),
        coverage=coverage,
        not_checked=tuple(_not_checked(pair)),
    )


def list_checks() -> CheckList:
    """Every check, by id."""
    return CheckList(
        checks=tuple(
            CheckItem(id=c.id, name=c.name, severity=c.severity, title=c.title, page=c.page) for c in all_checks()
        )
    )


def _reader_findings(pair: Pair) -> Iterator[Finding]:
    """What the checkpoint reader reports, and what it refused, under the checks' ids."""
    for found in pair.spec.findings if pair.spec is not None else ():
        check = check_of_reader_code(found.code)
        yield check.finding(
            found.message if check is not OTHER else f"{found.code}: {found.message}",
            where=found.where,
            remedy=found.remedy,
            severity=Severity(found.severity),
        )
    if pair.refusal is not None:
        yield check_of_reader_code(pair.refusal.code).finding(
            pair.refusal.message, where=pair.refusal.where, remedy=pair.refusal.remedy, severity=Severity.error
        )


def _target_summary(pair: Pair) -> TargetSummary:
    target = pair.target
    return TargetSummary(
        name=target.name,
        model_type=target.model_type or None,
        num_layers=target.num_layers,
        hidden_size=target.integer("hidden_size"),
        vocab_size=target.integer("vocab_size"),
        max_position_embeddings=target.integer("max_position_embeddings"),
        quantization=quantization(target),
    )


def _drafter_summary(pair: Pair) -> DrafterSummary:
    said = ("producer", "kind", "family", "num_layers", "draft_vocab_size")
    return DrafterSummary(name=pair.drafter_name, **{name: getattr(pair.spec, name, None) for name in said})


def _not_checked(pair: Pair) -> Iterator[str]:
    if pair.refusal is not None:
        yield "The checkpoint was refused, so the checks that need its settings did not run; the table shows engines alone."
    if pair.target.tensors is None:
        yield "The target's weights were not read: embedding and lm_head were not compared."
    elif pair.spec is not None and pair.spec.has_own_embedding and pair.embedding_likeness is None:
        yield "The drafter's embedding could not be compared with the target's (another width, or quantised)."
    if pair.target.rope is None:
        yield "The target's rope is of a kind that cannot be compared with the drafter's."
    if pair.is_remote:
        yield "The drafter's weights were read from the Hub in a few ranges only."
    yield (
        "norm_output, norm_before_residual, the training's chat template and what an engine does at run time (stale draft "
        "keys, attention kernels, sampling) leave no trace in files: `driftscope probe` measures them."
    )
