"""A plan: everything that `driftscope probe` can be asked for, from a TOML file, options or both.

Knows files and names; what is measured from it is a `probes.conditions.Job`. Paths in a plan file are relative to it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from driftscope.builtin import resolve_drafter, resolve_target, sample_prompts
from driftscope.prompts import read_prompts, redact_prompts, redact_text
from probes.conditions import Job, PromptInput, SystemPrompt, Template
from probes.errors import InputError
from probes.interventions.registry import TARGET, select
from probes.regular_file import read_regular

BUILT_IN_SYSTEM_PROMPTS = ("none", "default", "prompt")
BUILT_IN_TEMPLATES = ("default", "raw")
MAX_TEXT_BYTES = 16 << 20
MAX_COST_BATCH = 16_384  # requests in a batch whose costs are measured; engines take a few hundred to a thousand

Positive = Annotated[int, Field(ge=1)]


class Plan(BaseModel):
    """Options of `driftscope probe`; the same names, with underscores, stand in a plan file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str = Field(description="folder or Hub id of the target; `demo` is the built-in one")
    drafter: dict[str, str] = Field(
        min_length=1, description="name -> folder or Hub id; `demo:eagle3`, `demo:eagle3.1`"
    )
    prompts: str | None = Field(None, description="prompt file; left out: the built-in user turns")
    prompt_format: str | None = Field(None, description="format of the prompt file; left out: detected")
    turns: Literal["last", "all"] = Field(
        "last", description="whose response is replayed: the last assistant turn, or all, each as a prompt of its own"
    )
    num_prompts: Positive | None = Field(None, description="only the first so many prompts")
    system_prompt: dict[str, str | None] = Field(
        default_factory=dict, description="name -> text file; none, default and prompt (the prompt's own) need no file"
    )
    template: dict[str, str | None] = Field(
        default_factory=dict, description="name -> Jinja file; default and raw (no chat template) need no file"
    )
    context_tokens: list[Annotated[int, Field(ge=0)]] = Field(
        [0], min_length=1, description="document lengths, in tokens"
    )
    documents: list[str] = Field(default_factory=list, description="text files; left out: the built-in documents")
    engine: Literal["replay", "live", "vllm"] = Field(
        "replay", description="replay: all starts at once; live: the real loop; vllm: inside vLLM's own engine"
    )
    level: Literal["counts", "default", "heads"] = Field(
        "default", description="vllm: counts; default: norms, shares, head-mean masses; heads: all regions by head"
    )
    vllm: dict[str, Any] = Field(default_factory=dict, description="vllm: any of its engine arguments")
    depth: Annotated[int, Field(ge=1, le=64)] = Field(7, description="K, drafts in a round")
    max_new_tokens: Annotated[int, Field(ge=2)] = Field(128, description="longest response")
    temperature: Annotated[float, Field(ge=0, le=10)] = Field(0.0, description="of the target")
    top_k: Annotated[int, Field(ge=0)] = Field(
        0, description="of the target at temperature > 0: only the so many most probable tokens; 0: all"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="of the target at temperature > 0: only the most probable tokens that hold this much"
    )
    draft_sample_method: Literal["greedy", "probabilistic"] = Field(
        "greedy", description="greedy: the drafter's most probable token; probabilistic: drawn from its distribution"
    )
    seed: int = 0
    sink_slots: Positive = Field(1, description="how many first slots count as the sink")
    last_tokens: Positive | None = Field(None, description="replay: start chains only at the last so many tokens")
    target_attention: bool = Field(False, description="also compare the drafter's attention with the target's")
    interventions: list[str] = Field(
        ["none"], min_length=1, description="changes to try on the finished texts: all, none, or ids"
    )
    reference_target: str | None = Field(
        None, description="target that the drafter was trained for, where this one was changed"
    )
    costs: list[Annotated[int, Field(ge=1, le=MAX_COST_BATCH)]] = Field(
        default_factory=list, description="also measure what a draft and a verify cost at these batch sizes"
    )
    costs_context_tokens: list[Positive] = Field(
        [1024], min_length=1, description="context lengths at which costs are measured"
    )
    batch_size: Positive = Field(8, description="prompts decoded together")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = Field("cpu", description="torch device, e.g. cuda")
    text: bool = Field(True, description="store prompt text and token ids; without: hashes only")
    redact: bool = Field(False, description="put placeholders for e-mail addresses, phone numbers, keys, IPs, cards")
    trust_remote_code: bool = Field(
        False, description="let the target's repository run its own code; from the command line alone"
    )

    @classmethod
    def of_run(cls, stored: Mapping[str, Any]) -> Plan:
        """The plan in a run's run.json. It may be of an older driftscope: options without effect are let through.

        Remote code is taken from the command line alone, so a stored `trust_remote_code` counts for nothing.
        """
        plan = cls.model_validate(dict(stored), context={"is_stored": True})
        return plan.model_copy(update={"trust_remote_code": False})

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Plan:
        for name, path in self.system_prompt.items():
            if path is None and name not in BUILT_IN_SYSTEM_PROMPTS:
                raise ValueError(
                    f"system prompt {name!r} needs a file (built in: {', '.join(BUILT_IN_SYSTEM_PROMPTS)})"
                )
        for name, path in self.template.items():
            if path is None and name not in BUILT_IN_TEMPLATES:
                raise ValueError(f"template {name!r} needs a file (built in: {', '.join(BUILT_IN_TEMPLATES)})")
        self._check_sampling()
        try:
            select(self.interventions)
        except InputError as error:
            raise ValueError(f"{error.message}; {error.remedy}") from error
        idle = next(self._without_effect(), None)
        if idle is not None and not (info.context or {}).get("is_stored"):
            raise ValueError(f"{idle[0]} has no effect here: {idle[1]}")
        return self

    def _without_effect(self) -> Iterator[tuple[str, str]]:
        """Options that differ from their default and would change nothing, each with the reason."""
        needed = {  # option -> (whether it has an effect, what it needs)
            "prompt_format": (self.prompts, "it is of a prompt file, and none was given"),
            "documents": (any(self.context_tokens), "they fill context_tokens, which is 0"),
            "level": (self.engine == "vllm", "it is of engine vllm"),
            "vllm": (self.engine == "vllm", "it is of engine vllm"),
            "top_k": (self.temperature > 0, "nothing is drawn at temperature 0"),
            "top_p": (self.temperature > 0, "nothing is drawn at temperature 0"),
            "seed": (self.temperature > 0, "nothing is drawn at temperature 0"),
            "draft_sample_method": (self.temperature > 0, "drafts are greedy at temperature 0"),
            "max_new_tokens": (self.turns == "last", "with turns all nothing is answered anew"),
            "last_tokens": (self.engine == "replay", f"engine {self.engine} records whole rounds; take replay"),
            "costs_context_tokens": (self.costs, "no costs are measured; add costs"),
            "reference_target": (
                set(TARGET) & set(select(self.interventions)),
                "only the intervention reference_target reads it; add interventions",
            ),
        }
        for name, (has_effect, need) in needed.items():
            if not has_effect and getattr(self, name) != type(self).model_fields[name].get_default(
                call_default_factory=True
            ):
                yield name, need
        if "reference_target" in self.interventions and self.reference_target is None:
            yield "interventions reference_target", "it needs reference_target"

    def _check_sampling(self) -> None:
        if self.engine == "vllm" and self.costs:
            raise ValueError("costs are those of driftscope's own loop: measure them with engine live or replay")
        if self.engine == "vllm" and (self.top_k or self.top_p < 1 or self.draft_sample_method != "greedy"):
            raise ValueError("engine vllm takes no top_k, top_p or draft_sample_method here: take live")
        if self.draft_sample_method == "greedy" or self.temperature == 0:
            return
        if self.engine != "live":
            raise ValueError("a finished text does not tell which probabilistic drafts are accepted: take engine live")
        if len(self.drafter) > 1:
            raise ValueError("with probabilistic drafts each drafter writes its own text: one drafter in a run")
        if self.interventions != ["none"]:
            raise ValueError("interventions are counted on finished texts, for greedy drafts only")

    @property
    def keeps_texts_private(self) -> bool:
        """Whether no message may quote a prompt (`quotes_hidden`)."""
        return self.redact or not self.text

    def stored(self) -> dict[str, Any]:
        """As it stands in run.json. What concerns vLLM alone is left out of other engines' plans."""
        options = self.model_dump(mode="json")
        return options if self.engine == "vllm" else {k: v for k, v in options.items() if k not in ("level", "vllm")}

    def job(self) -> tuple[Job, list[str]]:
        """Reads all files -> (what to measure, notes for the reader). Raises InputError."""
        sample = None if self.prompts and (self.documents or not any(self.context_tokens)) else sample_prompts()
        path = Path(self.prompts) if self.prompts else sample / "user_turns.jsonl"  # type: ignore[operator]
        file = read_prompts(path, format=self.prompt_format, every_turn=self.turns == "all")
        prompts = file.prompts[: self.num_prompts]
        notes = file.report() if self.prompts else []
        documents: list[str] = []
        if any(self.context_tokens):
            paths = [Path(d) for d in self.documents] or sorted((sample / "documents").glob("*.txt"))  # type: ignore[operator]
            documents = [read_text(p, "document") for p in paths]
        system_prompts = {
            name: None if file is None else read_text(Path(file), "system prompt").strip()
            for name, file in self.system_prompt.items()
        }
        if self.redact:
            prompts, system_prompts, documents, note = _redacted(prompts, system_prompts, documents)
            notes.append(note)
        job = Job(
            target=resolve_target(self.target),
            drafters={name: resolve_drafter(where) for name, where in self.drafter.items()},
            prompts=prompts,
            system_prompts=self._system_prompts(prompts, system_prompts, path),
            templates=self._templates(prompts),
            context_tokens=sorted(set(self.context_tokens)),
            documents=documents,
            engine=self.engine,
            depth=self.depth,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            draft_sample_method=self.draft_sample_method,
            seed=self.seed,
            sink_slots=self.sink_slots,
            last_tokens=self.last_tokens,
            target_attention=self.target_attention,
            interventions=tuple(self.interventions),
            reference_target=None if self.reference_target is None else resolve_target(self.reference_target),
            batch_size=self.batch_size,
            dtype=self.dtype,
            device=self.device,
            trust_remote_code=self.trust_remote_code,
        )
        return job, notes

    def _system_prompts(
        self, prompts: Sequence[PromptInput], given: Mapping[str, str | None], path: Path
    ) -> list[SystemPrompt]:
        """Left out: the prompts' own system turns where there are any, else the template's default.

        `prompt` becomes one system prompt for each name that the prompts' own ones have. Raises InputError where the
        prompts are rendered already and a condition would have to change them.
        """
        if any(p.is_rendered for p in prompts):
            if not all(p.is_rendered for p in prompts):
                raise InputError(
                    "some prompts are rendered already, others are messages: they cannot share a condition",
                    code="rendered_prompts",
                    where=str(path),
                    remedy="split the file",
                )
            if given or any(self.context_tokens) or set(self.template) - {"raw"}:
                raise InputError(
                    "the prompts are rendered already: no system prompt, template or document can be put into them",
                    code="rendered_prompts",
                    where=str(path),
                    remedy="leave --system-prompt, --template and --context-tokens out, or give the prompts as messages",
                )
            return [SystemPrompt(name="prompt")]
        own = list(dict.fromkeys(p.system_prompt_name or "prompt" for p in prompts))
        has_own = own != ["prompt"] or any(
            m.get("role") in ("system", "developer") for p in prompts for m in p.messages
        )
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
                remedy="give the system prompt another name",
            )
        return [SystemPrompt(name=name, text=text) for name, text in names]

    def _templates(self, prompts: Sequence[PromptInput]) -> list[Template]:
        asked = self.template or {"raw" if any(p.is_rendered for p in prompts) else "default": None}
        return [
            Template(name=name, source=name if path is None else read_text(Path(path), "template"))
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


def read_text(path: Path, what: str) -> str:
    """A UTF-8 text file. Raises InputError naming it."""
    try:
        return (
            read_regular(path, max_bytes=MAX_TEXT_BYTES).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        )
    except UnicodeDecodeError as error:
        raise InputError(
            f"the {what} is not UTF-8 (byte {error.start})",
            code="file_not_utf8",
            where=str(path),
            remedy="convert it to UTF-8",
        ) from error
    except (
        OSError,
        ValueError,
        InputError,
    ) as error:  # ValueError: a null byte in the path; InputError: a pipe, a giant
        reason = error.message if isinstance(error, InputError) else getattr(error, "strerror", None) or error
        raise InputError(
            f"the {what} cannot be read: {reason}",
            code="file_not_readable",
            where=str(path),
            remedy="check the path",
        ) from error


def read_plan(path: Path, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """A plan file's options, its paths made absolute. Raises InputError naming file and place.

    `trust_remote_code`: whether the command line says so. A file that says it alone is refused: it may be anybody's.
    """
    try:
        options = tomllib.loads(read_text(path, "plan"))
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, thousands of digits or of brackets
        raise InputError(f"the plan is no TOML: {error}", code="bad_plan", where=str(path), remedy="mend it") from error

    engine = options.get("vllm")
    for place, table in (("", options), ("[vllm] ", engine if isinstance(engine, dict) else {})):
        if table.get("trust_remote_code") and not trust_remote_code:
            raise InputError(
                f"{place}trust_remote_code is taken from the command line alone",
                code="remote_code",
                where=str(path),
                remedy="Take it out of the plan. If you trust the target's code, add --trust-remote-code.",
            )

    def absolute(value: object) -> object:
        if not isinstance(value, str) or value in BUILT_IN_SYSTEM_PROMPTS + BUILT_IN_TEMPLATES:
            return value
        try:
            return str(path.parent / value) if (path.parent / value).exists() else value
        except OSError:  # too long for a file's name
            return value

    for key in ("system_prompt", "template"):
        names = options.get(key)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):  # built-in ones only
            options[key] = dict.fromkeys(names)
    for key, value in options.items():
        if key in ("target", "reference_target", "prompts"):
            options[key] = absolute(value)
        elif key == "documents" and isinstance(value, list):
            options[key] = [absolute(item) for item in value]
        elif key in ("drafter", "system_prompt", "template") and isinstance(value, dict):
            options[key] = {
                name: None
                if item in (name, "") and name in BUILT_IN_SYSTEM_PROMPTS + BUILT_IN_TEMPLATES
                else absolute(item)
                for name, item in value.items()
            }
    return options


def make_plan(options: dict[str, Any], *, where: str, is_stored: bool = False) -> Plan:
    """Checks the options; `is_stored`: those of a run, as `Plan.of_run`. Raises InputError naming the option."""
    try:
        return Plan.model_validate(options, context={"is_stored": is_stored})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "plan"
        raise InputError(
            f"{name}: {first['msg'].removeprefix('Value error, ')}",
            code="bad_option",
            where=where,
            remedy="`driftscope probe --help` lists every option",
        ) from error
