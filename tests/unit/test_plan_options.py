"""Options that would change nothing are refused with a sentence; a run's stored plan is read all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driftscope.cli import main
from driftscope.diagnosis.intervene import why_not
from driftscope.plan import Plan, make_plan, read_plan
from driftscope.runs import read_run
from probes.errors import InputError
from tests.synthetic_run import make_records, write_run

MODELS: dict[str, Any] = {"target": "t", "drafter": {"d": "x"}}

IDLE: list[tuple[dict[str, Any], str]] = [
    ({"prompt_format": "openai-chat"}, "prompt_format has no effect here: it is of a prompt file"),
    ({"documents": ["/does/not/exist"]}, "documents has no effect here: they fill context_tokens, which is 0"),
    ({"level": "heads"}, "level has no effect here: it is of engine vllm"),
    ({"vllm": {"max_model_len": 64}, "engine": "live"}, "vllm has no effect here: it is of engine vllm"),
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
