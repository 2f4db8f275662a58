"""The worst rounds of each drafter: fewest drafts accepted, the drafter surest of its mistake. One of a conversation.

With text: the words around it, coloured by what speculation did, and what was drafted against what was written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from driftscope.report.contents import Contents, ReportRun
from driftscope.report.conversation import KINDS, Vocabulary, token_fates, vocabulary
from driftscope.report.tables import Table, number
from driftscope.report.text import clean, label, piece
from driftscope.runs.schema import CONDITION, BatchKey, PromptKey
from driftscope.runs.views import NOT_LOOPING

NUM_OF_SERIES = 3
TOKENS_BEFORE, TOKENS_AFTER = 40, 10
DECODED_BEFORE = 8  # a character may begin some tokens earlier
MAX_MESSAGE_CHARACTERS = 400


@dataclass(frozen=True)
class Token:
    """One token of the excerpt. `blanks` stand before its text; `is_of_round`: written by the round that is shown."""

    blanks: str
    text: str
    kind: str
    is_of_round: bool


@dataclass(frozen=True, kw_only=True)
class BadRound:
    """One round. `excerpt` and `message` are empty without text."""

    heading: str
    facts: str
    message: str
    excerpt: Sequence[Token]
    table: Table


def worst_rounds(contents: Contents, *, with_text: bool) -> list[BadRound]:
    """A few of each series."""
    found = []
    for run in contents.runs:
        words = vocabulary(run.info) if with_text else Vocabulary(None)
        chosen = _choose(run)
        if chosen:
            depths = _depths(run, [row["round_id"] for row in chosen])
            found += [_bad_round(contents, run, row, depths[row["round_id"]], words, with_text) for row in chosen]
    return found


def why_no_text(contents: Contents) -> list[str]:
    """Why words are missing where they were asked for."""
    said = []
    for run in contents.runs:
        if not run.info.has_text:
            said.append(f"{run.name} keeps no text: tokens are left out.")
        elif run.info.engine != "import" and (words := vocabulary(run.info)).tokenizer is None:
            said.append(f"{run.name}: token ids stand for words, because {words.reason}.")
    return said


def _choose(run: ReportRun) -> list[dict[str, Any]]:
    key = ", ".join(f"r.{name}" for name in BatchKey._fields)
    rows = run.run.query(
        f"with rejected as (select r.round_id, {key}, r.start, r.num_drafts, r.accepted_drafts, d.draft_prob, "
        "row_number() over (partition by r.drafter, r.prompt_id "
        "order by r.accepted_drafts, d.draft_prob desc nulls last, r.round_id) as number "
        f"from (from rounds {NOT_LOOPING}) r "
        "join depths d on r.round_id = d.round_id and d.layer = 0 and d.depth = r.accepted_drafts + 1 "
        "where r.on_walk and r.accepted_drafts < r.num_drafts and d.draft_prob is not null "
        "and coalesce(d.rejection_reason, '') not in ('past_end', 'unverified')) "
        "select * from rejected where number = 1 "
        f"qualify row_number() over (partition by drafter order by accepted_drafts, draft_prob desc, round_id) "
        f"<= {NUM_OF_SERIES} order by drafter, accepted_drafts, draft_prob desc, round_id"
    )
    chosen: list[dict[str, Any]] = rows.to_pylist()
    return chosen


def _depths(run: ReportRun, round_ids: list[int]) -> dict[int, list[dict[str, Any]]]:
    columns = ("depth", "draft_token", "draft_prob", "target_token", "target_prob_of_draft", "accepted")
    rows = run.run.query(
        f"select round_id, {', '.join(columns)}, rejection_reason, fresh_right from depths "
        f"where layer = 0 and round_id in ({', '.join(map(str, round_ids))}) order by round_id, depth"
    )
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        found.setdefault(row["round_id"], []).append(row)
    return found


def _bad_round(
    contents: Contents,
    run: ReportRun,
    row: dict[str, Any],
    depths: list[dict[str, Any]],
    words: Vocabulary,
    with_text: bool,
) -> BadRound:
    key = tuple(row[name] for name in CONDITION)
    condition = next(c for c in contents.conditions if c.run is run and c.summary.key == key)
    prompt = _prompt(run, row) if with_text else {}
    has_text = prompt.get("token_ids") is not None
    return BadRound(
        heading=f"{condition.series}, {condition.place}",
        facts=f"prompt {label(row['prompt_id'])}; slot {row['start']:,}; {row['accepted_drafts']} of "
        f"{row['num_drafts']} drafts accepted",
        message=_last_message(prompt.get("messages")),
        excerpt=_excerpt(run, row, prompt, words) if has_text else (),
        table=_depth_table(depths, words, has_text),
    )


def _depth_table(depths: list[dict[str, Any]], words: Vocabulary, has_text: bool) -> Table:
    rows = []
    for d in depths:
        outcome = {1: "accepted", 0: "rejected"}.get(d["accepted"], "not reached")
        reason = (d["rejection_reason"] or "").replace("_", " ") if d["accepted"] == 0 else ""
        fresh = {1: "right", 0: "wrong"}.get(d["fresh_right"], "") if d["accepted"] is not None else ""
        tokens = [words.one(d["draft_token"]), words.one(d["target_token"])] if has_text else []
        rows.append(
            [
                str(d["depth"]),
                *tokens,
                outcome,
                reason,
                fresh,
                number(d["draft_prob"]),
                number(d["target_prob_of_draft"]),
            ]
        )
    names = ["drafted", "written"] if has_text else []
    return Table(
        caption="By depth",
        columns=["depth", *names, "outcome", "why", "true features", "draft prob.", "target prob. of it"],
        rows=rows,
        num_labels=4 + len(names),
    )


def _prompt(run: ReportRun, row: dict[str, Any]) -> dict[str, Any]:
    prompts: pa.Table = run.run.prompts()
    found = prompts.filter(_same(row, PromptKey._fields)).to_pylist()
    return found[0] if found else {}


def _excerpt(run: ReportRun, row: dict[str, Any], prompt: dict[str, Any], words: Vocabulary) -> list[Token]:
    columns = ["round_id", "start", "num_drafts", "accepted_drafts"]
    walk = run.run.rounds(columns, filter=_same(row, BatchKey._fields) & pc.field("on_walk")).sort_by("start")
    num_prompt, num_response = prompt["num_prompt_tokens"], prompt["num_response_tokens"]
    end = min(len(prompt["token_ids"]), num_prompt + num_response)
    fates = token_fates(walk, num_tokens=end, num_prompt_tokens=num_prompt, num_response_tokens=num_response)
    index = walk["round_id"].to_pylist().index(row["round_id"])
    first = max(0, row["start"] + 2 - TOKENS_BEFORE)
    last = min(end, row["start"] + 3 + row["accepted_drafts"] + TOKENS_AFTER)
    begin = max(0, first - DECODED_BEFORE)
    pieces = words.pieces(prompt["token_ids"][begin:last])[first - begin :]
    tokens = []
    for at, text in enumerate(map(piece, pieces), start=first):
        body = text.lstrip(" ")
        blanks = text[: len(text) - len(body)]
        tokens.append(Token(blanks, body, KINDS[fates.kind[at]], bool(fates.round_index[at] == index)))
    return tokens


def _same(row: dict[str, Any], names: Sequence[str]) -> pc.Expression:
    first, *others = (pc.field(name) == row[name] for name in names)
    for other in others:
        first = first & other
    return first


def _last_message(messages: str | None) -> str:
    """The last message of the prompt; its start, where it is long."""
    if not messages:
        return ""
    try:
        content = json.loads(messages)[-1].get("content")
    except (ValueError, LookupError, AttributeError, RecursionError):
        return ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return clean(text, MAX_MESSAGE_CHARACTERS)
