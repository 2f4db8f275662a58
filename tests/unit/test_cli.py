"""The command line: one JSON object, exit codes, no traceback for a user's mistake, text that survives a pipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from driftscope.cli import main
from driftscope.cli.schema import OUTPUTS, model_of
from driftscope.runs import DrafterInfo, RunInfo, RunStatus, read_run
from driftscope.runs.info import write_info
from tests.synthetic_run import make_info, make_records, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "a.drift", make_records(num_loops=1))


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out)


@pytest.mark.parametrize("command", [["show"], ["runs", "recover"], ["runs", "verify"]])
def test_json_of_a_run_follows_its_schema(run: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, output = _json(capsys, *command, str(run))
    assert code == 0
    assert output["schema_version"] == 1
    assert main(["schema", *command]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.validate(output, schema)
    assert set(output) == set(schema["properties"])


def test_json_of_a_list_follows_its_schema(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run.parent / "broken.drift").mkdir()
    code, output = _json(capsys, "runs", "list", str(run.parent))
    assert code == 0
    assert [entry["name"] for entry in output["runs"]] == ["a", "broken"]
    main(["schema", "runs", "list"])
    jsonschema.validate(output, json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "/no/such.drift"], "run_not_found"),
        (["show"], "usage"),
        (["show", "x", "--no-such-option"], "usage"),
        (["nonsense"], "usage"),
        (["runs", "list", "/no/such/folder"], "folder_not_found"),
        (["runs", "verify", "/no/such.drift"], "run_not_found"),
        (["runs", "recover", "/no/such.drift"], "run_not_found"),
    ],
)
def test_mistakes(arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, output = _json(capsys, *arguments)
    assert exit_code == 2
    jsonschema.validate(output, model_of(OUTPUTS["error"]).model_json_schema())
    assert set(output) == {"schema_version", "error"}
    assert set(output["error"]) == {"code", "message", "where", "remedy"}
    assert output["error"]["code"] == code
    assert output["error"]["message"]
    assert main(arguments) == 2  # and as text: on stderr, no traceback
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
    assert "Traceback" not in captured.err


def test_error_text_names_place_and_remedy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = run / "depths" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:1000])
    assert main(["show", str(run)]) == 2
    message = capsys.readouterr().err
    assert str(part) in message
    assert f"driftscope runs recover {run}" in message


def test_verify_exits_with_1_when_a_check_fails(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = read_run(run).info
    info.counts.num_rounds += 1
    write_info(run, info)
    code, output = _json(capsys, "runs", "verify", str(run))
    assert code == 1
    assert not output["is_sound"]
    assert main(["runs", "verify", str(run)]) == 1
    text = capsys.readouterr().out
    assert "FAILED" in text
    assert "Do not use these numbers." in text


def test_schema_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    names = capsys.readouterr().out.split("\n")[:-1]
    assert names == list(OUTPUTS)
    for name in names:
        assert main(["schema", *name.split()]) == 0
        schema = json.loads(capsys.readouterr().out)
        assert "schema_version" in schema["properties"]
    assert main(["schema", "nonsense"]) == 2


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("driftscope.runs.read_run", interrupted)
    assert main(["show", "x.drift"]) == 130
    assert capsys.readouterr().out == ""
    code, output = _json(capsys, "show", "x.drift")
    assert (code, output["error"]["code"]) == (130, "interrupted")


def test_bugs_show_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("driftscope.runs.read_run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["show", "x.drift"])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("driftscope ")


def _console(*arguments: str, columns: int | None = None, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """The real thing, its output into a pipe."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"PYTHONIOENCODING": encoding} | ({"COLUMNS": str(columns)} if columns else {})
    command = [sys.executable, "-m", "driftscope", *arguments]
    return subprocess.run(command, capture_output=True, env=environment, encoding=encoding, check=False, timeout=120)


def test_the_exit_code_of_a_real_process(tmp_path: Path) -> None:
    result = _console("show", str(tmp_path / "none.drift"))
    assert (result.returncode, result.stdout) == (2, "")
    assert "none.drift" in result.stderr


