"""vLLM's server counters (`/metrics`, Prometheus text): all requests since the start, or since an earlier scrape.

    vllm:spec_decode_num_drafts_total                       rounds
    vllm:spec_decode_num_draft_tokens_total                 drafts
    vllm:spec_decode_num_accepted_tokens_total              accepted drafts, without the bonus token
    vllm:spec_decode_num_accepted_tokens_per_pos_total      the same by `position`, from 0

A round that accepted position i accepted all before it, so the counts by position are the rounds by accepted drafts. How
many drafts each round had follows only where the total is K for every round; else the counters determine no rounds and
are refused. A server is one "request": nothing tells its requests apart, and no interval can be given.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from driftscope.import_export.request import MAX_TOKENS, Request, Taken
from driftscope.import_export.rounds import BadCountsError, from_histogram, histogram_of_positions
from driftscope.prompts.line import bad_line, label
from driftscope.prompts.rows import read_text
from probes.errors import InputError

_PREFIX = "vllm:spec_decode_num_"
_NAMES = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
_TOKENS = {"vllm:prompt_tokens_total": "prompt", "vllm:generation_tokens_total": "generation"}

SERVER_NOTE = "a server's counters: all its requests are one, no interval over requests can be given"

TOKENS_NOTE = "the server's tokens are more than a run stores of one request: left out"

Counters = dict[tuple[str, str], int]  # (model, counter or counter/position) -> count, summed over engines


def is_prometheus(text: str) -> bool:
    """Whether the first line that says something is a comment or a sample of the Prometheus text format."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first.startswith(("#", "vllm:"))


def read(path: Path, since: Path | None, depth: int | None) -> Taken:
    """One request for each model that the server serves. Raises InputError naming the file (and line)."""
    now = _counters(path)
    before = _counters(since) if since is not None else {}
    if not any(name == "drafts" for _, name in now):
        raise InputError(
            "there is no counter vllm:spec_decode_num_drafts_total: the server does not speculate, or is no vLLM",
            code="no_acceptance",
            where=str(path),
            remedy="save the text of the server's /metrics page",
        )
    for key, count in before.items():
        if now.get(key, 0) < count:
            raise InputError(
                f"the counter {key[1]} of {key[0] or 'the server'} is lower than before: the server was restarted, "
                "or the two files are the wrong way round",
                code="counter_went_back",
                where=str(path),
                remedy="give the earlier scrape of the same server as --since",
            )
    counts = {key: count - before.get(key, 0) for key, count in now.items()}
    models = list(dict.fromkeys(model for model, name in counts if name == "drafts"))
    requests = [_request(model, {name: n for (m, name), n in counts.items() if m == model}, depth) for model in models]
    return Taken(requests=tuple(r for r in requests if r is not None))


def _request(model: str, counts: dict[str, int], depth: int | None) -> Request | None:
    """A model's counters as rounds; None where it made none. Raises BadCountsError."""
    num_rounds = counts["drafts"]
    if not num_rounds:
        return None
    positions = sorted(int(name.partition("/")[2]) for name in counts if name.startswith("accepted_tokens_per_pos/"))
    if positions != list(range(len(positions))) or not positions:
        raise BadCountsError("the counters by position are missing or have a gap")
    accepted_at = [counts[f"accepted_tokens_per_pos/{i}"] for i in positions]
    if depth is not None and depth != len(positions):
        raise BadCountsError(f"there are counters of {len(positions)} positions, the depth asked for is {depth}")
    if "accepted_tokens" in counts and counts["accepted_tokens"] != sum(accepted_at):
        raise BadCountsError(
            f"the positions hold {sum(accepted_at)} accepted drafts, the total {counts['accepted_tokens']}"
        )
    if "draft_tokens" not in counts:
        raise BadCountsError("the counter of draft tokens is missing")
    rounds = from_histogram(
        histogram_of_positions(num_rounds, accepted_at),
        depth=len(positions),
        num_draft_tokens=counts["draft_tokens"],
    )
    prompt, generation = counts.get("prompt"), counts.get("generation")
    has_more = max(prompt or 0, generation or 0) > MAX_TOKENS  # a server that is up for days
    return Request(
        request_id=f"server {model}" if model else "server",
        model=model or None,
        rounds=rounds,
        num_prompt_tokens=None if has_more else prompt,
        num_response_tokens=None if has_more else generation,
        notes=(SERVER_NOTE, TOKENS_NOTE) if has_more else (SERVER_NOTE,),
    )


def _counters(path: Path) -> Counters:
    """The counters of one scrape, line by line so that a broken one is named. Other metrics are passed over."""
    from prometheus_client.parser import text_string_to_metric_families

    counters: defaultdict[tuple[str, str], int] = defaultdict(int)
    for number, raw in enumerate(read_text(path).split("\n"), start=1):
        line = raw.strip()
        if not line.startswith((_PREFIX, *_TOKENS)):
            continue
        try:
            samples = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            said = label(str(error))
            raise bad_line(path, number, f"is no sample of the Prometheus text format: {said}") from error
        for sample in samples:
            name = _TOKENS.get(sample.name) or sample.name.removeprefix(_PREFIX).removesuffix("_total")
            if name not in (*_NAMES, *_TOKENS.values()):
                continue  # e.g. _created, the counter's age
            if not 0 <= sample.value < 1 << 53 or sample.value != int(sample.value):
                raise bad_line(path, number, f"counts {label(str(sample.value))}, not a whole number from 0 up")
            if name == "accepted_tokens_per_pos":
                position = sample.labels.get("position", "")
                if not (position.isascii() and position.isdigit() and len(position) < 4):
                    raise bad_line(path, number, "has no position")
                name = f"{name}/{int(position)}"
            counters[label(sample.labels.get("model_name", "")), name] += int(sample.value)
    return dict(counters)
