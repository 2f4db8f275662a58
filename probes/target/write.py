"""The target's own answers to a batch of prompts, past their end so that the last rounds of a replay have labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.target.model import Target
from probes.target.prefix import Prefix
from probes.target.rows import TargetRows
from probes.target.sampler import Sampler
from probes.target.trace import TargetTrace


@torch.inference_mode()
def write(
    target: Target,
    prompts: Sequence[np.ndarray],
    prompt_ids: Sequence[str],
    *,
    max_new_tokens: int,
    num_continuation_tokens: int,
    sampler: Sampler,
    prefix: Prefix | None = None,
) -> list[TargetTrace]:
    """The target's responses to prompts that begin with `prefix`, decoded in one batch.

    Every text runs `num_continuation_tokens` past its end (a stop token, kept, or `max_new_tokens`). Prompts are padded out
    of everybody's sight; where windows would see it (`can_pad`) they must be of equal length. Raises InputError.
    """
    longest = max(map(len, prompts)) + max_new_tokens + num_continuation_tokens
    target.check_length(longest, "a prompt with its response")
    prefix = prefix or target.empty_prefix()
    rows = TargetRows(target, prompts, prefix)
    rows.check_padding(max_new_tokens + num_continuation_tokens)
    stop_ids = torch.tensor(sorted(target.stop_ids) or [-1], device=target.device)

    # 1) every prompt behind the shared prefix
    last_logits, states, firsts = rows.begin()
    logits, pieces = [last_logits], {i: [state] for i, state in states.items()}
    num_columns = rows.num_columns - len(prefix.token_ids)
    # 2) token by token, until the longest response has its continuation
    tokens: list[Int[Tensor, "row"]] = []
    end = torch.full((len(prompts),), max_new_tokens, device=target.device)  # response tokens, the stop token included
    for done in range(1, max_new_tokens + num_continuation_tokens + 1):
        token = sampler(logits[-1], list(zip(prompt_ids, rows.num_tokens, strict=True)))
        tokens.append(token)
        end = torch.where(torch.isin(token, stop_ids) & (done < end), done, end)
        if done >= int(end.max()) + num_continuation_tokens:
            break
        new_logits, states = rows.extend(token[:, None])
        logits.append(new_logits[:, -1])
        for index, state in states.items():
            pieces[index].append(state)

    # 3) one trace a prompt
    all_tokens, all_logits = torch.stack(tokens, dim=1), torch.stack(logits, dim=1)  # [row, token], [row, token, vocab]
    all_states = {i: torch.cat(of_layer, dim=1) for i, of_layer in pieces.items()}  # [row, token, target_hidden]
    traces = []
    for row, (prompt, first, num_response) in enumerate(zip(prompts, firsts, end.tolist(), strict=True)):
        num_new = num_response + num_continuation_tokens
        columns = slice(first, num_columns + num_new - 1)
        ids = torch.as_tensor(prompt, dtype=torch.int64, device=target.device)
        traces.append(
            TargetTrace(
                token_ids=torch.cat([ids, all_tokens[row, :num_new]]),
                num_prompt_tokens=len(prompt),
                num_response_tokens=num_response,
                finish_reason="stop" if torch.isin(all_tokens[row, num_response - 1], stop_ids) else "length",
                aux={i: _behind(prefix.aux.get(i), state[row, columns]) for i, state in all_states.items()},
                logits=all_logits[row, :num_new],
                sampling=sampler.sampling,
            )
        )
    return traces


def _behind(
    before: Float[Tensor, "_ hidden"] | None, states: Float[Tensor, "token hidden"]
) -> Float[Tensor, "slot hidden"]:
    """The states of the whole text: those of the prefix, where it has any, and the new ones."""
    return states if before is None else torch.cat([before, states])
