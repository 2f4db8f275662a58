"""The text of `driftscope diagnose`: what is printed of losses and gains, and which legends go with it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from driftscope.cli.diagnose_text import print_diagnosis
from driftscope.diagnosis.diagnosis import ConditionDiagnosis, Diagnosis, InterventionResult
from driftscope.runs import read_run
from tests.synthetic_run import write_run

TRIED = "Tried: gains in dense tokens_per_round, paired by prompt"
LOST = "Lost: all drafts after a round's first rejection"


def text_of(path: Path, waterfall: dict[str, float], *tried: InterventionResult) -> str:
    condition = ConditionDiagnosis(
        drafter="eagle3",
        system_prompt="german",
        template="default",
        context_tokens=0,
        verdicts=[],
        not_judged=[],
        waterfall=waterfall,
        interventions=list(tried),
    )
    out = io.StringIO()
    console = Console(file=out, width=120)
    print_diagnosis(console, read_run(write_run(path)), Diagnosis(conditions=[condition]))
    return out.getvalue()


def gain(value: float | None, *, kind: str = "wiring", is_counted: bool = False) -> InterventionResult:
    return InterventionResult(
        id="aux_ids_plus_1", kind=kind, gain=value, low=None, high=None, num_prompts=7, is_counted=is_counted
    )


def test_losses_are_named_as_losses(tmp_path: Path) -> None:
    text = text_of(tmp_path / "a.drift", {"hard_token": 1.25, "out_of_draft_vocab": 2.21, "grammar": 0.0})
    assert "  tokens of an average walk round: lost to vocabulary 2.21, lost to hard tokens 1.25\n" in text
    assert LOST in text


@pytest.mark.parametrize(
    ("tried", "has_legend", "has_star"),
    [
        ((), False, False),
        ((gain(None),), False, False),
        ((gain(0.4, kind="path"),), False, False),
        ((gain(0.4),), True, False),
        ((gain(0.4, is_counted=True),), True, True),
    ],
)
def test_a_legend_only_for_what_is_printed(
    tmp_path: Path, tried: tuple[InterventionResult, ...], has_legend: bool, has_star: bool
) -> None:
    text = text_of(tmp_path / "a.drift", {}, *tried)
    assert (TRIED in text) is has_legend
    assert ("* = counted" in text) is has_star
    assert LOST not in text
