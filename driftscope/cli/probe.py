"""`driftscope probe`: makes a run from options, a plan file, or both (options win)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from driftscope.cli.console import Json
from driftscope.cli.measuring import make_run
from driftscope.plan import BUILT_IN_SYSTEM_PROMPTS, BUILT_IN_TEMPLATES, make_plan, read_plan
from probes.errors import InputError

DEFAULT_OUT = Path("runs/probe.drift")


def probe(
    plan: Annotated[Path | None, typer.Argument(help="TOML file with these options, underscores for dashes.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Folder or Hub id (with @revision) of the target; `demo`: the built-in one.")
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH", help="A drafter: folder or Hub id; `demo:eagle3`, `demo:eagle3.1` are built in."
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(help="Prompt file (chats, batches, benchmarks, logs, text); left out: built-in user turns."),
    ] = None,
    prompt_format: Annotated[str | None, typer.Option(help="Format of the prompt file; left out: detected.")] = None,
    turns: Annotated[
        str | None,
        typer.Option(
            metavar="last|all",
            help="all: replay every assistant turn, each a prompt of its own, and answer nothing anew (not with vllm, "
            "which replays no responses). [last]",
        ),
    ] = None,
    num_prompts: Annotated[int | None, typer.Option(help="Only the first so many prompts.")] = None,
    system_prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE", help="Repeatable. Without file: none, default (the template's), prompt (its own)."
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Repeatable. Without file: default, raw (no chat template)."),
    ] = None,
    context_tokens: Annotated[str | None, typer.Option(help="Document lengths, comma separated: 0,1024.")] = None,
    documents: Annotated[
        list[str] | None,
        typer.Option(help="Text file to take context from (repeatable); left out: built-in documents."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="replay: every position at once; live: the real loop; vllm: inside vLLM's engine."),
    ] = None,
    level: Annotated[
        str | None, typer.Option(help="With vllm: counts, default or heads (docs/vllm.md). [default]")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="K, drafts in a round. [7]")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest response, in tokens. [128]")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the target. [0]")] = None,
    top_k: Annotated[
        int | None, typer.Option(help="At temperature > 0: only the so many most probable tokens. [0: all]")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="At temperature > 0: only the most probable tokens that hold so much. [1]")
    ] = None,
    draft_sample_method: Annotated[
        str | None,
        typer.Option(help="Drafts are the drafter's best token (greedy) or drawn (probabilistic, live). [greedy]"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For sampling at temperature > 0. [0]")] = None,
    sink_slots: Annotated[int | None, typer.Option(help="How many first slots count as the sink. [1]")] = None,
    last_tokens: Annotated[
        int | None, typer.Option(help="Replay: start chains only at the last so many response tokens.")
    ] = None,
    target_attention: Annotated[
        bool | None, typer.Option(help="Also compare the drafter's attention with the target's (target_divergence).")
    ] = None,
    interventions: Annotated[
        str | None,
        typer.Option(
            metavar="all|none|ID,...", help="Changes to try on the finished texts (docs/interventions.md). [none]"
        ),
    ] = None,
    reference_target: Annotated[
        str | None, typer.Option(help="Target that the drafter was trained for, where this one was changed.")
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Measure what a draft and a verify cost at these batch sizes, for advise."),
    ] = None,
    costs_context_tokens: Annotated[
        str | None, typer.Option(metavar="N,...", help="Context lengths at which costs are measured. [1024]")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Prompts decoded together. [8]")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16. [float32]")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [cpu]")] = None,
    text: Annotated[bool | None, typer.Option("--text/--no-text", help="Store prompt text, or hashes only.")] = None,
    redact: Annotated[
        bool | None,
        typer.Option(help="Put placeholders for e-mail addresses, phone numbers, keys, IPs and card numbers first."),
    ] = None,
    trust_remote_code: Annotated[
        bool | None, typer.Option(help="Let the target's repository run its own code.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The run's folder, ends in .drift.")] = DEFAULT_OUT,
    resume: Annotated[bool, typer.Option(help="Go on with a run that was stopped.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing run, once the new one is complete.")] = False,
    json: Json = False,
) -> None:
    """Measure drafters under system prompts, templates and context lengths: writes a run.

    Exit codes: 0; 2 unusable input; 3 the numbers contradict themselves (self-check).
    """
    if resume and overwrite:
        raise InputError(
            "--resume keeps the run that is there, --overwrite replaces it",
            code="usage",
            where="command line",
            remedy="choose one",
        )
    options: dict[str, Any] = read_plan(plan, trust_remote_code=bool(trust_remote_code)) if plan is not None else {}
    asked = {
        "target": target,
        "drafter": named_paths(drafter, "--drafter", ()),
        "prompts": prompts,
        "prompt_format": prompt_format,
        "turns": turns,
        "num_prompts": num_prompts,
        "system_prompt": named_paths(system_prompt, "--system-prompt", BUILT_IN_SYSTEM_PROMPTS),
        "template": named_paths(template, "--template", BUILT_IN_TEMPLATES),
        "context_tokens": numbers(context_tokens),
        "documents": documents,
        "engine": engine,
        "level": level,
        "depth": depth,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "draft_sample_method": draft_sample_method,
        "seed": seed,
        "sink_slots": sink_slots,
        "last_tokens": last_tokens,
        "target_attention": target_attention,
        "interventions": None if interventions is None else [part.strip() for part in interventions.split(",")],
        "reference_target": reference_target,
        "costs": numbers(costs, "--costs", "1,8,64"),
        "costs_context_tokens": numbers(costs_context_tokens, "--costs-context-tokens", "1024,8192"),
        "batch_size": batch_size,
        "dtype": dtype,
        "device": device,
        "text": text,
        "redact": redact,
        "trust_remote_code": trust_remote_code,
    }
    options |= {name: value for name, value in asked.items() if value is not None}
    need_models(options, where=str(plan or "driftscope probe"))
    make_run(make_plan(options, where=str(plan or "options")), out, resume=resume, overwrite=overwrite, as_json=json)


def need_models(options: Mapping[str, Any], *, where: str) -> None:
    """Raises InputError for a plan without a target or a drafter."""
    for name, flag in (("target", "--target"), ("drafter", "--drafter NAME=PATH")):
        if name not in options:
            raise InputError(
                f"no {name} was given",
                code="option_missing",
                where=where,
                remedy=f"add {flag} (the built-in ones are called demo)",
            )


def named_paths(values: list[str] | None, flag: str, built_in: tuple[str, ...]) -> dict[str, str | None] | None:
    """NAME=FILE options -> name -> file; a built-in name may stand alone."""
    if not values:
        return None
    named: dict[str, str | None] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if (not equals and name not in built_in) or (equals and not (name and path)):
            known = f", or one of {', '.join(built_in)}" if built_in else ""
            raise InputError(
                f"{flag} {value!r} is not of the form NAME=PATH{known}",
                code="bad_option",
                where=flag,
                remedy=f"for instance {flag} mine=path/to/it",
            )
        if name in named:
            raise InputError(f"the name {name!r} is given twice", code="bad_option", where=flag, remedy="rename one")
        named[name] = path if equals else None
    return named


def numbers(text: str | None, flag: str = "--context-tokens", example: str = "0,1024") -> list[int] | None:
    """Whole numbers of a comma-separated text: `0,1024` -> [0, 1024]. Raises InputError naming the option."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(
            f"{text!r} is no list of whole numbers",
            code="bad_option",
            where=flag,
            remedy=f"for instance {flag} {example}",
        ) from error
