"""What to measure: prompts, conditions, models and options, as plain frozen dataclasses. No torch here.

Knows nothing of how it is measured (`probes.job.measure_job`) nor of the files it was asked for in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probes.record import PromptConditionKey


@dataclass(frozen=True, kw_only=True)
class PromptInput:
    """One prompt. `messages` without the system prompt of the condition; a response makes it forced.

    `text` or `token_ids`: already rendered, then `messages` is empty and no template is applied.
    """

    prompt_id: str
    messages: tuple[Mapping[str, object], ...]
    category: str | None = None
    language: str | None = None  # where the file says it
    tools: tuple[Mapping[str, object], ...] = ()
    response: str | None = None
    response_token_ids: tuple[int, ...] | None = None  # in place of `response`
    text: str | None = None  # as the target gets it, but for a BOS token
    token_ids: tuple[int, ...] | None = None
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    system_prompt_name: str | None = None  # of its own system turn, e.g. "support@7"; None: "prompt"

    @property
    def is_rendered(self) -> bool:
        """Whether no template is to be applied any more."""
        return self.text is not None or self.token_ids is not None

    @property
    def is_forced(self) -> bool:
        """Whether it comes with a response that is replayed."""
        return self.response is not None or self.response_token_ids is not None


@dataclass(frozen=True, kw_only=True)
class SystemPrompt:
    """`text` None with name "none": no system text reaches the target; None with "default": the template's own; None with
    another name: the prompts' own system turns are kept, of those prompts whose `system_prompt_name` it is ("prompt":
    of those without such a name)."""

    name: str
    text: str | None = None

    @property
    def is_own(self) -> bool:
        """Whether prompts keep their own system turns."""
        return self.text is None and self.name not in ("none", "default")


@dataclass(frozen=True, kw_only=True)
class Template:
    """`source`: "default" (the tokenizer's), "raw" (no chat template) or a Jinja text."""

    name: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Job:
    target: str
    drafters: Mapping[str, str]  # name -> folder or Hub id
    prompts: Sequence[PromptInput]
    system_prompts: Sequence[SystemPrompt] = (SystemPrompt(name="default"),)
    templates: Sequence[Template] = (Template(name="default", source="default"),)
    context_tokens: Sequence[int] = (0,)
    documents: Sequence[str] = ()
    engine: str = "replay"
    depth: int = 7  # K
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0  # of the target at temperature > 0; 0 = all
    top_p: float = 1.0
    draft_sample_method: str = "greedy"  # or "probabilistic", which is the same at temperature 0
    seed: int = 0
    sink_slots: int = 1
    last_tokens: int | None = None  # replay: chains start only at the last n response tokens
    target_attention: bool = False  # measure target_divergence, at the cost of one more target pass over each response
    interventions: Sequence[str] = ("none",)  # "all", "none" or ids; run on the finished texts
    reference_target: str | None = None  # for the intervention `reference_target`: folder or Hub id
    batch_size: int = 8  # prompts decoded together
    dtype: str = "float32"
    device: str = "cpu"
    trust_remote_code: bool = False

    @property
    def draws_drafts(self) -> bool:
        """Whether drafts are drawn from the drafter's distribution; else each is its most probable token."""
        return self.draft_sample_method == "probabilistic" and self.temperature > 0

    @property
    def acceptance_rule(self) -> str:
        if self.draws_drafts:
            return (
                "standard rejection sampling of probabilistic drafts: accepted with probability min(1, p/q), "
                "q after temperature alone"
            )
        return "standard rejection sampling of greedy drafts: accepted when equal to the target's token"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """After each unit: one prompt with one drafter under one condition."""

    num_done: int
    num_units: int
    condition: str


@dataclass
class SelfCheck:
    """What the run says of itself. `live` against plain decoding; ties are logit gaps below TIE_LOGIT_GAP."""

    num_texts: int = 0  # live texts compared with plain decoding
    num_identical: int = 0
    num_first_differences_tied: int = 0
    max_first_difference_gap: float = 0.0
    num_large_gaps: int = 0  # low precision only: above LOW_PRECISION_GAP_SHARE of the logits' range
    num_ties: int = 0
    num_too_short: int = 0  # prompts whose response has no round
    notes: list[str] = field(default_factory=list)  # what was asked for and could not be done


@dataclass(frozen=True)
class PromptCondition:
    """One condition without the drafter."""

    system_prompt: SystemPrompt
    template: Template
    context_tokens: int

    @property
    def key(self) -> PromptConditionKey:
        return PromptConditionKey(self.system_prompt.name, self.template.name, self.context_tokens)

    def __str__(self) -> str:
        return f"{self.system_prompt.name} / {self.template.name} / context {self.context_tokens}"


def prompts_of(job: Job, condition: PromptCondition) -> list[PromptInput]:
    """The prompts that are measured in this condition: all, or those whose own system prompt names it."""
    system_prompt = condition.system_prompt
    if not system_prompt.is_own:
        return list(job.prompts)
    return [p for p in job.prompts if (p.system_prompt_name or "prompt") == system_prompt.name]


def prompt_conditions(job: Job) -> list[PromptCondition]:
    return [PromptCondition(s, t, c) for t in job.templates for s in job.system_prompts for c in job.context_tokens]
