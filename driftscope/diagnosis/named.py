"""What a run's plan names: target, drafters and files that interventions on it would load and read.

A run may be anybody's. What it names is loaded only where it ships with driftscope, or where the user names it now.
Opens nothing: a name that a run gives may be a pipe, a network share or somebody else's file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from driftscope.builtin import DEMO, is_demo_drafter, sample_prompts
from driftscope.plan import Plan, make_plan
from driftscope.runs import Run
from driftscope.runs.info import RUN_JSON
from probes.checkpoint.hub import HUB_ID
from probes.errors import InputError


@dataclass(frozen=True)
class Named:
    """One thing that a plan names."""

    what: str  # "target", "drafter NAME", "prompts", "document", "system prompt NAME", "template NAME"
    value: str  # the full path, or the Hub id, or the name of a built-in one
    is_builtin: bool  # ships with driftscope

    @property
    def is_hub_id(self) -> bool:
        """Whether it would be downloaded, or found in the Hub's cache."""
        return not self.is_builtin and not os.path.isabs(self.value)


def stored_plan(run: Run) -> Plan:
    """The plan in run.json. Raises InputError `no_plan` where `driftscope probe` did not make the run."""
    try:
        return Plan.of_run(run.info.plan)
    except ValidationError as error:
        raise InputError(
            "run.json holds no plan that this driftscope understands",
            code="no_plan",
            where=str(run.path),
            remedy="Interventions need a run that `driftscope probe` made.",
        ) from error


def replaced(plan: Plan, *, target: str | None, drafters: Mapping[str, str], options: Mapping[str, Any]) -> Plan:
    """The plan with what the command line names in place of what the run names, and its dtype, device and trust."""
    changed = plan.model_dump() | dict(options) | {"drafter": {**plan.drafter, **drafters}}
    if target is not None:
        changed["target"] = target
    return make_plan(changed, where="driftscope diagnose", is_stored=True)


def named_by(run: Run) -> list[Named]:
    """What interventions on this run would load and read; nothing where its plan cannot be read."""
    try:
        return named_in(stored_plan(run))
    except InputError:
        return []


def named_in(plan: Plan) -> list[Named]:
    """Target, drafters, then files, in the plan's order. `plan.reference_target` is not among them: nothing loads it
    but the command that is given it."""
    files = [("prompts", plan.prompts), *(("document", document) for document in plan.documents)]
    files += [(f"system prompt {name}", file) for name, file in plan.system_prompt.items()]
    files += [(f"template {name}", file) for name, file in plan.template.items()]
    return [
        named_model("target", plan.target),
        *(named_model(f"drafter {name}", path) for name, path in plan.drafter.items()),
        *(_file(what, path) for what, path in files if path is not None),
    ]


def refuse_inside_runs(named: Iterable[Named]) -> None:
    """Raises InputError `inside_a_run` for what lies in a run's folder, as it is written or behind links.

    A run's folder holds what a run writes and no models: one that stands there came with the run.
    """
    for thing in named:
        if thing.is_builtin or thing.is_hub_id:
            continue
        for path in (Path(thing.value), Path(_real(thing))):
            run = next((folder for folder in (path, *path.parents) if (folder / RUN_JSON).exists()), None)
            if run is not None:
                raise InputError(
                    f"{thing.what} lies inside the run {run}",
                    code="inside_a_run",
                    where=thing.value,
                    remedy="Nothing is loaded from a run's folder. If you trust it, copy it elsewhere and name it there.",
                )


def not_builtin(named: Iterable[Named], given_now: Sequence[str] = ()) -> list[Named]:
    """What the run alone names: neither shipped with driftscope nor, by `what`, named on this command line."""
    return [thing for thing in named if not thing.is_builtin and thing.what not in given_now]


def named_model(what: str, name: str) -> Named:
    """A target or drafter. A folder here wins over a Hub id, as where models are loaded (`probes.checkpoint.files`)."""
    is_builtin = is_demo_drafter(name) if what.startswith("drafter") else name == DEMO
    if is_builtin or (HUB_ID.fullmatch(name) and not os.path.isdir(name)):
        return Named(what, name, is_builtin)
    return Named(what, _full(os.path.expanduser(name)), False)


def _file(what: str, name: str) -> Named:
    path = Path(name)
    is_sample = path.is_absolute() and ".." not in path.parts and path.is_relative_to(sample_prompts())
    return Named(what, _full(name), is_sample)


def _full(name: str) -> str:
    """As the system would follow it: `..` behind a link is not what it looks like, so it stays."""
    return os.path.join(os.getcwd(), name)


def _real(thing: Named) -> str:
    try:
        return os.path.realpath(thing.value)
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise InputError(
            f"{thing.what} is no path", code="bad_path", where=repr(thing.value), remedy="Name it on the command line."
        ) from error
