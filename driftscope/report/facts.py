"""Tables of facts: every condition's numbers, how a run was made, what each drafter's settings are and where from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from driftscope.advise import Advice, ConditionAdvice
from driftscope.report.contents import Contents, ReportRun
from driftscope.report.tables import Table, interval, number
from driftscope.runs import verify
from driftscope.runs.info import DrafterInfo


def tokens_table(contents: Contents) -> Table:
    """Tokens per round of every condition, by every definition."""
    rows = []
    for c in contents.conditions:
        s, walk, dense = c.summary, c.summary.walk, c.summary.dense
        rows.append(
            [
                c.series,
                c.place,
                f"{s.num_degenerate:,}" if s.num_degenerate else "",
                f"{s.num_prompts_without_rounds:,}" if s.num_prompts_without_rounds else "",
                *(
                    text
                    for tokens in (walk, dense)
                    for text in (
                        [
                            number(tokens.tokens_per_round, 3),
                            interval(tokens.low, tokens.high),
                            number(tokens.tokens_per_round_prompt_mean, 3),
                            _n(tokens.num_prompts, s.num_prompts),
                            f"{tokens.num_rounds:,}",
                        ]
                        if tokens
                        else [""] * 5
                    )
                ),
                number(s.out_of_draft_vocab_share, 3),
                number(s.text_agreement, 3),
            ]
        )
    columns = ["drafter", "condition", "looping", "without a round"]
    for basis in ("walk", "dense"):
        columns += [basis, f"{basis} 95 %", f"{basis}, mean of prompts", f"{basis} n", f"{basis} rounds"]
    return _without_empty(
        Table(
            caption="Tokens per round (incl. bonus), walk and dense; pooled over rounds, and the mean of the prompts' own; "
            "n: the prompts that a number is over, of all; the others loop or have no such round",
            columns=[*columns, "outside draft vocabulary", "text agreement"],
            rows=rows,
            num_labels=2,
        )
    )


def _n(num_used: int, num_prompts: int) -> str:
    return f"{num_used:,}" if num_used == num_prompts else f"{num_used:,} of {num_prompts:,}"


def acceptance_table(contents: Contents) -> Table:
    """Marginal and conditional acceptance by depth."""
    depth = max((len(c.summary.acceptance_marginal) for c in contents.conditions), default=0)
    rows = []
    for c in contents.conditions:
        for name, values in (
            ("marginal", c.summary.acceptance_marginal),
            ("conditional", c.summary.acceptance_conditional),
        ):
            shown = [number(v, 3) for v in values] + [""] * (depth - len(values))
            rows.append([c.series, c.place, name, c.summary.depth_basis, *shown])
    return Table(
        caption="Acceptance by depth",
        columns=["drafter", "condition", "rate", "rounds", *(str(k + 1) for k in range(depth))],
        rows=rows,
        num_labels=4,
    )


def advice_tables(advice: Advice) -> list[tuple[ConditionAdvice, Table]]:
    """Each drafter over all its conditions: its statement, and a row for each K."""
    return [(one, _advice_table(one)) for one in advice.drafters if one.depths]


def _advice_table(one: ConditionAdvice) -> Table:
    has_costs = one.costs is not None
    if has_costs:
        columns = ["round (µs)", "speed-up", "speed-up 95 %", "pays if added >"]
    else:
        columns = ["pays while draft / verify <", "this depth pays while <"]
    rows = [
        [
            str(d.depth),
            number(d.tokens_per_round),
            interval(d.low, d.high),
            number(d.added_tokens, is_signed=True),
            *(
                [
                    number(d.round_us, 0),
                    number(d.speedup),
                    interval(d.speedup_low, d.speedup_high),
                    number(d.break_even_added_tokens),
                ]
                if has_costs
                else [number(d.break_even_draft_share), number(d.break_even_draft_share_added)]
            ),
        ]
        for d in one.depths
    ]
    prompts = "prompt" if one.num_prompts == 1 else "prompts"
    return Table(
        caption=f"{one.drafter}, over all conditions, {one.num_prompts} {prompts}",
        columns=["K", "tokens per round, walk", "95 % interval", "added by this depth", *columns],
        rows=rows,
    )


def run_table(run: ReportRun) -> Table:
    """How it was made."""
    info, p = run.info, run.info.provenance
    target = info.target
    facts = {
        "folder": str(run.run.path),
        "status": run.run.status.value,
        "target": f"{target.name} ({target.model_type or '?'}, {target.num_layers or '?'} layers, hidden "
        f"{target.hidden_size or '?'}, vocabulary {target.vocab_size or '?'})",
        "target folder": target.path,
        "engine": info.engine,
        "K": str(info.depth),
        "temperature": "" if info.temperature is None else f"{info.temperature:g}",
        "acceptance rule": info.acceptance_rule,
        "sink slots": str(info.sink_slots),
        "keeps text": "yes" if info.has_text else "no",
        "dtype": p.dtype,
        "device": p.gpu_name or p.device,
        "attention": p.attention_backend,
        "CUDA graphs": p.cuda_graph_mode or "",
        "driftscope": p.driftscope_version,
        "python": f"{p.python_version} on {p.platform}" if p.python_version else "",
        "packages": ", ".join(f"{name} {version}" for name, version in p.packages.items()),
        "seed": "" if p.seed is None else str(p.seed),
        "command line": shlex.join(p.argv),
        "made": f"{info.created_at} to {info.finished_at or info.updated_at}",
        "prompts, rounds": f"{info.counts.num_prompts:,}, {info.counts.num_rounds:,}",
        "reference target": info.reference_target or "",
    }
    optional = ("CUDA graphs", "reference target")  # empty where they do not apply
    rows = [[name, value or "not recorded"] for name, value in facts.items() if value or name not in optional]
    rows += [[f"template {name}", f"sha256 {digest}"] for name, digest in p.template_sha256.items()]
    return Table(caption=f"How {run.name} was made", columns=["fact", "value"], rows=rows, num_labels=2)


def hashes_table(run: ReportRun) -> Table | None:
    """sha256 of every checkpoint file."""
    owners = [("target", run.info.target.files_sha256), *((d.name, d.files_sha256) for d in run.info.drafters)]
    rows = [[owner, file, digest] for owner, files in owners for file, digest in files.items()]
    columns = ["checkpoint", "file", "sha256"]
    return Table(caption="Checkpoint files", columns=columns, rows=rows, num_labels=3) if rows else None


def settings_table(drafter: DrafterInfo) -> Table | None:
    """Every effective setting with where it came from."""
    names = list(dict.fromkeys((*drafter.origins, *drafter.settings)))
    rows = []
    for name in names:
        origin = drafter.origins.get(name) or {}
        certain = "" if not origin else "yes" if origin.get("is_certain", True) else "guessed"
        value = drafter.settings.get(name)
        rows.append([name, str(value), str(origin.get("source", "")), str(origin.get("detail", "")), certain])
    columns = ["setting", "value", "from", "detail", "certain"]
    caption = f"Effective settings of {drafter.name}"
    return Table(caption=caption, columns=columns, rows=rows, num_labels=5) if rows else None


def drafter_line(drafter: DrafterInfo) -> str:
    """What kind it is, in one line."""
    layers = ", ".join(map(str, drafter.aux_layer_ids)) or "none recorded"
    parts = [
        drafter.kind or "unknown kind",
        f"from {drafter.producer}" if drafter.producer else "unknown producer",
        f"target layers (boundary ids) {layers}",
        f"draft vocabulary {drafter.draft_vocab_size}" if drafter.draft_vocab_size else "",
        f"{drafter.num_layers} layer{'s' if (drafter.num_layers or 0) > 1 else ''}" if drafter.num_layers else "",
        f"{drafter.num_heads} heads" if drafter.num_heads else "",
    ]
    return " · ".join(part for part in parts if part)


def check_table(run: ReportRun) -> Table:
    """`driftscope runs verify`: does the run contradict itself?"""
    rows = [
        [
            check.statement,
            f"{check.num_checked:,}",
            "holds" if not check.num_failed else f"FAILS {check.num_failed:,} times: {'; '.join(check.examples[:2])}",
        ]
        if check.num_checked
        else [check.statement, "0", "nothing to check"]
        for check in verify(run.run.path).checks
    ]
    columns = ["statement", "checked", "result"]
    return Table(caption=f"Self-check of {run.name}", columns=columns, rows=rows, num_labels=1)


def _without_empty(table: Table) -> Table:
    kept = [i for i in range(len(table.columns)) if i < table.num_labels or any(row[i] for row in table.rows)]
    rows: list[Sequence[str]] = [[row[i] for i in kept] for row in table.rows]
    columns = [table.columns[i] for i in kept]
    return Table(caption=table.caption, columns=columns, rows=rows, num_labels=table.num_labels)
