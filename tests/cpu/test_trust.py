"""A run is data: what it names is loaded only where its user names it, agrees to it, or it ships with driftscope."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.cli import main
from driftscope.cli.demo import demo_plan
from driftscope.diagnosis.named import Named, named_by, named_in
from driftscope.runs import read_run
from probes.interventions.registry import ALL

TINY_PAIR = Path(__file__).parents[1] / "fixtures" / "tiny_pair"
EVIL = """open({pwned!r}, "w").write("x")
from transformers import LlamaConfig
class EvilConfig(LlamaConfig):
    model_type = "evilllama"
"""
LEFT = "fresh"
"""The one intervention that the run lacks: the others take long and show no more."""

_opened: list[str] | None = None


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_hear)


@contextmanager
def opened() -> Iterator[list[str]]:
    """Within: the names of all files that Python opens and folders that it lists."""
    global _opened
    _opened = names = []
    try:
        yield names
    finally:
        _opened = None


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pair/, texts of all kinds, and run.drift, which lacks one intervention."""
    root = tmp_path_factory.mktemp("trust")
    shutil.copytree(TINY_PAIR, root / "pair")
    lines = [{"question_id": i, "category": "t", "turns": [t]} for i, t in enumerate(("name a tree", "who is there"))]
    (root / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "system.txt").write_text("be brief")
    (root / "document.txt").write_text("the river is long and the tree is old " * 20)
    (root / "plain.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    options = {
        "--target": "pair/target",
        "--drafter": "d=pair/drafter",
        "--prompts": "prompts.jsonl",
        "--system-prompt": "ours=system.txt",
        "--template": "plain=plain.jinja",
        "--context-tokens": "8",
        "--documents": "document.txt",
        "--max-new-tokens": "8",
        "--depth": "2",
        "--out": "run.drift",
    }
    here = Path.cwd()
    os.chdir(root)
    try:
        assert main(["probe", *[word for option in options.items() for word in option]]) == 0
    finally:
        os.chdir(here)
    change(root / "run.drift", lambda info: info.update(interventions=[i.id for i in ALL if i.id != LEFT]))
    return root


def change(run: Path, by: Callable[[dict[str, Any]], object]) -> None:
    info = json.loads((run / "run.json").read_text())
    by(info)
    (run / "run.json").write_text(json.dumps(info))


@pytest.fixture
def folder(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `measured`, the current folder; no network."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"network: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    copy = Path(shutil.copytree(measured, tmp_path / "work"))
    monkeypatch.chdir(copy)
    return copy


def evil_model(at: Path, pwned: Path) -> Path:
    """A target whose config.json brings Python."""
    shutil.copytree(TINY_PAIR / "target", at)
    config = json.loads((at / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "evil.EvilConfig"}, "model_type": "evilllama"}
    (at / "config.json").write_text(json.dumps(config))
    (at / "evil.py").write_text(EVIL.format(pwned=str(pwned)))
    return at


def tried(run: Path) -> bool:
    return LEFT in read_run(run).info.interventions


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    capsys.readouterr()
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_a_run_that_brings_code_runs_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """attack.md, finding 1: the run's plan trusts its own model."""
    pwned = folder / "pwned"
    evil_model(folder / "run.drift" / "model", pwned)
    plan = {"trust_remote_code": True, "target": "run.drift/model", "prompts": None}
    change(folder / "run.drift", lambda info: info["plan"].update(plan))
    code, output, err = said(capsys, "diagnose", "run.drift")
    assert (code, [c["drafter"] for c in output["conditions"]]) == (1, ["d"])
    assert f"target: {folder}/run.drift/model" in err
    assert "driftscope diagnose run.drift --interventions" in err
    code, output, err = said(capsys, "diagnose", "run.drift", "--interventions")
    assert (code, output["error"]["code"]) == (2, "inside_a_run")
    assert f"target: {folder}/run.drift/model" in err
    shutil.move(folder / "run.drift" / "model", folder / "model")
    change(folder / "run.drift", lambda info: info["plan"].update(target="model"))
    for more in (["--interventions"], ["--interventions", "--target", "model"]):
        code, output, _ = said(capsys, "diagnose", "run.drift", *more)
        assert (code, output["error"]["code"]) == (2, "remote_code")
        assert "--trust-remote-code" in output["error"]["remedy"]
    assert not pwned.exists()
    assert not tried(folder / "run.drift")


def test_the_command_line_alone_allows_code(folder: Path) -> None:
    evil_model(folder / "model", folder / "pwned")
    change(folder / "run.drift", lambda info: info["plan"].update(target="model"))
    command = [sys.executable, "-m", "driftscope", "diagnose", "run.drift", "--interventions", "--trust-remote-code"]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"HF_MODULES_CACHE": str(folder / "modules"), "PYTHONPATH": root, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, env=environment, capture_output=True, check=False, timeout=300)
    assert (folder / "pwned").exists()


