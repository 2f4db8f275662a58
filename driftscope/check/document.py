"""docs/checks, made of the registry: `python -m driftscope.check.document [FOLDER]` writes a page for each check."""

from __future__ import annotations

import sys
from pathlib import Path

from driftscope.check.definition import Check
from driftscope.check.engines import ENGINES
from driftscope.check.registry import ENGINE_CHECKS, all_checks

NOTICE = "<!-- made by `python -m driftscope.check.document`; change the text in driftscope/check/rules -->"

NOT_IN_FILES = (
    (
        "Training targets without the verifier's final norm",
        "a fault of the training data; the head looks like any other",
    ),
    ("Draft keys not overwritten with true features after verification", "engine state at run time"),
    ("Attention kernel faults of a platform", "engine code at run time"),
    ("The residual built from the embedding, or the two halves of the input swapped", "engine code"),
    (
        "norm_before_residual and norm_output with the wrong value and nothing that contradicts it",
        "no trace in tensors",
    ),
    ("A post-norm applied at inference to a head trained without it", "an option of the person who serves"),
    ("A system prompt or template that training did not see", "training text is not in the checkpoint"),
    (
        "A target that was fine-tuned, merged or rotated without saying so",
        "two targets must be measured against each other",
    ),
    ("Sampling: greedy drafts at temperature > 0, an engine's own sampling path", "request parameters"),
    ("An acceptance number that counts otherwise (bonus token, marginal or conditional)", "not in the files"),
    (
        "MLA drafters: fc_norm built but not applied, rope base lost",
        "the family is not read; such a checkpoint is refused",
    ),
)
"""Known silent failures that no file shows, and why; `driftscope probe` and its interventions measure most of them."""


def pages() -> dict[str, str]:
    """File name -> text."""
    return {"README.md": _index(), **{Path(check.page).name: _page(check) for check in all_checks()}}


def _page(check: Check) -> str:
    settings = [setting for setting, other in ENGINE_CHECKS.items() if other is check]
    parts = [
        NOTICE,
        f"# {check.id} {check.name}",
        f"**{check.title}.** Usual severity: {check.severity}.",
        f"## What goes wrong\n\n{check.why}",
        f"## What is looked at\n\n{check.evidence}",
    ]
    if settings:
        current = ", ".join(engine.name for engine in ENGINES if engine.is_current)
        parts.append(
            f"It is raised from the row `{settings[0]}` of the table of settings: a warning where one of {current} "
            "differs, a note where only other versions do."
        )
    parts.append(f"## What to do\n\n{check.remedy}.")
    if check.reader_codes:
        codes = ", ".join(f"`{code}`" for code in check.reader_codes)
        parts.append(f"`driftscope probe` reports or refuses the same with the code {codes}.")
    if check.sources:
        parts.append("## Where it was seen\n\n" + "\n".join(f"- {source}" for source in check.sources))
    return "\n\n".join(parts) + "\n"


def _index() -> str:
    rows = "\n".join(
        f"| [{check.id}]({Path(check.page).name}) | {check.name} | {check.severity} | {check.title} |"
        for check in all_checks()
    )
    engines = "\n".join(f"- {engine.name}{'' if engine.is_current else ' (older)'}" for engine in ENGINES)
    missing = "\n".join(f"| {what} | {why} |" for what, why in NOT_IN_FILES)
    return f"""{NOTICE}

# Checks

`driftscope check TARGET DRAFTER` raises these from files alone: config.json, the headers of the weights, and some rows of
them. Ids are stable. From `warning` on the exit code is 1. The severity of a finding may differ from the usual one here.

| id | name | usual severity | what it finds |
|---|---|---|---|
{rows}

## Engines in the table of settings

{engines}

Each file of `driftscope/check/engines` says which sources were read. What they do not show is "not known".

## Known silent failures that files cannot show

| failure | why not |
|---|---|
{missing}
"""


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/checks")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
