"""A run whose conditions differ, for the app's tests: acceptance falls with context and depends on drafter and prompt.

Knows no model: made of `synthetic_run`'s records, right in every identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from driftscope.runs import RunInfo
from probes.record import Record
from tests.synthetic_run import DRAFTERS, make_batch, make_info, make_prompt, write_run

SYSTEM_PROMPTS = ("default", "none", "persona", "policy")
CONTEXTS = (0, 512, 1536)
DEPTH = 5
_SHARE = {"eagle3": 0.55, "eagle3.1": 0.62}
_SYSTEM = {"default": 0.0, "none": -0.02, "persona": 0.06, "policy": -0.08}
_CONTEXT = {0: 0.0, 512: -0.06, 1536: -0.22}


def varied_records(
    *,
    num_prompts: int = 6,
    num_response_tokens: int = 40,
    num_loops: int = 1,
    drafters: tuple[str, ...] = DRAFTERS,
    system_prompts: tuple[str, ...] = SYSTEM_PROMPTS,
    contexts: tuple[int, ...] = CONTEXTS,
    seed: int = 0,
) -> Iterator[Record]:
    """Prompts and batches, condition by condition."""
    for system_prompt in system_prompts:
        for context in contexts:
            for number in range(num_prompts):
                prompt = make_prompt(
                    f"p{number}",
                    system_prompt=system_prompt,
                    context_tokens=context,
                    num_response_tokens=num_response_tokens,
                    num_continuation_tokens=DEPTH,
                    is_loop=number < num_loops,
                    seed=seed + number,
                )
                yield prompt
                for drafter in drafters:
                    share = _SHARE.get(drafter, 0.5) + _SYSTEM.get(system_prompt, 0.0) + _CONTEXT.get(context, 0.0)
                    yield make_batch(prompt, drafter=drafter, depth=DEPTH, num_heads=4, accept_share=share, seed=seed)


def varied_info() -> RunInfo:
    """run.json of such a run."""
    return make_info(depth=DEPTH, num_heads=4)


def write_varied_run(path: Path, **options: object) -> Path:
    """A complete run at `path`."""
    return write_run(path, varied_records(**options), varied_info())  # type: ignore[arg-type]
