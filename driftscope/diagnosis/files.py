"""What the checkpoints' files say on their own, and which interventions that makes suspects before anything is measured.

Runs `driftscope check` on a run's target and drafters where they still lie where they were measured. Knows no acceptance:
that is what makes its suspicions usable as hypotheses stated beforehand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from driftscope.check import check_pair
from driftscope.check.models import Finding
from driftscope.check.run import FAULTS
from driftscope.runs import Run
from driftscope.runs.info import DrafterInfo
from probes.errors import DriftscopeError

CONFIG = "config.json"
_BY_AREA = {
    "DS1": ("aux_",),
    "DS2": ("norm_output_", "norm_before_residual_", "fc_norm_", "norm_before_fc_", "double_hidden_norm"),
    "DS3": ("d2t_", "target_embedding", "target_lm_head"),
    "DS4": ("rope_", "window_"),
}
"""The hundred that a check's id belongs to -> beginnings of the ids of interventions that could repair it."""


def file_findings(run: Run) -> dict[str, tuple[Finding, ...]]:
    """By drafter, what `driftscope check` finds wrong (warnings and errors). Empty where files are gone, changed since,
    or not readable: a diagnosis of a stored run must not need them.

    What only an engine would misread is left out: the run did not.
    """
    target = run.info.target.path
    found = {}
    for drafter in run.info.drafters:
        if not _is_there(target) or not _is_unchanged(drafter):
            continue
        try:
            report = check_pair(target, drafter.path)
        except DriftscopeError:
            continue
        found[drafter.name] = tuple(f for f in report.findings if f.severity in FAULTS and not f.engines)
    return found


def suspects(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Beginnings of the ids of interventions that these findings name."""
    return tuple(sorted({prefix for f in findings for prefix in _BY_AREA.get(f.id[:3], ())}))


def _is_there(path: str) -> bool:
    return bool(path) and (Path(path) / CONFIG).is_file()


def _is_unchanged(drafter: DrafterInfo) -> bool:
    """Whether config.json is the one that was measured."""
    if not _is_there(drafter.path):
        return False
    with (Path(drafter.path) / CONFIG).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == drafter.files_sha256.get(CONFIG)
