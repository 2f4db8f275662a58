"""Rounds: every token has the fate that the walk gave it; the panel shows what the run holds of a round."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from driftscope.runs import Run, read_run
from probes.record import NUM_CANDIDATES, PromptRecord
from tests.app.conftest import OpenApp, charts, checked, lines, texts
from tests.app.varied_run import DEPTH, varied_info
from tests.synthetic_run import make_batch, make_info, make_prompt, write_run

AT = json.dumps(["demo", "eagle3", "default", "default", 0])


def view(at: AppTest) -> dict[str, Any]:
    """What the token view was given."""
    [element] = at.get("bidi_component")
    data: dict[str, Any] = json.loads(element.proto.json)
    return data


def walk(run: Run, drafter: str, prompt_id: str) -> list[dict[str, Any]]:
    """The walk's rounds of one conversation under `default`, context 0."""
    rows = [
        row
        for row in run.rounds().to_pylist()
        if (row["drafter"], row["system_prompt"], row["context_tokens"]) == (drafter, "default", 0)
        and row["prompt_id"] == prompt_id
        and row["on_walk"]
    ]
    return sorted(rows, key=lambda row: row["start"])


def test_every_token_of_the_response_has_its_fate(open_app: OpenApp, runs: Path) -> None:
    at = open_app("rounds", at=AT, prompt="p3")
    rounds = walk(read_run(runs / "demo.drift"), "eagle3", "p3")
    expected = ["first"]
    owner = [-1]
    for index, row in enumerate(rounds):
        expected += ["accepted"] * row["accepted_drafts"]
        expected += ["bonus" if row["accepted_drafts"] == row["num_drafts"] else "corrected"]
        owner += [index] * (row["accepted_drafts"] + 1)
    num_response = 40
    data = view(at)
    assert data["kinds"] == expected[:num_response]
    assert data["rounds"] == owner[:num_response]
    assert f"**{len(rounds)} rounds**" in texts(at)


def test_the_panel_shows_the_chosen_round_of_the_run(open_app: OpenApp, runs: Path) -> None:
    run = read_run(runs / "demo.drift")
    rounds = walk(run, "eagle3", "p3")
    at = open_app("rounds", at=AT, prompt="p3", round="4")
    depths = [r for r in run.depths().to_pylist() if r["round_id"] == rounds[3]["round_id"]]
    table = at.dataframe[0].value
    assert table["depth"].tolist() == list(range(1, DEPTH + 1))
    assert table["p drafter"].tolist() == pytest.approx([r["draft_prob"] for r in depths])
    assert table["norm in"].tolist() == pytest.approx([r["hidden_in_norm"] for r in depths])
    assert table["reason"].tolist() == [
        "" if r["accepted"] == 1 else r["rejection_reason"].replace("_", " ") for r in depths
    ]
    assert table["drafted"].tolist() == [f"#{r['draft_token']}" for r in depths]  # no tokenizer: ids
    bars = next(spec for alt, spec in charts(at).items() if alt.startswith("Stacked bars"))["data"]
    sink = next(trace for trace in bars if trace["name"] == "sink")
    assert sink["y"] == pytest.approx([np.mean(r["mass_sink"]) for r in depths])
    drawn = lines(next(spec for alt, spec in charts(at).items() if "probability of the drafted token" in alt))
    assert drawn["drafter"]["y"] == pytest.approx([r["draft_prob"] for r in depths])


def test_a_drafter_of_two_layers_is_shown_as_show_sums_it_up(open_app: OpenApp, tmp_path: Path) -> None:
    prompt = make_prompt("p0", num_response_tokens=40, num_continuation_tokens=DEPTH)
    batch = make_batch(prompt, depth=DEPTH, num_layers=2, num_heads=4)
    run = read_run(write_run(tmp_path / "demo.drift", [prompt, batch], varied_info()))
    first_round = walk(run, "eagle3", "p0")[0]
    stored = [r for r in run.depths().to_pylist() if r["round_id"] == first_round["round_id"]]
    layers = [[r for r in stored if r["layer"] == layer] for layer in (0, 1)]
    at = open_app("rounds", folder=tmp_path, at=AT, prompt="p0", round="1")
    table = at.dataframe[0].value
    assert table["depth"].tolist() == list(range(1, DEPTH + 1))
    assert table["norm in"].tolist() == pytest.approx([r["hidden_in_norm"] for r in layers[0]])
    assert table["norm out"].tolist() == pytest.approx([r["hidden_out_norm"] for r in layers[1]])
    assert table["norm out"].tolist() != pytest.approx([r["hidden_out_norm"] for r in layers[0]])
    norms = lines(next(spec for alt, spec in charts(at).items() if "norm of the hidden state" in alt))
    assert norms["leaving"]["y"] == pytest.approx([r["hidden_out_norm"] for r in layers[1]])
    bars = next(spec for alt, spec in charts(at).items() if alt.startswith("Stacked bars"))["data"]
    sink = next(trace for trace in bars if trace["name"] == "sink")
    assert sink["y"] == pytest.approx(
        [np.mean(a["mass_sink"] + b["mass_sink"]) for a, b in zip(layers[0], layers[1], strict=True)]
    )


