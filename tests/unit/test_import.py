"""Engines' acceptance metrics as runs: rounds as reported, nothing made up, contradictions named with file and line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.cli import main
from driftscope.import_export import SOURCES, AcceptanceFile, ImportOptions, read_acceptance, store_run
from driftscope.import_export.read import ORDER_NOTE, UNDETERMINED
from driftscope.import_export.rounds import BadCountsError, from_histogram, histogram_of_positions
from driftscope.import_export.sglang import NO_METRICS, ONLY_MEANS, TREE_NOTE
from driftscope.import_export.store import (
    NO_PROMPT_TOKENS_NOTE,
    NO_RESPONSE_TOKENS_NOTE,
    TEMPERATURE_NOTE,
    UNORDERED_NOTE,
)
from driftscope.runs import Run, read_run, verify
from driftscope.summary import summarise
from probes.errors import InputError

FILES = Path(__file__).parents[1] / "fixtures" / "exchange"


def imported(name: str, tmp_path: Path, **options: Any) -> Run:
    file = read_acceptance(FILES / name, **options)
    store_run(file, tmp_path / "a.drift", ImportOptions())
    assert verify(tmp_path / "a.drift").is_sound
    return read_run(tmp_path / "a.drift")


def rounds_of(file: AcceptanceFile) -> dict[str, Counter[tuple[int, int]]]:
    """(drafts, accepted) of each request's rounds."""
    result = {}
    for request in file.requests:
        assert request.rounds.num_drafts is not None
        pairs = zip(request.rounds.num_drafts.tolist(), request.rounds.accepted_drafts.tolist(), strict=True)
        result[request.request_id] = Counter(pairs)
    return result


def test_vllm_summary() -> None:
    """A list or an object of counts; drafts by round from the total, from the histogram by drafts, or not at all."""
    file = read_acceptance(FILES / "vllm_summary.jsonl")
    assert file.source == "vllm"
    assert rounds_of(file) == {
        "chatcmpl-1": {(3, 0): 39, (3, 1): 1, (3, 3): 3},
        "chatcmpl-2": {(3, 0): 1, (3, 3): 1, (1, 0): 1},
    }
    assert file.left_out[UNDETERMINED] == 1
    assert sum(file.left_out.values()) == 2
    assert ORDER_NOTE in file.notes
    [shift] = [note for note in file.notes if note.startswith("requests left out for undetermined drafts")]
    assert "2.500 tokens per round in 2" in shift  # (1 + 4) / 2, and the others' (43 + 10 + 3 + 3) / 46
    assert "1.283 tokens per round in 46" in shift


def test_vllm_detailed_keeps_the_order_and_the_starts(tmp_path: Path) -> None:
    run = imported("vllm_detailed.jsonl", tmp_path)
    rounds = run.rounds().to_pydict()
    assert rounds["accepted_drafts"] == [0, 1, 3, 0, 2]
    assert rounds["num_drafts"] == [3, 3, 3, 2, 3]
    assert rounds["start"] == [9, 10, 12, 16, 0]  # from slot P-1 on, by accepted + 1; without a prompt length from 0
    assert rounds["prompt_id"] == ["a"] * 4 + ["c"]  # the batch's own ids
    assert set(rounds["engine"]) == {"import"}
    assert rounds["num_trimmed_tokens"] == [None] * 5
    prompts = run.prompts().to_pylist()
    assert [p["num_prompt_tokens"] for p in prompts] == [10, None]
    assert [p["num_response_tokens"] for p in prompts] == [8, None]
    assert [p["finish_reason"] for p in prompts] == ["stop", "stop"]
    assert [p["is_degenerate"] for p in prompts] == [None, None]
    assert prompts[0]["notes"] == []
    assert prompts[1]["notes"] == [NO_PROMPT_TOKENS_NOTE, NO_RESPONSE_TOKENS_NOTE]


