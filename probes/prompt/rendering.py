"""From chat messages to the target's prompt tokens, each with its region (docs/architecture.md#regions-and-masses).

What this module does not know: models, conditions, prompt files. It takes one conversation, a tokenizer and a template
and says in `notes`, in plain sentences, what the template did that nobody asked for: a default system prompt, a system
role that it rejects, an empty think block, text that it leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32, UInt8

from probes.errors import InputError, SelfCheckError
from probes.prompt.chat_template import ChatTemplate
from probes.prompt.messages import (
    Turn,
    fields_of,
    fill_empty,
    fold_system,
    has_same_roles,
    join_turns,
    merge_same_roles,
    messages_of,
    put_context,
    read_messages,
    require_unicode,
)
from probes.prompt.regions import (
    REGION_ID,
    TEMPLATE,
    UNKNOWN,
    Conversation,
    Located,
    RejectedError,
    inserted_spans,
    locate,
    num_common,
    span_in_place_of,
    stand_ins,
    token_regions,
    unmark,
)
from probes.prompt.tokenization import insert_context, special_tokens, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Rendered", "insert_context", "render"]

SYSTEM, TOOLS = REGION_ID["system"], REGION_ID["tools"]

_ROLE_HEADER = re.compile(
    r"\s*(?:system|developer|user|human|assistant|model|tool|function|ipython)[ \t]*(?::|\r?\n|\Z)", re.IGNORECASE
)
_ROLE_MARKER = re.compile(r"<\|im_start\|>|<\|start_header_id\|>|<\|start\|>|<start_of_turn>|\[INST\]|<\|user\|>")
_MAX_QUOTED = 100  # characters of a note that come from the template or a variable's name
_MIN_PROSE_WORDS = 3  # literal text of fewer words is a header ("# Instructions"), not a system prompt


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A prompt as the target gets it. `region` indexes TEXT_REGIONS; `notes` are plain sentences for the reader."""

    token_ids: Int32[np.ndarray, " token"]
    region: UInt8[np.ndarray, " token"]
    text: str
    notes: tuple[str, ...]

    def num_tokens(self, region: str) -> int:
        """How many tokens of the prompt are of this region."""
        return int((self.region == REGION_ID[region]).sum())


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    *,
    template: str = "default",
    context: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> Rendered:
    """Render `messages` for generation.

    `template`: "default" (the tokenizer's), "raw" (none: BOS if the tokenizer adds one, then all texts joined by blank
    lines) or Jinja text. `context`: a document for the start of the first user turn, before the question.
    Raises InputError for unusable messages or a template that fails, SelfCheckError where ids contradict each other.
    """
    turns, notes = read_messages(messages)
    require_unicode(tools, "tools")
    if context:
        turns = put_context(turns, context)
    special_ids, special = special_tokens(tokenizer)
    for turn in turns:
        markers = sorted(
            {match.group() for pattern in (special, _ROLE_MARKER) for match in pattern.finditer(turn.text)}
        )
        if markers:
            notes.append(f"{turn.where} holds {', '.join(markers)}: it may already be templated")
    if template == "raw":
        return _render_raw(tokenizer, turns, notes, special_ids, has_tools=bool(tools))
    chat = ChatTemplate(tokenizer, template, tools, chat_template_kwargs or {}, add_generation_prompt)
    turns = _known_roles(turns, chat, notes)
    turns = _accepted_turns(turns, chat, notes)
    located = locate(messages_of(turns), fields_of(turns), chat.render)
    _find_tool_calls(turns, chat, located)
    notes += _notes_on_fields(turns, located)
    is_inserted = _find_inserted_text(turns, chat, located, special, notes)
    ids, spans, said = tokenize(tokenizer, located.text)
    if ids != chat.token_ids(messages_of(turns), located.text):
        raise SelfCheckError(
            "apply_chat_template gives other ids than the tokenizer for the same text",
            code="prompt_ids_differ",
            where="chat template",
            remedy="Report this tokenizer",
        )
    region = token_regions(located.char_region, spans, [index in special_ids for index in ids])
    num_inserted = sum(
        span is not None and bool(is_inserted[span[0] : span[1]].any()) and label == SYSTEM
        for span, label in zip(spans, region.tolist(), strict=True)
    )
    if num_inserted and any(turn.role == "system" for turn in turns):
        notes.append(f"the template adds {num_inserted} tokens of its own to the system text")
    elif num_inserted:
        notes.append(f"the template inserted a default system prompt of {num_inserted} tokens")
    return _rendered(ids, region, located.text, [*notes, *said])


