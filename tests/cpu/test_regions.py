"""Prompts with regions: exact on templates of every kind, proven or `unknown`, equal to the tokenizer's own ids.

With the byte tokenizer every byte is a token, so that a region's tokens decode to exactly the characters it was given.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from probes.errors import InputError, SelfCheckError
from probes.prompt.regions import Field, Part, locate, token_regions
from probes.prompt.rendering import Rendered, insert_context, render
from probes.prompt.tokenization import count_tokens, special_tokens, tokenize
from probes.record import TEXT_REGIONS
from tests import chat_templates

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


def wrap(tokenizer: Tokenizer, **kwargs: Any) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens(list(chat_templates.SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **kwargs)


def byte_level(*, vocab_size: int | None = None, trim_offsets: bool = False) -> Tokenizer:
    """Byte-level BPE; without `vocab_size` no merges, so that every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: index for index, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if vocab_size:
        texts = [
            *chat_templates.ALL.values(),
            "the quick brown fox jumps over the lazy dog. It is, is it not?\n\n" * 20,
        ]
        tokenizer.train_from_iterator(
            texts,
            trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False),
        )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    return tokenizer


def metaspace() -> Tokenizer:
    """Llama-2's kind: words with a leading mark, a space put before the text, bytes where no piece fits."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz.,:ABTUSER\n"]
    tokenizer = Tokenizer(
        models.BPE({piece: index for index, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.fixture(scope="module")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    return wrap(byte_level())


@pytest.fixture(scope="module")
def bpe_tokenizer() -> PreTrainedTokenizerFast:
    return wrap(byte_level(vocab_size=600))


def pieces(tokenizer: Any, rendered: Rendered) -> list[tuple[str, str]]:
    """Runs of one region with their decoded tokens."""
    tokens = zip(rendered.region.tolist(), rendered.token_ids.tolist(), strict=True)
    return [
        (TEXT_REGIONS[region], tokenizer.decode([token for _, token in run], clean_up_tokenization_spaces=False))
        for region, run in groupby(tokens, key=lambda pair: pair[0])
    ]


def text_of(tokenizer: Any, rendered: Rendered, region: str) -> str:
    return "".join(text for name, text in pieces(tokenizer, rendered) if name == region)


def chat(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


CONVERSATION = chat(("system", "Be brief."), ("user", "One?"), ("assistant", "1"), ("user", "Two?"))

EXACT = {
    "smollm2": [
        ("template", "<|im_start|>system\n"),
        ("system", "Be brief."),
        ("template", "<|im_end|>\n<|im_start|>user\n"),
        ("context", "A doc.\n\n"),
        ("user", "One?"),
        ("template", "<|im_end|>\n<|im_start|>assistant\n"),
        ("history", "1"),
        ("template", "<|im_end|>\n<|im_start|>user\n"),
        ("user", "Two?"),
        ("template", "<|im_end|>\n<|im_start|>assistant\n"),
    ],
    "llama3": [
        ("template", "<s><|start_header_id|>system<|end_header_id|>\n\n"),
        ("system", "Knowledge ends in December 2023\nToday is 26 July 2024"),
        ("template", "\n\n"),
        ("system", "Be brief."),
        ("template", "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"),
        ("context", "A doc.\n\n"),
        ("user", "One?"),
        ("template", "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
        ("history", "1"),
        ("template", "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"),
        ("user", "Two?"),
        ("template", "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
    ],
    "gemma": [
        ("template", "<s><start_of_turn>user\n"),
        ("system", "Be brief.\n\n"),
        ("context", "A doc.\n\n"),
        ("user", "One?"),
        ("template", "<end_of_turn>\n<start_of_turn>model\n"),
        ("history", "1"),
        ("template", "<end_of_turn>\n<start_of_turn>user\n"),
        ("user", "Two?"),
        ("template", "<end_of_turn>\n<start_of_turn>model\n"),
    ],
    "mistral": [
        ("template", "<s>[INST] "),
        ("system", "Be brief."),
        ("template", "\n\n"),
        ("context", "A doc.\n\n"),
        ("user", "One?"),
        ("template", " [/INST] "),
        ("history", "1"),
        ("template", "</s>[INST] "),
        ("user", "Two?"),
        ("template", " [/INST]"),
    ],
    "mistral_last": [
        ("template", "<s>[INST] "),
        ("context", "A doc.\n\n"),
        ("user", "One?"),
        ("template", " [/INST] "),
        ("history", "1"),
        ("template", "</s>[INST] "),
        ("system", "Be brief."),
        ("template", "\n\n"),
        ("user", "Two?"),
        ("template", " [/INST]"),
    ],
    "gpt_oss": [
        ("template", "<|start|>system<|message|>"),
        (
            "system",
            "You are a test model with channels.\nKnowledge ends: 2024-06\n\n# Valid channels: analysis, final.",
        ),
        ("template", "<|end|><|start|>developer<|message|># Instructions\n\n"),
        ("system", "Be brief."),
        ("template", "<|end|><|start|>user<|message|>"),
        ("context", "A doc.\n\n"),
        ("user", "One?"),
        ("template", "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("history", "1"),
        ("template", "<|end|><|start|>user<|message|>"),
        ("user", "Two?"),
        ("template", "<|end|><|start|>assistant"),
    ],
    "vicuna": [
        ("system", "Be brief."),
        ("template", " USER: "),
        ("context", "A doc.\n\n"),
        ("user", "One?"),
        ("template", " ASSISTANT: "),
        ("history", "1"),
        ("template", "</s>USER: "),
        ("user", "Two?"),
        ("template", " ASSISTANT:"),
    ],
}
EXACT["qwen3"] = EXACT["smollm2"]


@pytest.mark.parametrize("name", sorted(EXACT))
def test_every_character_has_its_region(name: str, byte_tokenizer: Any) -> None:
    rendered = render(byte_tokenizer, CONVERSATION, template=chat_templates.ALL[name], context="A doc.")
    assert pieces(byte_tokenizer, rendered) == EXACT[name]
    assert rendered.text == "".join(text for _, text in EXACT[name])
    assert rendered.token_ids.dtype == np.int32
    assert rendered.region.dtype == np.uint8


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("gemma", "the template rejects the system role: merged into the first user turn"),
        ("mistral", "the template writes the system text into the user turn"),
        ("mistral_last", "the template puts the system text after the first user text begins"),
        ("mistral", "the template adds no generation prompt: the prompt ends with '[/INST]'"),
        ("llama3", "the template adds 53 tokens of its own to the system text"),
        ("gpt_oss", "the template adds 95 tokens of its own to the system text"),
    ],
)
def test_what_a_template_does_unasked_is_said(name: str, note: str, byte_tokenizer: Any) -> None:
    assert note in render(byte_tokenizer, CONVERSATION, template=chat_templates.ALL[name]).notes


def test_a_plain_template_needs_no_notes(byte_tokenizer: Any) -> None:
    for name in ("smollm2", "qwen3", "vicuna"):
        assert render(byte_tokenizer, CONVERSATION, template=chat_templates.ALL[name]).notes == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("smollm2", "You are a tiny test assistant made of few weights."),
        ("vicuna", "A talk between a curious user and a test assistant."),
        ("llama3", "Knowledge ends in December 2023\nToday is 26 July 2024"),
    ],
)
def test_a_default_system_prompt_is_system_and_counted(name: str, text: str, byte_tokenizer: Any) -> None:
    rendered = render(byte_tokenizer, chat(("user", "Hi")), template=chat_templates.ALL[name])
    assert text_of(byte_tokenizer, rendered, "system") == text
    assert text_of(byte_tokenizer, rendered, "user") == "Hi"
    assert rendered.notes == (f"the template inserted a default system prompt of {len(text)} tokens",)


def test_no_system_turn_and_an_empty_one_differ(byte_tokenizer: Any) -> None:
    missing = render(byte_tokenizer, chat(("user", "Hi")), template=chat_templates.SMOLLM2)
    empty = render(byte_tokenizer, chat(("system", ""), ("user", "Hi")), template=chat_templates.SMOLLM2)
    assert missing.num_tokens("system") == 50
    assert empty.num_tokens("system") == 0
    assert empty.text.startswith("<|im_start|>system\n<|im_end|>\n")
    assert empty.notes == ("messages[0] (system) is empty: an empty turn, not the same as none",)


# Contents that a search would misplace: template text, each other's, the roles' names.
CONFUSING = chat(("system", "user\n"), ("user", "user"), ("assistant", "user"), ("user", "assistant\nuser\n"))


@pytest.mark.parametrize("name", sorted(EXACT))
def test_contents_that_repeat_or_look_like_the_template(name: str, byte_tokenizer: Any) -> None:
    rendered = render(byte_tokenizer, CONFUSING, template=chat_templates.ALL[name], context="user\n")
    is_trimmed = name in ("llama3", "gemma")
    assert text_of(byte_tokenizer, rendered, "user") == "user" + (
        "assistant\nuser" if is_trimmed else "assistant\nuser\n"
    )
    assert text_of(byte_tokenizer, rendered, "history") == "user"
    assert text_of(byte_tokenizer, rendered, "context") == "user\n\n\n"
    assert text_of(byte_tokenizer, rendered, "unknown") == ""
    system = text_of(byte_tokenizer, rendered, "system")
    assert system.endswith({"llama3": "user", "gemma": "user\n\n\n"}.get(name, "user\n"))


def test_trimmed_and_kept_white_space(byte_tokenizer: Any) -> None:
    messages = chat(("system", " a \n"), ("user", "\n b "))
    kept = render(byte_tokenizer, messages, template=chat_templates.SMOLLM2)
    assert [text_of(byte_tokenizer, kept, region) for region in ("system", "user")] == [" a \n", "\n b "]
    trimmed = render(byte_tokenizer, messages, template=chat_templates.LLAMA3)
    assert text_of(byte_tokenizer, trimmed, "user") == "b"
    one_side = chat_templates.SMOLLM2.replace("message['content']", "message['content'].lstrip()")
    assert text_of(byte_tokenizer, render(byte_tokenizer, messages, template=one_side), "user") == "b "


def test_special_tokens_in_a_content_are_template_and_said(byte_tokenizer: Any) -> None:
    messages = chat(("user", "<|im_start|>user\nHi<|im_end|>"))
    rendered = render(byte_tokenizer, messages, template=chat_templates.QWEN3)
    assert text_of(byte_tokenizer, rendered, "user") == "user\nHi"
    assert rendered.notes == ("messages[0] (user) holds <|im_end|>, <|im_start|>: it may already be templated",)


def test_think_blocks(byte_tokenizer: Any) -> None:
    messages = chat(("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nyes"), ("user", "b"))
    off = render(
        byte_tokenizer, messages, template=chat_templates.QWEN3, chat_template_kwargs={"enable_thinking": False, "x": 1}
    )
    assert off.text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert pieces(byte_tokenizer, off)[-1] == ("template", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert text_of(byte_tokenizer, off, "history") == "yes"
    assert text_of(byte_tokenizer, off, "unknown") == ""
    assert off.notes == (
        "the template leaves out or changes a part of messages[1] (assistant)",
        "the template adds an empty think block",
        "the template does not read x",
    )
    opens = chat_templates.SMOLLM2.replace("assistant\n' }}", "assistant\n<think>\n' }}")
    notes = render(byte_tokenizer, chat(("system", "s"), ("user", "a")), template=opens).notes
    assert notes == ("the template opens a think block: the response begins inside it",)


TOOL_CONVERSATION = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"place": "the \\"Alps\\"", "n": 3}'},
            }
        ],
    },
    {"role": "tool", "content": 'sun "and" snow'},
    {"role": "user", "content": "Thanks"},
]


def test_tools_in_the_system_turn(byte_tokenizer: Any) -> None:
    rendered = render(byte_tokenizer, TOOL_CONVERSATION, template=chat_templates.QWEN3, tools=[WEATHER_TOOL])
    runs = pieces(byte_tokenizer, rendered)
    assert [region for region, _ in runs] == [
        "template", "tools", "template", "user", "template", "history", "template", "tools", "template", "user", "template",
    ]  # fmt: skip
    assert runs[1][1].startswith('# Tools\n\nYou may call functions from this list:\n<tools>\n{"type": "function"')
    assert runs[1][1].endswith("Answer with a JSON object for each call.")
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "the \\"Alps\\"", "n": 3}}\n</tool_call>'
    assert runs[5] == ("history", call)
    assert runs[7] == ("tools", 'sun "and" snow')
    assert rendered.notes == ()


def test_tools_in_the_first_user_turn_and_answers_as_json(byte_tokenizer: Any) -> None:
    rendered = render(byte_tokenizer, TOOL_CONVERSATION, template=chat_templates.LLAMA3, tools=[WEATHER_TOOL])
    tools = [text for region, text in pieces(byte_tokenizer, rendered) if region == "tools"]
    assert tools[0] == "Environment: python"
    assert tools[1].startswith("You may call one of these functions, in JSON.\n\n{\n")
    assert tools[1].endswith("\n}")
    assert tools[2] == 'sun \\"and\\" snow'
    assert text_of(byte_tokenizer, rendered, "history").endswith('"the \\"Alps\\"", "n": 3}}')
    assert text_of(byte_tokenizer, rendered, "user") == "Weather?Thanks"
    assert text_of(byte_tokenizer, rendered, "system").startswith("Knowledge ends in December 2023")


def test_tools_beside_a_default_or_given_system_prompt(byte_tokenizer: Any) -> None:
    appended = chat_templates.SMOLLM2.replace(
        "few weights.<|im_end|>\n' }}",
        "few weights.' }}{% if tools %}{{ '\n\n# Tools\n' + tools[0] | tojson }}{% endif %}{{ '<|im_end|>\n' }}",
    )
    rendered = render(byte_tokenizer, chat(("user", "Hi")), template=appended, tools=[WEATHER_TOOL])
    assert text_of(byte_tokenizer, rendered, "system") == "You are a tiny test assistant made of few weights."
    assert text_of(byte_tokenizer, rendered, "tools").startswith('# Tools\n{"type"')
    given = render(byte_tokenizer, CONVERSATION, template=chat_templates.QWEN3, tools=[WEATHER_TOOL])
    assert text_of(byte_tokenizer, given, "system") == "Be brief."
    assert text_of(byte_tokenizer, given, "tools").endswith("Answer with a JSON object for each call.")


def test_tools_that_a_template_does_not_show_are_said(byte_tokenizer: Any) -> None:
    rendered = render(byte_tokenizer, TOOL_CONVERSATION, template=chat_templates.SMOLLM2, tools=[WEATHER_TOOL])
    assert rendered.notes == (
        "the template rejects a turn without content: given an empty one",
        "the template leaves out tool_calls of messages[1] (assistant)",
        "the template does not show the tool definitions",
        "the template inserted a default system prompt of 50 tokens",
    )


def test_tools_that_cannot_be_separated_are_unknown(byte_tokenizer: Any) -> None:
    demands = (
        "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}{{ tools[0] | tojson }}" + chat_templates.QWEN3
    )
    rendered = render(byte_tokenizer, CONVERSATION, template=demands, tools=[WEATHER_TOOL])
    assert rendered.num_tokens("tools") == 0
    assert rendered.num_tokens("unknown") > 100
    assert text_of(byte_tokenizer, rendered, "user") == "One?Two?"
    assert "tool definitions could not be told from the template's own text: unknown" in rendered.notes


LOOP = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}BODY{{ '<|im_end|>\n' }}{% endfor %}"


@pytest.mark.parametrize(
    ("body", "regions", "outcome"),
    [
        # nowhere alone: shown twice, each time shouted
        (
            "{{ message.content | upper }}+{{ message.content | upper }}",
            {"unknown": "user\nALPHA BETA+ALPHA BETA\n"},
            "could not be proven",
        ),
        # a place, but another text in it
        ("{{ message.content | upper }}", {"unknown": "ALPHA BETA"}, "a part of"),
        ("{{ message.content | replace(' ', '_') }}", {"unknown": "alpha_beta"}, "a part of"),
        # a part of the text, in its place
        ("{{ message.content[:4] }}", {"user": "alph"}, "a part of"),
        ("{{ message.content.split(' ')[-1] }}", {"user": "beta"}, "a part of"),
        ("", {"user": ""}, "leaves out"),
        # looks at the text's beginning, which marks would change; shows more than the text in its place
        (
            "{{ '!' if message.content.startswith('a') }}{{ message.content }}",
            {"unknown": "!alpha beta"},
            "a part of",
        ),
        # looks at a part that the marks leave as it is
        ("{{ '!' if 'ha b' in message.content }}{{ message.content }}", {"user": "alpha beta"}, ""),
    ],
)
def test_what_cannot_be_proven_is_unknown(
    body: str, regions: dict[str, str], outcome: str, byte_tokenizer: Any
) -> None:
    messages = chat(("user", "alpha beta"))
    rendered = render(byte_tokenizer, messages, template=LOOP.replace("BODY", body), add_generation_prompt=False)
    for region in ("user", "unknown"):
        assert text_of(byte_tokenizer, rendered, region) == regions.get(region, "")
    notes = " ".join(rendered.notes)
    assert outcome in notes if outcome else not notes


def test_an_unproven_string_leaves_its_neighbours_alone(byte_tokenizer: Any) -> None:
    shout = "{{ message.content | upper }}+{{ message.content | upper }}"
    body = "{% if loop.index0 == 1 %}" + shout + "{% else %}{{ message.content }}{% endif %}"
    messages = chat(("user", "a"), ("assistant", "b"), ("user", "c"))
    rendered = render(byte_tokenizer, messages, template=LOOP.replace("BODY", body), add_generation_prompt=False)
    assert text_of(byte_tokenizer, rendered, "user") == "ac"
    assert text_of(byte_tokenizer, rendered, "history") == ""
    assert "assistant\nB+B" in text_of(byte_tokenizer, rendered, "unknown")


def test_locate_in_a_text_that_is_its_own_mark() -> None:
    """Private-use characters in contents, even all that marks begin with, are contents."""
    content = "".join(chr(0x100000 + index) for index in range(50))
    conversation = chat(("user", content + "x"))
    field = Field(path=(0, "content"), parts=(Part(region="context", text=content), Part(region="user", text="x")))
    located = locate(conversation, [field], lambda messages: f"<{messages[0]['content']}>")
    names = [TEXT_REGIONS[region] for region in located.char_region]
    assert names == ["template", *["context"] * 50, "user", "template"]
    assert located.outcome == ("found",)


def test_a_template_that_never_repeats_itself_is_refused(byte_tokenizer: Any) -> None:
    with pytest.raises(InputError) as error:
        render(byte_tokenizer, chat(("user", "a")), template="{{ strftime_now('%f') }}{{ messages[0].content }}")
    assert error.value.code == "template_not_repeatable"


def test_a_template_that_writes_the_date_is_said(byte_tokenizer: Any) -> None:
    dated = "{{ 'Now it is the year ' + strftime_now('%Y') + '\n' }}" + chat_templates.QWEN3
    rendered = render(byte_tokenizer, chat(("user", "a")), template=dated)
    assert "the template can write today's date: the prompt may differ from day to day" in rendered.notes
    assert text_of(byte_tokenizer, rendered, "system").startswith("Now it is the year 2")


def test_roles_that_do_not_alternate(byte_tokenizer: Any) -> None:
    messages = chat(("system", "s"), ("user", "a"), ("user", "b"))
    rendered = render(byte_tokenizer, messages, template=chat_templates.GEMMA, context="d")
    assert pieces(byte_tokenizer, rendered)[1:4] == [("system", "s\n\n"), ("context", "d\n\n"), ("user", "a\n\nb")]
    assert rendered.notes == (
        "the template rejects the system role: merged into the first user turn",
        "the template rejects consecutive turns of one role: merged",
    )
    as_they_are = render(byte_tokenizer, messages, template=chat_templates.QWEN3)
    assert as_they_are.text.count("<|im_start|>user") == 2


def test_developer_role(byte_tokenizer: Any) -> None:
    messages = chat(("developer", "Be brief."), ("user", "Hi"))
    known = render(byte_tokenizer, messages, template=chat_templates.GPT_OSS)
    assert text_of(byte_tokenizer, known, "system").endswith("Be brief.")
    assert "the template has no developer role: rendered as system" not in known.notes
    unknown = render(byte_tokenizer, messages, template=chat_templates.SMOLLM2)
    assert unknown.text.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert unknown.notes == ("the template has no developer role: rendered as system",)


def test_content_as_a_list_of_parts(byte_tokenizer: Any) -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    rendered = render(byte_tokenizer, [{"role": "user", "content": content}], template=chat_templates.QWEN3)
    assert text_of(byte_tokenizer, rendered, "user") == "a\nb"
    assert rendered.notes == ("messages[0] (user) has 2 text parts, joined by line breaks",)
    with pytest.raises(InputError, match="another type is not text: 'image_url'"):
        render(byte_tokenizer, [{"role": "user", "content": [{"type": "image_url"}]}], template=chat_templates.QWEN3)


def test_a_role_nobody_knows_is_unknown(byte_tokenizer: Any) -> None:
    rendered = render(
        byte_tokenizer, chat(("critic", "no"), ("user", "Hi")), template=LOOP.replace("BODY", "{{ message.content }}")
    )
    assert text_of(byte_tokenizer, rendered, "unknown") == "no"


@pytest.mark.parametrize(
    ("messages", "kwargs", "code", "words"),
    [
        ([], {}, "no_messages", "no messages"),
        ([{"content": "a"}], {}, "bad_message", "no role"),
        (CONVERSATION[:3], {}, "last_turn_assistant", "messages[2] (assistant)"),
        (chat(("user", "a\ud83d")), {}, "not_unicode", "messages[0] (user)"),
        (CONVERSATION, {"context": "\ud83d"}, "not_unicode", "context"),
        (CONVERSATION, {"tools": [{"name": "\ud83d"}]}, "not_unicode", "tools"),
        (chat(("system", "a")), {"context": "d"}, "no_user_turn", "no user turn"),
        (CONVERSATION, {"template": "{% if %}"}, "template_failed", "line 1"),
        (CONVERSATION, {"template": "chatml"}, "bad_template", "'chatml'"),
        (CONVERSATION, {"template": "default"}, "no_chat_template", "no chat template"),
        (CONVERSATION, {"chat_template_kwargs": {"tokenize": 1}}, "reserved_template_kwarg", "tokenize"),
        (chat(("user", "a"), ("tool", "b")), {"template": chat_templates.MISTRAL}, "template_failed", "Only user and"),
        (chat(("user", "")), {"template": "raw"}, "empty_prompt", "empty"),
    ],
)
def test_unusable_input(messages: Any, kwargs: dict[str, Any], code: str, words: str, byte_tokenizer: Any) -> None:
    with pytest.raises(InputError) as error:
        render(byte_tokenizer, messages, **{"template": chat_templates.QWEN3, **kwargs})
    assert error.value.code == code
    assert words in str(error.value)
    assert error.value.remedy


def test_the_default_template_is_the_tokenizers() -> None:
    tokenizer = wrap(byte_level(), chat_template=chat_templates.GEMMA)
    assert pieces(tokenizer, render(tokenizer, CONVERSATION, context="A doc.")) == EXACT["gemma"]


@pytest.mark.parametrize("has_bos", [True, False])
def test_raw_prompts(has_bos: bool) -> None:
    plain = byte_level()
    if has_bos:
        plain.add_special_tokens(["<s>"])
        plain.post_processor = processors.TemplateProcessing(
            "<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)]
        )
    tokenizer = wrap(plain)
    rendered = render(tokenizer, CONVERSATION, template="raw", context="A doc.", tools=[WEATHER_TOOL])
    expected = [
        ("system", "Be brief.\n\n"),
        ("context", "A doc.\n\n"),
        ("user", "One?\n\n"),
        ("history", "1\n\n"),
        ("user", "Two?"),
    ]
    assert pieces(tokenizer, rendered) == [("template", "<s>")] * has_bos + expected
    assert rendered.text == "<s>" * has_bos + "Be brief.\n\nA doc.\n\nOne?\n\n1\n\nTwo?"
    assert rendered.notes == ("without a template there is no form for tool definitions and calls: left out",)
    already = render(tokenizer, chat(("user", "<s>Hi")), template="raw")
    assert already.text == "<s>Hi"
    assert ("the text already begins with BOS: none added" in already.notes) == has_bos


def test_token_regions_by_majority() -> None:
    template, system, user, unknown = (TEXT_REGIONS.index(name) for name in ("template", "system", "user", "unknown"))
    char_region = np.array([system] * 3 + [template] * 2 + [user] * 3, np.uint8)
    spans = [(0, 3), (2, 4), (2, 5), (3, 8), None, (5, 6), (6, 6), (7, 7), (8, 8), (7, 8)]
    is_special = [False] * 9 + [True]
    expected = [
        system,
        template,  # a tie: the first in precedence
        template,  # two of three
        user,  # three of five
        unknown,
        user,
        user,  # nothing: what follows
        user,
        user,  # nothing at the end: the last character
        template,  # special
    ]
    assert token_regions(char_region, spans, is_special).tolist() == expected


def test_bytes_of_one_character_share_its_region(byte_tokenizer: Any) -> None:
    rendered = render(byte_tokenizer, chat(("system", "é"), ("user", "漢😀")), template=chat_templates.QWEN3)
    assert rendered.num_tokens("system") == 2
    assert rendered.num_tokens("user") == 7


def test_tokens_that_are_only_a_trimmed_space() -> None:
    tokenizer = wrap(byte_level(trim_offsets=True))
    rendered = render(tokenizer, chat(("system", "a  b"), ("user", "c d")), template=chat_templates.QWEN3)
    assert text_of(tokenizer, rendered, "system") == "a  b"
    assert text_of(tokenizer, rendered, "user") == "c d"


def test_a_tokenizer_with_a_prefix_space_and_byte_fallback() -> None:
    tokenizer = wrap(metaspace())
    rendered = render(tokenizer, chat(("system", "be brief."), ("user", "é\nb")), template=chat_templates.VICUNA)
    assert rendered.text == "be brief. USER: é\nb ASSISTANT:"
    assert rendered.num_tokens("system") == len(" be brief.")
    assert rendered.num_tokens("user") == 4  # é is two bytes
    assert rendered.num_tokens("unknown") == 0


def test_characters_without_a_token_are_said() -> None:
    tokenizer = wrap(Tokenizer(models.BPE({letter: index for index, letter in enumerate("USERASIT: hi")}, [])))
    _, _, notes = tokenize(tokenizer, "hi é")
    assert notes == ("the tokenizer has no token for 1 characters of the prompt: they are lost",)


class SlowBytes(PreTrainedTokenizer):
    """A tokenizer written in Python: one token a byte, no offsets."""

    def __init__(self, *, shift: int = 0, **kwargs: Any) -> None:
        self.shift = shift
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        return 256

    def get_vocab(self) -> dict[str, int]:
        return {chr(byte): byte for byte in range(256)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return [chr(byte) for byte in text.encode()]

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token)

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        pieces = [token.encode() if len(token) > 1 else bytes([(ord(token) + self.shift) % 256]) for token in tokens]
        return b"".join(pieces).decode(errors="replace")


def slow_bytes(**kwargs: Any) -> SlowBytes:
    special = list(chat_templates.SPECIAL_TOKENS)
    return SlowBytes(bos_token="<s>", eos_token="</s>", extra_special_tokens=special, **kwargs)


def test_a_slow_tokenizer_is_followed_by_decoding(byte_tokenizer: Any) -> None:
    tokenizer = slow_bytes()
    rendered = render(tokenizer, chat(("system", "é"), ("user", "漢 😀")), template=chat_templates.QWEN3)
    assert rendered.num_tokens("system") == 2
    assert rendered.num_tokens("user") == 8
    assert rendered.num_tokens("unknown") == 0
    assert rendered.notes == ()
    assert insert_context(["é漢 😀 and so on"], 6, tokenizer) == "é漢 "


def test_a_slow_tokenizer_that_decodes_to_other_text_is_unknown() -> None:
    ids, spans, notes = tokenize(slow_bytes(shift=1), "abc")
    assert spans == [None] * len(ids) == [None] * 3
    assert notes == ("a slow tokenizer: 3 tokens could not be matched with the prompt, their region is unknown",)


def test_ids_that_contradict_each_other_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = wrap(byte_level(), chat_template=chat_templates.QWEN3)
    apply = tokenizer.apply_chat_template

    def other(*args: Any, tokenize: bool, **kwargs: Any) -> Any:
        return [0, *apply(*args, tokenize=True, **kwargs)] if tokenize else apply(*args, tokenize=False, **kwargs)

    monkeypatch.setattr(tokenizer, "apply_chat_template", other)
    with pytest.raises(SelfCheckError) as error:
        render(tokenizer, CONVERSATION)
    assert error.value.code == "prompt_ids_differ"


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 20, 41, 120])
def test_a_context_has_exactly_as_many_tokens(num_tokens: int, bpe_tokenizer: Any) -> None:
    documents = ["  The quick brown fox jumps over the lazy dog.\n", "It is, is it not? " * 20]
    for tokenizer in (bpe_tokenizer, TOKENIZERS[2]):
        text = insert_context(documents, num_tokens, tokenizer)
        assert count_tokens(tokenizer, text) == num_tokens
        assert (documents[0].strip() + "\n\n" + documents[1].strip()).startswith(text)


@pytest.mark.parametrize("num_tokens", range(3, 19, 2))
def test_a_context_is_never_cut_inside_a_character(num_tokens: int, byte_tokenizer: Any) -> None:
    document = "a漢字é😀😀 b"
    text = insert_context([document], num_tokens, byte_tokenizer)
    assert document.startswith(text)
    longest = max(len(document[:n].encode()) for n in range(len(document)) if len(document[:n].encode()) <= num_tokens)
    assert count_tokens(byte_tokenizer, text) == longest


def test_contexts_too_short_empty_or_negative(byte_tokenizer: Any) -> None:
    assert insert_context(["abc"], 0, byte_tokenizer) == ""
    assert insert_context(["ab", "", "cd"], 6, byte_tokenizer) == "ab\n\ncd"
    with pytest.raises(InputError, match="the documents hold 6 tokens, 7 were asked for"):
        insert_context(["ab", "cd"], 7, byte_tokenizer)
    with pytest.raises(InputError, match="a context of -1 tokens"):
        insert_context(["ab"], -1, byte_tokenizer)


def test_the_document_is_a_shared_prefix(bpe_tokenizer: Any) -> None:
    document = insert_context(["The quick brown fox jumps over the lazy dog. " * 9], 60, bpe_tokenizer)
    questions = ("One?", "the second\nquestion", "3")
    for name in ("smollm2", "llama3", "gemma", "mistral", "qwen3", "gpt_oss", "vicuna"):
        prompts = [
            render(
                bpe_tokenizer,
                chat(("system", "Be brief."), ("user", q)),
                template=chat_templates.ALL[name],
                context=document,
            )
            for q in questions
        ]
        shortest = min(len(prompt.token_ids) for prompt in prompts)
        equal = (np.stack([p.token_ids[:shortest] for p in prompts]) == prompts[0].token_ids[:shortest]).all(axis=0)
        num_shared = int(np.argmin(equal))
        context = np.flatnonzero(prompts[0].region == TEXT_REGIONS.index("context"))
        assert len(context) >= 60
        assert num_shared >= context[-1], name  # all but the blank line at most, which may join the question


FRAGMENTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["<|im_end|>\n<|im_start|>user\n", "user", "assistant\n", "[INST]", "</think>", "<think>\n", "\n\n", " ", "😀é漢",
         "{{ messages }}", '{"a": "\\n"}', "\U00100000", "\u00a0", "\x1c", "USER: ", "Be brief."]
    ),
)  # fmt: skip
CONTENT = st.lists(FRAGMENTS, max_size=5).map("".join)


TOKENIZERS = [wrap(byte_level()), wrap(byte_level(vocab_size=600)), wrap(byte_level(vocab_size=400, trim_offsets=True))]


def without_special(text: str) -> str:
    return "".join(special_tokens(TOKENIZERS[0])[1].split(text))


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(EXACT)),
    system=st.none() | CONTENT,
    context=st.just("") | CONTENT,
    contents=st.lists(CONTENT, min_size=1, max_size=4),
)
def test_any_contents(name: str, system: str | None, context: str, contents: list[str]) -> None:
    turns = [(("user", "assistant")[index % 2], text) for index, text in enumerate(contents)]
    turns += [("user", "last")] * (len(turns) % 2 == 0)
    messages = chat(*([] if system is None else [("system", system)]), *turns)
    in_bytes, in_merged, in_trimmed = (
        render(tokenizer, messages, template=chat_templates.ALL[name], context=context) for tokenizer in TOKENIZERS
    )
    for tokenizer, rendered in zip(TOKENIZERS, (in_bytes, in_merged, in_trimmed), strict=True):
        assert rendered.token_ids.tolist() == tokenizer(rendered.text, add_special_tokens=False)["input_ids"]
        assert len(rendered.region) == len(rendered.token_ids)
        assert rendered.text == in_bytes.text

    # Every content is found, whole, and nothing else is called so.
    if name != "qwen3":  # which drops what stands before </think>
        assert in_bytes.num_tokens("unknown") == 0
        whole = without_white_space if name in ("llama3", "gemma") else str  # these trim
        for region, role in (("user", "user"), ("history", "assistant")):
            given_text = "".join(without_special(text) for turn_role, text in turns if turn_role == role)
            assert whole(text_of(TOKENIZERS[0], in_bytes, region)) == whole(given_text)
        document = without_special(context)
        assert without_white_space(text_of(TOKENIZERS[0], in_bytes, "context")) == without_white_space(document)

    # A merged token has a region that its bytes have.
    region_of_byte: list[int] = []
    for token, region in zip(in_bytes.token_ids.tolist(), in_bytes.region.tolist(), strict=True):
        region_of_byte += [region] * num_bytes(TOKENIZERS[0], token)
    position = 0
    for token, region in zip(in_merged.token_ids.tolist(), in_merged.region.tolist(), strict=True):
        stop = position + num_bytes(TOKENIZERS[1], token)
        assert region in region_of_byte[position:stop]
        position = stop
    assert position == len(region_of_byte) == len(in_bytes.text.encode())


def without_white_space(text: str) -> str:
    return "".join(text.split())


def num_bytes(tokenizer: Any, token: int) -> int:
    return len(tokenizer.convert_ids_to_tokens(token))  # byte-level: a letter for each byte; special tokens are ASCII


def test_importing_needs_neither_torch_nor_transformers() -> None:
    code = "import sys, probes.prompt.rendering; assert not {'torch', 'transformers', 'jinja2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
