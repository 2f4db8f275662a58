"""`driftscope demo`: the whole main job on the built-in target and drafters, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from driftscope.builtin import DEMO, DEMO_DRAFTERS, sample_prompts
from driftscope.cli.console import Json
from driftscope.cli.measuring import make_run
from driftscope.cli.plan_options import plan_options
from driftscope.plan import Plan, make_plan

SYSTEM_PROMPTS = ("short", "persona", "policy", "json_only", "tools", "german")
CONTEXT_TOKENS = [0, 512, 1536]
NUM_PROMPTS = 8  # one of each category
MAX_NEW_TOKENS = 48
DEFAULT_OUT = Path("runs/demo.drift")


def demo_plan(**given: Any) -> Plan:
    """Both drafters under eight system prompts (the target's own, none, and six files) and three context lengths."""
    folder = sample_prompts() / "system"
    options = {
        "target": DEMO,
        "drafter": {name: f"{DEMO}:{name}" for name in DEMO_DRAFTERS},
        "num_prompts": NUM_PROMPTS,
        "system_prompt": {"default": None, "none": None, **{s: str(folder / f"{s}.txt") for s in SYSTEM_PROMPTS}},
        "context_tokens": CONTEXT_TOKENS,
        "depth": 7,
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    return make_plan(options, given, where="driftscope demo")


@plan_options(("engine", "device"))
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; its name ends in .drift.")] = DEFAULT_OUT,
    *,
    given: dict[str, Any],
    overwrite: Annotated[
        bool, typer.Option(help="Measure again and replace the run once the new one is complete.")
    ] = False,
    json: Json = False,
) -> None:
    """Run the built-in EAGLE-3 and EAGLE-3.1 drafters on SmolLM2-135M under system prompts and context lengths.

    A run that was stopped goes on where it ended; a complete one is only shown.
    """
    make_run(demo_plan(**given), out, resume=True, overwrite=overwrite, as_json=json)
