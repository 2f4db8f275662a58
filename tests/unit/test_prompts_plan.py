"""From a prompt file to conditions: names of the prompts' own system prompts, rendered prompts, what the notes say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driftscope.plan import make_plan
from driftscope.plan_files import read_job
from probes.conditions import Job, prompt_conditions, prompts_of
from probes.errors import InputError

FILES = Path(__file__).parents[1] / "fixtures" / "prompts"


def job_of(prompts: Path, **options: Any) -> tuple[Job, list[str]]:
    return read_job(make_plan({"target": "t", "drafter": {"d": "d"}, "prompts": str(prompts), **options}, where="test"))


def conditions(job: Job) -> dict[tuple[str, str, int], list[str]]:
    return {cell.key: [p.prompt_id for p in prompts_of(job, cell)] for cell in prompt_conditions(job)}


def test_every_prompt_release_is_a_condition_of_its_own_prompts() -> None:
    job, notes = job_of(FILES / "langfuse.jsonl")
    assert conditions(job) == {
        ("support@7", "default", 0): ["o1"],
        ("support@8", "default", 0): ["o2"],
        ("prompt", "default", 0): ["o4"],
        ("draft@?", "default", 0): ["o7"],
    }
    assert notes[0] == "langfuse.jsonl: 4 prompts read as langfuse, 3 with an answer that is replayed"
    assert len(notes) == 5  # three reasons, one change


def test_a_system_prompt_that_is_asked_for_takes_all_prompts(tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("Be brief.")
    job, _ = job_of(
        FILES / "langfuse.jsonl", system_prompt={"prompt": None, "none": None, "brief": str(tmp_path / "s.txt")}
    )
    by_name = {name: ids for (name, _, _), ids in conditions(job).items()}
    assert by_name["none"] == by_name["brief"] == ["o1", "o2", "o4", "o7"]
    assert by_name["support@7"] == ["o1"]
    with pytest.raises(InputError) as caught:
        job_of(FILES / "langfuse.jsonl", system_prompt={"prompt": None, "support@7": str(tmp_path / "s.txt")})
    assert caught.value.code == "duplicate_system_prompt"


def test_files_without_system_turns_have_the_default_condition() -> None:
    job, notes = job_of(FILES / "mt_bench.jsonl")
    assert conditions(job) == {("default", "default", 0): ["81", "82"]}
    assert notes[0] == "mt_bench.jsonl: 2 prompts read as turns"
    job, _ = job_of(FILES / "openai_chat.jsonl")
    assert list(conditions(job)) == [("prompt", "default", 0)]


@pytest.mark.parametrize("name", ["preformatted.jsonl", "token_ids.jsonl", "openai_completions.jsonl"])
def test_rendered_prompts_have_one_condition_and_take_no_other(name: str, tmp_path: Path) -> None:
    job, _ = job_of(FILES / name)
    [(key, ids)] = conditions(job).items()
    assert key == ("prompt", "raw", 0)
    assert len(ids) == len(job.prompts)
    for options in ({"system_prompt": {"none": None}}, {"template": {"default": None}}, {"context_tokens": [0, 8]}):
        with pytest.raises(InputError) as caught:
            job_of(FILES / name, **options)
        assert caught.value.code == "rendered_prompts"
        assert caught.value.where == str(FILES / name)


def test_rendered_prompts_and_messages_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    bodies = [{"prompt": "Once"}, {"messages": [{"role": "user", "content": "hi"}]}]
    path.write_text("".join(json.dumps({"body": body}) + "\n" for body in bodies))
    with pytest.raises(InputError, match="Split the file"):
        job_of(path)


def test_redaction_reaches_prompts_system_prompts_and_documents_and_is_noted(tmp_path: Path) -> None:
    for name in ("system.txt", "document.txt"):
        (tmp_path / name).write_text("Ask joe@example.org or ann@example.org.")
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "My card is 4111111111111111"}\n{"prompt": "Nothing"}\n')
    options = {
        "system_prompt": {"ours": str(tmp_path / "system.txt")},
        "documents": [str(tmp_path / "document.txt")],
        "context_tokens": [4],
    }
    job, notes = job_of(path, redact=True, **options)
    assert job.prompts[0].messages[0]["content"] == "My card is [CARD]"
    assert [s.text for s in job.system_prompts] == ["Ask [EMAIL] or [EMAIL]."]
    assert list(job.documents) == ["Ask [EMAIL] or [EMAIL]."]
    assert notes[-1] == "redacted before rendering: 1 of card, 4 of email (1 of 2 prompts changed)"
    job, _ = job_of(path, **options)
    assert job.prompts[0].messages[0]["content"] == "My card is 4111111111111111"
    _, notes = job_of(FILES / "mt_bench.jsonl", redact=True)
    assert notes[-1] == "redacted before rendering: nothing found (0 of 2 prompts changed)"


@pytest.mark.parametrize("name", ["\x00", "nowhere.txt", "."])
def test_a_system_prompt_that_is_no_file_is_named(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    with pytest.raises(InputError, match="the system prompt") as caught:
        job_of(FILES / "mt_bench.jsonl", system_prompt={"s": path})
    assert (caught.value.code, caught.value.where) == ("file_not_readable", path)
