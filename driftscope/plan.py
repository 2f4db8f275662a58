"""A plan: everything that can be measured and how. Each field of `Plan` is one option, described once, here.

The command line, its help, docs/options.md and the app's form are made from the fields (`driftscope.cli.plan_options`).
Knows names of files and opens none: `driftscope.plan_files` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from probes.errors import InputError
from probes.interventions.registry import TARGET, select

BUILT_IN_SYSTEM_PROMPTS = ("none", "default", "prompt")
BUILT_IN_TEMPLATES = ("default", "raw")
MAX_COST_BATCH = 16_384  # requests in a batch whose costs are measured; engines take a few hundred to a thousand

PATH = "path"
"""Marks an option that holds paths: those in a plan file are relative to it."""


def _named(*built_in: str) -> BeforeValidator:
    """NAME=PATH texts or a table -> name -> path; a built-in name may stand alone, its path is None."""
    known = f", or one of {', '.join(built_in)}" if built_in else ""

    def read(value: object) -> object:
        if isinstance(value, dict):
            pairs = list(value.items())
        elif isinstance(value, list) and all(isinstance(text, str) for text in value):
            pairs = [(name, path) for name, _, path in (text.partition("=") for text in value)]
        else:
            return value
        named: dict[str, object] = {}
        for name, path in pairs:
            is_built_in = name in built_in and path in (name, "", None)
            if not is_built_in and (path in ("", None) or not (name or isinstance(value, dict))):
                raise ValueError(f"{name or '=' + str(path)!r} is not of the form NAME=PATH{known}")
            if name in named:
                raise ValueError(f"the name {name!r} is given twice")
            named[name] = None if is_built_in else path
        return named

    return BeforeValidator(read)


COMMAS = BeforeValidator(lambda value: [part.strip() for part in value.split(",")] if isinstance(value, str) else value)
"""Marks a list that can be written as one text, `0,1024`."""

Positive = Annotated[int, Field(ge=1)]


class Plan(BaseModel):
    """Options of `driftscope probe`; a plan file has the same names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: Annotated[str, PATH] = Field(
        description="Folder or Hub id (with @revision) of the target; `demo` is the built-in one."
    )
    drafter: Annotated[dict[str, str], _named(), PATH] = Field(
        min_length=1, description="Folder or Hub id of a drafter; `demo:eagle3` and `demo:eagle3.1` are built in."
    )
    prompts: Annotated[str | None, PATH] = Field(
        None, description="Prompt file (docs/prompt_files.md); without one, the built-in user turns."
    )
    prompt_format: str | None = Field(None, description="Format of the prompt file; detected if not given.")
    turns: Literal["last", "all"] = Field(
        "last", description="Replay the last assistant turn, or all, each as its own prompt (not with engine vllm)."
    )
    num_prompts: int | None = Field(None, ge=1, description="Use only the first n prompts.")
    system_prompt: Annotated[dict[str, str | None], _named(*BUILT_IN_SYSTEM_PROMPTS), PATH] = Field(
        default_factory=dict,
        description="System prompt; `none`, `default` (the template's) and `prompt` (the prompt's own) need no file.",
    )
    template: Annotated[dict[str, str | None], _named(*BUILT_IN_TEMPLATES), PATH] = Field(
        default_factory=dict, description="Jinja chat template; `default` and `raw` (no chat template) need no file."
    )
    context_tokens: Annotated[list[Annotated[int, Field(ge=0)]], COMMAS] = Field(
        [0], min_length=1, description="Lengths of the document put into the context, in tokens."
    )
    documents: Annotated[list[str], PATH] = Field(
        default_factory=list, description="Text file to take the context from; without any, the built-in documents."
    )
    engine: Literal["replay", "live", "vllm"] = Field(
        "replay", description="replay: every position at once; live: the real decoding loop; vllm: inside vLLM."
    )
    level: Literal["counts", "default", "heads"] = Field(
        "default",
        description="With engine vllm, record counts only, head means (default) or every head (docs/vllm.md).",
    )
    vllm: dict[str, Any] = Field(default_factory=dict, description="With engine vllm: any of its engine arguments.")
    depth: int = Field(7, ge=1, le=64, description="K, the number of drafts in a round.")
    max_new_tokens: int = Field(128, ge=2, description="Longest response, in tokens.")
    temperature: float = Field(
        0.0, ge=0, le=10, description="Sampling temperature of the target; 0 takes the most probable token."
    )
    top_k: int = Field(0, ge=0, description="At temperature > 0, keep only the k most probable tokens; 0 keeps all.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="At temperature > 0, keep only the most probable tokens that add up to p."
    )
    draft_sample_method: Literal["greedy", "probabilistic"] = Field(
        "greedy", description="Take the drafter's most probable token, or draw from its distribution (engine live)."
    )
    seed: int = Field(0, description="Random seed for sampling at temperature > 0.")
    sink_slots: int = Field(1, ge=1, description="Number of first slots that count as the attention sink.")
    last_tokens: int | None = Field(
        None, ge=1, description="With engine replay: start chains only at the last n response tokens."
    )
    target_attention: bool = Field(
        False, description="Also compare the drafter's attention with the target's (target_divergence)."
    )
    interventions: Annotated[list[str], COMMAS] = Field(
        ["none"],
        min_length=1,
        description="Changes to try on finished texts: all, none or ids (docs/interventions.md).",
    )
    reference_target: Annotated[str | None, PATH] = Field(
        None, description="Target that the drafter was trained for, if this one was changed."
    )
    costs: Annotated[list[Annotated[int, Field(ge=1, le=MAX_COST_BATCH)]], COMMAS] = Field(
        default_factory=list, description="Measure what a draft and a verify cost at these batch sizes, for `advise`."
    )
    costs_context_tokens: Annotated[list[Positive], COMMAS] = Field(
        [1024], min_length=1, description="Context lengths at which costs are measured, in tokens."
    )
    batch_size: int = Field(8, ge=1, description="Number of prompts decoded together.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Number format that the models compute in."
    )
    device: str = Field("cpu", description="Torch device, for instance cpu or cuda.")
    text: bool = Field(True, description="Store prompt text and token ids; --no-text stores hashes only.")
    redact: bool = Field(
        False, description="Replace e-mail addresses, phone numbers, keys, IPs and card numbers by placeholders."
    )
    trust_remote_code: bool = Field(
        False, description="Let the target's repository run its own code; from the command line only."
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
            "prompt_format": (self.prompts, "it describes a prompt file, and none was given"),
            "documents": (any(self.context_tokens), "they fill context_tokens, which is 0"),
            "level": (self.engine == "vllm", "only engine vllm reads it"),
            "vllm": (self.engine == "vllm", "only engine vllm reads it"),
            "top_k": (self.temperature > 0, "nothing is drawn at temperature 0"),
            "top_p": (self.temperature > 0, "nothing is drawn at temperature 0"),
            "seed": (self.temperature > 0, "nothing is drawn at temperature 0"),
            "draft_sample_method": (self.temperature > 0, "drafts are greedy at temperature 0"),
            "max_new_tokens": (self.turns == "last", "with turns all, the target writes no new answers"),
            "last_tokens": (self.engine == "replay", f"engine {self.engine} records whole rounds; use engine replay"),
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
            raise ValueError("costs are measured in driftscope's own loop: use engine live or replay")
        if self.engine == "vllm" and (self.top_k or self.top_p < 1 or self.draft_sample_method != "greedy"):
            raise ValueError("engine vllm takes no top_k, top_p or draft_sample_method here: use engine live")
        if self.draft_sample_method == "greedy" or self.temperature == 0:
            return
        if self.engine != "live":
            raise ValueError("a finished text does not show which probabilistic drafts are accepted: use engine live")
        if len(self.drafter) > 1:
            raise ValueError("with probabilistic drafts each drafter writes its own text: give one drafter")
        if self.interventions != ["none"]:
            raise ValueError("interventions run on finished texts with greedy drafts only")

    @property
    def keeps_texts_private(self) -> bool:
        """True if no message may quote a prompt (`quotes_hidden`)."""
        return self.redact or not self.text

    def stored(self) -> dict[str, Any]:
        """The plan for run.json; options for vLLM alone are left out with other engines."""
        options = self.model_dump(mode="json")
        return options if self.engine == "vllm" else {k: v for k, v in options.items() if k not in ("level", "vllm")}


def make_plan(
    options: Mapping[str, Any], given: Mapping[str, Any] | None = None, *, where: str, is_stored: bool = False
) -> Plan:
    """Check the options; those `given` on the command line win. `is_stored`: a run's, as `Plan.of_run`.

    Raises InputError naming the option, at `where` or on the command line.
    """
    given = given or {}
    try:
        return Plan.model_validate({**options, **given}, context={"is_stored": is_stored})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "plan"
        if first["type"] == "missing":
            raise InputError(
                f"no {name} was given",
                code="option_missing",
                where=where,
                remedy=f"Add {flag(name)} (the built-in one is called demo).",
            ) from error
        raise InputError(
            f"{name}: {first['msg'].removeprefix('Value error, ')}",
            code="bad_option",
            where=flag(str(first["loc"][0])) if first["loc"] and first["loc"][0] in given else where,
            remedy="`driftscope probe --help` lists every option.",
        ) from error


def described(name: str) -> str:
    """What an option does, in one sentence."""
    return str(Plan.model_fields[name].description)


def flag(name: str) -> str:
    """An option as the command line writes it: `--context-tokens`."""
    return "--" + name.replace("_", "-")
