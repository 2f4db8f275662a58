"""How much of a prompt file's text the draft vocabulary can draft, by script, language and category.

A token outside the draft vocabulary can never be drafted, so the share of covered response tokens bounds acceptance at
depth 1. Text is tokenized as it stands, by `tokenizers` alone: the chat template's own tokens are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftscope.check.check_report import Coverage, CoverageGroup, UncoveredToken
from driftscope.check.pair import Pair
from driftscope.check.scripts import script_of
from driftscope.check.vocab_map import draft_target_ids
from driftscope.prompts import PromptFile, read_prompts
from probes.conditions import PromptInput
from probes.errors import CheckpointError

MOST_UNCOVERED = 20
TOKENIZER = "tokenizer.json"
PARTS = ("prompt", "response")


@dataclass
class _Counts:
    """(part, by, name) -> tokens and covered tokens; part -> uncovered ids."""

    tokens: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    covered: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    uncovered: dict[str, Counter[int]] = field(default_factory=lambda: {part: Counter() for part in PARTS})
    num_responses: int = 0  # texts
    longest_tokens: int = 0  # of a prompt with its response


def measure_coverage(pair: Pair, path: Path, *, format: str | None = None) -> tuple[Coverage, int]:
    """The coverage of a prompt file, and the longest text in tokens.

    Raises InputError for a prompt file that cannot be read, CheckpointError when the target has no readable
    tokenizer.json or nothing says which ids are drafted.
    """
    prompts = read_prompts(path, format=format)
    tokenizer = _tokenizer(pair)
    reached = draft_target_ids(pair)
    vocab_size = pair.spec.vocab_size if pair.spec is not None else pair.target.integer("vocab_size")
    if vocab_size is None:
        raise CheckpointError(
            "neither drafter nor target says how large the vocabulary is",
            code="config_key_missing",
            where=pair.where,
            remedy="Add `vocab_size` to config.json",
        )
    if reached is not None:
        draft_vocab_size = len(reached)
    else:  # without d2t engines draft the first ids; all of them for a full vocabulary
        draft_vocab_size = pair.spec.draft_vocab_size if pair.spec is not None else vocab_size
    counts = _Counts()
    for prompt in prompts.prompts:
        _count(counts, prompt, tokenizer, reached, draft_vocab_size)
    coverage = Coverage(
        path=str(path),
        format=prompts.format,
        num_prompts=len(prompts.prompts),
        num_responses=counts.num_responses,
        draft_vocab_size=draft_vocab_size,
        vocab_size=vocab_size,
        groups=tuple(_groups(counts)),
        uncovered=tuple(_uncovered(counts, tokenizer)),
        notes=tuple(_notes(prompts, counts)),
    )
    return coverage, counts.longest_tokens


def _tokenizer(pair: Pair) -> Any:
    from tokenizers import Tokenizer  # a compiled library that only --prompts needs

    path = pair.target.file(TOKENIZER)
    if path is None:
        raise CheckpointError(
            f"the target has no {TOKENIZER}, which --prompts needs",
            code="tokenizer_missing",
            where=str(pair.target.folder),
            remedy=f"Save the tokenizer as {TOKENIZER} (transformers' fast tokenizers do), or leave out --prompts",
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises a bare Exception
        raise CheckpointError(
            f"not a readable tokenizer: {error}",
            code="tokenizer_unreadable",
            where=str(path),
            remedy="Download or save it again",
        ) from error


def _count(
    counts: _Counts, prompt: PromptInput, tokenizer: Any, reached: frozenset[int] | None, draft_vocab_size: int
) -> None:
    labels = [("all", "all")]
    labels += [("category", prompt.category)] if prompt.category else []
    labels += [("language", prompt.language)] if prompt.language else []
    length = 0
    for part, ids, pieces in _pieces(prompt, tokenizer):
        length += len(ids)
        counts.num_responses += part == "response"
        for token, piece in zip(ids, pieces, strict=True):
            is_covered = token < draft_vocab_size if reached is None else token in reached
            for by, name in (*labels, ("script", script_of(piece))):
                counts.tokens[part, by, name] += 1
                counts.covered[part, by, name] += is_covered
            if not is_covered:
                counts.uncovered[part][token] += 1
    counts.longest_tokens = max(counts.longest_tokens, length)


def _pieces(prompt: PromptInput, tokenizer: Any) -> Iterator[tuple[str, Sequence[int], Sequence[str]]]:
    """(part, ids, the text of each id); earlier assistant turns are what the target writes, so they are responses."""
    texts = [
        ("response" if message.get("role") == "assistant" else "prompt", text)
        for message in prompt.messages
        for text in _content(message.get("content"))
    ]
    texts += [(part, text) for part, text in (("prompt", prompt.text), ("response", prompt.response)) if text]
    for part, text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        yield part, encoding.ids, [text[start:end] for start, end in encoding.offsets]
    for part, ids in (("prompt", prompt.token_ids), ("response", prompt.response_token_ids)):
        if ids is not None:
            yield part, ids, [tokenizer.decode([token], skip_special_tokens=False) for token in ids]


def _content(content: object) -> Iterable[str]:
    """A message's text: a string, or the text parts of a list."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, (list, tuple)):
        return []
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return [text for text in texts if isinstance(text, str)]


def _groups(counts: _Counts) -> Iterator[CoverageGroup]:
    order = {"all": 0, "script": 1, "language": 2, "category": 3}
    keys = sorted(counts.tokens, key=lambda key: (PARTS.index(key[0]), order[key[1]], -counts.tokens[key], key[2]))
    for part, by, name in keys:
        tokens, covered = counts.tokens[part, by, name], counts.covered[part, by, name]
        yield CoverageGroup(
            part=part,
            by=by,
            name=name,
            num_tokens=tokens,
            num_covered=covered,
            share=covered / tokens if tokens else None,
        )


def _uncovered(counts: _Counts, tokenizer: Any) -> Iterator[UncoveredToken]:
    """By how often the response has them, then the prompts."""
    prompt, response = counts.uncovered["prompt"], counts.uncovered["response"]
    ids = sorted(prompt.keys() | response.keys(), key=lambda i: (-response[i], -prompt[i], i))
    for token in ids[:MOST_UNCOVERED]:
        yield UncoveredToken(
            token_id=token,
            text=tokenizer.decode([token], skip_special_tokens=False),
            num_prompt=prompt[token],
            num_response=response[token],
        )


def _notes(prompts: PromptFile, counts: _Counts) -> Iterator[str]:
    yield from (f"left out: {reason} ({count} lines)" for reason, count in prompts.left_out.items())
    yield from (f"{note} ({count} lines)" for note, count in prompts.notes.items())
    if not counts.num_responses:
        yield "the file has no responses: prompts stand in for what the target will write"