def test_what_no_metric_says_is_null(tmp_path: Path) -> None:
    run = imported("vllm_detailed.jsonl", tmp_path)
    depths = run.depths()
    known = {
        "round_id", "drafter", "system_prompt", "template", "context_tokens", "prompt_id", "engine", "start",
        "num_drafts", "accepted_drafts", "on_walk", "has_all_labels", "depth", "layer", "accepted",
    }  # fmt: skip
    assert {name for name in depths.column_names if depths[name].null_count < depths.num_rows} == known
    by_round = np.array(depths["accepted"].to_pylist(), dtype=object).reshape(5, 3)
    assert by_round.tolist() == [[0, None, None], [1, 0, None], [1, 1, 1], [0, None, None], [1, 1, 0]]
    assert run.info.has_text is False
    assert run.info.engine == "import"
    assert run.info.target.name == "org/target"
    [condition] = summarise(run).conditions
    assert condition.dense is None
    assert condition.walk is not None
    assert condition.walk.tokens_per_round == pytest.approx(11 / 5)
    assert condition.depth_basis == "walk"
    assert condition.acceptance_marginal == pytest.approx([3 / 5, 2 / 5, 1 / 4])  # four rounds had a third draft
    assert condition.acceptance_conditional == pytest.approx([3 / 5, 2 / 3, 1 / 2])
    assert condition.out_of_draft_vocab_share is None
    assert condition.hidden_in_norm == [None] * 3


def test_sglang() -> None:
    file = read_acceptance(FILES / "sglang.jsonl")
    assert file.source == "sglang"
    assert rounds_of(file) == {
        "r1": {(5, 0): 11, (5, 1): 14, (5, 2): 11, (5, 3): 4, (5, 5): 3},
        "r2": {(5, 0): 1, (5, 2): 1},
        "chat-5": {(5, 1): 1},
    }
    assert file.left_out == {ONLY_MEANS: 1, NO_METRICS: 1}
    assert [r.num_response_tokens for r in file.requests] == [106, 5, 3]
    assert [r.finish_reason for r in file.requests] == ["stop", "length", "stop"]


def test_sglang_trees_need_a_depth(tmp_path: Path) -> None:
    """topk 4, 8 draft tokens, 3 steps deep: 7 proposals in a round, at most 3 accepted."""
    path = tmp_path / "a.jsonl"
    meta = {"id": "r", "spec_verify_ct": 2, "spec_num_proposed_drafts": 14, "spec_num_correct_drafts": 4}
    path.write_text(json.dumps({"text": "", "meta_info": {**meta, "spec_correct_drafts_histogram": [0, 1, 0, 1]}}))
    file = read_acceptance(path, depth=3)
    assert rounds_of(file) == {"r": {(3, 1): 1, (3, 3): 1}}
    assert TREE_NOTE in file.notes
    with pytest.raises(InputError, match="accepted 3 drafts, the depth is 2"):
        read_acceptance(path, depth=2)


def test_aiperf() -> None:
    file = read_acceptance(FILES / "profile_export.jsonl")
    assert file.source == "aiperf"
    assert rounds_of(file) == {"c1/0": {(3, 0): 2, (3, 1): 1, (3, 3): 1}, "c1/0~2": {(3, 2): 1}}
    assert [(r.num_prompt_tokens, r.num_response_tokens) for r in file.requests] == [(550, 9), (None, 4)]
    assert sum(file.left_out.values()) == 4  # warm-up, cancelled, without metrics, without a round


def test_prometheus_counters_determine_the_rounds() -> None:
    file = read_acceptance(FILES / "metrics.prom")
    assert file.source == "prometheus"
    [request] = file.requests
    assert request.request_id == "server org/target"
    assert (request.num_prompt_tokens, request.num_response_tokens) == (900, 75)
    assert rounds_of(file)["server org/target"] == {(3, 0): 9, (3, 1): 9, (3, 2): 6, (3, 3): 6}  # both engines
    file = read_acceptance(FILES / "metrics.prom", since=FILES / "metrics_before.prom")
    assert rounds_of(file)["server org/target"] == {(3, 0): 6, (3, 1): 6, (3, 2): 3, (3, 3): 5}


