"""Every assistant turn of a conversation as a prompt of its own: the messages before it, and the turn as its response.

Nothing is answered anew here: a turn that cannot be replayed gives no prompt and is named in a note.
"""

from __future__ import annotations

from dataclasses import replace

from driftscope.prompts.conversation import EMPTY_ANSWER_NOTE, REASONING_ANSWER_NOTE, TOOL_ANSWER_NOTE, answer_of
from driftscope.prompts.line import Reading, left_out
from driftscope.prompts.logs import ANSWERED_ANEW_NOTE
from probes.conditions import PromptInput

SKIPPED_NOTES = {
    EMPTY_ANSWER_NOTE: "an assistant turn is empty: not replayed",
    TOOL_ANSWER_NOTE: "an assistant turn calls tools, which a template writes in its own way: not replayed",
    REASONING_ANSWER_NOTE: "an assistant turn has reasoning apart, which a template writes in its own way: not replayed",
    ANSWERED_ANEW_NOTE: "no answer text stored: not replayed",
}
"""Note on an answer that cannot be replayed -> the note where the target does not answer in its place."""

UNASKED_TURN_NOTE = "an assistant turn that no user turn or tool asked for: not replayed"
OPEN_TURN_NOTE = "the last turn has no answer: not measured, only answers are replayed"
NOTHING_TO_REPLAY = "no assistant turn that can be replayed"


def every_assistant_turn(reading: Reading) -> Reading:
    """One line, its prompts `ID/turn1`, `ID/turn2`, ... by the assistant turns' places in the conversation.

    A prompt that came rendered has no separate turns: its response stays the only one.
    """
    prompts: list[PromptInput] = []
    notes = [SKIPPED_NOTES.get(note, note) for note in reading.notes]
    for prompt in reading.prompts:
        turns, said = _answered_turns(prompt)
        prompts += turns
        notes += said
        if not prompt.is_forced and not SKIPPED_NOTES.keys() & set(reading.notes):
            notes.append(OPEN_TURN_NOTE)
    if not prompts:
        return left_out(reading.left_out or NOTHING_TO_REPLAY)
    return Reading(prompts=tuple(prompts), notes=tuple(dict.fromkeys(notes)))


def _answered_turns(prompt: PromptInput) -> tuple[list[PromptInput], list[str]]:
    """-> (a prompt for each turn that can be replayed, why others cannot)."""
    if prompt.is_rendered:
        return [prompt] * prompt.is_forced, []
    turns: list[PromptInput] = []
    notes: list[str] = []
    number = 0
    for index, message in enumerate(prompt.messages):
        if message["role"] != "assistant":
            continue
        number += 1
        before, answer = prompt.messages[:index], answer_of(message)
        if not any(m["role"] == "user" for m in before) or before[-1]["role"] == "assistant":
            notes.append(UNASKED_TURN_NOTE)
        elif answer.note:
            notes.append(SKIPPED_NOTES[answer.note])
        else:
            name = f"{prompt.prompt_id}/turn{number}"
            turns.append(replace(prompt, prompt_id=name, messages=before, response=answer.text))
    if prompt.is_forced:
        turns.append(replace(prompt, prompt_id=f"{prompt.prompt_id}/turn{number + 1}"))
    return turns, notes
