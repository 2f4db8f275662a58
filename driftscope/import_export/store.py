"""Requests of an engine as a run: acceptance columns only, everything else null.

What a source does not say is null, and said in the notes. Why a draft was rejected is never known.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from driftscope.import_export.read import AcceptanceFile
from driftscope.import_export.request import Request
from driftscope.runs import DrafterInfo, Provenance, RunInfo, RunWriter, TargetInfo, read_run
from driftscope.summary import summarise, write_summary
from probes.record import PromptRecord, RoundBatch
from probes.regular_file import open_regular

NO_PROMPT_TOKENS_NOTE = "the source does not say how long the prompt was"
NO_RESPONSE_TOKENS_NOTE = "the source does not say how long the response was"
UNORDERED_NOTE = "the order of rounds is not known: their start only numbers them"
TEMPERATURE_NOTE = "the temperature is not known; --temperature says it"


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What the file cannot say. Defaults name what is true of any server's request: its own system turn and template."""

    drafter: str = "drafter"
    system_prompt: str = "prompt"
    temperature: float | None = None


def store_run(file: AcceptanceFile, out: Path, options: ImportOptions, *, overwrite: bool = False) -> list[str]:
    """Writes the run `out` with its summary -> the sentences that it carries as notes. Raises RunError."""
    notes = file.report()
    if options.temperature is None:
        notes.append(TEMPERATURE_NOTE)
    with RunWriter(out, _info(file, options, notes), overwrite=overwrite) as writer:
        for request in file.requests:
            writer.write_batch(_prompt(request, options))
            writer.write_batch(_batch(request, options))
    run = read_run(out)
    write_summary(run, summarise(run))
    return notes


def _info(file: AcceptanceFile, options: ImportOptions, notes: list[str]) -> RunInfo:
    with open_regular(file.path) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    model = next((r.model for r in file.requests if r.model is not None), "")
    return RunInfo(
        engine="import",
        level="counts",
        depth=max(request.rounds.depth for request in file.requests),
        temperature=options.temperature,
        acceptance_rule=f"as the server's: not in the file ({file.source})",
        has_text=False,
        plan={"import": {"file": file.path.name, "sha256": digest, "source": file.source, **asdict(options)}},
        target=TargetInfo(name=model),
        drafters=[DrafterInfo(name=options.drafter)],
        provenance=Provenance.here(),
        notes=notes,
    )


def _prompt(request: Request, options: ImportOptions) -> PromptRecord:
    said = {
        NO_PROMPT_TOKENS_NOTE: request.num_prompt_tokens is None,
        NO_RESPONSE_TOKENS_NOTE: request.num_response_tokens is None,
        UNORDERED_NOTE: not request.rounds.is_ordered,
    }
    return PromptRecord(
        prompt_id=request.request_id,
        system_prompt=options.system_prompt,
        template="default",
        context_tokens=0,
        token_ids=np.zeros(0, np.int32),
        region=np.zeros(0, np.uint8),
        num_prompt_tokens=request.num_prompt_tokens,
        num_response_tokens=request.num_response_tokens,
        num_continuation_tokens=0,
        finish_reason=request.finish_reason or "unknown",
        notes=tuple(note for note, is_said in said.items() if is_said) + request.notes,
    )


def _batch(request: Request, options: ImportOptions) -> RoundBatch:
    rounds, depth = request.rounds, request.rounds.depth
    accepted, drafts = rounds.accepted_drafts, rounds.num_drafts
    assert drafts is not None  # undetermined requests were left out when reading
    num_rounds, k = len(accepted), np.arange(1, depth + 1)
    if rounds.is_ordered:
        steps = np.concatenate([[0], np.cumsum(accepted[:-1] + 1)])
        start = max((request.num_prompt_tokens or 1) - 1, 0) + steps
    else:
        start = np.arange(num_rounds)
    is_reached = (k <= accepted[:, None] + 1) & (k <= drafts[:, None])  # [round, depth]
    unknown = np.full((num_rounds, depth), -1, np.int32)
    return RoundBatch(
        drafter=options.drafter,
        prompt_id=request.request_id,
        system_prompt=options.system_prompt,
        template="default",
        context_tokens=0,
        engine="import",
        depth=depth,
        num_trimmed_tokens=None,  # rounds without drafts are in no metric: the walk's identity need not hold
        start=start.astype(np.int32),
        num_drafts=drafts,
        accepted_drafts=accepted,
        on_walk=np.ones(num_rounds, bool),
        has_all_labels=np.ones(num_rounds, bool),
        draft_token=unknown,
        target_token=unknown,
        accepted=np.where(is_reached, k <= accepted[:, None], -1).astype(np.int8),
        rejection_reason=None,
    )