def test_an_imported_run_is_shown_and_says_what_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.drift"
    assert main(["import", str(FILES / "metrics.prom"), "-o", str(out), "--drafter", "ours", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["source"] == "prometheus"
    assert output["run"]["num_rounds"] == 30
    assert TEMPERATURE_NOTE in output["notes"]
    assert read_run(out).prompts()["notes"].to_pylist()[0][0] == UNORDERED_NOTE
    assert read_run(out).info.temperature is None
    assert main(["show", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2.30, no interval, n = 1, 30 rounds; prompt mean 2.30" in shown
    assert "all its requests are one" in shown
    assert "temperature not known" in shown
    assert main(["import", str(FILES / "metrics.prom"), "-o", str(out)]) == 2  # it is there already
    assert "--temperature" not in capsys.readouterr().out
    assert main(["import", str(FILES / "metrics.prom"), "-o", str(out), "--overwrite", "--temperature", "0.6"]) == 0
    assert read_run(out).info.temperature == 0.6
    assert TEMPERATURE_NOTE not in read_run(out).info.notes


def test_requests_of_two_models_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    body = json.loads((FILES / "vllm_summary.jsonl").read_text().splitlines()[0])
    path.write_text("".join(json.dumps({**body, "id": name, "model": name}) + "\n" for name in "xy"))
    with pytest.raises(InputError) as caught:
        read_acceptance(path)
    assert caught.value.code == "several_models"
    assert [r.request_id for r in read_acceptance(path, model="y").requests] == ["y"]
    with pytest.raises(InputError) as caught:
        read_acceptance(path, model="z")
    assert caught.value.code == "no_such_model"


GOOD = {
    "acceptance_histogram": [2, 1, 0, 1],
    "num_spec_steps": 4,
    "num_accepted_draft_tokens": 4,
    "num_draft_tokens": 12,
    "num_spec_tokens": 3,
    "per_step_accepted": [0, 1, 3, 0],
    "per_step_drafted": [3, 3, 3, 3],
}
SUMMARY = {key: value for key, value in GOOD.items() if not key.startswith("per_step")}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"num_spec_steps": 5}, "num_spec_steps says 5"),
        ({"num_accepted_draft_tokens": 5}, "does not hold the 5 accepted"),
        ({"num_draft_tokens": 13}, "do not add up"),
        ({"per_step_accepted": [0, 1, 3]}, "do not add up"),
        ({"per_step_drafted": [3, 3, 2, 4]}, "accepted more drafts than it had"),
        ({"acceptance_histogram": [2, 1, 0, -1]}, "something else than counts"),
        ({"acceptance_histogram": {"x": 4}}, "something else than counts"),
        ({"acceptance_histogram": 7}, "neither a list nor an object"),
        ({"num_spec_tokens": 2}, "3 drafts, the depth is 2"),
        ({"num_spec_tokens": "3"}, "no whole number"),
        ({"num_draft_tokens": None}, "no num_draft_tokens"),
        ({"per_step_accepted": [0, 1, 3, 0.5]}, "per_step_accepted is no list"),
    ],
)
def test_numbers_that_contradict_each_other_are_named_with_their_line(
    change: dict[str, Any], what: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        {"id": str(i), "metrics": {"speculative_decoding": found}} for i, found in enumerate((GOOD, GOOD | change))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=what) as caught:
        read_acceptance(path)
    assert caught.value.where == f"{path}:2"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"num_draft_tokens": 13}, "13 drafts in 4 rounds"),
        ({"num_draft_tokens": 3}, "3 drafts in 4 rounds"),
        ({"acceptance_histogram_by_draft_length": {"3": [2, 1, 0, 0]}}, "does not add up"),
        ({"acceptance_histogram_by_draft_length": {"2": [2, 1, 0, 1]}}, "accepted 3 of 2"),
        ({"acceptance_histogram_by_draft_length": {"3": [1, 1, 0, 1], "1": [1, 0]}}, "holds 10 drafts"),
        ({"acceptance_histogram_by_draft_length": [1]}, "no object of histograms"),
        ({"num_spec_tokens": None, "num_draft_tokens": 11}, "give --depth"),
    ],
)
def test_summaries_that_contradict_themselves(change: dict[str, Any], what: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"metrics": {"speculative_decoding": SUMMARY | change}}))
    with pytest.raises(InputError, match=what) as caught:
        read_acceptance(path)
    assert caught.value.where == f"{path}:1"


