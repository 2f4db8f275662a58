"""Which runs the bench makes: each case is one run of one pair, with what its conditions should be called.

Knows neither how a run is measured nor how it is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fault_bench import prompts
from benchmarks.fault_bench.faults import (
    CUT_VOCABULARY,
    STATIC,
    StaticFault,
    noisy_target,
    quantised_target,
    rotated_target,
    stale_keys,
    zeroed_feedback,
)
from driftscope.builtin import DEMO_DRAFTERS, resolve_drafter, resolve_target

TINY = Path(__file__).parents[2] / "tests" / "fixtures" / "tiny_pair"
HEADINGS = "{% for m in messages %}### {{ m['role'] }}\n{{ m['content'] }}\n\n{% endfor %}### assistant\n"
TARGET_CHANGES: dict[str, Callable[[Path, Path], Path]] = {
    "noise": noisy_target,
    "rotation": rotated_target,
    "4-bit": quantised_target,
}
ENGINE_FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "": nullcontext,
    "feedback zeroed": zeroed_feedback,
    "stale draft KV": stale_keys,
}


@dataclass(frozen=True)
class Pair:
    name: str
    target: str
    drafters: dict[str, str]  # sound ones: name -> folder
    turns: Callable[[str, int], list[str]]
    plain: Callable[[str, int], list[str]]  # to be sent without a template
    loops: Callable[[str, int], list[str]]  # words that logged answers repeat
    context_tokens: int  # beyond what the drafters were trained on
    document: Callable[[str], str] | None = None  # None: the sample documents
    raw_temperature: float = 0.0  # greedy raw text loops with some targets


@dataclass(frozen=True)
class Case:
    """One run. `right`: drafter or "drafter, template NAME", "drafter, context N" -> verdicts that name the cause."""

    name: str
    part: str  # static | dynamic | reference | untouched
    pair: Pair
    prompts: str  # which of the pair's texts: turns | plain | logged loops | greek
    drafters: dict[str, str]
    right: dict[str, tuple[str, ...]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # of the plan
    engine_fault: str = ""  # key of ENGINE_FAULTS
    target_change: str = ""  # key of TARGET_CHANGES
    fault: StaticFault | None = None  # a broken checkpoint in place of `drafters`
    base: str = ""  # the case whose sound drafters say what a fault costs; "": this one's own


def demo_pair() -> Pair:
    return Pair(
        "demo",
        resolve_target("demo"),
        {name: resolve_drafter(f"demo:{name}") for name in DEMO_DRAFTERS},
        prompts.demo_turns,
        prompts.demo_passages,
        prompts.demo_loops,
        context_tokens=3500,
        raw_temperature=0.7,
    )


def tiny_pair() -> Pair:
    return Pair(
        "tiny",
        str(TINY / "target"),
        {"tiny": str(TINY / "drafter")},
        prompts.tiny_turns,
        prompts.tiny_plain,
        prompts.tiny_loops,
        context_tokens=256,
        document=prompts.tiny_document,
    )


PAIRS = {"demo": demo_pair, "tiny": tiny_pair}


def cases_of(pair: Pair) -> list[Case]:
    """Every case of this pair: small ones, a drafter each, so that many can run side by side."""
    return [case for name in pair.drafters for case in _cases(pair, name)]


def _cases(pair: Pair, drafter: str) -> Iterator[Case]:
    """Of one sound drafter."""
    sound = {drafter: pair.drafters[drafter]}

    def case(name: str, part: str, texts: str, right: tuple[str, ...] = (), where: str = "", **rest: Any) -> Case:
        """`where`: the condition that `right` is about; the run's own for ""."""
        expected = {f"{drafter}, {where}" if where else drafter: right} if right else {}
        return Case(f"{drafter}-{name}".replace(" ", "-"), part, pair, texts, sound, right=expected, **rest)

    plain, live = case("plain", "untouched", "turns"), case("live", "untouched", "turns", options={"engine": "live"})
    yield plain
    yield live
    yield case("sampled", "untouched", "turns", options={"temperature": 0.7})
    for fault in STATIC if pair.name == "tiny" else (*STATIC, CUT_VOCABULARY):
        if fault.kind == drafter:
            name = f"{drafter}-{fault.name.removeprefix('tiny ')}"
            right = {fault.name: fault.right}
            yield Case(name, "static", pair, "turns", {}, right=right, fault=fault, base=plain.name)
    for fault_name in filter(None, ENGINE_FAULTS):
        options = {"engine": "live"}
        right_verdict = ("feedback_fault",)
        yield case(
            fault_name, "dynamic", "turns", right_verdict, options=options, engine_fault=fault_name, base=live.name
        )
    shift = ("template_shift",)
    headings = {"template": {"default": None, "headings": "headings.jinja"}}
    yield case("headings", "dynamic", "turns", shift, "template headings", options=headings)
    raw = {"template": {"default": None, "raw": None}, "temperature": pair.raw_temperature}
    yield case("raw", "dynamic", "plain", shift, "template raw", options=raw)
    context = {"context_tokens": [0, pair.context_tokens]}
    yield case("context", "dynamic", "turns", ("context_limit",), f"context {pair.context_tokens}", options=context)
    yield case("loops", "dynamic", "logged loops", ("degenerate_text",))
    if pair.name == "tiny":
        yield case("uncovered", "dynamic", "greek", ("vocabulary_gap",), base=plain.name)
    for change in TARGET_CHANGES:
        yield case(change, "reference", "turns", ("target_changed",), target_change=change, base=plain.name)