def test_candidates_of_both_stand_beside_each_other(open_app: OpenApp, runs: Path) -> None:
    run = read_run(runs / "demo.drift")
    rounds = walk(run, "eagle3", "p3")
    number = next(i for i, row in enumerate(rounds) if 0 < row["accepted_drafts"] < 4)
    at = open_app("rounds", at=AT, prompt="p3", round=str(number + 1))
    depths = [r for r in run.depths().to_pylist() if r["round_id"] == rounds[number]["round_id"]]
    [body] = [e.proto.body for e in at.get("html") if ">drafter</th>" in e.proto.body]
    shown = [re.findall(r"<td.*?</td>", row) for row in re.findall(r"<tr><th scope=\"row\".*?</tr>", body)]
    assert len(shown) == DEPTH
    for row, (draft, target) in zip(depths, shown, strict=True):
        for side, cell in (("draft", draft), ("target", target)):
            lines_shown = re.findall(r"<span[^>]*>(#\d+) ?([●★]*)</span><span>([\d.]+)</span>", cell)
            if row["accepted"] is None and side == "target":
                assert "not seen" in cell
                continue
            assert [word for word, _, _ in lines_shown] == [f"#{t}" for t in row[f"{side}_top_token"]]
            assert [float(p) for _, _, p in lines_shown] == pytest.approx(row[f"{side}_top_prob"], abs=6e-4)
            marks = {word: mark for word, mark, _ in lines_shown if mark}
            drafted, emitted = f"#{row['draft_token']}", f"#{row['target_token']}"
            if side == "draft":
                assert marks[drafted] == ("●★" if row["accepted"] == 1 else "●")
            else:
                assert marks[emitted] == ("●★" if row["accepted"] == 1 else "★")


def test_a_run_from_before_candidates_were_recorded_opens(open_app: OpenApp) -> None:
    stored = Path(__file__).parents[1] / "fixtures" / "runs"
    at = open_app("rounds", folder=stored, run="schema_1_before_candidates")
    assert at.dataframe[0].value["depth"].tolist() == [1, 2, 3, 4]
    assert "Candidates" not in texts(at)


def test_the_reason_is_said_in_words(open_app: OpenApp, runs: Path) -> None:
    run = read_run(runs / "demo.drift")
    for number, row in enumerate(walk(run, "eagle3", "p3")[:6], start=1):
        at = open_app("rounds", at=AT, prompt="p3", round=str(number))
        if row["accepted_drafts"] == row["num_drafts"]:
            assert "All 5 drafts accepted" in str(at.success[0].value)
            continue
        words = str(at.warning[0].value)
        assert f"{row['accepted_drafts']} of 5 accepted. Rejected at depth {row['accepted_drafts'] + 1}" in words


def test_stepping_and_jumping(open_app: OpenApp) -> None:
    at = open_app("rounds", at=AT, prompt="p3", round="2")
    at.button(key="step_1").click()
    checked(at.run())
    assert at.query_params["round"] == "3"
    worst = at.selectbox(key="jump")
    assert worst.options[0].startswith("0 accepted, round ")
    number = worst.options[0].split("round ")[1].split(":")[0]
    worst.set_value(int(number) - 1)
    checked(at.run())
    assert at.query_params["round"] == number


def test_conversations_are_listed_worst_first(open_app: OpenApp) -> None:
    options = open_app("rounds", at=AT).selectbox(key="pick_prompt").options
    rates = [float(option.split(" ")[0]) for option in options]
    assert rates == sorted(rates)
    assert sum("looping" in option for option in options) == 1


@pytest.mark.parametrize("wanted", ["0", "99999", "-3", "abc", "٣"])
def test_a_round_that_does_not_exist_is_no_error(open_app: OpenApp, wanted: str) -> None:
    at = open_app("rounds", at=AT, prompt="p3", round=wanted)
    assert 0 <= view(at)["chosen"] < 40


