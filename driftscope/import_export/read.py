"""Finds out which engine's metrics a file holds and reads them; every line left out is counted with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from driftscope.import_export import aiperf, prometheus, sglang, vllm
from driftscope.import_export.request import Request, Taken
from driftscope.import_export.rounds import BadCountsError, TooManyRoundsError
from driftscope.prompts.line import Line
from driftscope.prompts.rows import check_file, read_lines
from probes.errors import InputError
from probes.regular_file import open_regular

PROMETHEUS = "prometheus"
UNDETERMINED = "fewer drafts than K in some rounds, and which ones is not said (vLLM: detailed metrics say it)"
MAX_ROUNDS_OF_A_FILE = 25_000_000
ORDER_NOTE = (
    "the source gives counts, not rounds one after the other: the order of rounds and their start are arbitrary"
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """`matches` looks at one parsed object; `read` takes its requests, or raises BadCountsError."""

    name: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Line, int | None], Taken]


LINE_SOURCES = {
    s.name: s
    for s in (
        Source(name="aiperf", matches=aiperf.matches, read=aiperf.read),
        Source(name="sglang", matches=sglang.matches, read=sglang.read),
        Source(name="vllm", matches=vllm.matches, read=vllm.read),
    )
}
"""By name, tried in this order on the first object."""

SOURCES = (*LINE_SOURCES, PROMETHEUS)


@dataclass(frozen=True, kw_only=True)
class AcceptanceFile:
    """Requests whose rounds are determined. `notes`: what a reader of the numbers must know; `left_out`: by reason."""

    path: Path
    source: str
    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def report(self) -> list[str]:
        """What was read, what was left out and why, as sentences."""
        name = self.path.name
        num_rounds = sum(len(r.rounds.accepted_drafts) for r in self.requests)
        return [
            f"{name}: {len(self.requests)} requests with {num_rounds:,} rounds read as {self.source}",
            *(f"{name}: left out: {reason} ({count} lines)" for reason, count in self.left_out.items()),
            *(f"{name}: {note}" for note in self.notes),
        ]


def read_acceptance(
    path: Path,
    *,
    source: str | None = None,
    depth: int | None = None,
    model: str | None = None,
    since: Path | None = None,
) -> AcceptanceFile:
    """Every request of a file. `source` overrides the detection; `depth` is K where the file does not say it.

    `model` keeps one of several models; `since` is an earlier scrape of the same server, to be taken off.
    Raises InputError naming file and line.
    """
    check_file(path, what="file of metrics", option="the path")
    if source is not None and source not in SOURCES:
        raise InputError(
            f"there is no source {source!r}",
            code="unknown_source",
            where=str(path),
            remedy=f"one of {', '.join(SOURCES)}, or leave it out to have it detected",
        )
    is_text = source == PROMETHEUS or (source is None and _may_be_prometheus(path))
    if since is not None:
        if not is_text:
            raise InputError(
                "an earlier scrape can only be taken off a server's counters",
                code="bad_option",
                where="--since",
                remedy="leave it out",
            )
        check_file(since, what="earlier scrape", option="--since")
    if is_text:
        try:
            taken = prometheus.read(path, since, depth)
        except BadCountsError as error:
            raise _refused(path, error) from error
        name, requests, reasons = PROMETHEUS, list(taken.requests), Counter[str]()
    else:
        name, requests, reasons = _read_lines(path, source, depth)
    requests = _of_one_model(path, requests, model)
    notes = list(dict.fromkeys(note for request in requests for note in request.notes))
    determined = [r for r in requests if r.rounds.num_drafts is not None]
    if len(determined) < len(requests):
        reasons[UNDETERMINED] += len(requests) - len(determined)
        notes.append(_note_on_undetermined(requests))
    if not determined:
        why = "; ".join(f"{reason} ({count} lines)" for reason, count in reasons.items())
        raise InputError(
            f"no request's rounds could be taken: {why}" if why else "the file holds no request with rounds",
            code="no_acceptance",
            where=str(path),
            remedy="docs/import_export.md says what each engine has to be asked for",
        )
    if any(not r.rounds.is_ordered for r in determined):
        notes.append(ORDER_NOTE)
    return AcceptanceFile(
        path=path, source=name, requests=tuple(_distinct(determined)), notes=tuple(notes), left_out=dict(reasons)
    )


def _read_lines(path: Path, source: str | None, depth: int | None) -> tuple[str, list[Request], Counter[str]]:
    chosen = LINE_SOURCES[source] if source is not None else None
    requests: list[Request] = []
    reasons: Counter[str] = Counter()
    num_rounds = 0
    for line in read_lines(path):
        if chosen is None:
            chosen = next((s for s in LINE_SOURCES.values() if s.matches(line.item)), None)
            if chosen is None:
                raise line.bad(
                    "has keys that no known engine's metrics have",
                    quote=line.keys(),
                    remedy=f"known: {', '.join(SOURCES)}",
                )
        try:
            taken = chosen.read(line, depth)
        except BadCountsError as error:
            raise line.bad(f"cannot be taken: {error}") from error
        requests += taken.requests
        num_rounds += sum(len(r.rounds.accepted_drafts) for r in taken.requests)
        if num_rounds > MAX_ROUNDS_OF_A_FILE:  # a histogram of a few bytes stands for any number of them
            raise line.bad(
                f"comes to more than {MAX_ROUNDS_OF_A_FILE:,} rounds in all", remedy="take a sample of the file"
            )
        if taken.left_out:
            reasons[taken.left_out] += 1
    return chosen.name if chosen is not None else "", requests, reasons


def _may_be_prometheus(path: Path) -> bool:
    with open_regular(path) as file:
        start = file.read(4096)
    return prometheus.is_prometheus(start.decode("utf-8-sig", errors="replace"))


def _of_one_model(path: Path, requests: list[Request], model: str | None) -> list[Request]:
    models = list(dict.fromkeys(r.model for r in requests if r.model is not None))
    if model is not None:
        kept = [r for r in requests if r.model == model]
        if not kept:
            raise InputError(
                f"no request is of the model {model!r}",
                code="no_such_model",
                where=str(path),
                remedy=f"the file has {', '.join(models) or 'no names of models'}",
            )
        return kept
    if len(models) > 1:
        raise InputError(
            f"the requests are of {len(models)} models: {', '.join(models[:8])}",
            code="several_models",
            where=str(path),
            remedy="choose one with --model",
        )
    return requests


def _note_on_undetermined(requests: list[Request]) -> str:
    """Which way leaving these requests out may have shifted the rest."""

    def mean(kept: list[Request]) -> str:
        accepted = np.concatenate([r.rounds.accepted_drafts for r in kept]) if kept else np.zeros(0)
        return f"{float(accepted.mean()) + 1:.3f} tokens per round in {len(accepted):,}" if len(accepted) else "none"

    without = [r for r in requests if r.rounds.num_drafts is None]
    rest = [r for r in requests if r.rounds.num_drafts is not None]
    return f"requests left out for undetermined drafts have {mean(without)}, the others {mean(rest)}"


def _distinct(requests: list[Request]) -> list[Request]:
    """A repeated id gets a number: the same input was sent several times."""
    num_seen: Counter[str] = Counter()
    taken: set[str] = set()
    result = []
    for request in requests:
        name = request.request_id
        while name in taken:
            num_seen[request.request_id] += 1
            name = f"{request.request_id}~{num_seen[request.request_id] + 1}"
        taken.add(name)
        result.append(replace(request, request_id=name))
    return result


def _refused(path: Path, error: BadCountsError) -> InputError:
    return InputError(
        f"the counters cannot be taken as rounds: {error}",
        code="bad_counters",
        where=str(path),
        remedy="take one scrape before and one after a benchmark, both while the server is idle, and give the first as "
        "--since"
        if isinstance(error, TooManyRoundsError)
        else "take the scrape while the server is idle, with a fixed number of drafts",
    )
