"""What the checkpoints' files say on their own, and which interventions that makes suspects before anything is measured.

`driftscope check` looks at target and drafters when they are measured, and what it finds is kept in run.json: a diagnosis
opens no file that only the run names. Knows no acceptance: that is what makes its suspicions usable as hypotheses stated
beforehand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from driftscope.check import check_pair
from driftscope.check.check_report import Finding
from driftscope.check.run import FAULTS
from driftscope.runs import Run
from driftscope.runs.info import RUN_JSON
from probes.errors import DriftscopeError, RunError
from probes.regular_file import open_regular

CONFIG = "config.json"
_FINDINGS = TypeAdapter(tuple[Finding, ...])
_BY_AREA = {
    "DS1": ("aux_",),
    "DS2": ("norm_output_", "norm_before_residual_", "fc_norm_", "norm_before_fc_", "double_hidden_norm"),
    "DS3": ("d2t_", "target_embedding", "target_lm_head"),
    "DS4": ("rope_", "window_"),
}
"""The hundred that a check's id belongs to -> beginnings of the ids of interventions that could repair it."""


def file_findings(run: Run) -> dict[str, tuple[Finding, ...]]:
    """By drafter, what stands in run.json. Raises RunError where that is no list of findings."""
    try:
        return {d.name: _FINDINGS.validate_python(d.file_findings or ()) for d in run.info.drafters}
    except ValidationError as error:
        raise RunError(
            "run.json holds findings of the files that this driftscope does not understand",
            code="bad_run_json",
            where=str(run.path / RUN_JSON),
            remedy="Take file_findings out of run.json; `driftscope check TARGET DRAFTER` finds them again.",
        ) from error


def check_files(target: str, drafter: str) -> list[dict[str, Any]] | None:
    """What is wrong with these folders' files (warnings and errors), as run.json keeps it; None where that cannot be told:
    Hub ids, unreadable files. To be called only for what the user names.

    What only an engine would misread is left out: the run did not.
    """
    if not all((Path(folder) / CONFIG).is_file() for folder in (target, drafter)):
        return None
    try:
        report = check_pair(target, drafter)
    except DriftscopeError:
        return None
    return [f.model_dump(mode="json") for f in report.findings if f.severity in FAULTS and not f.engines]


def changed_files(folder: str, recorded: Mapping[str, str]) -> list[str]:
    """Names of the files that the run measured and that are others, or missing, in this folder; none for a Hub id."""
    if not Path(folder).is_dir():
        return []
    return [name for name, sha256 in sorted(recorded.items()) if _sha256(Path(folder) / Path(name).name) != sha256]


def suspects(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Beginnings of the ids of interventions that these findings name."""
    return tuple(sorted({prefix for f in findings for prefix in _BY_AREA.get(f.id[:3], ())}))


def _sha256(path: Path) -> str | None:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError, DriftscopeError):
        return None