def _rendered(ids: Sequence[int], region: UInt8[np.ndarray, " token"], text: str, notes: Sequence[str]) -> Rendered:
    if not len(ids):
        raise InputError("the prompt is empty", code="empty_prompt", remedy="Give a message with some text")
    return Rendered(token_ids=np.array(ids, np.int32), region=region, text=text, notes=tuple(dict.fromkeys(notes)))


def _known_roles(turns: list[Turn], chat: ChatTemplate, notes: list[str]) -> list[Turn]:
    """`developer` as `system` where the template has never heard of it."""
    if "developer" in chat.source or all(turn.role != "developer" for turn in turns):
        return turns
    notes.append("the template has no developer role: rendered as system")
    return [replace(turn, role="system") if turn.role == "developer" else turn for turn in turns]


def _accepted_turns(turns: list[Turn], chat: ChatTemplate, notes: list[str]) -> list[Turn]:
    """The turns as they are, or in the least changed form that the template accepts; else its own error."""
    first_error = None
    for candidate, said in _forms(turns):
        try:
            chat.render(messages_of(candidate))
        except RejectedError as error:
            first_error = first_error or error
            continue
        notes += said
        return candidate
    assert first_error is not None
    raise first_error


def _forms(turns: list[Turn]) -> Iterator[tuple[list[Turn], list[str]]]:
    changes: list[tuple[Callable[[Sequence[Turn]], list[Turn]], str]] = []
    if any(turn.parts is None for turn in turns):
        changes.append((fill_empty, "the template rejects a turn without content: given an empty one"))
    if turns[0].role == "system" and any(turn.role == "user" for turn in turns):
        changes.append((fold_system, "the template rejects the system role: merged into the first user turn"))
    if has_same_roles(turns):
        changes.append((merge_same_roles, "the template rejects consecutive turns of one role: merged"))
    for num_changes in range(len(changes) + 1):
        for chosen in combinations(changes, num_changes):
            changed = turns
            for change, _ in chosen:
                changed = change(changed)
            yield changed, [note for _, note in chosen]


def _notes_on_fields(turns: Sequence[Turn], located: Located) -> list[str]:
    said = {
        "changed": "the template leaves out or changes a part of {}",
        "left_out": "the template leaves out {}",
        "unproven": "where the template puts {} could not be proven: its tokens are unknown",
    }
    fields = fields_of(turns)
    return [
        said[outcome].format(
            turns[field.message_index].where
            if field.path[1] == "content"
            else f"{field.path[1]} of {turns[field.message_index].where}"
        )
        for field, outcome in zip(fields, located.outcome, strict=True)
        if outcome != "found"
    ]


def _find_tool_calls(turns: Sequence[Turn], chat: ChatTemplate, located: Located) -> None:
    """An earlier turn's tool calls are `history` in whole: all that the prompt has in place of a stand-in for the turn."""
    (stand_in,) = stand_ins(located.text, 1)
    for index, turn in enumerate(turns):
        if turn.role != "assistant" or "tool_calls" not in turn.extra:
            continue
        conversation = messages_of(turns)
        conversation[index] = {"role": turn.role, "content": stand_in}
        try:
            span = span_in_place_of(stand_in, chat.render(conversation), located.text)
        except (
            RejectedError
        ):  # an answer without a call: the call's strings are known already, its frame stays `template`
            continue
        if span:
            stretch = located.char_region[slice(*span)]
            stretch[stretch == TEMPLATE] = REGION_ID["history"]


