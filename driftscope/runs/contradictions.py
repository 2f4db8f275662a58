"""Statements that hold in every run that driftscope wrote: between its tables, and between them and run.json.

Knows no single value (that is `driftscope.runs.values`). Every reader looks at those that its queries rely on when it opens
a run; `runs verify` looks at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from driftscope.runs.schema import CONDITION, BatchKey
from driftscope.runs.views import BATCH_KEY, PROMPT_KEY
from probes.errors import RunError

VALUES_STATEMENT = "every value is one that can be, as run.json describes the run"
COUNTS_STATEMENT = "run.json's counts are those of the parts"
INTERVENTIONS_STATEMENT = "an intervention has one row for each depth, as many for every prompt of a condition"

_NAMED_PROMPT = "left(system_prompt, 80), left(template, 80), context_tokens, left(prompt_id, 80)"
_NAMED = f"concat_ws(' / ', left(drafter, 80), {_NAMED_PROMPT})"
_OF_ROUND = f"{BATCH_KEY}, engine, start, num_drafts, accepted_drafts, on_walk, has_all_labels"


class SqlCheck(NamedTuple):
    """A statement about the views `prompts`, `rounds` and `depths`. No query grows with the square of its rows, also
    where keys repeat."""

    name: str
    statement: str
    num_items: str  # a query for how many items it is about
    failures: str  # a query with one text column


OPENING_CHECKS = (
    SqlCheck(
        "prompts_unique",
        "a prompt stands once in prompts",
        "select count(*) from prompts",
        f"select concat_ws(' / ', {_NAMED_PROMPT}) from prompts group by {PROMPT_KEY} having count(*) > 1",
    ),
    SqlCheck(
        "round_ids_unique",
        "a round_id stands once in rounds",
        "select count(*) from rounds",
        "select 'round ' || round_id from rounds group by round_id having count(*) > 1",
    ),
    SqlCheck(
        "rounds_join_depths",
        "every round has num_depths rows per layer in depths, and depths has no others",
        "select count(*) from rounds",
        "with d as (select round_id, count(*) as num_rows, count(distinct depth) as num_depths, "
        "max(depth) as max_depth, count(distinct layer) as num_layers from depths group by round_id) "
        "select 'round ' || coalesce(r.round_id, d.round_id) from rounds r full join d using (round_id) "
        "where r.round_id is null or d.round_id is null or d.num_depths != r.num_depths "
        "or d.max_depth != r.num_depths or d.num_rows != r.num_depths * d.num_layers",
    ),
    SqlCheck(
        "rounds_equal_depths",
        "what depths repeats of a round is the round's",
        "select count(*) from depths",
        f"select distinct 'round ' || round_id from (select round_id, hash({_OF_ROUND}) as said from depths) "
        f"anti join (select round_id, hash({_OF_ROUND}) as said from rounds) using (round_id, said)",
    ),
)
FURTHER_CHECKS = (
    SqlCheck(
        "prompts_present",
        "every round's prompt is in prompts",
        "select count(*) from rounds",
        f"select distinct {_NAMED} from rounds anti join prompts using ({PROMPT_KEY})",
    ),
    SqlCheck(
        "starts_unique",
        "a batch has one round for each start",
        "select count(*) from rounds",
        f"select any_value({_NAMED}) || ' start ' || start from rounds "
        f"group by hash({BATCH_KEY}), start having count(*) > 1",
    ),
    SqlCheck(
        "accepted_is_a_prefix",
        "the depths accepted are 1..accepted_drafts",
        "select count(*) from rounds",
        "select 'round ' || round_id from depths where layer = 0 group by round_id, accepted_drafts "
        "having count(*) filter (accepted = 1) != accepted_drafts "
        "or coalesce(max(depth) filter (accepted = 1), 0) != accepted_drafts",
    ),
    SqlCheck(
        "walk_identity",
        "1 + sum(accepted + 1) - trimmed = completion tokens, for every walk",
        f"select count(*) from (select {BATCH_KEY} from rounds where num_trimmed_tokens is not null group by all)",
        f"with walks as (select {BATCH_KEY}, 1 + coalesce(sum(accepted_drafts + 1) filter (on_walk), 0) "
        "- any_value(num_trimmed_tokens) as num_tokens from rounds where num_trimmed_tokens is not null group by all), "
        f"responses as (select {PROMPT_KEY}, any_value(num_response_tokens) as num_response_tokens "
        "from prompts group by all) "
        f"select {_NAMED} || ': ' || num_tokens || ' tokens walked, response has ' "
        "|| num_response_tokens "
        f"from walks join responses using ({PROMPT_KEY}) where num_tokens != num_response_tokens",
    ),
)


def wrong_interventions(table: pa.Table) -> list[str]:
    """Ids of interventions whose rows are not those of depths 1, 2 .. of every prompt."""
    key = ["id", *BatchKey._fields]
    depths = [("depth", "count"), ("depth", "count_distinct"), ("depth", "max")]
    of_prompt = table.group_by(key).aggregate(depths)
    wrong = {
        row["id"]
        for row in of_prompt.to_pylist()
        if not row["depth_count"] == row["depth_count_distinct"] == row["depth_max"]
    }
    of_condition = of_prompt.group_by(list(CONDITION)).aggregate(
        [("depth_max", "min"), ("depth_max", "max"), ("id", "min")]
    )
    wrong |= {row["id_min"] for row in of_condition.to_pylist() if row["depth_max_min"] != row["depth_max_max"]}
    return sorted(wrong)


def contradiction(where: Path, statement: str, example: str) -> RunError:
    """The error of a run whose files do not say what a run says."""
    return RunError(
        f"this does not hold: {statement} ({example})",
        code="contradictory_run",
        where=str(where),
        remedy="Do not use these numbers: take a whole copy of the run, or measure again. "
        "`driftscope runs verify RUN` lists all that does not hold.",
    )