def byte_level_tokenizer(folder: Path) -> Tokenizer:
    """A tokenizer of single bytes: characters of several bytes take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


HOSTILE = "<script>alert(1)</script> [x](http://evil.example) ![i](http://evil.example/i.png) Ünï 漢字 🎉\x07\n"


def write_text_run(folder: Path, text: str, *, name: str = "text.drift", num_loops: int = 1) -> None:
    """A run over `text` by the byte tokenizer in `folder`/target."""
    target = folder / "target"
    target.mkdir()
    ids = np.array(byte_level_tokenizer(target).encode(text * num_loops).ids, dtype=np.int32)
    base = make_prompt(num_prompt_tokens=4, num_response_tokens=len(ids) - 4 - DEPTH, num_continuation_tokens=DEPTH)
    prompt: PromptRecord = dataclasses.replace(
        base, token_ids=ids, messages=({"role": "user", "content": HOSTILE},), prompt_id="<b>p</b>"
    )
    info = varied_info()
    info.target.path = str(target)
    records = [prompt, make_batch(prompt, depth=DEPTH, num_heads=4, accept_share=0.7)]
    write_run(folder / name, iter(records), info)


def test_text_of_a_prompt_is_data_never_markup(open_app: OpenApp, tmp_path: Path) -> None:
    write_text_run(tmp_path, HOSTILE * 3)
    at = open_app("rounds", folder=tmp_path)
    shown = "".join(view(at)["pieces"])
    assert HOSTILE in shown
    for element in at.get("html"):
        assert "alert(1)" not in element.proto.body  # our own script closes the menu on phones
    for element in [*at.markdown, *at.caption]:
        assert "](http" not in str(element.value)
    assert HOSTILE.strip() in "".join(str(t.value) for t in at.text)


def test_words_are_found_and_their_page_is_opened(open_app: OpenApp, tmp_path: Path) -> None:
    text = "abcdefgh " * 250 + "The NEEDLE is here. " + "xyz " * 200
    write_text_run(tmp_path, text)
    at = open_app("rounds", folder=tmp_path, find="needle")
    data = view(at)
    assert len(data["pieces"]) <= 800
    [hit] = data["found"]
    assert "".join(data["pieces"])[hit : hit + 6] == "NEEDLE"
    at = open_app("rounds", folder=tmp_path, find="nowhere")
    assert "Not found." in texts(at)


def test_a_run_without_text_shows_boxes(open_app: OpenApp, tmp_path: Path) -> None:
    prompt = make_prompt()
    write_run(tmp_path / "hashed.drift", iter([prompt, make_batch(prompt)]), make_info(has_text=False))
    at = open_app("rounds", folder=tmp_path)
    assert set(view(at)["pieces"]) == {"▯ "}
    assert "keeps no text" in texts(at)
    assert texts(at).count("token not kept") % NUM_CANDIDATES == 0  # probabilities stay
    assert texts(at).count("token not kept") > 0


def test_forced_text_has_no_walk_and_says_so(open_app: OpenApp, tmp_path: Path) -> None:
    prompt = make_prompt(is_forced=True, text_agreement=0.9)
    write_run(tmp_path / "forced.drift", iter([prompt, make_batch(prompt)]))
    at = open_app("rounds", folder=tmp_path)
    assert "has no walk" in str(at.info[0].value)


def test_a_long_conversation_is_shown_in_pages(open_app: OpenApp, tmp_path: Path) -> None:
    prompt = make_prompt(num_response_tokens=32_000)
    write_run(tmp_path / "long.drift", iter([prompt, make_batch(prompt, engine="live")]))
    at = open_app("rounds", folder=tmp_path)
    data = view(at)
    assert len(data["pieces"]) == 800
    at.pagination(key="rounds_page_1").set_value(30)
    checked(at.run())
    assert len(view(at)["pieces"]) == 800
    assert view(at)["rounds"][0] > 8_000
    assert at.query_params["token"] == str(12 + 29 * 800)
    assert view(at)["chosen"] == 0  # the chosen round stays until another is chosen
    at.toggle(key="show_prompt").set_value(True)
    at.pagination[0].set_value(1)
    checked(at.run())
    assert view(at)["kinds"][:12] == ["prompt"] * 12


def test_from_hit_to_hit(open_app: OpenApp, tmp_path: Path) -> None:
    write_text_run(tmp_path, ("NEEDLE " + "abcdefgh " * 200) * 3)
    at = open_app("rounds", folder=tmp_path, find="needle")
    hits = [int(at.query_params["token"])]
    assert at.number_input(key="hit").max == 2  # the first one is in the prompt
    at.number_input(key="hit").set_value(2)
    checked(at.run())
    hits.append(int(at.query_params["token"]))
    assert hits[1] - hits[0] == len("NEEDLE " + "abcdefgh " * 200)
    assert view(at)["found"]
    number = at.selectbox(key="jump").options[0].split("round ")[1].split(":")[0].split(",")[0]
    at.selectbox(key="jump").set_value(int(number) - 1)
    checked(at.run())
    assert "token" not in at.query_params  # a chosen round is shown instead


def test_another_conversation_starts_at_its_first_round(open_app: OpenApp) -> None:
    at = open_app("rounds", at=AT, prompt="p3", round="5")
    at.selectbox(key="pick_prompt").set_value("p4")
    checked(at.run())
    assert view(at)["chosen"] == 0
    assert "round" not in at.query_params
