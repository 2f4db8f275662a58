"""`driftscope diagnose` as its user meets it, on a tiny pair with a sound drafter and one whose flag was lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from driftscope import plan_files
from driftscope.cli import main
from driftscope.diagnosis.waterfall import join, mean_parts, waterfalls
from driftscope.runs import read_run
from driftscope.summary import summarise
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.interventions.registry import ALL
from tests.tiny_models import VOCAB_SIZE, matched_drafter, tiny_target
from training.write_checkpoint import write_checkpoint

TURNS = ("where is the river", "sum two and three", "name a tree", "what is a bell", "tell me more", "who is there")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target/, sound/, swapped/ (its input halves the wrong way round) and prompts.jsonl."""
    root = tmp_path_factory.mktemp("pair")
    model = tiny_target(seed=0, num_layers=7, noise=0.5, folder=root / "target")
    spec, tensors = matched_drafter(model, seed=0, has_own_embedding=False, aux_layer_ids=(2, 3, 4))
    embedding = model.model.embed_tokens.weight
    write_checkpoint(Eagle3.load(spec, tensors, target_embedding=embedding), root / "sound")
    for name in "qkv":
        key = f"layers.0.self_attn.{name}_proj.weight"
        tensors[key] = tensors[key].roll(spec.hidden_size, dims=1)
    write_checkpoint(Eagle3.load(spec, tensors, target_embedding=embedding), root / "swapped")
    lines = [{"question_id": i, "category": "test", "turns": [turn]} for i, turn in enumerate(TURNS)]
    (root / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


@pytest.fixture(scope="module")
def run(pair: Path) -> Path:
    """A run of both drafters without interventions."""
    out = pair / "run.drift"
    options = ["--target", str(pair / "target"), "--prompts", str(pair / "prompts.jsonl"), "--out", str(out)]
    drafters = ["--drafter", f"sound={pair / 'sound'}", "--drafter", f"swapped={pair / 'swapped'}"]
    assert main(["probe", *options, *drafters, "--max-new-tokens", "24", "--depth", "3"]) == 0
    return out


def diagnosed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["diagnose", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy.drift"))


def test_without_interventions_the_cause_is_not_known(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied(run, tmp_path)
    _, output = diagnosed([str(path), "--no-interventions"], capsys)
    assert read_run(path).interventions().num_rows == 0
    for condition in output["conditions"]:
        assert condition["interventions"] == []
        reasons = {n["id"]: n["reason"] for n in condition["not_judged"]}
        assert reasons["target_changed"] == "needs_reference"
        first = condition["verdicts"][0]
        assert first["confidence"] != "high"
    assert {c["drafter"] for c in output["conditions"]} == {"sound", "swapped"}


def test_missing_interventions_are_run_and_stored_and_name_the_cause(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied(run, tmp_path)
    code, output = diagnosed([str(path), "--interventions"], capsys)
    assert code == 1
    by_drafter = {c["drafter"]: c for c in output["conditions"]}
    swapped = by_drafter["swapped"]
    assert swapped["verdicts"][0]["id"] == "wiring_fault"
    assert swapped["verdicts"][0]["confidence"] == "high"
    assert swapped["verdicts"][0]["evidence"][0]["name"] == "input_state_first"
    best = swapped["interventions"][0]
    assert (best["id"], best["is_counted"]) == ("input_state_first", True)
    assert best["low"] > 0.15
    assert best["num_prompts"] == len(TURNS)
    # the same features under the sound drafter: what the swap costs is what the repair gives back
    sound = {i["id"]: i for i in by_drafter["sound"]["interventions"]}
    assert sound["input_state_first"]["gain"] == pytest.approx(-best["gain"], abs=1e-6)
    assert "wiring_fault" not in [v["id"] for v in by_drafter["sound"]["verdicts"]]
    for condition in output["conditions"]:
        gains = [i["gain"] for i in condition["interventions"]]
        assert gains == sorted(gains, reverse=True)
        assert {"fresh", "patch_state", "norm_output_on"} <= {i["id"] for i in condition["interventions"]}
        assert all(not i["is_counted"] for i in condition["interventions"] if i["kind"] in ("path", "sensitivity"))

    stored = read_run(path)
    assert set(stored.info.interventions) == {i.id for i in ALL if i.id not in ("reference_target", "replayed_rounds")}
    rows = stored.interventions().num_rows
    again, same = diagnosed([str(path), "--interventions"], capsys)  # nothing is run a second time
    assert (again, same) == (code, output)
    assert read_run(path).interventions().num_rows == rows
    assert main(["runs", "verify", str(path)]) == 0


def test_faults_of_a_checkpoint_are_named(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """d2t zeroed, a random embedding, a random lm_head: each is found by its own repair."""
    generator = torch.Generator().manual_seed(4)
    sound = load_file(pair / "sound" / "model.safetensors")
    width = sound["lm_head.weight"].shape[1]
    faults = {
        "no_map": {"d2t": torch.zeros_like(sound["d2t"])},
        "no_embedding": {"embed_tokens.weight": torch.randn(VOCAB_SIZE, width, generator=generator).bfloat16()},
        "no_head": {"lm_head.weight": torch.randn(sound["lm_head.weight"].shape, generator=generator).bfloat16()},
    }
    drafters = []
    for name, tensors in faults.items():
        folder = Path(shutil.copytree(pair / "sound", tmp_path / name))
        save_file({**sound, **tensors}, folder / "model.safetensors")
        drafters += ["--drafter", f"{name}={folder}"]
    out = tmp_path / "faults.drift"
    options = ["--target", str(pair / "target"), "--prompts", str(pair / "prompts.jsonl"), "--out", str(out)]
    assert main(["probe", *options, *drafters, "--max-new-tokens", "24", "--depth", "3"]) == 0
    code, output = diagnosed([str(out), "--interventions"], capsys)
    assert code == 1
    first = {c["drafter"]: c["verdicts"][0] for c in output["conditions"]}
    assert {name: verdict["id"] for name, verdict in first.items()} == dict.fromkeys(faults, "wiring_fault")
    repairs = {name: [e["name"] for e in verdict["evidence"]] for name, verdict in first.items()}
    assert "d2t_from_t2d" in repairs["no_map"]
    assert "target_embedding" in repairs["no_embedding"]
    assert "target_lm_head" in repairs["no_head"]


def test_the_waterfall_is_the_walks(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, output = diagnosed([str(copied(run, tmp_path)), "--no-interventions"], capsys)
    falls = waterfalls(read_run(run))
    for condition in output["conditions"]:
        of = [fall for key, fall in falls.items() if key.drafter == condition["drafter"]]
        total = join(of)
        assert condition["waterfall"] == pytest.approx(mean_parts(total), abs=1e-12)
        [walk] = [c.walk for c in summarise(read_run(run)).conditions if c.drafter == condition["drafter"]]
        assert walk is not None
        assert walk.tokens_per_round is not None
        assert sum(condition["waterfall"].values()) == pytest.approx(3 + 1 - walk.tokens_per_round, abs=1e-9)


def test_probe_runs_interventions_when_asked_also_without_text(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--target", str(pair / "target"), "--prompts", str(pair / "prompts.jsonl"), "--num-prompts", "2"]
    drafter = ["--drafter", f"sound={pair / 'sound'}", "--max-new-tokens", "12", "--depth", "3", "--no-text"]
    out = tmp_path / "a.drift"
    asked = ["--interventions", "fresh,norm_output_on", "--out", str(out)]
    assert main(["probe", *options, *drafter, *asked]) == 0
    table = read_run(out).interventions()
    assert set(table["id"].to_pylist()) == {"baseline", "fresh", "norm_output_on"}
    assert table.num_rows == 3 * 2 * 3  # ids, prompts, depths
    assert main(["runs", "verify", str(out)]) == 0
    capsys.readouterr()
    assert main(["probe", *options, *drafter, "--interventions", "nonsense", "--out", str(tmp_path / "b.drift")]) == 2
    assert "'nonsense'" in capsys.readouterr().err
    # the text is gone, so the others cannot be run any more: said, not skipped
    code, output = diagnosed([str(out)], capsys)
    assert code == 1
    assert [v["id"] for v in output["conditions"][0]["verdicts"]] == ["not_enough_data"]
    code, output = diagnosed([str(out), "--interventions"], capsys)
    assert (code, output["error"]["code"]) == (2, "no_interventions")


def test_target_and_drafter_with_a_reference_target(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The target is a rotated copy of its reference: same text, states in another basis."""
    out = tmp_path / "made.drift"
    arguments = [str(pair / "target"), str(pair / "sound"), "--prompts", str(pair / "prompts.jsonl"), "--depth", "3"]
    _, output = diagnosed(
        [*arguments, "--max-new-tokens", "16", "--out", str(out), "--reference-target", str(pair / "target")], capsys
    )
    condition = output["conditions"][0]
    assert condition["drafter"] == "drafter"
    swap = next(i for i in condition["interventions"] if i["id"] == "reference_target")
    assert swap["gain"] == 0
    assert "target_changed" not in [v["id"] for v in condition["verdicts"]]
    assert "target_changed" not in [n["id"] for n in condition["not_judged"]]
    assert min(read_run(out).target_states()["cosine"].to_pylist()) > 0.9999


def test_the_output_has_its_schema_and_mistakes_are_one_message(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, output = diagnosed([str(run), "--no-interventions"], capsys)
    assert main(["schema", "diagnose"]) == 0
    jsonschema.validate(output, json.loads(capsys.readouterr().out))
    assert set(output) == {"schema_version", "conditions"}
    keys = {"drafter", "system_prompt", "template", "context_tokens", "verdicts", "not_judged", "waterfall"}
    assert set(output["conditions"][0]) == keys | {"interventions", "file_findings"}
    assert set(output["conditions"][0]["verdicts"][0]) == {"id", "confidence", "evidence", "remedy"}
    for arguments, code in (([str(tmp_path / "none.drift")], "run_not_found"), (["a", "b", "c"], "usage")):
        assert main(["diagnose", *arguments, "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_a_target_that_is_gone_is_said_and_the_rest_is_judged(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied(run, tmp_path)
    info = json.loads((path / "run.json").read_text())
    info["plan"]["target"] = str(tmp_path / "gone")
    (path / "run.json").write_text(json.dumps(info))
    main(["diagnose", str(path)])
    captured = capsys.readouterr()
    assert "interventions were not run" in captured.err
    assert "gone" in captured.err
    assert "needs_interventions" in captured.out
    assert "Gains in dense" not in captured.out  # none was listed
    code, output = diagnosed([str(path), "--interventions"], capsys)  # asked for: not left out
    assert (code, output["error"]["code"]) == (2, "checkpoint_not_found")


def test_files_are_read_once_a_command(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interventions rewrite the texts that were measured, also where a prompt file changes while the probe runs."""
    reads: list[Path] = []
    read_prompts = plan_files.read_prompts

    def counted(path: Path, **options: Any) -> Any:
        reads.append(path)
        return read_prompts(path, **options)

    monkeypatch.setattr(plan_files, "read_prompts", counted)
    out = tmp_path / "once.drift"
    options = ["--target", str(pair / "target"), "--prompts", str(pair / "prompts.jsonl"), "--num-prompts", "1"]
    asked = ["--drafter", f"d={pair / 'sound'}", "--max-new-tokens", "8", "--depth", "2", "--interventions", "fresh"]
    assert main(["probe", *options, *asked, "--out", str(out)]) == 0
    assert reads == [pair / "prompts.jsonl"]
    assert read_run(out).info.interventions == ["fresh"]
