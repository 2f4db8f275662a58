"""The views that every query may use besides a run's tables: which rounds count, and what loops. The rules stand here once.

A response that loops takes no part in any mean. One whose tokens are not known (`is_degenerate` is null) does not loop.
"""

from __future__ import annotations

from driftscope.runs.schema import BatchKey, PromptKey

BATCH_KEY = ", ".join(BatchKey._fields)
PROMPT_KEY = ", ".join(PromptKey._fields)
NOT_LOOPING = f"anti join looping_prompts using ({PROMPT_KEY})"
"""Behind a table: without the prompts whose response loops."""

_IS_IN_BASIS = "case when engine = 'replay' then has_all_labels else on_walk end"
_IS_DENSE = "engine = 'replay' and has_all_labels"
VIEWS = {
    # the depth basis: arrays over depth are means of the dense rounds in a replay, of the walk elsewhere
    "basis_rounds": f"select * from rounds where {_IS_IN_BASIS}",
    "basis_depths": f"select * from depths where {_IS_IN_BASIS}",
    "looping_prompts": f"select {PROMPT_KEY} from prompts where is_degenerate",
    # one row for each prompt with one drafter: what it adds to tokens_per_round, with the degenerate ones
    "batches": f"select {BATCH_KEY}, any_value(engine) as engine, max(num_depths) as num_depths, "
    "coalesce(any_value(is_degenerate), false) as is_degenerate, any_value(category) as category, "
    "any_value(messages_sha256) as messages_sha256, any_value(text_agreement) as text_agreement, "
    "any_value(num_response_tokens) as num_response_tokens, "
    "count(*) as num_rounds, min(round_id) as first_round_id, "
    f"count(*) filter ({_IS_DENSE}) as num_dense_rounds, count(*) filter (on_walk) as num_walk_rounds, "
    f"coalesce(sum(accepted_drafts + 1) filter ({_IS_DENSE}), 0)::bigint as num_dense_tokens, "
    "coalesce(sum(accepted_drafts + 1) filter (on_walk), 0)::bigint as num_walk_tokens "
    f"from rounds left join prompts using ({PROMPT_KEY}) group by {BATCH_KEY}",
}
