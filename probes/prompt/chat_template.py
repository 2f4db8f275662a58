"""A tokenizer's chat template, or a given one, as a function from a conversation to text and to token ids.

What this module does not know: regions, turns, what the text means. Jinja templates are foreign code: they are rendered
by transformers, in a process of their own (`template_process`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probes.errors import InputError
from probes.prompt.regions import Conversation
from probes.prompt.template_process import Budget, render_text, template_failed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_RESERVED_KWARGS = {"conversation", "messages", "tools", "chat_template", "add_generation_prompt", "tokenize"} | {
    "continue_final_message", "sanitize_control_tokens", "padding", "truncation", "max_length", "return_tensors",
    "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
}  # fmt: skip

# Takes a rendered text through the rest of apply_chat_template.
_SHOW_TEXT = "{{ messages[0]['content'] }}"


class ChatTemplate:
    """A chat template with everything but the conversation: tools, variables, whether to end with a generation prompt.

    `budget` is of the prompt: what this and others made from it may take. Raises InputError where there is no template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
        add_generation_prompt: bool,
        budget: Budget | None = None,
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
        self.tools: list[Any] | None = [dict(tool) for tool in tools] if tools else None
        self.kwargs = dict(kwargs)
        self.add_generation_prompt = add_generation_prompt
        self.budget = budget or Budget()
        self.source = self._source(template)

    def _source(self, template: str) -> str:
        if template != "default":
            if "{" not in template:
                raise InputError(
                    "this is neither `default`, `raw` nor a Jinja template",
                    quote=repr(template[:80]),
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
        """Raises RejectedError with the template's own words where it fails, InputError where it takes too much."""
        if self._renders_itself:
            return str(self._apply(conversation, tokenize=False))
        return render_text(
            {
                "template": self.source,
                "conversation": conversation,
                "tools": self.tools,
                "add_generation_prompt": self.add_generation_prompt,
                "special_tokens": self.tokenizer.special_tokens_map,
                "kwargs": self.kwargs,
            },
            self.budget,
        )

    def token_ids(self, conversation: Conversation, text: str) -> list[int]:
        """The ids that transformers gives the conversation, whose rendered text is `text`."""
        if self._renders_itself:
            return list(self._apply(conversation, tokenize=True, return_dict=False))
        shown = [{"role": "user", "content": text}]
        return list(
            self.tokenizer.apply_chat_template(shown, chat_template=_SHOW_TEXT, tokenize=True, return_dict=False)
        )

    def without(self, *, tools: bool = False, generation_prompt: bool = False) -> ChatTemplate:
        """The same without tools or generation prompt."""
        return ChatTemplate(
            self.tokenizer,
            self.source,
            None if tools else self.tools,
            self.kwargs,
            self.add_generation_prompt and not generation_prompt,
            self.budget,
        )

    @property
    def _renders_itself(self) -> bool:
        """Whether the tokenizer's class has a rendering of its own: Python that the user trusts, such as remote code."""
        from transformers import PreTrainedTokenizerBase

        return type(self.tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template

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
        except Exception as error:  # another's code: it may fail in any way, and its words are the reason
            raise template_failed(str(error) or type(error).__name__, getattr(error, "lineno", None)) from error
