"""Every option of a plan has its place everywhere, written once; one that would change nothing is refused."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from driftscope.cli import main
from driftscope.cli.options_page import documentation
from driftscope.cli.plan_options import PLAN_FILE_ONLY
from driftscope.cli.probe import probe
from driftscope.diagnosis.intervene import why_not
from driftscope.diagnosis.named import named_in
from driftscope.plan import PATH, Plan, flag, make_plan
from driftscope.plan_files import read_plan
from driftscope.runs import read_run
from probes.conditions import Job
from probes.errors import InputError
from tests.synthetic_run import make_records, write_run

MODELS: dict[str, Any] = {"target": "t", "drafter": {"d": "x"}}

NOT_IN_JOB = {  # option -> what it becomes, or who reads it
    **{"drafter": "drafters", "system_prompt": "system_prompts", "template": "templates"},
    **dict.fromkeys(("prompt_format", "turns", "num_prompts", "redact"), "the job's prompts"),
    **dict.fromkeys(("level", "vllm"), "measure_vllm"),
    **dict.fromkeys(("costs", "costs_context_tokens"), "measure_costs"),
    "text": "the run's writer",
}


def default_of(field: dataclasses.Field[Any]) -> Any:
    return list(field.default) if isinstance(field.default, tuple) else field.default


def test_every_option_is_described_in_one_short_sentence() -> None:
    for name, field in Plan.model_fields.items():
        description = field.description or ""
        assert re.fullmatch(r"[A-Zr].*[^.]\.", description), name
        assert len(description.split()) <= 35, name
        assert ". " not in description, name


def test_the_command_line_has_every_option_with_its_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    on_command_line = set(inspect.signature(probe).parameters) - {"plan", "out", "resume", "overwrite", "json"}
    assert on_command_line == set(Plan.model_fields) - set(PLAN_FILE_ONLY)
    for name in on_command_line:
        assert f" {flag(name)} " in help_text
        assert str(Plan.model_fields[name].description).replace("- ", "-") in help_text
    assert set(PLAN_FILE_ONLY) <= set(Plan.model_fields)


def test_the_page_of_docs_is_printed_from_the_options() -> None:
    assert (Path(__file__).parents[2] / "docs" / "options.md").read_text() == documentation()


def test_the_job_has_every_option_with_the_same_default() -> None:
    in_job = {field.name: field for field in dataclasses.fields(Job)}
    assert set(Plan.model_fields) - set(in_job) == set(NOT_IN_JOB)
    assert set(in_job) - set(Plan.model_fields) == {"drafters", "system_prompts", "templates"}
    shared = set(in_job) & set(Plan.model_fields) - {"target", "prompts"}
    defaults = {name: Plan.model_fields[name].get_default(call_default_factory=True) for name in shared}
    assert {name: default_of(in_job[name]) for name in shared} == defaults


def test_every_path_of_a_plan_is_among_what_it_names() -> None:
    """A run's plan may be anybody's: what it would load or read is shown first (`driftscope.diagnosis.named`)."""
    paths = [name for name, field in Plan.model_fields.items() if PATH in field.metadata]
    table = {"drafter", "system_prompt", "template"}
    values = {n: {"x": f"/{n}"} if n in table else [f"/{n}"] if n == "documents" else f"/{n}" for n in paths}
    plan = Plan.model_validate(values, context={"is_stored": True})
    assert {thing.value for thing in named_in(plan)} == {f"/{name}" for name in paths} - {"/reference_target"}


def test_lists_and_names_are_read_as_the_command_line_writes_them() -> None:
    text = {"context_tokens": "0, 64", "costs": "1,8", "interventions": "fresh, patch_keys"}
    plan = make_plan({"target": "t"}, {"drafter": ["a=x=y", "b=z"], "system_prompt": ["none", "s=f"], **text}, where="")
    assert (plan.context_tokens, plan.costs, plan.interventions) == ([0, 64], [1, 8], ["fresh", "patch_keys"])
    assert (plan.drafter, plan.system_prompt) == ({"a": "x=y", "b": "z"}, {"none": None, "s": "f"})
    assert make_plan({"target": "t", "drafter": {"": "x"}}, where="").drafter == {"": "x"}  # a table may have any name


@pytest.mark.parametrize(
    ("given", "where", "words"),
    [
        ({"drafter": ["x"]}, "--drafter", "'x' is not of the form NAME=PATH"),
        ({"drafter": [{"a": "x=y"}]}, "--drafter", "valid dictionary"),
        ({"drafter": ["=x"]}, "--drafter", "'=x' is not of the form NAME=PATH"),
        ({"drafter": ["a=x", "a=y"]}, "--drafter", "'a' is given twice"),
        ({"system_prompt": ["mine"]}, "--system-prompt", "or one of none, default, prompt"),
        ({"context_tokens": "0,x"}, "--context-tokens", "valid integer"),
        ({"depth": 65}, "--depth", "less than or equal to 64"),
    ],
)
def test_a_mistake_on_the_command_line_names_the_option(given: dict[str, Any], where: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        make_plan(MODELS, given, where="plan.toml")
    assert (caught.value.code, caught.value.where) == ("bad_option", where)
    with pytest.raises(InputError) as caught:
        make_plan(MODELS | given, where="plan.toml")
    assert caught.value.where == "plan.toml"


IDLE: list[tuple[dict[str, Any], str]] = [
    ({"prompt_format": "openai-chat"}, "prompt_format has no effect here: it describes a prompt file"),
    ({"documents": ["/does/not/exist"]}, "documents has no effect here: they fill context_tokens, which is 0"),
    ({"level": "heads"}, "level has no effect here: only engine vllm reads it"),
    ({"vllm": {"max_model_len": 64}, "engine": "live"}, "vllm has no effect here: only engine vllm reads it"),
    ({"top_k": 5}, "top_k has no effect here: nothing is drawn at temperature 0"),
    ({"top_p": 0.5}, "top_p has no effect here"),
    ({"seed": 3}, "seed has no effect here"),
    ({"draft_sample_method": "probabilistic", "engine": "live"}, "draft_sample_method has no effect here"),
    ({"turns": "all", "max_new_tokens": 16}, "max_new_tokens has no effect here"),
    ({"last_tokens": 4, "engine": "live"}, "last_tokens has no effect here: engine live records whole rounds"),
    ({"last_tokens": 4, "engine": "vllm"}, "last_tokens has no effect here: engine vllm records whole rounds"),
    ({"costs_context_tokens": [64]}, "costs_context_tokens has no effect here"),
    ({"reference_target": "r"}, "reference_target has no effect here"),
    ({"reference_target": "r", "interventions": ["fresh"]}, "reference_target has no effect here"),
    ({"interventions": ["reference_target"]}, "it needs reference_target"),
]

USED: list[dict[str, Any]] = [
    {"prompt_format": "openai-chat", "prompts": "p"},
    {"documents": ["x"], "context_tokens": [0, 64]},
    {"level": "heads", "vllm": {"max_model_len": 64}, "engine": "vllm"},
    {"top_k": 5, "top_p": 0.5, "seed": 3, "temperature": 0.5},
    {"draft_sample_method": "probabilistic", "engine": "live", "temperature": 1.0},
    {"max_new_tokens": 16},
    {"last_tokens": 4},
    {"costs_context_tokens": [64], "costs": [1]},
    {"reference_target": "r", "interventions": ["all"]},
    {"reference_target": "r", "interventions": ["fresh", "reference_target"]},
]


@pytest.mark.parametrize(("options", "sentence"), IDLE, ids=lambda value: str(value)[:40])
def test_an_option_without_effect_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        make_plan(MODELS | options, where="options")
    assert caught.value.code == "bad_option"
    assert sentence in caught.value.message
    assert Plan.of_run(MODELS | options).target == "t"  # a run made before


@pytest.mark.parametrize("options", USED, ids=lambda value: str(value)[:40])
def test_an_option_with_its_reason_is_taken(options: dict[str, Any]) -> None:
    plan = make_plan(MODELS | options, where="options")
    assert {name: getattr(plan, name) for name in options} == options
    assert make_plan(plan.model_dump(mode="json"), where="again") == plan


def test_an_old_runs_plan_is_still_understood(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a.drift", make_records())
    info = json.loads((run / "run.json").read_text())
    info |= {"engine": "live", "plan": MODELS | {"last_tokens": 4, "engine": "live", "trust_remote_code": True}}
    (run / "run.json").write_text(json.dumps(info))
    stored = read_run(run)
    assert why_not(stored) is None
    plan = Plan.of_run(stored.info.plan)
    assert (plan.last_tokens, plan.trust_remote_code) == (4, False)


@pytest.mark.parametrize("text", ["trust_remote_code = true", "[vllm]\ntrust_remote_code = true"])
def test_remote_code_is_not_taken_from_a_plan_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_plan(file)
    assert (caught.value.code, caught.value.where) == ("remote_code", str(file))
    assert "--trust-remote-code" in caught.value.remedy
    read_plan(file, trust_remote_code=True)
    file.write_text(text.replace("true", "false"))
    read_plan(file)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ("check t d --prompt-format csv", "--prompt-format"),
        ("check --list --prompts p", "--prompts"),
        ("check t --list", "TARGET"),
        ("compare a b --fail-on point", "--fail-on"),
        ("probe --target t --drafter d=x --resume --overwrite", "command line"),
    ],
)
def test_a_commands_option_without_effect_is_refused(
    arguments: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments.split(), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["where"] == where