def test_show_in_a_pipe(run: Path) -> None:
    result = _console("show", str(run))
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    width = max(len(line) for line in lines if str(run) not in line)
    assert width <= 100
    for word in ("acceptance_conditional", "own_excess", "sink_deficit", "chain_gap", "fusion_share", "mass sink"):
        assert word in result.stdout
    summary = json.loads(_console("show", str(run), "--json").stdout)
    for condition in summary["conditions"]:
        row = next(line for line in lines if f"{condition['walk']['tokens_per_round']:.2f}" in line)
        assert f"{condition['walk']['low']:.2f}-{condition['walk']['high']:.2f}" in row
    assert "4 of 24 prompt x drafter batches are looping text" in " ".join(result.stdout.split())
    assert f"driftscope runs verify {run}" in result.stdout


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_show_in_other_widths(run: Path, columns: int) -> None:
    result = _console("show", str(run), columns=columns)
    assert result.returncode == 0
    assert "eagle3.1" in result.stdout


def test_show_on_a_terminal_that_knows_ascii_only(run: Path) -> None:
    result = _console("show", str(run), encoding="ascii")
    assert (result.returncode, result.stderr) == (0, "")


def test_show_with_many_depths_and_names_that_look_like_markup(tmp_path: Path) -> None:
    names = {"drafters": ("[bold]x[/bold]", "[/]"), "system_prompts": ("[red]", "a" * 60)}
    info = RunInfo(engine="live", depth=15, drafters=[DrafterInfo(name=name) for name in names["drafters"]])
    path = write_run(tmp_path / "a.drift", make_records(num_prompts=2, depth=15, engine="live", **names), info)
    result = _console("show", str(path))
    assert (result.returncode, result.stderr) == (0, "")
    assert max(len(line) for line in result.stdout.splitlines() if str(path) not in line) <= 100
    assert "[bold]x[/bold], [red], context 0" in result.stdout
    assert "   1   3   5   7   9  11  13  15" in result.stdout  # eight of the fifteen depths, the last among them
    assert "fewer than 5 prompts: no interval" in result.stdout


@pytest.mark.parametrize("status", [RunStatus.incomplete, RunStatus.failed, RunStatus.running])
def test_show_of_a_run_that_did_not_finish(run: Path, status: RunStatus) -> None:
    info = read_run(run).info
    write_info(run, info.model_copy(update={"status": status, "error": "out of memory", "notes": ["a note"]}))
    result = _console("show", str(run))
    shown = "failed" if status is RunStatus.failed else "incomplete"  # nobody is writing it any more
    assert f"The run is {shown}" in result.stdout
    assert f"driftscope runs recover {run}" in result.stdout
    assert "! a note" in result.stdout


def test_show_of_an_empty_run(tmp_path: Path) -> None:
    result = _console("show", str(write_run(tmp_path / "a.drift", iter([]), make_info())))
    assert result.returncode == 0
    assert "No rounds are stored yet." in result.stdout


def test_a_reader_that_closes_the_pipe(run: Path) -> None:
    command = f"{sys.executable} -m driftscope show {run}"
    script = f"set -o pipefail; {command} | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert result.stdout.splitlines()[0] == str(run)
    assert result.stdout.splitlines()[-1] in ("0", "141")  # it may have written all before head closed
    assert result.stderr == ""


def test_ctrl_c_in_a_real_process() -> None:
    code = """
import signal, sys, time, driftscope.cli, driftscope.runs
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
def wait(path):
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(60)
driftscope.runs.read_run = wait
sys.exit(driftscope.cli.main(["show", "a.drift", "--json"]))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [["show"], ["diagnose", "--no-interventions"], ["runs", "verify"], ["runs", "recover"], ["advise"], ["compare"]],
    ids=" ".join,
)
def test_what_a_run_says_moves_no_cursor(
    run: Path, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names and notes out of run.json: an escape sequence could rewrite what stands on the screen."""
    odd = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\r"
    info = read_run(run).info
    target = info.target.model_copy(update={"name": odd})
    update = {"notes": [odd], "error": odd, "status": RunStatus.failed, "target": target}
    write_info(run, info.model_copy(update=update))
    named = run.rename(tmp_path / f"b{odd[:3]}.drift")
    main([*command, str(named), *([str(named)] if command == ["compare"] else [])])
    main(["runs", "list", str(tmp_path)])
    main(["show", str(tmp_path / f"none{odd}.drift")])
    captured = capsys.readouterr()
    said = (captured.out + captured.err).replace("\n", "")
    assert len(said) > 100
    assert said.isprintable(), [c for c in said if not c.isprintable()]
