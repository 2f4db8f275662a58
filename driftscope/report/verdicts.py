"""The verdicts of all conditions, alike ones together, causes first. Judges nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from driftscope.diagnosis.diagnosis import Verdict, VerdictId
from driftscope.diagnosis.waterfall import LOSS_NAMES
from driftscope.report.contents import Contents
from driftscope.report.glossary import LOSSES, VERDICTS
from driftscope.report.tables import Table, interval, number

MAX_PLACES = 6
MAX_EVIDENCE = 3
_NO_CAUSE = (VerdictId.not_enough_data, VerdictId.degenerate_text)


@dataclass(frozen=True, kw_only=True)
class VerdictGroup:
    """One verdict of one series, over the conditions that have it."""

    kind: str  # good | cause | note
    series: str
    name: str
    where: str
    confidence: str
    meaning: str
    places: str  # empty when it is every condition
    evidence: Sequence[str]
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Unjudged:
    """Verdicts that could be neither given nor ruled out, for one reason."""

    names: str
    where: str
    detail: str


def verdict_groups(contents: Contents) -> list[VerdictGroup]:
    """Causes first, those of most conditions before others; healthy last, series that are it in the same places as one."""
    groups: dict[tuple[VerdictId, str, str], list[tuple[str, Verdict]]] = {}
    for condition in contents.conditions:
        for verdict in condition.diagnosis.verdicts if condition.diagnosis else ():
            groups.setdefault((verdict.id, condition.series, verdict.confidence), []).append((condition.place, verdict))
    order = sorted(groups, key=lambda key: (key[0] is VerdictId.healthy, key[0] in _NO_CAUSE, -len(groups[key])))
    found = [verdict_group(key, groups[key], len(contents.of_series(key[1]))) for key in order]
    healthy: dict[tuple[str, str, str], list[VerdictGroup]] = {}
    for group in found:
        if group.kind == "good":
            healthy.setdefault((group.confidence, group.where, group.places), []).append(group)
    joined = [replace(own[0], series=", ".join(g.series for g in own)) for own in healthy.values()]
    return [g for g in found if g.kind != "good"] + joined


def verdict_group(
    key: tuple[VerdictId, str, str], members: Sequence[tuple[str, Verdict]], num_conditions: int
) -> VerdictGroup:
    """`key`: verdict, series and confidence; `members`: the places that have it, of this many conditions of the series."""
    id, series, confidence = key
    places = [place for place, _ in members]
    is_everywhere = len(members) == num_conditions
    more = f" and {len(places) - MAX_PLACES} more" if len(places) > MAX_PLACES else ""
    place, first = members[0]
    return VerdictGroup(
        kind="good" if id is VerdictId.healthy else "note" if id in _NO_CAUSE else "cause",
        series=series,
        name=id.value.replace("_", " "),
        where="in every condition" if is_everywhere else f"in {len(members)} of {num_conditions} conditions",
        confidence=confidence,
        meaning=VERDICTS[id],
        places="" if is_everywhere else ", ".join(places[:MAX_PLACES]) + more,
        evidence=[f"{place}: {e.statement}{_range(e.low, e.high)}" for e in first.evidence[:MAX_EVIDENCE]],
        remedy="" if id is VerdictId.healthy else first.remedy,
    )


def unjudged(contents: Contents) -> list[Unjudged]:
    """By reason, with the conditions it holds for."""
    names: dict[str, list[str]] = {}
    where: dict[str, set[tuple[str, str]]] = {}
    for condition in contents.conditions:
        for item in condition.diagnosis.not_judged if condition.diagnosis else ():
            name = item.id.value.replace("_", " ")
            if name not in names.setdefault(item.detail, []):
                names[item.detail].append(name)
            where.setdefault(item.detail, set()).add((condition.series, condition.place))
    total = len(contents.conditions)
    return [
        Unjudged(
            names=", ".join(of_reason),
            where="" if len(where[detail]) == total else f"in {len(where[detail])} of {total} conditions",
            detail=detail,
        )
        for detail, of_reason in names.items()
    ]


def file_findings(contents: Contents) -> list[dict[str, str]]:
    """What `driftscope check` says of the drafters' files, each once."""
    found = {
        (c.series, f.id, f.severity, f.statement): None
        for c in contents.conditions
        if c.diagnosis
        for f in c.diagnosis.file_findings
    }
    return [dict(zip(("series", "id", "severity", "statement"), key, strict=True)) for key in found]


def evidence_table(contents: Contents) -> Table:
    """Every verdict of every condition, in words."""
    rows = [
        [c.series, c.place, v.id.value.replace("_", " "), v.confidence, e.statement, interval(e.low, e.high)]
        for c in contents.conditions
        if c.diagnosis
        for v in c.diagnosis.verdicts
        for e in v.evidence
    ]
    return Table(
        caption="Evidence of every verdict",
        columns=["drafter", "condition", "verdict", "confidence", "evidence", "95 % interval"],
        rows=rows,
        num_labels=5,
    )


def gains_table(contents: Contents) -> Table | None:
    """Every intervention that was tried; None without any."""
    rows = [
        [
            c.series,
            c.place,
            i.id,
            i.kind,
            number(i.gain, 3, is_signed=True),
            interval(i.low, i.high, 3, is_signed=True),
            str(i.num_prompts),
            "counted" if i.is_counted else "",
        ]
        for c in contents.conditions
        if c.diagnosis
        for i in c.diagnosis.interventions
    ]
    columns = ["drafter", "condition", "intervention", "kind", "gain", "95 % interval", "prompts", "counted"]
    caption = "One change to one thing: gain in dense tokens per round; for kind path, in drafts per start at one step"
    return Table(caption=caption, columns=columns, rows=rows, num_labels=4) if rows else None


def losses_table(contents: Contents) -> Table | None:
    """Lost tokens of an average round by cause; None where no condition has a walk."""
    parts = _lost_parts(contents)
    rows = [
        [c.series, c.place, *(number(c.diagnosis.waterfall.get(p, 0.0), 3) for p in parts)]
        for c in contents.conditions
        if c.diagnosis and c.diagnosis.waterfall
    ]
    columns = ["drafter", "condition", *(LOSS_NAMES[p] for p in parts)]
    caption = "Tokens of an average walk round that are lost, by first cause"
    return Table(caption=caption, columns=columns, rows=rows, num_labels=2) if rows else None


def losses_meanings(contents: Contents) -> list[tuple[str, str]]:
    """What each part of the losses means."""
    return [(LOSS_NAMES[part], LOSSES[part]) for part in _lost_parts(contents)]


def _lost_parts(contents: Contents) -> list[str]:
    return list(
        dict.fromkeys(p for c in contents.conditions if c.diagnosis for p, v in c.diagnosis.waterfall.items() if v)
    )


def _range(low: float | None, high: float | None) -> str:
    return f" (95 % interval {interval(low, high)})" if low is not None else ""
