"""Means of a column of heads by depth and layer for one condition, computed by duckdb in place. Shared with the app."""

from __future__ import annotations

from driftscope.figures import HeadMasses
from driftscope.runs import Run
from driftscope.runs.views import NOT_LOOPING
from probes.record import ConditionKey


def head_means(run: Run, condition: ConditionKey, column: str, label: str = "") -> dict[int, HeadMasses]:
    """Layer -> values[head][depth - 1] over the depth basis, degenerate prompts left out; empty where heads are not
    recorded."""
    drafter = run.info.drafter(condition.drafter)
    num_heads = drafter.num_heads if drafter is not None else None
    if not num_heads:
        return {}
    heads = ", ".join(f"avg({column}[{head + 1}])::double as head_{head}" for head in range(num_heads))
    rows = run.query(
        f"select depth, layer, count({column}) as num_rounds, {heads} from basis_depths {NOT_LOOPING} "
        "where drafter = ? and system_prompt = ? and template = ? and context_tokens = ? "
        "group by depth, layer order by layer, depth",
        condition,
    )
    found = {}
    by_layer: dict[int, list[dict[str, float]]] = {}
    for row in rows.to_pylist():
        by_layer.setdefault(row["layer"], []).append(row)
    for layer, of_layer in by_layer.items():
        values = tuple(tuple(row[f"head_{head}"] for row in of_layer) for head in range(num_heads))
        if any(v is not None for row in values for v in row):
            found[layer] = HeadMasses(
                label=label, values=values, num_rounds=int(max(row["num_rounds"] for row in of_layer))
            )
    return found
