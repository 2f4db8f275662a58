"""Plans that pass validation: one odd value, or an odd name, in a plan that measures the tiny pair. It is refused with a
message or it runs; and every command reads a run whose names are odd."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.conftest import Reader
from tests.fuzz.hostile import hostile_values, toml_text
from tests.fuzz.test_checkpoint_files import ANY_SPEED

PAIR = Path(__file__).parents[1] / "fixtures" / "tiny_pair"
VALID: dict[str, Any] = {
    "target": str(PAIR / "target"),
    "drafter": {"d": str(PAIR / "drafter")},
    "prompts": "prompts.jsonl",
    "max_new_tokens": 6,
    "depth": 2,
}
HUGE = st.sampled_from([64, 1_000, 10**6, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30])
DRAWN = {"temperature": 1.0}
ODD: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "max_new_tokens": HUGE.map(lambda n: {"max_new_tokens": n}),
    "num_prompts": HUGE.map(lambda n: {"num_prompts": n}),
    "batch_size": HUGE.map(lambda n: {"batch_size": n}),
    "sink_slots": HUGE.map(lambda n: {"sink_slots": n}),
    "last_tokens": HUGE.map(lambda n: {"last_tokens": n}),
    "seed": (HUGE | st.integers(-(10**40), 10**40)).map(lambda n: DRAWN | {"seed": n}),
    "top_k": HUGE.map(lambda n: DRAWN | {"top_k": n}),
    "top_p": st.floats(1e-300, 1).map(lambda p: DRAWN | {"top_p": p}),
    "temperature": st.tuples(st.floats(0, 10), st.sampled_from(["replay", "live"])).map(
        lambda pair: {"temperature": pair[0], "engine": pair[1]}
    ),
    "depth": st.tuples(st.sampled_from([1, 8, 64]), st.sampled_from(["replay", "live"])).map(
        lambda pair: {"depth": pair[0], "engine": pair[1]}
    ),
    "context_tokens": st.lists(st.integers(0, 40) | HUGE, min_size=1, max_size=4).map(
        lambda numbers: {"context_tokens": numbers, "documents": ["text.txt"]}
    ),
    "documents": st.sampled_from(["empty.txt", "text.txt", "pipe", ".", "/dev/zero", "\0", "n" * 5_000]).map(
        lambda name: {"context_tokens": [4], "documents": [name]}
    ),
    "device": (st.sampled_from(["meta", "cuda:9", "cpu:7", "mps", "xpu", "hpu", "CPU"]) | st.text(max_size=5)).map(
        lambda name: {"device": name}
    ),
    "dtype": st.tuples(st.sampled_from(["float16", "bfloat16"]), st.sampled_from(["replay", "live"])).map(
        lambda pair: {"dtype": pair[0], "engine": pair[1]}
    ),
    "costs": st.sampled_from([{"costs": [10**9]}, {"costs": [1], "costs_context_tokens": [2**63]}]),
    "models": st.sampled_from(
        [
            {"target": str(PAIR / "drafter")},
            {"drafter": {"d": str(PAIR / "target")}},
            {"target": ""},
            {"target": "demo/../x"},
            {"drafter": {"d": "demo:../x"}},
            {"interventions": ["fresh"], "text": False, "redact": True},
            {"interventions": ["reference_target"], "reference_target": str(PAIR / "drafter")},
        ]
    ),
}
NAMES = (
    *("it's", '"', "a\nb", "a*", "a?", "[b]", "[/red]", "a\0b", "\ud800", "n" * 10_000, "..", "/", "a/b", "", " "),
    *(
        "\x1b[31m",
        "\u202e",
        "default",
        "none",
        "prompt",
        "baseline",
        "'; drop table rounds; --",
        "{{ x }}",
        "<b>",
        "%20",
    ),
)


def write_files(folder: Path) -> None:
    (folder / "prompts.jsonl").write_text('{"question_id": 1, "category": "t", "turns": ["name a tree"]}\n')
    (folder / "text.txt").write_text("the tree is old and the river is long " * 4)
    (folder / "empty.txt").write_text("")
    (folder / "template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")


def outcome(measurer: Reader, options: dict[str, Any], *, is_read: bool = False) -> str:
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        text = toml_text(VALID | options)
        (Path(name) / "plan.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
        return measurer("measure", name, is_read=is_read)


@pytest.mark.parametrize("option", ODD)
def test_one_odd_value_in_a_valid_plan(measurer: Reader, option: str) -> None:
    @settings(ANY_SPEED, max_examples=max(4, settings.default.max_examples // 25))
    @given(options=ODD[option])
    def measured(options: dict[str, Any]) -> None:
        outcome(measurer, options)

    measured()


@settings(ANY_SPEED, max_examples=max(10, settings.default.max_examples // 10))
@given(option=st.sampled_from(sorted([*VALID, "system_prompt", "template"])), value=hostile_values)
def test_any_value_of_one_option(measurer: Reader, option: str, value: Any) -> None:
    outcome(measurer, {option: value})


@pytest.mark.parametrize(
    ("option", "file"),
    [("drafter", VALID["drafter"]["d"]), ("system_prompt", "text.txt"), ("template", "template.jinja")],
)
def test_odd_names_of_conditions(measurer: Reader, option: str, file: str) -> None:
    """All in one run, which every command then reads."""
    names = dict.fromkeys((name for name in NAMES if name != "\ud800"), file)
    assert outcome(measurer, {option: names}, is_read=True) == "read"
    assert outcome(measurer, {option: {"\ud800": file}}) == "refused"  # TOML is UTF-8


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_odd_names_of_runs(measurer: Reader, name: str) -> None:
    """Measured under a plain name, read under an odd one; where the system has no such name, that is one message."""
    if "\0" in name:
        return  # no argument of a process holds one
    name = f"x{name}" if "/" in name else name  # inside the folder
    name = name.replace("\ud800", "\udcff")  # how Python spells a name's byte that is not UTF-8
    with tempfile.TemporaryDirectory() as folder:
        measurer("read_run", folder, run=f"{name}.drift")


def test_the_valid_one_is_measured(measurer: Reader) -> None:
    assert outcome(measurer, {}, is_read=True) == "read"
