"""`driftscope probe` as its user meets it: a run from options and from a plan, a kill and a resume, and every mistake."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from driftscope.cli import main
from driftscope.runs import RunStatus, RunWriter, read_run
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.record import Record
from tests.tiny_models import matched_drafter, tiny_target
from training.write_checkpoint import write_checkpoint

TURNS = ("where is the river", "sum two and three", "name a tree", "what is a bell", "tell me more", "who is there")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target/, drafter/, prompts.jsonl and document.txt."""
    root = tmp_path_factory.mktemp("pair")
    model = tiny_target(seed=0, num_layers=7, folder=root / "target")
    spec, tensors = matched_drafter(model, seed=0, has_own_embedding=False, aux_layer_ids=(2, 3, 4))
    write_checkpoint(Eagle3.load(spec, tensors, target_embedding=model.model.embed_tokens.weight), root / "drafter")
    lines = [{"question_id": i, "category": "test", "turns": [turn]} for i, turn in enumerate(TURNS)]
    (root / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "document.txt").write_text("the lamp was lit again and the tide came in. " * 60)
    return root


def options(pair: Path, run: Path, **changes: str) -> list[str]:
    values = {
        "--target": str(pair / "target"),
        "--drafter": f"mine={pair / 'drafter'}",
        "--prompts": str(pair / "prompts.jsonl"),
        "--documents": str(pair / "document.txt"),
        "--context-tokens": "0,40",
        "--max-new-tokens": "12",
        "--depth": "3",
        "--out": str(run),
    } | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    if values["--context-tokens"] == "0":
        del values["--documents"]
    return ["probe", *(part for item in values.items() for part in item)]


