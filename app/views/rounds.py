"""Rounds: a conversation token by token, coloured by what speculation did; every depth of the chosen round."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import streamlit as st
from driftscope_app import address, aggregates, page, round_panel
from driftscope_app.scope import Condition, Scope
from driftscope_app.text import plain, shortened
from driftscope_app.token_view import token_view
from driftscope_app.tokens import KINDS, Vocabulary, find_all, is_walk, token_fates, vocabulary

from driftscope.runs.schema import CONDITION

TOKENS_PER_PAGE = 800
MAX_DRAWN_TOKENS = 2_000_000
NUM_WORST = 30
LEGEND = (
    ("accepted", "accepted draft"),
    ("corrected", "rejected, then corrected by the target"),
    ("bonus", "bonus: all drafts accepted"),
    ("first", "from the prefill"),
)


def main() -> None:
    """The page."""
    scope = page.begin("Rounds", "One conversation, token by token. Select a round to see every depth of it.")
    if scope is None:
        return
    condition, prompt_id = _pick_conversation(scope)
    if prompt_id is None:
        st.info("There are no rounds under this condition.", icon=":material/forum:")
        return
    conversation = (condition.key, prompt_id)
    if (
        st.session_state.setdefault("conversation", conversation) != conversation
    ):  # another one starts at its first round
        st.session_state["conversation"] = conversation
        st.session_state.pop("jump", None)
        address.put(round=None, token=None)
    s, ref = condition.summary, condition.run.ref
    prompt = aggregates.prompt_row(ref.path, ref.version, (*s.key.without_drafter, prompt_id))
    rounds = aggregates.walk_rounds(ref.path, ref.version, (*s.key, prompt_id))
    words = vocabulary(condition.run.info)
    if words.tokenizer is None:
        st.caption(f"Token ids are shown instead of text: {plain(words.reason)}.")
    _facts(prompt, rounds)
    if not rounds.num_rows:
        st.info("This conversation has no walk: its text was not written by this target.", icon=":material/forum:")
        return
    left, right = st.columns([1, 1], gap="large")
    with left:
        chosen = _conversation(prompt, rounds, words)
    with right:
        round_panel.show(scope, condition, rounds, chosen, words, choose=_choose)


def _pick_conversation(scope: Scope) -> tuple[Condition, str | None]:
    by_key = {c.key: c for c in scope.conditions}
    with st.container(horizontal=True, vertical_alignment="top", gap="medium"):
        key = address.pick_one(
            st.selectbox,
            "at",
            "Condition (drafter · system prompt · context tokens)",
            list(by_key),
            format_func=lambda k: f"{scope.series(by_key[k])} · {scope.place(by_key[k])}" if k in by_key else k,
            width=380,
        )
        assert key is not None
        condition = by_key[key]
        s, ref = condition.summary, condition.run.ref
        sums = aggregates.prompt_sums(ref.path, ref.version)
        own = [row for row in sums.to_pylist() if tuple(row[name] for name in CONDITION) == s.key]
        own.sort(key=lambda row: row["num_walk_tokens"] / row["num_walk_rounds"] if row["num_walk_rounds"] else 0.0)
        labels = {row["prompt_id"]: _conversation_label(row) for row in own}
        prompt_id = address.pick_one(
            st.selectbox,
            "prompt",
            "Conversation, worst first",
            list(labels),
            format_func=lambda p: labels.get(p, p),
            width=380,
        )
    return condition, prompt_id


def _conversation_label(row: dict[str, Any]) -> str:
    tokens = f"{row['num_walk_tokens'] / row['num_walk_rounds']:.2f}" if row["num_walk_rounds"] else "no walk"
    category = f" ({row['category']})" if row["category"] else ""
    looping = ", looping" if row["is_degenerate"] else ""
    return f"{tokens} · {shortened(row['prompt_id'], 40)}{category}{looping}"


def _facts(prompt: dict[str, Any], rounds: pa.Table) -> None:
    accepted = sum(rounds["accepted_drafts"].to_pylist())
    per_round = f"{accepted / rounds.num_rows + 1:.2f} tokens per round (walk)" if rounds.num_rows else "no walk"
    looping = " · the response loops: left out of every mean" if prompt["is_degenerate"] else ""
    lengths = [
        f"{'?' if number is None else f'{number:,}'} {what}"
        for number, what in (
            (prompt["num_prompt_tokens"], "prompt tokens"),
            (prompt["num_response_tokens"], "of response"),
        )
    ]
    st.markdown(
        f"**{rounds.num_rows:,} rounds**, {per_round} · {', '.join(lengths)} ({plain(prompt['finish_reason'])}){looping}"
    )
    if prompt["messages"]:
        with st.expander("The prompt's messages", icon=":material/chat:"):
            for message in json.loads(prompt["messages"]):
                content = message.get("content")
                st.caption(plain(str(message.get("role", ""))))
                st.text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))


def _conversation(prompt: dict[str, Any], rounds: pa.Table, words: Vocabulary) -> int:
    """Draws the text and returns the index of the chosen round."""
    chosen: int = min(max(_number("round") or 1, 1), rounds.num_rows) - 1
    if not is_walk(rounds):
        _jump_to_worst(rounds, words)
        st.caption("The source does not tell the order of these rounds: there is no text to lay them out on.")
        return chosen
    num_prompt, num_response = _lengths(prompt, rounds)
    num_tokens = num_prompt + num_response
    if num_tokens > MAX_DRAWN_TOKENS:  # an import may claim any length
        st.caption(f"{num_tokens:,} tokens are too many to lay the rounds out on.")
        return chosen
    fates = token_fates(rounds, num_tokens=num_tokens, num_prompt_tokens=num_prompt, num_response_tokens=num_response)
    token_ids = prompt["token_ids"]
    if token_ids is None:
        pieces = ["▯ "] * num_tokens
        st.caption("This run keeps no text: every token is a box.")
    else:
        pieces = words.pieces(token_ids[:num_tokens])
    left, right = st.columns([2, 3])
    with left:
        wanted = address.pick_text("find", "Find in the conversation", placeholder="text")
    with right:
        _jump_to_worst(rounds, words)
    is_whole = st.toggle("Show the prompt too", key="show_prompt")
    first = 0 if is_whole else num_prompt
    found = find_all(pieces, wanted, first) if token_ids is not None and wanted else []
    _walk_hits(wanted, found)
    num_pages = max(1, -(-(num_tokens - first) // TOKENS_PER_PAGE))
    looked_at = _number("token") or rounds["start"][chosen].as_py() + 2
    current = min(max(1, (looked_at - first) // TOKENS_PER_PAGE + 1), num_pages)
    begin = first + (current - 1) * TOKENS_PER_PAGE
    end = min(num_tokens, begin + TOKENS_PER_PAGE)
    _legend(fates.kind[num_prompt:])
    shown_rounds = fates.round_index[begin:end].tolist()
    columns = [rounds[name].to_pylist() for name in ("num_drafts", "accepted_drafts")]
    clicked = token_view(
        pieces=pieces[begin:end],
        kinds=[KINDS[kind] for kind in fates.kind[begin:end]],
        rounds=shown_rounds,
        titles={
            i: f"round {i + 1}: {columns[1][i]} of {columns[0][i]} drafts accepted" for i in set(shown_rounds) if i >= 0
        },
        chosen=chosen,
        found=[position - begin for position in found if begin <= position < end],
        key="token_view",
    )
    if clicked is not None and clicked != chosen:
        _choose(clicked)
        st.rerun()
    if num_pages > 1:
        st.caption(f"Tokens {begin - first + 1:,} to {end - first:,} of {num_tokens - first:,}")
        key = f"rounds_page_{current}"  # one widget a page: it always shows the page that is drawn
        st.pagination(num_pages, default=current, key=key, on_change=_turn, args=(key, first))
    return chosen


def _lengths(prompt: dict[str, Any], rounds: pa.Table) -> tuple[int, int]:
    """Tokens of prompt and response; from the rounds where an engine's metrics do not say (then up to K too long)."""
    num_prompt, num_response = prompt["num_prompt_tokens"], prompt["num_response_tokens"]
    if not num_prompt:  # the first round starts at the prompt's last token
        num_prompt = rounds["start"][0].as_py() + 1
    if num_response is None:  # the first token is the prefill's
        num_response = 1 + sum(accepted + 1 for accepted in rounds["accepted_drafts"].to_pylist())
    return num_prompt, num_response