def _find_inserted_text(
    turns: Sequence[Turn], chat: ChatTemplate, located: Located, special: re.Pattern[str], notes: list[str]
) -> np.ndarray:
    """Give text that came from no message its region, in `located.char_region`; adds notes.

    Returns bool [char]: system text that is the template's own.
    """
    text, region = located.text, located.char_region
    conversation = messages_of(turns)
    has_system = any(turn.role in ("system", "developer") for turn in turns)
    is_folded = any(part.region == "system" for turn in turns if turn.role == "user" for part in turn.parts or ())
    is_inserted = np.zeros(len(text), bool)
    if chat.tools:
        _find_tools(chat, located, special, notes)
    if not has_system and not is_folded:
        span = _default_system_span(chat, conversation, text)
        for start, end in _prose(text, region, *span, special) if span else ():
            region[start:end] = SYSTEM
            is_inserted[start:end] = True
    is_text = region != TEMPLATE if is_folded else (region != TEMPLATE) & (region != SYSTEM) & (region != TOOLS)
    first = int(np.argmax(is_text)) if is_text.any() else 0
    stop = first - num_common(text[:first][::-1], _text_between_turns(chat)[::-1])
    for start, end in _prose(text, region, 0, stop, special):
        if len(re.findall(r"[^\W\d_]{2,}", text[start:end])) >= _MIN_PROSE_WORDS:
            region[start:end] = SYSTEM
            is_inserted[start:end] = True
    notes += _notes_on_template(turns, chat, located, special)
    return is_inserted


def _default_system_span(chat: ChatTemplate, conversation: Conversation, text: str) -> tuple[int, int] | None:
    """Where the prompt has other text in place of a given system text, all else being equal."""
    (stand_in,) = stand_ins(text, 1)
    try:
        text_with_it = chat.render([{"role": "system", "content": stand_in}, *conversation])
    except RejectedError:  # no system role: no default for it either
        return None
    span = span_in_place_of(stand_in, text_with_it, text)
    return span if span and span[0] < span[1] else None


def _find_tools(chat: ChatTemplate, located: Located, special: re.Pattern[str], notes: list[str]) -> None:
    """What the prompt has more than the same without tool definitions is `tools`."""
    text, region = located.text, located.char_region
    try:
        other, other_marks = unmark(chat.without(tools=True).render(located.marked), located.meaning)
        spans = inserted_spans(text, located.marks, other, other_marks)
    except RejectedError:  # the template demands tools
        spans = None
    if spans is None:
        notes.append("tool definitions could not be told from the template's own text: unknown")
        label, spans = UNKNOWN, [(0, len(text))]
    else:
        label = TOOLS
        if not spans:
            notes.append("the template does not show the tool definitions")
    for start, stop in spans:
        for begin, end in _prose(text, region, start, stop, special):
            region[begin:end] = label


def _prose(
    text: str, region: UInt8[np.ndarray, " char"], start: int, stop: int, special: re.Pattern[str]
) -> Iterator[tuple[int, int]]:
    """Stretches of literal template text within [start, stop): no special tokens, role headers or outer white space."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], region[start:stop] == TEMPLATE, [False]]).astype(np.int8)))
    for low, high in edges.reshape(-1, 2) + start:
        ends = [int(low), *(place for match in special.finditer(text, low, high) for place in match.span()), int(high)]
        for begin, end in zip(ends[::2], ends[1::2], strict=True):
            header = _ROLE_HEADER.match(text[begin:end])
            begin += header.end() if header else 0
            piece = text[begin:end]
            if piece.strip():
                yield begin + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def _text_between_turns(chat: ChatTemplate) -> str:
    """What the template writes between a reply and the next user text: it ends with the user's role header."""
    first, reply, second = stand_ins("", 3)
    turns = (("user", first), ("assistant", reply), ("user", second))
    try:
        text = chat.without(tools=True).render([{"role": role, "content": content} for role, content in turns])
    except RejectedError:
        return ""
    return text.partition(reply)[2].partition(second)[0]


