"""Formats of prompt files, a row each with its words for docs/prompt_files.md. A new format: a module and a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.prompts import benchmarks, conversations, logs, openai_chat, openai_requests, turns
from driftscope.prompts.line import Line, Reading
from driftscope.prompts.rows import DELIMITERS

TEXT = "text"
TEXT_SUFFIXES = (".txt", ".md")
PROMPT_SUFFIXES = (".jsonl", ".json", *DELIMITERS, ".parquet", *TEXT_SUFFIXES)
"""How the names of prompt files end. One with another end is read too: as Parquet or JSON, by what it holds."""


@dataclass(frozen=True)
class Format:
    """`matches` looks at one parsed object; `read` turns it into prompts, or raises InputError naming the line."""

    name: str
    files: str  # which files are like that
    keys: str  # what an object of it holds
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Line], Reading]


# fmt: off
_ROWS = (
    Format("openai-batch", "OpenAI, vLLM `run_batch` and providers' batch inputs",
           "`custom_id`, `url`, `body`: a request of another openai format",
           openai_requests.matches_batch, openai_requests.read_batch),
    Format("langfuse", "`observations_v2/`, exports of the web pages",
           "`type`, `input`, `output`, `prompt_name`, `prompt_version`", logs.matches_langfuse, logs.read_langfuse),
    Format("litellm", "StandardLoggingPayload, LiteLLM_SpendLogs",
           "`messages`, `response`, `call_type`, `status`", logs.matches_litellm, logs.read_litellm),
    Format("openai-chat", "chat JSON Lines, Nemo-Skills, Parquet with messages",
           "`messages` (or `prompt`: a list of messages), `tools`, `chat_template_kwargs`, `category`, `id`",
           openai_chat.matches, openai_chat.read),
    Format("openai-responses", "/v1/responses bodies",
           "`input`, `instructions`, `tools`", openai_requests.matches_responses, openai_requests.read_request),
    Format("conversations", "ShareGPT, SpecForge and other draft-training data",
           "`conversations`: `from`/`value` or `role`/`content`", conversations.matches, conversations.read),
    Format("turns", "MT-Bench, Spec-Bench, SPEED-Bench",
           "`question_id`, `category`, `turns`", turns.matches, turns.read),
    Format("aiperf-multi-turn", "AIPerf",
           "`session_id`, `turns`: `role`, `text`", benchmarks.matches_multi_turn, benchmarks.read_multi_turn),
    Format("preformatted", "training data with the template applied",
           "`text` (or `prompt`) with role markers", conversations.matches_preformatted, conversations.read_preformatted),
    Format("aiperf-single-turn", "AIPerf; traces with `text_input`",
           "`text`", benchmarks.matches_single_turn, benchmarks.read_single_turn),
    Format("token-ids", "engine logs",
           "`prompt_token_ids`, `output_token_ids` or `token_ids`",
           benchmarks.matches_token_ids, benchmarks.read_token_ids),
    Format("openai-completions", "/v1/completions bodies",
           "`prompt` (text, token ids, or a list of either), `model`",
           openai_requests.matches_completions, openai_requests.read_request),
    Format("bench-custom", "vLLM bench `custom`",
           "`prompt`; `response` or `completion` is an answer", benchmarks.matches_custom, benchmarks.read_custom),
    Format("trace", "Mooncake-style traces",
           "lengths and hashes, no text: refused", benchmarks.matches_trace, benchmarks.read_trace),
)
# fmt: on
FORMATS = {row.name: row for row in _ROWS}
"""Formats of objects by name. The first that matches a file's first object is its format, so one whose keys another's
objects may have too stands after that. Plain text is recognised by the file's name."""
