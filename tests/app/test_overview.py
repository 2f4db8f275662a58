"""Overview: cards, dots, the list of runs, what cannot be read, the empty folder."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from driftscope.runs import RunStatus, read_run
from driftscope.runs.info import read_info, write_info
from driftscope.runs.lock import RunLock
from driftscope.summary import Summary
from tests.app.conftest import OpenApp, chart, checked, condition, lines, texts
from tests.app.varied_run import DEPTH


def test_it_opens_on_the_demo_run(open_app: OpenApp) -> None:
    at = open_app("overview")
    assert at.sidebar.multiselect(key="pick_run").value == ["demo"]
    assert at.query_params["run"] == "demo"


def test_dots_and_cards_are_the_summary(open_app: OpenApp, summary: Summary) -> None:
    at = open_app("overview")
    traces = lines(chart(at, "Dot chart"))
    assert sorted(traces) == ["eagle3", "eagle3.1"]
    for drafter, trace in traces.items():
        expected = sorted(c.walk.tokens_per_round for c in summary.conditions if c.drafter == drafter)
        assert sorted(trace["x"]) == pytest.approx(expected)
        lows = sorted(c.walk.low for c in summary.conditions if c.drafter == drafter)
        drawn = sorted(x - d for x, d in zip(trace["x"], trace["error_x"]["arrayminus"], strict=True))
        assert drawn == pytest.approx(lows)
    words = texts(at)
    reference = condition(summary, "eagle3.1").walk
    assert f"{reference.tokens_per_round:.2f}" in words
    assert f"{reference.low:.2f} to {reference.high:.2f}" in words
    num_looping = sum(c.num_degenerate for c in summary.conditions)
    assert f"{num_looping} of {sum(c.num_prompts for c in summary.conditions)} responses loop" in words


def test_runs_are_listed_newest_first_with_their_counts(open_app: OpenApp, runs: Path) -> None:
    table = open_app("overview").dataframe[0].value
    assert sorted(table["run"]) == ["demo", "older"]
    row = table[table["run"] == "demo"].iloc[0]
    assert row["rounds"] == read_info(runs / "demo.drift").counts.num_rounds
    assert row["status"] == "complete"


def test_folders_that_cannot_be_read_are_listed_with_the_reason(open_app: OpenApp, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(runs / "older.drift", folder / "good.drift")
    (folder / "foreign.drift").mkdir()
    (folder / "broken.drift").mkdir()
    (folder / "broken.drift" / "run.json").write_text("{")
    (folder / "file.drift").write_text("")
    (folder / "outside.drift").symlink_to(runs / "demo.drift", target_is_directory=True)
    shutil.copytree(runs / "older.drift", folder / "newer.drift")
    info = read_info(folder / "newer.drift").model_copy(update={"schema_version": 99})
    write_info(folder / "newer.drift", info)
    at = open_app("overview", folder=folder)
    assert at.sidebar.multiselect(key="pick_run").options == ["good"]
    reasons = "\n".join(str(w.value) for w in at.warning).replace("\\", "")
    for name, reason in {
        "foreign.drift": "it has no run.json",
        "broken.drift": "run.json cannot be read",
        "file.drift": "a file, not a folder",
        "outside.drift": "leads out of this folder",
        "newer.drift": "made by a newer driftscope",
    }.items():
        assert any(name in line and reason in line for line in reasons.splitlines()), (name, reasons)


def test_a_run_with_a_damaged_part_says_so_and_the_app_goes_on(open_app: OpenApp, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(runs / "older.drift", folder / "bad.drift")
    part = next((folder / "bad.drift" / "depths").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:100])
    at = open_app("overview", folder=folder)
    assert "this part of the run cannot be read" in "\n".join(str(e.value) for e in at.sidebar.error).replace("\\", "")
    at.switch_page("views/compare.py")
    assert "cannot be read" in texts(checked(at.run()))


def test_an_empty_folder_offers_the_demo_and_the_commands(open_app: OpenApp, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        at = open_app("overview", folder=folder)
        commands = "\n".join(code.value for code in at.code)
        for command in ("driftscope demo", "driftscope probe", "driftscope show"):
            assert command in commands
        assert [b.label for b in at.button] == ["Make the demo run"]
        assert not at.sidebar.multiselect


def test_the_demo_is_started_once(open_app: OpenApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from driftscope_app import probe_process

    monkeypatch.setattr(probe_process, "_CODE", "import time; time.sleep(600)")  # stands for the long measurement
    at = open_app("overview", folder=tmp_path)
    at.button[0].click()
    checked(at.run())
    assert at.title[0].value == "Probe"
    [probe] = probe_process.list_processes(tmp_path)
    assert probe.command == f"driftscope demo --out {tmp_path / 'demo.drift'}"
    at = open_app("overview", folder=tmp_path)
    assert not at.button
    probe_process.cancel(probe)


@pytest.mark.parametrize("page", ["compare", "depth", "heads", "fusion", "context", "rounds"])
def test_pages_without_a_run_point_to_the_start(open_app: OpenApp, tmp_path: Path, page: str) -> None:
    at = open_app(page, folder=tmp_path)
    assert [str(i.value) for i in at.info] == ["There is no run yet."]


def test_a_run_being_written_is_shown_as_running_and_grows(open_app: OpenApp, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    shutil.copytree(runs / "older.drift", folder / "live.drift")
    run = folder / "live.drift"
    info = read_info(run)
    write_info(run, info.model_copy(update={"status": RunStatus.running}))
    with RunLock(run):
        at = open_app("overview", folder=folder)
        assert at.dataframe[0].value["status"].tolist() == ["running"]
        assert at.dataframe[0].value["rounds"].tolist() == [info.counts.num_rounds]
        counts = info.counts.model_copy(update={"num_rounds": info.counts.num_rounds + 7})
        write_info(run, info.model_copy(update={"status": RunStatus.running, "counts": counts}))
        checked(at.run())
        assert at.dataframe[0].value["rounds"].tolist() == [info.counts.num_rounds + 7]


def test_provenance_names_the_drafters_and_their_layers(open_app: OpenApp) -> None:
    words = texts(open_app("overview")).replace("\\", "")
    assert "Drafter eagle3" in words
    assert "target layers 2, 15, 27" in words


def test_verdicts_are_those_of_diagnose(open_app: OpenApp, runs: Path) -> None:
    from driftscope.diagnosis.diagnose import diagnose
    from driftscope.diagnosis.waterfall import LOSS_NAMES

    diagnosis = diagnose(read_run(runs / "demo.drift"))
    at = open_app("overview", evidence="policy · 512")
    words = texts(at).replace("\\", "")
    said = Counter((c.drafter, v.id.value.replace("_", " ")) for c in diagnosis.conditions for v in c.verdicts)
    for (drafter, name), count in said.items():
        where = "in every condition" if count == 12 else f"in {count} of 12 conditions"
        assert f"**{drafter}: {name}** {where}" in words
    found = next(
        c for c in diagnosis.conditions if (c.drafter, c.system_prompt, c.context_tokens) == ("eagle3.1", "policy", 512)
    )
    bars = {trace["name"]: trace for trace in chart(at, "Bars of where the tokens of a round are lost")["data"]}
    row = bars["tokens per round, walk"]["y"].index("eagle3.1")
    for part, value in found.waterfall.items():
        if value:
            assert bars[LOSS_NAMES[part]]["x"][row] == pytest.approx(value)
    assert sum(trace["x"][row] for trace in bars.values()) == pytest.approx(DEPTH + 1)
