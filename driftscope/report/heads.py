"""Means of a column of heads by depth and layer for one condition, computed by duckdb in place."""

from __future__ import annotations

from driftscope.figures import HeadMasses
from driftscope.report.contents import Condition

_BASIS = "case when engine = 'replay' then has_all_labels else on_walk end"


def head_means(condition: Condition, column: str) -> dict[int, HeadMasses]:
    """Layer -> values[head][depth - 1], degenerate prompts left out; empty where heads are not recorded."""
    s, run = condition.summary, condition.run.run
    drafter = run.info.drafter(s.drafter)
    num_heads = drafter.num_heads if drafter is not None else None
    if not num_heads:
        return {}
    heads = ", ".join(f"avg({column}[{head + 1}])::double as head_{head}" for head in range(num_heads))
    rows = run.query(
        f"select depth, layer, count({column}) as num_rounds, {heads} from depths "
        "left join prompts using (system_prompt, template, context_tokens, prompt_id) "
        "where drafter = ? and system_prompt = ? and template = ? and context_tokens = ? "
        f"and {_BASIS} and not coalesce(is_degenerate, false) group by depth, layer order by layer, depth",
        [s.drafter, s.system_prompt, s.template, s.context_tokens],
    )
    found = {}
    by_layer: dict[int, list[dict[str, float]]] = {}
    for row in rows.to_pylist():
        by_layer.setdefault(row["layer"], []).append(row)
    for layer, of_layer in by_layer.items():
        values = tuple(tuple(row[f"head_{head}"] for row in of_layer) for head in range(num_heads))
        if any(v is not None for row in values for v in row):
            found[layer] = HeadMasses(
                label=condition.series, values=values, num_rounds=int(max(row["num_rounds"] for row in of_layer))
            )
    return found
