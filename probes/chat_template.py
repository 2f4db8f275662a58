"""A tokenizer's chat template, or a given one, as a function from a conversation to text and to token ids.

What this module does not know: regions, turns, what the text means. Jinja templates are foreign code: transformers runs
them in its sandbox, and whatever they raise becomes an InputError with their own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probes.errors import InputError
from probes.regions import Conversation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_RESERVED_KWARGS = {"conversation", "messages", "tools", "chat_template", "add_generation_prompt", "tokenize"} | {
    "continue_final_message", "sanitize_control_tokens", "padding", "truncation", "max_length", "return_tensors",
    "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
}  # fmt: skip


class ChatTemplate:
    """A chat template with everything but the conversation: tools, variables, whether to end with a generation prompt.

    Raises InputError where there is no template, and with the template's own words where it fails.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
        add_generation_prompt: bool,
    ) -> None:
        reserved = sorted(_RESERVED_KWARGS & set(kwargs))
        if reserved:
            raise InputError(
                f"chat_template_kwargs may not hold {', '.join(reserved)}",
                code="reserved_template_kwarg",
                where="chat_template_kwargs",
                remedy="Give only variables of the template, such as enable_thinking",
            )
        self.tokenizer = tokenizer
        self.tools = [dict(tool) for tool in tools] if tools else None
        self.kwargs = dict(kwargs)
        self.add_generation_prompt = add_generation_prompt
        self.source = self._source(template)

    def _source(self, template: str) -> str:
        if template != "default":
            if "{" not in template:
                raise InputError(
                    f"{template!r} is neither `default`, `raw` nor a Jinja template",
                    code="bad_template",
                    where="chat template",
                    remedy="Give a template file with NAME=FILE",
                )
            return template
        try:
            return str(self.tokenizer.get_chat_template(None, self.tools))
        except ValueError as error:
            raise InputError(
                "the tokenizer has no chat template",
                code="no_chat_template",
                where=str(getattr(self.tokenizer, "name_or_path", "")) or "tokenizer",
                remedy="Give one with NAME=FILE, or use `raw`",
            ) from error

    def render(self, conversation: Conversation) -> str:
        return str(self._apply(conversation, tokenize=False))

    def token_ids(self, conversation: Conversation) -> list[int]:
        return list(self._apply(conversation, tokenize=True, return_dict=False))

    def without(self, *, tools: bool = False, generation_prompt: bool = False) -> ChatTemplate:
        """The same without tools or generation prompt."""
        return ChatTemplate(
            self.tokenizer,
            self.source,
            None if tools else self.tools,
            self.kwargs,
            self.add_generation_prompt and not generation_prompt,
        )

    def _apply(self, conversation: Conversation, **kwargs: Any) -> Any:
        try:
            return self.tokenizer.apply_chat_template(
                conversation,
                tools=self.tools,
                chat_template=self.source,
                add_generation_prompt=self.add_generation_prompt,
                **kwargs,
                **self.kwargs,
            )
        except Exception as error:  # a template is foreign code: it may fail in any way, and its words are the reason
            line = getattr(error, "lineno", None)
            raise InputError(
                f"the chat template fails: {error}",
                code="template_failed",
                where="chat template" + (f", line {line}" if line else ""),
                remedy="Check the roles and their order, or give another template with NAME=FILE",
            ) from error
