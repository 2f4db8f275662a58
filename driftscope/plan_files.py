"""Opens what a plan needs: its TOML file, and the files that it names. Knows no models."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin

from driftscope.builtin import resolve_drafter, resolve_target, sample_prompts
from driftscope.plan import BUILT_IN_SYSTEM_PROMPTS, BUILT_IN_TEMPLATES, PATH, Plan
from driftscope.prompts import read_prompts, redact_prompts, redact_text
from driftscope.prompts.rows import read_text
from probes.conditions import Job, PromptInput, SystemPrompt, Template
from probes.errors import InputError

MAX_TEXT_BYTES = 16 << 20


def read_plan(path: Path, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """A plan file's options, its paths made absolute. Raises InputError naming file and place.

    `trust_remote_code`: whether the command line says so. A file that says it alone is refused: it may be anybody's.
    """
    try:
        options = tomllib.loads(_text(path, "plan"))
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, thousands of digits or of brackets
        raise InputError(
            f"the plan is not valid TOML: {error}", code="bad_plan", where=str(path), remedy="Correct it."
        ) from error

    engine = options.get("vllm")
    for place, table in (("", options), ("[vllm] ", engine if isinstance(engine, dict) else {})):
        if table.get("trust_remote_code") and not trust_remote_code:
            raise InputError(
                f"{place}trust_remote_code is taken from the command line alone",
                code="remote_code",
                where=str(path),
                remedy="Take it out of the plan. If you trust the target's code, add --trust-remote-code.",
            )

    for name, field in Plan.model_fields.items():
        if name in options and PATH in field.metadata:
            options[name] = _beside(path.parent, options[name], is_named=get_origin(field.annotation) is dict)
    return options


def _beside(folder: Path, value: object, *, is_named: bool) -> object:
    """Paths that exist beside the plan file, made absolute; anything else as it is."""
    if isinstance(value, list):
        return [_beside(folder, item, is_named=is_named) for item in value]
    if isinstance(value, dict):
        return {name: _beside(folder, item, is_named=False) for name, item in value.items()}
    if not isinstance(value, str) or value in ("", *BUILT_IN_SYSTEM_PROMPTS, *BUILT_IN_TEMPLATES):
        return value
    name, equals, path = value.partition("=") if is_named else ("", "", value)
    try:
        return f"{name}{equals}{folder / path}" if (folder / path).exists() else value
    except OSError:  # too long for a file's name
        return value


def read_job(plan: Plan) -> tuple[Job, list[str]]:
    """Read all that a plan names -> (what to measure, notes for the reader). Raises InputError."""
    sample = None if plan.prompts and (plan.documents or not any(plan.context_tokens)) else sample_prompts()
    path = Path(plan.prompts) if plan.prompts else sample / "user_turns.jsonl"  # type: ignore[operator]
    file = read_prompts(path, format=plan.prompt_format, every_turn=plan.turns == "all")
    prompts = file.prompts[: plan.num_prompts]
    notes = file.report() if plan.prompts else []
    documents: list[str] = []
    if any(plan.context_tokens):
        paths = [Path(d) for d in plan.documents] or sorted((sample / "documents").glob("*.txt"))  # type: ignore[operator]
        documents = [_text(p, "document") for p in paths]
    system_prompts = {
        name: None if file is None else _text(Path(file), "system prompt").strip()
        for name, file in plan.system_prompt.items()
    }
    if plan.redact:
        prompts, system_prompts, documents, note = _redacted(prompts, system_prompts, documents)
        notes.append(note)
    shared = {field.name: getattr(plan, field.name) for field in fields(Job) if field.name in Plan.model_fields}
    read: dict[str, Any] = dict(
        target=resolve_target(plan.target),
        drafters={name: resolve_drafter(where) for name, where in plan.drafter.items()},
        prompts=prompts,
        system_prompts=_system_prompts(plan, prompts, system_prompts, path),
        templates=_templates(plan, prompts),
        context_tokens=sorted(set(plan.context_tokens)),
        documents=documents,
        interventions=tuple(plan.interventions),
        reference_target=None if plan.reference_target is None else resolve_target(plan.reference_target),
    )
    return Job(**shared | read), notes


def _system_prompts(
    plan: Plan, prompts: Sequence[PromptInput], given: Mapping[str, str | None], path: Path
) -> list[SystemPrompt]:
    """The system prompts of the plan; without any, the prompts' own system turns, else the template's default.

    `prompt` becomes one system prompt for each name that the prompts' own ones have. Raises InputError where the
    prompts are rendered already and a condition would have to change them.
    """
    if any(p.is_rendered for p in prompts):
        if not all(p.is_rendered for p in prompts):
            raise InputError(
                "some prompts are rendered already, others are messages: they cannot share a condition",
                code="rendered_prompts",
                where=str(path),
                remedy="Split the file.",
            )
        if given or any(plan.context_tokens) or set(plan.template) - {"raw"}:
            raise InputError(
                "the prompts are rendered already: no system prompt, template or document can be put into them",
                code="rendered_prompts",
                where=str(path),
                remedy="Leave out --system-prompt, --template and --context-tokens, or give the prompts as messages.",
            )
        return [SystemPrompt(name="prompt")]
    own = list(dict.fromkeys(p.system_prompt_name or "prompt" for p in prompts))
    has_own = own != ["prompt"] or any(m.get("role") in ("system", "developer") for p in prompts for m in p.messages)
    asked = dict(given) or {"prompt" if has_own else "default": None}
    names = [(name, text) for name, text in asked.items() if name != "prompt"]
    if "prompt" in asked:
        names += [(name, None) for name in own]
    twice = next((name for name, _ in names if [n for n, _ in names].count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"the system prompt name {twice!r} is also that of prompts in the file",
            code="duplicate_system_prompt",
            where=str(path),
            remedy="Give the system prompt another name.",
        )
    return [SystemPrompt(name=name, text=text) for name, text in names]


def _templates(plan: Plan, prompts: Sequence[PromptInput]) -> list[Template]:
    asked = plan.template or {"raw" if any(p.is_rendered for p in prompts) else "default": None}
    return [
        Template(name=name, source=name if path is None else _text(Path(path), "template"))
        for name, path in asked.items()
    ]


def _redacted(
    prompts: Sequence[PromptInput], system_prompts: Mapping[str, str | None], documents: Sequence[str]
) -> tuple[tuple[PromptInput, ...], dict[str, str | None], list[str], str]:
    """Everything that will be rendered, and a sentence that says how much was taken out."""
    redacted, found, num_prompts = redact_prompts(prompts)
    texts: dict[str, str | None] = dict(system_prompts)
    for name, text in system_prompts.items():
        if text is not None:
            texts[name], count = redact_text(text)
            found += count
    pages = []
    for document in documents:
        page, count = redact_text(document)
        pages.append(page)
        found += count
    kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(found.items())) or "nothing found"
    note = f"redacted before rendering: {kinds} ({num_prompts} of {len(prompts)} prompts changed)"
    return redacted, texts, pages, note


def _text(path: Path, what: str) -> str:
    return read_text(path, what, max_bytes=MAX_TEXT_BYTES).replace("\r\n", "\n").replace("\r", "\n")