def _notes_on_template(
    turns: Sequence[Turn], chat: ChatTemplate, located: Located, special: re.Pattern[str]
) -> list[str]:
    """What a reader should know of how this template treats these turns."""
    text, region = located.text, located.char_region
    notes = []
    if any(turn.role == "system" and turn.text.strip() for turn in turns):
        system = np.flatnonzero(region == SYSTEM)
        user = np.flatnonzero((region == REGION_ID["user"]) | (region == REGION_ID["context"]))
        if len(system) and len(user):
            after = user[user > system[-1]]
            between = text[system[-1] + 1 : after[0]] if len(after) else ""
            if user[0] < system[0]:
                notes.append("the template puts the system text after the first user text begins")
            elif len(after) and not special.search(between) and not re.search(r"user|human", between, re.IGNORECASE):
                notes.append("the template writes the system text into the user turn")
    if chat.add_generation_prompt:
        shown = np.flatnonzero(region != TEMPLATE)
        tail = text[shown[-1] + 1 :] if len(shown) else text
        if re.search(r"<(think|thinking)>\s*</\1>", tail):
            notes.append("the template adds an empty think block")
        elif re.search(r"<(think|thinking)>", tail):
            notes.append("the template opens a think block: the response begins inside it")
        if chat.without(generation_prompt=True).render(messages_of(turns)) == text:
            end = tail.strip()
            is_literal = 0 < len(end) <= _MAX_QUOTED and end in chat.source  # anything else may be text of the prompt
            said = f": the prompt ends with {end!r}" if is_literal else ""
            notes.append(f"the template adds no generation prompt{said}")
    if "strftime_now" in chat.source:
        notes.append("the template can write today's date: the prompt may differ from day to day")
    for name in chat.kwargs:
        is_name = name.isidentifier() and len(name) <= _MAX_QUOTED
        if not is_name or not re.search(rf"\b{name}\b", chat.source):
            notes.append(f"the template does not read {name if is_name else 'a variable of chat_template_kwargs'}")
    return notes


def _render_raw(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[Turn],
    notes: list[str],
    special_ids: frozenset[int],
    *,
    has_tools: bool,
) -> Rendered:
    """No template: BOS if the tokenizer adds one, then all texts."""
    if has_tools or any("tool_calls" in turn.extra for turn in turns):
        notes.append("without a template there is no form for tool definitions and calls: left out")
    parts = join_turns(turns)
    text = "".join(part.text for part in parts)
    char_region = np.repeat([REGION_ID[part.region] for part in parts], [len(part.text) for part in parts])
    ids, spans, said = tokenize(tokenizer, text)
    region = token_regions(char_region.astype(np.uint8), spans, [index in special_ids for index in ids])
    bos = tokenizer.bos_token_id
    with_special = list(tokenizer(text, verbose=False)["input_ids"])
    if bos is not None and with_special[: len(ids) + 1] == [bos, *ids]:
        if ids[:1] == [bos]:
            notes.append("the text already begins with BOS: none added")
        else:
            ids = [bos, *ids]
            region = np.concatenate([[np.uint8(TEMPLATE)], region])
            text = str(tokenizer.bos_token) + text
    elif with_special[: len(ids)] != ids:
        raise SelfCheckError(
            "the tokenizer's ids of the text change when it adds its special tokens",
            code="prompt_ids_differ",
            where="raw prompt",
            remedy="Report this tokenizer",
        )
    return _rendered(ids, region, text, [*notes, *said])