def run_ok(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_shows_and_verifies(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.drift"
    result = run_ok(options(pair, out), capsys)
    assert result["run"]["status"] == "complete"
    assert result["run"]["num_prompts"] == 2 * len(TURNS)
    assert result["self_check"]["num_too_short"] == 0
    shown = run_ok(["show", str(out)], capsys)
    assert [c["context_tokens"] for c in shown["conditions"]] == [0, 40]
    first = shown["conditions"][0]
    assert (first["drafter"], first["system_prompt"], first["template"]) == ("mine", "default", "default")
    assert first["num_prompts"] == len(TURNS)
    assert first["walk"]["tokens_per_round"] >= 1
    assert first["acceptance_marginal"][0] == first["acceptance_conditional"][0]
    assert main(["runs", "verify", str(out)]) == 0
    info = read_run(out).info
    assert info.drafters[0].aux_layer_ids == [2, 3, 4]
    assert info.plan["max_new_tokens"] == 12
    assert info.provenance.packages["torch"]
    assert info.target.files_sha256["config.json"]


def test_a_plan_file_and_options_that_win(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = pair / "plan.toml"
    plan.write_text(
        'target = "target"\nprompts = "prompts.jsonl"\nnum_prompts = 2\nmax_new_tokens = 8\ndepth = 2\n'
        '[drafter]\nmine = "drafter"\n[system_prompt]\nnone = ""\n'
    )
    out = tmp_path / "b.drift"
    run_ok(["probe", str(plan), "--depth", "3", "--engine", "live", "--out", str(out)], capsys)
    run = read_run(out)
    assert (run.info.depth, run.info.engine, run.info.plan["max_new_tokens"]) == (3, "live", 8)
    assert set(run.prompts()["system_prompt"].to_pylist()) == {"none"}
    assert run.rounds()["verify_us"].null_count == 0


def test_without_text_nothing_readable_is_stored(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c.drift"
    run_ok([*options(pair, out, num_prompts="2", context_tokens="0"), "--no-text"], capsys)
    for path in out.rglob("*"):
        if path.is_file():
            assert b"where is the river" not in path.read_bytes()
    assert read_run(out).info.has_text is False


def test_a_killed_run_is_taken_up_again(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, killed = tmp_path / "whole.drift", tmp_path / "killed.drift"
    run_ok(options(pair, whole), capsys)
    code = "import driftscope.runs.writer as w, sys; w.FLUSH_ROUNDS = 1; w.FLUSH_COST_RATIO = 0\n"
    code += "from driftscope.cli import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options(pair, killed)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(killed.glob("rounds/*.parquet")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert read_run(killed).status in (RunStatus.incomplete, RunStatus.complete)
    assert main(["show", str(killed)]) == 0
    capsys.readouterr()
    run_ok([*options(pair, killed), "--resume"], capsys)
    a, b = read_run(whole), read_run(killed)
    assert b.status == RunStatus.complete
    keys = ["context_tokens", "prompt_id", "start"]
    columns = [*keys, "accepted_drafts", "on_walk"]
    assert (
        a.rounds()
        .select(columns)
        .sort_by([(k, "ascending") for k in keys])
        .equals(b.rounds().select(columns).sort_by([(k, "ascending") for k in keys]))
    )


def edited(pair: Path, folder: Path, name: str, edit: Callable[[Path], None]) -> Path:
    """A copy of a checkpoint with one thing broken."""
    copy = folder / f"broken-{name}"
    shutil.copytree(pair / name, copy)
    edit(copy)
    return copy


def change_config(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def change_tensor(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors | {name: change(tensors[name]).contiguous()}, folder / "model.safetensors")

    return edit


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def lfs_pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"
    (folder / "model.safetensors").write_text(text)


BROKEN_DRAFTERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated weights": (truncate, "model.safetensors"),
    "LFS pointer": (lfs_pointer, "model.safetensors"),
    "wrong type": (change_config(hidden_size="wide"), "config.json"),
    "another target's": (change_config(target_hidden_size=37), "hidden size 37"),
    "impossible fc": (change_tensor("fc.weight", lambda t: t[:, :100]), "fc.weight"),
    "d2t out of range": (change_tensor("d2t", lambda t: t + 1000), "d2t"),
    "unknown family": (change_config(architectures=["Eagle3DeepseekV2ForCausalLM"]), "MLA"),
}


@pytest.mark.parametrize("fault", BROKEN_DRAFTERS)
def test_a_broken_drafter_is_one_message(
    fault: str, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, named = BROKEN_DRAFTERS[fault]
    broken = edited(pair, tmp_path, "drafter", edit)
    assert main(options(pair, tmp_path / "x.drift", drafter=f"mine={broken}")) == 2
    said = capsys.readouterr().err
    assert "error:" in said
    assert named in said
    assert "broken-drafter" in said
    assert "Traceback" not in said
    assert not (tmp_path / "x.drift").exists()


MISTAKES: dict[str, tuple[dict[str, str], str]] = {
    "no such target": ({"target": "no/such/target"}, "no/such/target"),
    "no such drafter": ({"drafter": "mine=no-such-folder"}, "no-such-folder"),
    "drafter without a name": ({"drafter": "justapath"}, "NAME=PATH"),
    "no such prompts": ({"prompts": "nowhere.jsonl"}, "nowhere.jsonl"),
    "context too long": ({"context_tokens": "480"}, "--context-tokens"),
    "context beyond the documents": ({"context_tokens": "0,100000"}, "document"),
    "context is no number": ({"context_tokens": "many"}, "--context-tokens"),
    "no such engine": ({"engine": "warp"}, "engine"),
    "depth 0": ({"depth": "0"}, "depth"),
    "system prompt without file": ({"system_prompt": "mine"}, "--system-prompt"),
    "no such system prompt": ({"system_prompt": "mine=nowhere.txt"}, "nowhere.txt"),
    "a run's name": ({"out": "plain-folder"}, ".drift"),
    "no such device": ({"device": "warp"}, "torch knows no device 'warp'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message_with_a_remedy(
    mistake: str, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes, named = MISTAKES[mistake]
    arguments = options(pair, tmp_path / "x.drift", **changes)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert named in said
    lines = said.splitlines()
    assert [line.startswith("error: ") for line in lines[-2:]] == [True, False]  # what and where; what to do
    assert "Traceback" not in said
    assert main([*arguments, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["remedy"]
    assert named in json.dumps(error)


def test_a_wrong_device_is_the_options_fault_and_not_the_targets(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(pair, tmp_path / "x.drift", device="warp"), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["where"]) == ("no_such_device", "--device")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"question_id": 1, "turns": ["a"]', "prompts.jsonl:2"),
        ('{"question_id": 1, "turns": []}', "prompts.jsonl:2"),
        ("[1, 2]", "prompts.jsonl:2"),
        ('{"question_id": 0, "turns": ["again"]}', "prompts.jsonl"),
    ],
)
def test_a_broken_prompt_line_is_named(
    line: str, named: str, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"question_id": 0, "turns": ["fine"]}\n' + line + "\n")
    assert main(options(pair, tmp_path / "x.drift", prompts=str(path))) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("target = ", "plan.toml"),
        ('target = "t"\nsurprise = 1\n[drafter]\na = "b"\n', "surprise"),
        ('target = "t"\n', "drafter"),
        ('target = "t"\ndepth = "deep"\n[drafter]\na = "b"\n', "depth"),
    ],
)
def test_a_broken_plan_is_named(text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    assert main(["probe", str(path)]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert "Traceback" not in said


def test_a_missing_plan_and_a_missing_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "none.drift")]) == 2
    assert "none.drift" in capsys.readouterr().err


def test_an_existing_run_is_not_overwritten_unasked(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "d.drift"
    arguments = options(pair, out, num_prompts="1", context_tokens="0")
    run_ok(arguments, capsys)
    assert main(arguments) == 2
    assert "d.drift" in capsys.readouterr().err
    run_ok([*arguments, "--overwrite"], capsys)
    assert main([*options(pair, out, num_prompts="2", context_tokens="0"), "--resume"]) == 2
    assert "num_prompts" in capsys.readouterr().err


def test_an_overwriting_that_is_interrupted_says_what_is_where(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "d.drift"
    arguments = options(pair, out, num_prompts="1", context_tokens="0")
    run_ok(arguments, capsys)
    before = read_run(out).rounds()

    def interrupted(writer: RunWriter, record: Record) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunWriter, "write_batch", interrupted)
    assert main([*arguments, "--overwrite"]) == 130
    said = capsys.readouterr().err.replace("\n", "")
    assert f"{out} is kept as it was. What was measured so far: {tmp_path / 'd.new.drift'}" in said
    assert read_run(out).rounds().equals(before)
    monkeypatch.undo()
    run_ok([*arguments, "--overwrite"], capsys)
    assert [entry.name for entry in tmp_path.glob("*.drift")] == ["d.drift"]


def test_probabilistic_drafts_cut_sampling_and_what_they_cannot_be_combined_with(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"temperature": "0.9", "top_k": "20", "top_p": "0.9", "draft_sample_method": "probabilistic"}
    out = tmp_path / "drawn.drift"
    run_ok(options(pair, out, engine="live", **asked), capsys)
    info = read_run(out).info
    assert (info.top_k, info.top_p, info.draft_sample_method) == (20, 0.9, "probabilistic")
    assert "min(1, p/q)" in info.acceptance_rule
    assert main(["runs", "verify", str(out)]) == 0
    capsys.readouterr()
    for changes, words in (
        ({}, "use engine live"),
        ({"engine": "vllm"}, "use engine live"),
        ({"engine": "live", "interventions": "all"}, "greedy drafts only"),
        ({"engine": "live", "top_p": "0"}, "top_p"),
    ):
        assert main([*options(pair, tmp_path / "no.drift", **(asked | changes)), "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert words in error["message"]
        assert error["code"] == "bad_option"
    assert (
        main([*options(pair, tmp_path / "no.drift", engine="live", **asked), "--drafter", f"b={pair / 'drafter'}"]) == 2
    )
    assert "one drafter" in capsys.readouterr().err


@pytest.mark.parametrize("private", [["--no-text"], ["--redact"], ["--no-text", "--json"]])
def test_a_template_that_raises_with_the_message_does_not_print_it(
    private: list[str], pair: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ raise_exception('cannot take: ' + messages[-1].content) }}")
    arguments = [*options(pair, tmp_path / "x.drift", template=f"odd={template}"), *private]
    assert main(arguments) == 2
    said = "".join(capfd.readouterr())
    assert "cannot take" not in said
    assert not any(turn in said for turn in TURNS)
    assert "the chat template fails (what it says is left out: it may quote a prompt)" in said
    assert "odd / context" in said  # the condition names the template
    assert main(options(pair, tmp_path / "y.drift", template=f"odd={template}")) == 2
    assert "cannot take: " in capfd.readouterr().err
