"""Interventions from the app: offered where a run lacks them, a process of their own, their gains beside the verdicts."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from driftscope.diagnosis.intervene import missing_interventions
from driftscope.runs import read_run
from driftscope.runs.interventions import add_interventions, mark_interventions
from probes.record import InterventionCounts
from tests.app.conftest import OpenApp, charts, checked, texts
from tests.app.varied_run import write_varied_run
from tests.synthetic_run import make_info, make_records, write_run

SLEEP = "import time\ntime.sleep(600)"  # stands for a long measurement


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A folder with a run whose plan names checkpoints, as a measured run's does."""
    plan = {"target": "demo", "drafter": {"eagle3": "demo:eagle3", "eagle3.1": "demo:eagle3.1"}}
    info = make_info().model_copy(update={"plan": plan})
    write_run(tmp_path / "mine.drift", make_records(num_prompts=5, system_prompts=("default",)), info)
    return tmp_path


def said(at: AppTest) -> str:
    """Words without the escapes that keep names from being markup."""
    return texts(at).replace("\\", "")


def button(at: AppTest, label: str) -> object:
    return next(b for b in at.button if b.label == label)


def test_they_are_started_watched_cancelled_and_started_again(
    open_app: OpenApp, planned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from driftscope_app import probe_process

    monkeypatch.setattr(probe_process, "_CODE", SLEEP)
    at = open_app("overview", folder=planned)
    num_missing = len(missing_interventions(read_run(planned / "mine.drift")))
    assert f"**{num_missing} interventions were not tried on mine.**" in said(at)
    button(at, "Run the interventions").click()  # type: ignore[attr-defined]
    checked(at.run())
    process = probe_process.interventions_of(planned, planned / "mine.drift")
    assert process is not None
    assert shlex.split(process.command) == ["driftscope", "diagnose", str(planned / "mine.drift"), "--interventions"]
    try:
        again = open_app("overview", folder=planned)  # a page that is opened later sees it running
        assert "**Interventions on mine** · running" in said(again)
        assert not [b for b in again.button if b.label == "Run the interventions"]
        assert (
            probe_process.start_interventions(planned, planned / "mine.drift").pid == process.pid
        )  # never two at once
        assert probe_process.list_processes(planned) == []  # Probe lists what makes a run
        button(again, "Cancel").click()  # type: ignore[attr-defined]
        checked(again.run())
    finally:
        probe_process.cancel(process)
    deadline = time.monotonic() + 120
    while probe_process.state(process).status == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    ended = open_app("overview", folder=planned)
    assert "**Interventions on mine** · cancelled" in said(ended)
    assert "the next start goes on from there" in said(ended)
    assert button(ended, "Run the interventions")


@pytest.mark.parametrize("target", ["demo", "/models/mine", "org/target"])
def test_what_they_load_is_shown_before_the_button(open_app: OpenApp, planned: Path, target: str) -> None:
    file = planned / "mine.drift" / "run.json"
    stored = json.loads(file.read_text())
    stored["plan"] |= {"target": target, "prompts": "/data/chats.jsonl", "trust_remote_code": True}
    file.write_text(json.dumps(stored))
    at = open_app("overview", folder=planned)
    [shown] = [table.value for table in at.dataframe if list(table.value) == ["what", "where", "from"]]
    origin = {"demo": "ships with driftscope", "/models/mine": "this machine"}.get(
        target, "the Hub, unless it is here already"
    )
    assert shown.to_dict("records") == [
        {"what": "target", "where": target, "from": origin},
        {"what": "drafter eagle3", "where": "demo:eagle3", "from": "ships with driftscope"},
        {"what": "drafter eagle3.1", "where": "demo:eagle3.1", "from": "ships with driftscope"},
        {"what": "prompts", "where": "/data/chats.jsonl", "from": "this machine"},
    ]
    assert "Start them only if you know these models and files." in said(at)
    assert button(at, "Run the interventions")
    assert not (planned / ".probes").exists()  # nothing was started


def test_why_they_were_not_run_is_said(open_app: OpenApp, planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from driftscope_app import probe_process

    reason = "interventions were not run: measuring needs torch, which is not installed"
    monkeypatch.setattr(probe_process, "_CODE", f"import sys\nprint({reason!r}, file=sys.stderr)\nprint('{{}}')")
    process = probe_process.start_interventions(planned, planned / "mine.drift")
    deadline = time.monotonic() + 120
    while probe_process.state(process).status == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    at = open_app("overview", folder=planned)
    assert [str(e.value).replace("\\", "") for e in at.error] == [reason]


def test_a_run_that_cannot_be_intervened_on_says_why(open_app: OpenApp, tmp_path: Path) -> None:
    write_varied_run(tmp_path / "demo.drift", contexts=(0,), system_prompts=("default",))
    at = open_app("overview", folder=tmp_path)
    assert "Interventions cannot be run on demo: run.json holds no plan that this driftscope understands." in said(at)


def test_gains_are_drawn_once_they_are_there(open_app: OpenApp, planned: Path) -> None:
    run = read_run(planned / "mine.drift")
    before = open_app("overview", folder=planned)
    assert not [alt for alt in charts(before) if "gain" in alt]
    missing = missing_interventions(run)
    counts = [
        InterventionCounts(
            id=id,
            kind=kind,
            drafter=drafter,
            system_prompt="default",
            template="default",
            context_tokens=0,
            prompt_id=f"p{number}",
            num_starts=np.full(4, 29),
            accepted=np.array(accepted),
            baseline_accepted=np.array([15, 8, 4, 2 - number % 2]),
        )
        for drafter in ("eagle3", "eagle3.1")
        for number in range(5)
        for id, kind, accepted in (
            ("baseline", "baseline", [15, 8, 4, 2 - number % 2]),
            ("norm_output", "wiring", [20, 14, 9, 6]),
        )
    ]
    add_interventions(run.path, counts, [])
    mark_interventions(run.path, missing, None)
    after = open_app("overview", folder=planned)
    [alt] = [alt for alt in charts(after) if "gain" in alt]
    assert "norm_output" in alt
    gain = (20 + 14 + 9 + 6) / 29 - sum((15 + 8 + 4) / 29 + (2 - n % 2) / 29 for n in range(5)) / 5
    assert f"norm_output (wiring), eagle3: +{gain:.3f}" in alt
    assert len(charts(after)[alt]["layout"]["shapes"]) == 1  # the line at 0
    assert f"Gains that count: eagle3: norm_output ({gain:+.2f}), eagle3.1: norm_output ({gain:+.2f})." in said(after)
    assert not [b for b in after.button if b.label == "Run the interventions"]
