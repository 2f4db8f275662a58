"""`python -m benchmarks.fault_bench FOLDER [--part static|dynamic|reference] [--num-prompts N]`: measure, judge, print.

Every part is one or two runs that stay in FOLDER, so a stopped bench goes on where it ended. The table printed is
GitHub-flavoured Markdown: fault, cost in dense tokens_per_round against the sound drafter, the first verdict, right or not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fault_bench.faults import STATIC, break_checkpoint, noisy_target, rotated_target, zeroed_feedback
from driftscope.builtin import DEMO_DRAFTERS, resolve_drafter, resolve_target
from driftscope.diagnosis.diagnose import diagnose
from driftscope.measure import measure
from driftscope.plan import Plan
from driftscope.runs import Run, read_run
from driftscope.stats.thresholds import VERDICT_MIN_TOKENS
from driftscope.summary import summarise
from probes.errors import CheckpointError

DYNAMIC_TEMPLATE = "{% for m in messages %}### {{ m['role'] }}\n{{ m['content'] }}\n\n{% endfor %}### assistant\n"


@dataclass(frozen=True)
class Answer:
    """One line of the table."""

    part: str
    fault: str
    cost: float | None  # tokens_per_round lost against the sound drafter
    verdicts: tuple[str, ...]
    right: tuple[str, ...]
    evidence: str = ""

    @property
    def is_right(self) -> bool:
        """The first verdict names the cause; a dynamic fault that costs little may also pass as healthy."""
        first = self.verdicts[0]
        is_small = self.part == "dynamic" and self.cost is not None and self.cost < VERDICT_MIN_TOKENS
        return first in self.right or (is_small and first in ("healthy", "not_enough_data"))


def run_of(path: Path, plan: Plan, around: AbstractContextManager[None] | None = None) -> Run:
    """The run of this plan, measured unless it is there."""
    if not path.exists() or read_run(path).info.interventions == []:
        with around or nullcontext():
            measure(plan, path, overwrite=path.exists(), on_progress=lambda p: sys.stderr.write(f"\r{p}\033[K"))
    return read_run(path)


def answers_of(
    part: str, run: Run, right: dict[str, tuple[str, ...]], sound: dict[str, float], kind_of: dict[str, str]
) -> list[Answer]:
    """Each drafter of the run; `right` and `kind_of` by drafter name, `sound` tokens_per_round by kind."""
    tokens = {(c.drafter, c.template): c.dense.tokens_per_round for c in summarise(run).conditions if c.dense}
    found = []
    for condition in diagnose(run).conditions:
        name = condition.drafter
        mean = tokens.get((name, condition.template))
        base = sound.get(kind_of.get(name, name))
        first = condition.verdicts[0]
        label = name if condition.template == "default" else f"{name}, template {condition.template}"
        found.append(
            Answer(
                part,
                label,
                None if mean is None or base is None else base - mean,
                tuple(v.id.value for v in condition.verdicts),
                right.get(label, right.get(name, ("healthy",))),
                first.evidence[0].name,
            )
        )
    return found


def static(folder: Path, options: dict[str, object]) -> list[Answer]:
    drafters = {name: resolve_drafter(f"demo:{name}") for name in DEMO_DRAFTERS}
    right: dict[str, tuple[str, ...]] = {}
    kind_of = {name: name for name in DEMO_DRAFTERS}
    refused = []
    for fault in STATIC:
        broken = folder / "checkpoints" / fault.name
        if not broken.exists():
            break_checkpoint(Path(resolve_drafter(f"demo:{fault.kind}")), broken, fault)
        try:
            _readable(broken)
        except CheckpointError as error:
            refused.append(Answer("static", fault.name, None, ("refused",), ("refused",), error.code))
            continue
        drafters[fault.name] = str(broken)
        right[fault.name], kind_of[fault.name] = fault.right, fault.kind
    run = run_of(folder / "static.drift", Plan(target="demo", drafter=drafters, interventions=["all"], **options))
    return [*refused, *answers_of("static", run, right, _sound(run), kind_of)]


def dynamic(folder: Path, options: dict[str, object]) -> list[Answer]:
    drafters = {name: f"demo:{name}" for name in DEMO_DRAFTERS}
    template = folder / "headings.jinja"
    template.write_text(DYNAMIC_TEMPLATE)
    plan = Plan(
        target="demo",
        drafter=drafters,
        template={"default": None, "raw": None, "headings": str(template)},
        interventions=["all"],
        **options,
    )
    run = run_of(folder / "templates.drift", plan)
    sound = _sound(run)
    right = {f"{name}, template {t}": ("template_shift",) for name in DEMO_DRAFTERS for t in ("raw", "headings")}
    answers = answers_of("dynamic", run, right, sound, {})
    plan = Plan(target="demo", drafter=drafters, interventions=["all"], **options)
    zeroed = run_of(folder / "zeroed.drift", plan, zeroed_feedback())
    answers += answers_of("dynamic", zeroed, dict.fromkeys(DEMO_DRAFTERS, ("feedback_fault",)), sound, {})
    return answers


def reference(folder: Path, options: dict[str, object]) -> list[Answer]:
    target = Path(resolve_target("demo"))
    drafters = {name: f"demo:{name}" for name in DEMO_DRAFTERS}
    answers = []
    for name, make in (("noise", noisy_target), ("rotation", rotated_target)):
        changed = folder / "targets" / name
        if not changed.exists():
            changed.parent.mkdir(exist_ok=True)
            make(target, changed)
        plan = Plan(
            target=str(changed), drafter=drafters, interventions=["all"], reference_target=str(target), **options
        )
        run = run_of(folder / f"{name}.drift", plan)
        right = dict.fromkeys(DEMO_DRAFTERS, ("target_changed",))
        found = answers_of("reference", run, right, {}, {})
        answers += [Answer(a.part, f"{name}, {a.fault}", a.cost, a.verdicts, a.right, a.evidence) for a in found]
    return answers


def _readable(path: Path) -> None:
    from probes.checkpoint.read import read_spec
    from probes.target import target_config

    read_spec(str(path), target_config=target_config(resolve_target("demo")))


def _sound(run: Run) -> dict[str, float]:
    """tokens_per_round of the untouched drafters under the default template."""
    return {
        c.drafter: c.dense.tokens_per_round
        for c in summarise(run).conditions
        if c.drafter in DEMO_DRAFTERS and c.template == "default" and c.dense and c.dense.tokens_per_round
    }


def table(answers: Sequence[Answer]) -> str:
    """Markdown."""
    lines = ["| part | fault | cost | first verdict | its evidence | others | right |", "|---|---|---|---|---|---|---|"]
    for a in answers:
        cost = "" if a.cost is None else f"{a.cost:.2f}"
        others = ", ".join(a.verdicts[1:])
        verdict = "yes" if a.is_right else f"no ({' or '.join(a.right)})"
        lines.append(f"| {a.part} | {a.fault} | {cost} | {a.verdicts[0]} | {a.evidence} | {others} | {verdict} |")
    num_right = sum(a.is_right for a in answers)
    return "\n".join([*lines, "", f"{num_right} of {len(answers)} right."])


PARTS = {"static": static, "dynamic": dynamic, "reference": reference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    options = {name: getattr(arguments, name) for name in ("num_prompts", "max_new_tokens", "device")}
    answers = [a for part in arguments.part or PARTS for a in PARTS[part](arguments.folder, options)]
    print(table(answers))


if __name__ == "__main__":
    main()