META = {"spec_verify_ct": 2, "spec_num_proposed_drafts": 6, "spec_correct_drafts_histogram": [1, 1]}
PROM = (FILES / "metrics_before.prom").read_text()

BROKEN = {
    "sglang rounds": ("sglang", json.dumps({"meta_info": META | {"spec_verify_ct": 3}}), ":1"),
    "sglang accepted": ("sglang", json.dumps({"meta_info": META | {"spec_num_correct_drafts": 2}}), ":1"),
    "sglang depth": ("sglang", json.dumps({"meta_info": META | {"spec_num_proposed_drafts": None}}), ":1"),
    "aiperf object": ("aiperf", json.dumps({"metadata": {}, "spec_decode_acceptance": 7}), ":1"),
    "aiperf record": ("aiperf", json.dumps({"spec_decode_acceptance": {}}), ":1"),
    "vllm object": ("vllm", json.dumps({"metrics": {"speculative_decoding": [1]}}), ":1"),
    "no JSON": ("vllm", '{"metrics": {}}\n{"metrics"', ":2"),
    "nobody's": (None, '{"foo": 1}', ":1"),
    "prometheus value": (None, PROM.replace("} 30.0", "} thirty"), ":5"),
    "prometheus labels": (None, PROM.replace('"} 30.0', "} 30.0"), ":5"),
    "prometheus fraction": (None, PROM.replace("} 30.0", "} 30.5"), ":5"),
    "prometheus not a number": (None, PROM.replace("} 30.0", "} NaN"), ":5"),
    "prometheus position": (None, PROM.replace('position="1"', 'position="one"'), ":10"),
    "prometheus gap": (None, PROM.replace('position="1"', 'position="7"'), ""),
    "prometheus rising": (None, PROM.replace("} 7.0", "} 3.0"), ""),
    "prometheus total": (None, PROM.replace("} 12.0", "} 13.0"), ""),
    "prometheus drafts missing": (None, PROM.replace("num_draft_tokens_total{", "num_other_total{"), ""),
    "prometheus none": (None, "# HELP a b\na 1\n", ""),
    "prometheus too many": (None, PROM.replace("} 10.0", "} 9e9"), ""),
}


