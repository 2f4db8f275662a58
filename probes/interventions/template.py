"""The prompt: the reference system prompt, template or last template tokens, thinking on and off. No torch.

These rewrite the text, so the target answers anew and gains are paired by prompt, not by position. The reference is what
drafters are trained on: the target's default system prompt in its default template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.checkpoint.spec import DrafterSpec
from probes.conditions import PromptCondition, PromptInput, SystemPrompt, Template
from probes.interventions.base import Intervention
from probes.interventions.parts import TargetFacts

REFERENCE_SYSTEM_PROMPT = SystemPrompt(name="default")
REFERENCE_TEMPLATE = Template(name="default", source="default")


class TextIntervention(Intervention):
    """Another prompt for the same user turn, answered anew by the target: paired with the original by prompt."""

    kind = "template"

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        return False


class ReferenceSystemPrompt(TextIntervention):
    id = "reference_system_prompt"
    changes = "replaces the system prompt by the target's default one"

    def rewrites(self, condition: PromptCondition, prompts: Sequence[PromptInput], template_text: str) -> bool:
        return condition.system_prompt.name != "default" and condition.template.source != "raw" and _has_turns(prompts)

    def rewrite(self, condition: PromptCondition, prompt: PromptInput) -> tuple[PromptCondition, PromptInput]:
        return replace(condition, system_prompt=REFERENCE_SYSTEM_PROMPT), prompt


class ReferenceTemplate(TextIntervention):
    id = "reference_template"
    changes = "renders the same turns with the target's own chat template"

    def rewrites(self, condition: PromptCondition, prompts: Sequence[PromptInput], template_text: str) -> bool:
        return condition.template.source != "default" and _has_turns(prompts)

    def rewrite(self, condition: PromptCondition, prompt: PromptInput) -> tuple[PromptCondition, PromptInput]:
        return replace(condition, template=REFERENCE_TEMPLATE), prompt


class ReferenceSuffix(ReferenceTemplate):
    """Only the generation prompt: what stands between the last turn and the answer. `rewriting` swaps the tokens."""

    id = "reference_suffix"
    swaps_suffix = True
    changes = "replaces only the last template tokens, those before the answer, by the target's own template's"


class Thinking(TextIntervention):
    """Templates of reasoning models read `enable_thinking` from chat_template_kwargs."""

    def __init__(self, value: bool) -> None:
        self.value = value
        self.id = f"thinking_{'on' if value else 'off'}"
        self.changes = f"renders with enable_thinking={value} in chat_template_kwargs"

    def rewrites(self, condition: PromptCondition, prompts: Sequence[PromptInput], template_text: str) -> bool:
        is_other = any(p.chat_template_kwargs.get("enable_thinking") is not self.value for p in prompts)
        return "enable_thinking" in template_text and is_other and _has_turns(prompts)

    def rewrite(self, condition: PromptCondition, prompt: PromptInput) -> tuple[PromptCondition, PromptInput]:
        kwargs = {**prompt.chat_template_kwargs, "enable_thinking": self.value}
        return condition, replace(prompt, chat_template_kwargs=kwargs)


def _has_turns(prompts: Sequence[PromptInput]) -> bool:
    """Prompts given as token ids have nothing to render, answers given with them nothing to write anew."""
    return bool(prompts) and not any(p.is_rendered or p.is_forced for p in prompts)


TEMPLATE: tuple[TextIntervention, ...] = (
    ReferenceSystemPrompt(),
    ReferenceTemplate(),
    ReferenceSuffix(),
    Thinking(True),
    Thinking(False),
)
