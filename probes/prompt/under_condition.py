"""A prompt input under one condition: its text rendered, or as it came, its record, and what several have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probes.attention.slots import text_regions
from probes.conditions import PromptCondition, PromptInput
from probes.errors import InputError
from probes.prompt.rendering import Rendered, render
from probes.record import TEXT_REGIONS, PromptRecord


def render_prompt(tokenizer: Any, prompt: PromptInput, condition: PromptCondition, document: str | None) -> Rendered:
    """The prompt under this condition, with regions. "none" means that no system text reaches the target: where the
    template would insert its own, an empty system turn is sent instead (and noted)."""
    messages = [dict(m) for m in prompt.messages]
    if condition.system_prompt.text is not None:
        messages = [{"role": "system", "content": condition.system_prompt.text}, *_without_system(messages)]
    elif not condition.system_prompt.is_own:
        messages = _without_system(messages)

    def rendered(turns: list[dict[str, object]]) -> Rendered:
        try:
            return render(
                tokenizer,
                turns,
                template=condition.template.source,
                context=document,
                tools=list(prompt.tools) or None,
                chat_template_kwargs=dict(prompt.chat_template_kwargs),
            )
        except InputError as error:
            error.where = f"{error.where or 'prompt'}: condition {condition}, prompt {prompt.prompt_id}"
            raise

    result = rendered(messages)
    if (
        condition.system_prompt.name != "none"
        or condition.system_prompt.text is not None
        or not result.num_tokens("system")
    ):
        return result
    without = rendered([{"role": "system", "content": ""}, *messages])
    if without.num_tokens("system"):
        note = f"the template always writes {result.num_tokens('system')} tokens of system text: none cannot be had"
        return replace(result, notes=(*result.notes, note))
    note = "the template inserts a default system prompt: an empty system turn was sent to have none"
    return replace(without, notes=(*without.notes, note))


def _without_system(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    return [m for m in messages if m.get("role") not in ("system", "developer")]


def render_or_take(tokenizer: Any, prompt: PromptInput, condition: PromptCondition, document: str | None) -> Rendered:
    """The prompt rendered, or what came rendered already."""
    if prompt.text is not None:
        taken = render(tokenizer, [{"role": "user", "content": prompt.text}], template="raw")
        user, unknown = TEXT_REGIONS.index("user"), TEXT_REGIONS.index("unknown")
        note = "the prompt came rendered: no template was applied, its regions are unknown"
        region = np.where(taken.region == user, np.uint8(unknown), taken.region)
        return replace(taken, region=region, notes=(note, *(n for n in taken.notes if not n.startswith("messages[0]"))))
    if prompt.token_ids is None:
        return render_prompt(tokenizer, prompt, condition, document)
    ids = np.asarray(prompt.token_ids, np.int32)
    return Rendered(
        token_ids=ids,
        region=np.full(len(ids), TEXT_REGIONS.index("unknown"), np.uint8),
        text=tokenizer.decode(ids),
        notes=("the prompt came as token ids: its regions are unknown",),
    )


def response_ids(tokenizer: Any, prompt: PromptInput) -> Sequence[int]:
    """The answer that came with the prompt, as token ids."""
    if prompt.response_token_ids is not None:
        return prompt.response_token_ids
    ids: list[int] = tokenizer(prompt.response, add_special_tokens=False)["input_ids"]
    return ids


def prompt_record(
    prompt: PromptInput,
    condition: PromptCondition,
    head: Rendered,
    token_ids: np.ndarray,
    *,
    num_response_tokens: int,
    finish_reason: str,
    **more: Any,
) -> PromptRecord:
    """The record of a whole text, `token_ids` [token], that begins with `head`; what follows the response is continuation.
    `more`: further fields of PromptRecord."""
    num_prompt_tokens = len(head.token_ids)
    return PromptRecord(
        prompt_id=prompt.prompt_id,
        system_prompt=condition.system_prompt.name,
        template=condition.template.name,
        context_tokens=condition.context_tokens,
        category=prompt.category,
        messages=tuple(dict(m) for m in prompt.messages),
        token_ids=token_ids.astype(np.int32),
        region=text_regions(head.region, len(token_ids)),
        num_prompt_tokens=num_prompt_tokens,
        num_response_tokens=num_response_tokens,
        num_continuation_tokens=len(token_ids) - num_prompt_tokens - num_response_tokens,
        finish_reason=finish_reason,
        notes=head.notes,
        **more,
    )


def shared_prefix_tokens(prompts: Sequence[np.ndarray]) -> int:
    """Leading tokens that all prompts share, at most one less than the shortest has."""
    limit = min(len(p) for p in prompts) - 1
    stacked = np.stack([p[:limit] for p in prompts])
    differs = (stacked != stacked[0]).any(axis=0)
    return int(differs.argmax()) if differs.any() else limit


def read_together(texts: Sequence[np.ndarray]) -> list[list[int]]:
    """Texts of which one reading of the longest serves all, as the others are its beginnings, token by token.

    -> their indices, ascending, in groups; groups in the order of their first texts.
    """
    spelled = [text.astype(">i4").tobytes() for text in texts]  # ordered and compared as the tokens are
    groups: list[list[int]] = []
    for index in sorted(range(len(texts)), key=spelled.__getitem__, reverse=True):
        if groups and spelled[groups[-1][0]].startswith(spelled[index]):
            groups[-1].append(index)
        else:
            groups.append([index])
    return sorted(sorted(group) for group in groups)