def _jump_to_worst(rounds: pa.Table, words: Vocabulary) -> None:
    worst = _worst(rounds, words)
    st.selectbox(
        "Jump to a bad round",
        list(worst),
        index=None,
        format_func=lambda index: worst.get(index, ""),
        placeholder="fewest accepted first",
        key="jump",
        on_change=_jump,
    )


def _number(name: str) -> int | None:
    """A whole number from the URL."""
    text = address.get(name) or ""
    return int(text) if text.isascii() and text.isdigit() else None


def _choose(index: int) -> None:
    """Another round: the page that holds it is shown."""
    address.put(round=str(index + 1), token=None)


def _turn(key: str, first: int) -> None:
    """Another page; the chosen round stays."""
    address.put(token=str(first + (st.session_state[key] - 1) * TOKENS_PER_PAGE))


def _jump() -> None:
    index = st.session_state["jump"]
    if index is not None:
        _choose(index)


def _walk_hits(wanted: str, found: list[int]) -> None:
    """A new search shows its first hit; from there one goes from hit to hit."""
    former = st.session_state.get("found_for")
    st.session_state["found_for"] = wanted
    if not wanted:
        return
    if not found:
        st.caption("Not found.")
        return
    if wanted != former:
        st.session_state["hit"] = 1
        if former is not None or _number("token") is None:  # an opened link says itself where to look
            address.put(token=str(found[0]))
    if len(found) == 1:
        st.caption("One hit.")
        return
    st.session_state["hit"] = min(st.session_state.get("hit", 1), len(found))
    st.number_input(f"Hit, of {len(found):,}", 1, len(found), key="hit", width=160, on_change=_show_hit, args=(found,))