@pytest.mark.parametrize("option", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_kernel_that_a_config_names_is_not_fetched(
    option: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "pair" / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {option: "evil/kernel"}))
    code, output, _ = said(capsys, "diagnose", "run.drift", "--interventions")
    assert (code, output["error"]["code"]) == (2, "remote_code")
    assert "evil/kernel" in output["error"]["message"]


@pytest.mark.parametrize("name", ["target", "drafter", "prompts", "documents", "system_prompt", "template"])
def test_nothing_inside_a_run_is_loaded_also_through_links(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = folder / "other.drift"
    shutil.copytree(folder / "run.drift", inside)
    shutil.copytree(folder / "pair", inside / "pair")
    for file in ("prompts.jsonl", "document.txt", "system.txt", "plain.jinja"):
        shutil.copy(folder / file, inside / file)
    (inside / "out").symlink_to(folder)
    (folder / "link").symlink_to(inside)
    values = {
        "target": "{}/pair/target",
        "drafter": {"d": "{}/pair/drafter"},
        "prompts": "{}/prompts.jsonl",
        "documents": ["{}/document.txt"],
        "system_prompt": {"ours": "{}/system.txt"},
        "template": {"plain": "{}/plain.jinja"},
    }
    for place in ("other.drift", "link", "other.drift/out", f"{folder}/link", "run.drift/../link"):
        value = json.loads(json.dumps(values[name]).replace("{}", place))
        change(folder / "run.drift", lambda info, value=value: info["plan"].update({name: value}))
        code, output, _ = said(capsys, "diagnose", "run.drift", "--interventions")
        assert (code, output["error"]["code"]) == (2, "inside_a_run"), place
    assert not tried(folder / "run.drift")


def test_reading_commands_open_nothing_that_a_run_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a config, not a header; a pipe in its place blocks nobody, a Hub id is not asked for."""
    secret = folder / "secret"
    shutil.move(folder / "pair", secret)
    for name in ("prompts.jsonl", "document.txt", "system.txt", "plain.jinja"):
        (folder / name).unlink()
        os.mkfifo(secret / name)
    plan = {
        "target": str(secret / "target"),
        "drafter": {"d": str(secret / "drafter")},
        "reference_target": "evil/reference",
        "prompts": str(secret / "prompts.jsonl"),
        "documents": [str(secret / "document.txt")],
        "system_prompt": {"ours": str(secret / "system.txt")},
        "template": {"plain": str(secret / "plain.jinja")},
        "trust_remote_code": True,
    }

    def name_them(info: dict[str, Any], plan: dict[str, Any] = plan) -> None:
        info["plan"].update(plan)
        info["target"] |= {"path": plan["target"], "name": plan["target"]}
        info["drafters"][0] |= {"path": plan["drafter"]["d"], "file_findings": None}

    for named in (plan, plan | {"target": "evil/target", "drafter": {"d": "evil/drafter"}}):
        change(folder / "run.drift", lambda info, named=named: name_them(info, named))
        with opened() as names:
            for command in (
                ["diagnose", "run.drift"],
                ["diagnose", "run.drift", "--no-interventions"],
                ["show", "run.drift"],
                ["advise", "run.drift"],
                ["compare", "run.drift", "run.drift"],
                ["report", "run.drift", "-o", "report.html"],
                ["export", "run.drift", "--to", "csv", "-o", f"tables-{named['target'][:4].strip('/')}", "--overwrite"],
                ["runs", "verify", "run.drift"],
            ):
                assert main(command) in (0, 1), command
        assert any(name.endswith("run.json") for name in names)  # the ear works
        read = {name for name in names if name.startswith(str(secret))}
        assert read <= {str(secret / "target" / "tokenizer.json")}  # the report's words
        err = capsys.readouterr().err
        assert named["target"] in err
        assert "evil/reference" not in err  # nothing would load it


def test_what_the_command_line_names_is_loaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run was made on a GPU, its models lie elsewhere now."""
    shutil.move(folder / "pair", folder / "moved")

    def elsewhere(info: dict[str, Any]) -> None:
        info["plan"].update(
            device="cuda", documents=[], context_tokens=[0], prompts=None, system_prompt={}, template={}
        )

    change(folder / "run.drift", elsewhere)
    names = ["--target", "moved/target", "--drafter", "d=moved/drafter"]
    code, output, err = said(capsys, "diagnose", "run.drift", *names)
    assert (code, output["error"]["code"]) == (2, "no_such_device")  # asked for by name: not left out
    code, _, err = said(capsys, "diagnose", "run.drift", *names, "--device", "cpu", "--dtype", "bfloat16")
    assert code == 1
    assert tried(folder / "run.drift")
    assert "interventions were counted on cpu in bfloat16, the run measured on cpu in float32" in err
    notes = read_run(folder / "run.drift").info.notes
    assert [n for n in notes if "bfloat16" in n] == [
        "interventions were counted on cpu in bfloat16, the run measured on cpu in float32"
    ]


def test_models_that_changed_since_are_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder / "pair" / "drafter" / "config.json"
    config.write_text(config.read_text() + "\n")
    code, _, err = said(capsys, "diagnose", "run.drift", "--interventions")
    assert code == 1
    expected = "interventions: drafter d in pair/drafter is not what the run was measured with: config.json differs"
    assert expected in err
    assert expected in read_run(folder / "run.drift").info.notes


def test_a_terminal_is_asked(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    for answer, is_run in (("\n", False), ("", False), ("n\n", False), ("yes of course\n", False), ("y\n", True)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        main(["diagnose", "run.drift"])
        captured = capsys.readouterr()
        assert f"drafter d: {folder}/pair/drafter" in captured.err
        assert tried(folder / "run.drift") is is_run, answer
    change(folder / "run.drift", lambda info: info.update(interventions=[]))
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    said(capsys, "diagnose", "run.drift")  # --json asks nothing
    assert not tried(folder / "run.drift")


def test_options_that_a_run_gives_no_use_for_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = ("--depth 9", "--prompts /nope", "--num-prompts 1", "--max-new-tokens 4", "--out x", "--context-tokens 0")
    for option in (*(o.split() for o in new), ["--overwrite"]):
        code, output, _ = said(capsys, "diagnose", "run.drift", *option)
        assert (code, output["error"]["code"], output["error"]["where"]) == (2, "option_without_effect", option[0])
    stored = ("--device cpu", "--dtype float32", "--target t", "--drafter d=x", "--reference-target t")
    for option in (*(o.split() for o in stored), ["--trust-remote-code"]):
        code, output, _ = said(capsys, "diagnose", "run.drift", "--no-interventions", *option)
        assert (code, output["error"]["code"], output["error"]["where"]) == (2, "option_without_effect", option[0])
    for option in (o.split() for o in stored):  # of use to interventions alone, which nobody has agreed to
        code, output, _ = said(capsys, "diagnose", "run.drift", *option)
        assert (code, output["error"]["code"]) == (2, "not_agreed"), option
    code, output, _ = said(capsys, "diagnose", "run.drift", "--drafter", "other=x")
    assert (code, output["error"]["code"]) == (2, "no_such_drafter")
    code, output, _ = said(capsys, "diagnose", "run.drift", "--interventions", "--dtype", "nonsense")
    assert (code, output["error"]["code"]) == (2, "bad_option")


@pytest.mark.parametrize("name", ["a\0b", "~nobody/x", "n" * 5_000, "x/../../..", "a\nb", ""])
def test_a_name_that_is_no_path_is_one_message(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "run.drift", lambda info: info["plan"].update(target=name))
    assert said(capsys, "diagnose", "run.drift")[0] == 1
    code, output, err = said(capsys, "diagnose", "run.drift", "--interventions")
    assert (code, bool(output["error"]["message"])) == (2, True)
    assert "\0" not in err


def test_texts_of_another_target_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Token ids are the run's: they index the target's embedding."""
    path = folder / "run.drift" / "prompts.parquet"
    table = pq.read_table(path)
    index = table.column_names.index("token_ids")
    field = table.schema.field(index)
    for number, reason in ((-1, "contradictory_run"), (1 << 30, "bad_text")):  # no target has it; this one has not
        changed = pa.array([[number, *ids[1:]] for ids in table["token_ids"].to_pylist()], field.type)
        pq.write_table(table.set_column(index, field, changed), path)
        code, output, _ = said(capsys, "diagnose", "run.drift", "--interventions")
        assert (code, output["error"]["code"]) == (2, reason)


def test_what_ships_with_driftscope_is_known(folder: Path) -> None:
    assert all(thing.is_builtin for thing in named_in(demo_plan()))
    assert named_by(read_run(folder / "run.drift")) == [
        Named("target", f"{folder}/pair/target", False),
        Named("drafter d", f"{folder}/pair/drafter", False),
        Named("prompts", f"{folder}/prompts.jsonl", False),
        Named("document", f"{folder}/document.txt", False),
        Named("system prompt ours", f"{folder}/system.txt", False),
        Named("template plain", f"{folder}/plain.jinja", False),
    ]
    sample = next(iter(thing.value for thing in named_in(demo_plan()) if "system" in thing.what))
    for drafter in ("demo:../../x", "demo:", "demo:eagle3/../x", "evil/demo:eagle3"):
        plan = demo_plan().model_copy(update={"drafter": {"d": drafter}, "system_prompt": {}})
        assert [thing.is_builtin for thing in named_in(plan)] == [True, False]
    for file in (f"{sample}/../../../../x", "short.txt", f"{Path(sample).parent}/../system/short.txt"):
        plan = demo_plan().model_copy(update={"system_prompt": {"s": file}})
        assert named_in(plan)[-1].is_builtin is False
    change(folder / "run.drift", lambda info: info.update(plan={"target": 3}))
    assert named_by(read_run(folder / "run.drift")) == []