@pytest.mark.parametrize(("source", "content", "place"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named(source: str | None, content: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_acceptance(path, source=source)
    assert caught.value.where == f"{path}{place}"
    assert caught.value.remedy
    assert main(["import", str(path), "-o", str(tmp_path / "x.drift"), *(["--from", source] if source else [])]) == 2
    assert not (tmp_path / "x.drift").exists()


def test_counters_of_variable_drafts_are_refused_rather_than_guessed(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.write_text(PROM.replace("} 30.0", "} 29.0"))
    with pytest.raises(InputError) as caught:
        read_acceptance(path)
    assert caught.value.code == "no_acceptance"
    assert UNDETERMINED in caught.value.message


def test_counters_that_went_back_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        read_acceptance(FILES / "metrics_before.prom", since=FILES / "metrics.prom")
    assert caught.value.code == "counter_went_back"
    with pytest.raises(InputError) as caught:
        read_acceptance(FILES / "sglang.jsonl", since=FILES / "metrics.prom")
    assert caught.value.where == "--since"


HOSTILE = [
    "<script>alert(1)</script>",
    "a\x1b[2J\nb",
    "\u202eevil\u202c",
    "x" * 1_000_000,
    "👩‍👩‍👧‍👦",
    "[bold]x[/bold]",
]


def test_hostile_names_pass_harmlessly_through_import_and_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"id": name, "model": "[red]<b>m\x07", "metrics": {"speculative_decoding": GOOD}, "choices": [{"text": name}]}
        for name in HOSTILE
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["import", str(path), "-o", str(tmp_path / "a.drift"), "--drafter", "[red]<i>d"]) == 0
    shown = capsys.readouterr().out
    assert "\x07" not in shown
    assert "\x1b" not in shown
    assert "[red]<b>m\ufffd" in shown  # as it is, no markup
    stored = read_run(tmp_path / "a.drift").prompts()["prompt_id"].to_pylist()
    assert all(name.isprintable() and len(name) <= 130 for name in stored)
    assert len(stored) == len(HOSTILE)


@settings(max_examples=200, deadline=None)
@given(
    rounds=st.lists(st.integers(0, 5).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), min_size=1),
)
def test_counts_of_rounds_give_the_rounds_back(rounds: list[tuple[int, int]]) -> None:
    """By drafts and accepted drafts always; by accepted drafts alone where every round had K; positions too."""
    pairs = Counter(rounds)
    by_drafts: dict[int, dict[int, int]] = {}
    for (drafts, accepted), count in pairs.items():
        by_drafts.setdefault(drafts, {})[accepted] = count
    histogram = Counter(accepted for _, accepted in rounds)
    total = sum(drafts for drafts, _ in rounds)
    found = from_histogram(histogram, depth=5, num_draft_tokens=total, by_num_drafts=by_drafts)
    assert found.num_drafts is not None
    assert Counter(zip(found.num_drafts.tolist(), found.accepted_drafts.tolist(), strict=True)) == pairs
    guessed = from_histogram(histogram, depth=5, num_draft_tokens=total)
    if guessed.num_drafts is not None:  # then it was no guess
        got = Counter(zip(guessed.num_drafts.tolist(), guessed.accepted_drafts.tolist(), strict=True))
        assert got == pairs
    accepted_at = [sum(accepted > i for _, accepted in rounds) for i in range(5)]
    assert {j: n for j, n in histogram_of_positions(len(rounds), accepted_at).items() if n} == histogram


def test_positions_that_rise_are_of_no_chain() -> None:
    with pytest.raises(BadCountsError):
        histogram_of_positions(10, [3, 4])
    with pytest.raises(BadCountsError):
        histogram_of_positions(2, [3])


KEYS = (
    "metrics", "speculative_decoding", "choices", "usage", "meta_info", "sglext", "spec_tokens_details", "metadata",
    "spec_decode_acceptance", "acceptance_histogram", "acceptance_histogram_by_draft_length", "num_spec_steps",
    "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens", "per_step_accepted", "per_step_drafted",
    "spec_verify_ct", "spec_correct_drafts_histogram", "spec_num_proposed_drafts", "prompt_tokens", "id", "model",
    "completion_tokens", "response", "body", "error", "conversation_id", "turn_index", "0", "1", "3", "finish_reason",
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.integers(0, 4) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


def outcome(path: Path, **options: Any) -> AcceptanceFile | InputError:
    """What reading gives; any other exception is a bug and fails the test."""
    try:
        return read_acceptance(path, **options)
    except InputError as error:
        return error


@settings(max_examples=400, deadline=None)
@given(
    items=st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6), min_size=1, max_size=3),
    source=st.sampled_from([None, *SOURCES]),
    depth=st.none() | st.integers(1, 5),
)
def test_random_objects_give_rounds_or_one_error(
    items: list[dict[str, Any]], source: str | None, depth: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    file = outcome(path, source=source, depth=depth)
    assert str(path) in file.where if isinstance(file, InputError) else file.requests


SAMPLE = st.sampled_from(["drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"])
PROM_LINES = st.lists(
    st.builds(
        lambda name, labels, value, junk: f"vllm:spec_decode_num_{name}_total{labels} {value}{junk}",
        SAMPLE,
        st.sampled_from(["", "{}", '{position="0"}', '{position="1"}', "{", '{a="', '{a="\\"}', "{=}", '{"x"}']),
        st.sampled_from(["1", "2.0", "1e3", "-1", "NaN", "+Inf", "x", ""]) | st.text(max_size=5),
        st.sampled_from(["", " 17", " # {a}", "\x00", " \u2028"]),
    )
    | st.text(max_size=20),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(lines=PROM_LINES)
def test_random_counters_give_rounds_or_one_error(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "metrics"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    file = outcome(path, source="prometheus")
    assert str(path) in file.where if isinstance(file, InputError) else file.requests


SCRAPE = """vllm:spec_decode_num_drafts_total{{model_name="m"}} 3
vllm:spec_decode_num_draft_tokens_total{{model_name="m"}} 6
vllm:spec_decode_num_accepted_tokens_total{{model_name="m"}} 3
vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="m",position="0"}} 2
vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="m",position="1"}} 1
vllm:generation_tokens_total{{model_name="m"}} {value}
"""


@pytest.mark.parametrize(
    "value",
    ["1" * 400, "1" * 5000, "-1", "NaN", "+Inf", "1e400", "1.5", "5 " + "1" * 400, '5 # {a="b"} ' + "9" * 400, ""],
)
def test_a_counter_that_is_no_count_is_named_with_its_line(value: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(SCRAPE.format(value=value))
    with pytest.raises(InputError) as caught:
        read_acceptance(path)
    assert f"{path}:6" in caught.value.where
    assert len(caught.value.message) < 300


def test_a_server_that_is_up_for_days_has_more_tokens_than_a_request(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(SCRAPE.format(value="9e9"))
    file = read_acceptance(path)
    assert any("more than a run stores" in note for note in file.notes)
    store_run(file, tmp_path / "a.drift", ImportOptions())
    assert verify(tmp_path / "a.drift").is_sound
    assert read_run(tmp_path / "a.drift").prompts()["num_response_tokens"].to_pylist() == [None]


SPECULATION = {
    "num_spec_tokens": 2,
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 3,
    "num_draft_tokens": 6,
    "acceptance_histogram": [1, 1, 1],
}
META = {"spec_verify_ct": 3, "spec_correct_drafts_histogram": [1, 1, 1], "spec_num_proposed_drafts": 6}
VALUES = [
    "1e400",
    "-1",
    "NaN",
    "Infinity",
    "9" * 400,
    "9" * 5000,
    str(1 << 40),
    "1e20",
    "[" * 500 + "]" * 500,
    '"3"',
    "true",
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "line",
    [
        {"id": "a", "usage": {"prompt_tokens": "@"}, "metrics": {"speculative_decoding": SPECULATION}},
        {"id": "a", "metrics": {"speculative_decoding": {**SPECULATION, "num_spec_steps": "@"}}},
        {"id": "a", "metrics": {"speculative_decoding": {**SPECULATION, "acceptance_histogram": ["@", 1, 1]}}},
        {"text": "x", "meta_info": {**META, "completion_tokens": "@"}},
        {"text": "x", "meta_info": {**META, "spec_num_proposed_drafts": "@"}},
        {"metadata": {}, "metrics": {"usage_prompt_tokens": {"value": "@"}}, "spec_decode_acceptance": SPECULATION},
    ],
)
def test_a_number_that_no_run_can_hold_is_named_with_its_line(value: str, line: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n" + json.dumps(line).replace('"@"', value) + "\n")
    with pytest.raises(InputError) as caught:
        read_acceptance(path)
    assert f"{path}:2" in caught.value.where
    assert len(caught.value.message) < 300


def test_a_few_bytes_do_not_stand_for_any_number_of_rounds(tmp_path: Path) -> None:
    many = {
        **META,
        "spec_verify_ct": 250_000,
        "spec_correct_drafts_histogram": [0, 0, 250_000],
        "spec_num_proposed_drafts": 500_000,
    }
    path = tmp_path / "a.jsonl"
    path.write_text((json.dumps({"text": "x", "meta_info": many}) + "\n") * 101)
    with pytest.raises(InputError, match="more than 25,000,000 rounds in all") as caught:
        read_acceptance(path)
    assert f"{path}:101" in caught.value.where