def _show_hit(found: list[int]) -> None:
    address.put(token=str(found[st.session_state["hit"] - 1]))


def _worst(rounds: pa.Table, words: Vocabulary) -> dict[int, str]:
    """Rounds with the fewest accepted drafts, those first in which the drafter was surest of its mistake."""
    rows = [(i, row) for i, row in enumerate(rounds.to_pylist()) if row["accepted_drafts"] < row["num_drafts"]]
    rows.sort(key=lambda item: (item[1]["accepted_drafts"], -(item[1]["rejected_prob"] or 0.0)))
    labels = {}
    for index, row in rows[:NUM_WORST]:
        drafted, emitted = words.one(row["rejected_token"]), words.one(row["corrected_token"])
        sure = f", p {row['rejected_prob']:.2f}" if row["rejected_prob"] is not None else ""
        tokens = f": {drafted} → {emitted}" if drafted or emitted else ""
        labels[index] = f"{row['accepted_drafts']} accepted, round {index + 1}{tokens}{sure}"
    return labels


def _legend(kinds: Any) -> None:
    style = {
        "accepted": "background:rgba(43,123,186,.2);border-bottom:2px solid #2b7bba",
        "corrected": "background:rgba(213,94,0,.22);border-bottom:2px dashed #d55e00",
        "bonus": "background:rgba(11,154,109,.22);border-bottom:3px double #0b9a6d",
        "first": "border-bottom:2px dotted currentColor",
    }
    mark = {"corrected": "✗", "bonus": "+"}
    items = [
        f'<span style="margin-right:1rem;white-space:nowrap"><span style="{style[kind]};padding:1px 6px">'
        f"{mark.get(kind, '')} {int((kinds == KINDS.index(kind)).sum()):,}</span> {meaning}</span>"
        for kind, meaning in LEGEND
    ]
    st.html(f'<div style="font-size:.88rem;line-height:2">{" ".join(items)}</div>')


main()
