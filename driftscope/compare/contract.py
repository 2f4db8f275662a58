"""What must agree between two sides for their difference to mean anything, and what must at least be said.

Computes no difference. Different K, temperature or acceptance rule: never compared. What an engine's metrics do not tell
(an import's temperature and rule) cannot be checked: compared, and said.
"""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.compare.sides import Side
from driftscope.runs import Run, RunInfo, RunStatus

IMPORT = "import"
_UNKNOWN_TEMPERATURE = "the temperature is not known"
"""How the note of an import begins that has no temperature; older ones stored 0 with it."""


def why_not_comparable(first: Side, second: Side) -> str | None:
    """What forbids the comparison, both values named; None where nothing does."""
    if first.depths != second.depths:
        return f"K differs: {_listed(first.depths)} against {_listed(second.depths)}"
    return why_settings_differ(first.run.info, second.run.info)


def why_settings_differ(a: RunInfo, b: RunInfo) -> str | None:
    """Settings of two runs, other than K, under which no difference is one of drafters or prompts."""
    temperatures = [temperature_of(info) for info in (a, b)]
    if None not in temperatures and temperatures[0] != temperatures[1]:
        return f"temperature differs: {temperatures[0]:g} against {temperatures[1]:g}"
    if IMPORT not in (a.engine, b.engine):
        for name, everything in (("top_k", 0), ("top_p", 1.0)):
            ours, theirs = (getattr(info, name) or everything for info in (a, b))
            if ours != theirs:
                return f"{name} differs: {ours:g} against {theirs:g}"
    rules = [_acceptance_rule(info) for info in (a, b)]
    if None not in rules and rules[0] != rules[1]:
        return f"the acceptance rule differs: {rules[0]!r} against {rules[1]!r}"
    return None


def notes_on(first: Side, second: Side) -> Iterator[str]:
    """What a reader of the difference must know beside its name."""
    a, b = first.run, second.run
    for run, name in dict.fromkeys(((a, first.run_name), (b, second.run_name))):
        if run.status is not RunStatus.complete:
            yield f"{name} is {run.status}: conditions may be missing or have fewer prompts than planned"
        unknown = [
            what
            for what, value in (
                ("temperature", temperature_of(run.info)),
                ("acceptance rule", _acceptance_rule(run.info)),
            )
            if value is None
        ]
        if unknown:
            yield f"{name} does not say its {' and '.join(unknown)}: not checked to be the same"
    if a is b:
        return
    pair = f"{first.run_name} and {second.run_name}"
    if a.info.engine != b.info.engine:
        yield f"{pair} were made with different engines: {a.info.engine} and {b.info.engine}"
    if IMPORT not in (a.info.engine, b.info.engine):
        if a.info.target.name != b.info.target.name:
            yield f"{pair} have different targets: {a.info.target.name or '?'} and {b.info.target.name or '?'}"
        elif a.info.target.files_sha256 != b.info.target.files_sha256:
            yield f"{pair} have the same target by name, {a.info.target.name or '?'}, with other files"
        if a.info.provenance.dtype != b.info.provenance.dtype:
            yield f"{pair} have different dtypes: {a.info.provenance.dtype or '?'} and {b.info.provenance.dtype or '?'}"
        yield from _planned(a, b, pair)
    if first.key[0] == second.key[0]:
        ours, theirs = a.info.drafter(first.key[0]), b.info.drafter(second.key[0])
        if ours and theirs and ours.files_sha256 and theirs.files_sha256 and ours.files_sha256 != theirs.files_sha256:
            yield f"drafter {first.key[0]} has other files in {first.run_name} than in {second.run_name}"
    if first.key[2] == second.key[2]:
        hashes = [run.info.provenance.template_sha256.get(first.key[2]) for run in (a, b)]
        if None not in hashes and hashes[0] != hashes[1]:
            yield f"template {first.key[2]} is another text in {first.run_name} than in {second.run_name}"


def _planned(a: Run, b: Run, pair: str) -> Iterator[str]:
    for name, words in (("max_new_tokens", "longest responses"), ("last_tokens", "parts of the responses")):
        values = [run.info.plan.get(name) for run in (a, b)]
        if values[0] != values[1]:
            yield f"{pair} have different {words}: {name} {values[0]} and {values[1]}"


def temperature_of(info: RunInfo) -> float | None:
    """The target's; None where an import does not say it."""
    is_unknown = any(note.startswith(_UNKNOWN_TEMPERATURE) for note in info.notes)
    return None if is_unknown else info.temperature


def _acceptance_rule(info: RunInfo) -> str | None:
    return None if info.engine == IMPORT else info.acceptance_rule or None


def _listed(depths: list[int]) -> str:
    return ", ".join(map(str, depths))
