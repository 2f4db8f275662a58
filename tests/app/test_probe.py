"""Probe: the command is what the form says, it runs as a process of its own, its outcome is the command's own words."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftscope_app.option_form import FORM

from driftscope.builtin import sample_prompts
from driftscope.cli import main
from driftscope.plan import Plan
from driftscope.prompts import PROMPT_SUFFIXES, read_prompts
from tests.app.conftest import OpenApp, checked, texts

BY_THE_PAGE = ("target", "drafter", "system_prompt", "prompts", "turns")
NOT_IN_FORM = {
    **dict.fromkeys(("template", "documents", "vllm"), "needs files or a table of its own: write a plan file"),
    **dict.fromkeys(("prompt_format", "batch_size"), "its default fits nearly always"),
    **dict.fromkeys(("level", "sink_slots", "last_tokens", "target_attention", "seed"), "for a second, closer look"),
    **dict.fromkeys(("interventions", "reference_target"), "`driftscope diagnose` runs them on a finished run"),
    **dict.fromkeys(("costs", "costs_context_tokens"), "means nothing while the app shares the machine"),
    **dict.fromkeys(("text", "redact"), "the app shows prompts; who may not see them starts the probe elsewhere"),
    "trust_remote_code": "a page in a browser must not run foreign code",
}


def command(at: object) -> list[str]:
    """The command that the page shows."""
    return shlex.split(at.code[-1].value)  # type: ignore[attr-defined]


def wait_until_ended(folder: Path, name: str, seconds: float = 60) -> object:
    from driftscope_app import probe_process

    [probe] = [p for p in probe_process.list_processes(folder) if p.name == name]
    deadline = time.monotonic() + seconds
    while (state := probe_process.state(probe)).status == "running":
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
    return state


def test_the_command_follows_the_form(open_app: OpenApp, tmp_path: Path) -> None:
    at = open_app("probe", folder=tmp_path)
    words = command(at)
    assert words[:4] == ["driftscope", "probe", "--target", "demo"]
    assert words.count("--drafter") == 2
    assert words[words.index("--out") + 1] == str(tmp_path / "probe-1.drift")
    at.text_input(key="probe_name").set_value("mine")
    at.text_area(key="probe_drafters").set_value("a=/models/a\n\nb=org/b@main\n")
    at.text_input(key="probe_context_tokens").set_value("0, 1024")
    at.number_input(key="probe_depth").set_value(3)
    at.selectbox(key="probe_engine").set_value("live")
    at.number_input(key="probe_temperature").set_value(0.7)
    at.button_group(key="probe_ready_made").set_value(["none", "policy"])
    checked(at.run())
    words = command(at)
    pairs = list(pairwise(words))
    for pair in [
        ("--drafter", "a=/models/a"),
        ("--drafter", "b=org/b@main"),
        ("--context-tokens", "0,1024"),
        ("--depth", "3"),
        ("--engine", "live"),
        ("--temperature", "0.7"),
        ("--system-prompt", "none"),
        ("--out", str(tmp_path / "mine.drift")),
    ]:
        assert pair in pairs
    assert any(w.startswith("policy=") and w.endswith("policy.txt") for w in words)


def test_every_option_of_a_plan_is_asked_for_or_left_out_with_a_reason(open_app: OpenApp, tmp_path: Path) -> None:
    named = [*FORM, *BY_THE_PAGE, *NOT_IN_FORM]
    assert sorted(named) == sorted(Plan.model_fields)
    at = open_app("probe", folder=tmp_path)
    at.number_input(key="probe_temperature").set_value(0.5)
    at.selectbox(key="probe_engine").set_value("live")
    checked(at.run())
    fields = {w.key: w.help for w in (*at.number_input, *at.text_input, *at.selectbox) if w.key}
    assert {name: fields[f"probe_{name}"] for name in FORM} == {n: Plan.model_fields[n].description for n in FORM}
    assert at.number_input(key="probe_depth").max == 64


def test_typed_prompts_become_files_of_the_command(open_app: OpenApp, tmp_path: Path) -> None:
    at = open_app("probe", folder=tmp_path)
    next(b for b in at.button if b.label == "Write one").click()
    checked(at.run())
    assert "is empty" in texts(at)
    at.text_area(key="probe_own_text_0").set_value("Answer in rhyme. <b>&</b>")
    at.segmented_control(key="probe_turns").set_value("Type them")
    checked(at.run())
    at.text_area(key="probe_typed_turns").set_value("First line\nsecond line\n\nAnother\n")
    at.text_input(key="probe_target").set_value(str(tmp_path / "no-such-target"))
    checked(at.run())
    next(b for b in at.button if b.label == "Start the probe").click()
    checked(at.run())
    folder = tmp_path / ".probes" / "probe-1"
    assert (folder / "system_mine-1.txt").read_text() == "Answer in rhyme. <b>&</b>"
    turns = [json.loads(line)["messages"][0]["content"] for line in (folder / "typed_turns.jsonl").open()]
    assert turns == ["First line\nsecond line", "Another"]
    assert os.stat(tmp_path / ".probes").st_mode & 0o077 == 0
    wait_until_ended(tmp_path, "probe-1")


def test_every_turn_of_uploaded_conversations_can_be_replayed(open_app: OpenApp, tmp_path: Path) -> None:
    at = open_app("probe", folder=tmp_path)
    at.segmented_control(key="probe_turns").set_value("Upload a file")
    checked(at.run())
    assert "probe_all_turns" not in [box.key for box in at.checkbox]
    conversation = sample_prompts() / "multi_turn.jsonl"
    at.file_uploader(key="probe_uploaded_turns").set_value(
        ("chats.jsonl", conversation.read_bytes(), "application/jsonl")
    )
    checked(at.run())
    assert "--turns" not in command(at)
    at.checkbox(key="probe_all_turns").check()
    checked(at.run())
    assert ("--turns", "all") in pairwise(command(at))


def test_the_upload_takes_what_a_prompt_file_may_be(open_app: OpenApp, tmp_path: Path) -> None:
    at = open_app("probe", folder=tmp_path)
    at.segmented_control(key="probe_turns").set_value("Upload a file")
    checked(at.run())
    uploader = at.file_uploader(key="probe_uploaded_turns")
    assert (
        set(uploader.proto.type)
        == set(PROMPT_SUFFIXES)
        >= {".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".md"}
    )
    table = pa.BufferOutputStream()
    pq.write_table(pa.table({"prompt": ["Why is the sky blue?"]}), table)
    uploader.set_value(("chats.parquet", table.getvalue().to_pybytes(), "application/octet-stream"))
    at.text_input(key="probe_target").set_value(str(tmp_path / "no-such-target"))
    checked(at.run())
    next(b for b in at.button if b.label == "Start the probe").click()
    checked(at.run())
    file = tmp_path / ".probes" / "probe-1" / "uploaded.parquet"
    assert file.read_bytes() == table.getvalue().to_pybytes()
    assert len(read_prompts(file).prompts) == 1
    wait_until_ended(tmp_path, "probe-1")


def test_a_ready_made_system_prompt_can_be_edited(open_app: OpenApp, tmp_path: Path) -> None:
    at = open_app("probe", folder=tmp_path)
    next(b for b in at.button if b.label == "Write one").click()
    checked(at.run())
    at.selectbox(key="probe_own_from_0").set_value("german")
    checked(at.run())
    text = (sample_prompts() / "system" / "german.txt").read_text()
    assert at.text_area(key="probe_own_text_0").value == text
    at.text_area(key="probe_own_text_0").set_value(text + "Antworte kurz.")
    checked(at.run())
    assert at.text_area(key="probe_own_text_0").value == text + "Antworte kurz."  # not overwritten again
    assert any(word.startswith("mine-1=") for word in command(at))


def test_sampling_is_asked_for_above_temperature_zero_and_drawn_drafts_of_the_loop(
    open_app: OpenApp, tmp_path: Path
) -> None:
    at = open_app("probe", folder=tmp_path)
    assert "probe_top_k" not in [n.key for n in at.number_input]
    at.number_input(key="probe_temperature").set_value(0.7)
    checked(at.run())
    assert "probe_draft_sample_method" not in [s.key for s in at.selectbox]
    at.selectbox(key="probe_engine").set_value("live")
    at.number_input(key="probe_top_k").set_value(20)
    at.number_input(key="probe_top_p").set_value(0.9)
    checked(at.run())
    at.selectbox(key="probe_draft_sample_method").set_value("probabilistic")
    checked(at.run())
    words = command(at)
    pairs = list(pairwise(words))
    for pair in [
        ("--temperature", "0.7"),
        ("--top-k", "20"),
        ("--top-p", "0.9"),
        ("--draft-sample-method", "probabilistic"),
    ]:
        assert pair in pairs
    assert "give one drafter" in texts(at)
    at.text_area(key="probe_drafters").set_value("eagle3=demo:eagle3")
    checked(at.run())
    assert "give one drafter" not in texts(at)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("probe_name", "../outside", "Use letters"),
        ("probe_name", "a/b", "Use letters"),
        ("probe_name", "", "Use letters"),
        ("probe_target", " ", "Give a target"),
        ("probe_context_tokens", "1,x", "whole numbers"),
    ],
)
def test_what_cannot_be_started_is_said_and_the_button_is_off(
    open_app: OpenApp, tmp_path: Path, key: str, value: str, problem: str
) -> None:
    at = open_app("probe", folder=tmp_path)
    at.text_input(key=key).set_value(value)
    checked(at.run())
    assert problem in texts(at)
    assert next(b for b in at.button if b.label == "Start the probe").disabled


def test_a_name_that_is_taken_is_refused(open_app: OpenApp, runs: Path) -> None:
    at = open_app("probe")
    at.text_input(key="probe_name").set_value("demo")
    checked(at.run())
    assert "There is a run or a probe called demo already." in texts(at)


def test_an_error_is_the_command_s_own_message(
    open_app: OpenApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from driftscope_app import probe_process

    arguments = ["probe", "--target", "demo", "--drafter", f"d={tmp_path / 'nothing here'}", "--num-prompts", "1"]
    probe_process.start(tmp_path, "wrong", arguments, {})
    state = wait_until_ended(tmp_path, "wrong")
    assert main([*arguments, "--out", str(tmp_path / "other.drift"), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert state.status == "failed"  # type: ignore[attr-defined]
    assert error["message"] in state.error  # type: ignore[attr-defined]
    assert error["remedy"] in state.error  # type: ignore[attr-defined]
    at = open_app("probe", folder=tmp_path)  # a page opened later sees it too
    shown = "\n".join(str(e.value) for e in at.error).replace("\\", "")
    assert error["message"] in shown
    next(b for b in at.button if b.label == "Dismiss").click()
    checked(at.run())
    assert not (tmp_path / ".probes" / "wrong").exists()


def test_what_has_said_its_outcome_can_be_dismissed_while_its_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from driftscope_app import probe_process, started

    monkeypatch.setattr(probe_process, "_CODE", "import time\ntime.sleep(600)")
    process = probe_process.start(tmp_path, "slow", ["probe"], {})
    probe_process.forget(process)
    assert process.folder.exists()  # it runs
    (process.folder / "output.json").write_text('{"error": {"message": "no drafter", "where": "", "remedy": ""}}')
    assert probe_process.state(process).status == "failed"
    probe_process.forget(process)
    assert not process.folder.exists()
    started.send(process.folder, signal.SIGKILL)


def test_a_running_probe_can_be_cancelled_and_keeps_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from driftscope_app import probe_process

    monkeypatch.setattr(probe_process, "_CODE", "import time\ntime.sleep(600)")  # stands for a long measurement
    probe = probe_process.start(tmp_path, "long", ["probe"], {})
    assert probe_process.state(probe).status == "running"
    probe_process.forget(probe)  # a running one is not forgotten
    assert probe.folder.exists()
    probe_process.cancel(probe)
    assert wait_until_ended(tmp_path, "long").status == "cancelled"  # type: ignore[attr-defined]
    deadline = time.monotonic() + 120
    while (Path("/proc") / str(probe.pid)).exists():  # ended ones are reaped, too
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_has_just_begun_is_running_and_one_that_has_ended_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux shows no command line at the end of exec (seen for most starts on a busy machine) and after the end."""
    from driftscope_app import probe_process

    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"" if path.name == "cmdline" else read_bytes(path))
    # Not reaped, so that the ended process stays in the table.
    monkeypatch.setattr(subprocess.Popen, "wait", lambda process: None)
    monkeypatch.setattr(probe_process, "_CODE", "import time\ntime.sleep(600)")
    probe = probe_process.start(tmp_path, "young", ["probe"], {})
    assert probe_process.state(probe).status == "running"
    os.kill(probe.pid, signal.SIGKILL)
    os.waitid(os.P_PID, probe.pid, os.WEXITED | os.WNOWAIT)
    assert probe_process.state(probe).status == "failed"
    os.waitpid(probe.pid, 0)
    assert probe_process.state(probe).status == "failed"


def test_progress_is_read_from_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from driftscope_app import probe_process

    code = "import sys,time\nprint('3/12 policy / default / context 0', file=sys.stderr, flush=True)\ntime.sleep(600)"
    monkeypatch.setattr(probe_process, "_CODE", code)
    probe = probe_process.start(tmp_path, "slow", ["probe"], {})
    deadline = time.monotonic() + 120
    while (state := probe_process.state(probe)).num_units is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (state.num_done, state.num_units, state.condition) == (3, 12, "policy / default / context 0")
    probe_process.cancel(probe)
    wait_until_ended(tmp_path, "slow")


def test_a_probe_of_an_app_that_ignores_interrupts_is_still_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from driftscope_app import probe_process

    code = """
import sys, time
try:
    print("0/1 begun", file=sys.stderr, flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("flushed", file=sys.stderr)
"""
    monkeypatch.setattr(probe_process, "_CODE", code)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in an app that a script started in the background
    try:
        probe = probe_process.start(tmp_path, "patient", ["probe"], {})
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 120
    while probe_process.state(probe).num_units is None and time.monotonic() < deadline:
        time.sleep(0.05)
    probe_process.cancel(probe)
    assert wait_until_ended(tmp_path, "patient").status == "cancelled"  # type: ignore[attr-defined]
    assert "flushed" in (probe.folder / "log.txt").read_text()


@pytest.mark.parametrize("more", [{}, {"process_start": 1}], ids=["start unknown", "started at another time"])
def test_another_process_with_the_same_id_is_not_ours(tmp_path: Path, more: dict[str, int]) -> None:
    from driftscope_app import probe_process

    folder = tmp_path / ".probes" / "old"
    folder.mkdir(parents=True)
    record = {"command": "driftscope probe", "out": str(tmp_path / "old.drift"), "pid": os.getpid(), "started_at": 0.0}
    (folder / "process.json").write_text(json.dumps(record | more))
    [probe] = probe_process.list_processes(tmp_path)
    assert probe_process.state(probe).status == "failed"
    probe_process.cancel(probe)  # must not touch this very process


def test_an_engine_is_offered_only_where_it_is_installed(
    open_app: OpenApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = Plan.model_fields["engine"]
    monkeypatch.setattr(field, "annotation", Literal["replay", "live", "vllm"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert open_app("probe", folder=tmp_path).selectbox(key="probe_engine").options == ["replay", "live"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert open_app("probe", folder=tmp_path).selectbox(key="probe_engine").options == ["replay", "live", "vllm"]
