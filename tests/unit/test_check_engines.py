"""What each engine makes of one setting: a table of cases, each a fact of that engine's source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from driftscope.check import CheckReport
from driftscope.check.engines import ENGINES
from tests.check_pairs import IDS, TINY, Settings, cell, checked
from tests.checkpoint_writers import Arrays, Tiny

V1 = tuple(f"vLLM {v} V1" for v in ("0.25.1", "0.26.0", "0.32.0", "0.33.0"))
V2 = tuple(name.replace("V1", "V2") for name in V1)
VLLM = (*V1, *V2)
SGLANG = ("SGLang before PR 24663", "SGLang after PR 24663", "SGLang after PR 32334")
TRT, SAFE = "TensorRT-LLM", "SafeAILab/EAGLE"
EVERY = (*VLLM, *SGLANG, TRT, SAFE)
REFUSES = "refuses to load"
UNKNOWN = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """`keys` are put into config.json (None removes one); `says` maps engines to what they make of `setting`."""

    name: str
    setting: str
    producer: str = "specforge"
    tiny: Tiny = TINY
    keys: Mapping[str, object] = field(default_factory=dict)
    target_keys: Mapping[str, object] = field(default_factory=dict)
    says: Mapping[tuple[str, ...], str | None]


CASES = (
    Case(
        name="nested outputs: V1 takes them for boundaries, V2 does not see them, SGLang adds 1",
        setting="layer_ids",
        keys={IDS: None, "eagle_config": {IDS: [3, 5, 7]}},
        says={
            V1: "[3, 5, 7]",
            V2: "[2, 6, 9]",
            SGLANG: "[4, 6, 8]",
            (TRT, SAFE): "[2, 6, 9]",
        },
    ),
    Case(
        name="V2 reads eagle_config.layer_ids since 0.32",
        setting="layer_ids",
        keys={IDS: None, "eagle_config": {"layer_ids": [3, 5, 7]}},
        says={
            V1: "[2, 6, 9]",
            V2[:2]: "[2, 6, 9]",
            V2[2:]: "[3, 5, 7]",
        },
    ),
    Case(
        name="a list at the top level is vLLM's alone",
        setting="layer_ids",
        keys={IDS: [3, 5, 7], "eagle_config": None},
        says={VLLM: "[3, 5, 7]", (*SGLANG, TRT, SAFE): "[2, 6, 9]"},
    ),
    Case(
        name="speculators' list is passed on",
        setting="layer_ids",
        producer="speculators",
        keys={IDS: [3, 5, 7]},
        says={VLLM: "[3, 5, 7]", SGLANG: UNKNOWN, (TRT,): UNKNOWN},
    ),
    Case(
        name="an empty list is no list",
        setting="layer_ids",
        keys={IDS: [], "eagle_config": {IDS: []}},
        says={EVERY: "[2, 6, 9]"},
    ),
    Case(
        name="gpt-oss: boundaries after PR 32334",
        setting="layer_ids",
        keys={IDS: None, "eagle_config": {IDS: [3, 5, 7]}},
        target_keys={"model_type": "gpt_oss"},
        says={SGLANG[:2]: "[4, 6, 8]", SGLANG[2:]: "[3, 5, 7]"},
    ),
    Case(
        name="DeepSeek targets: outputs only when the first is 1",
        setting="layer_ids",
        keys={IDS: None, "eagle_config": {IDS: [3, 5, 7]}},
        target_keys={"model_type": "deepseek_v3"},
        says={SGLANG: "[3, 5, 7]"},
    ),
    Case(
        name="vLLM's Llama class does not count a list at the top level",
        setting="num_aux",
        tiny=replace(TINY, num_aux=4),
        keys={IDS: [2, 4, 6, 9], "eagle_config": None},
        says={VLLM: REFUSES, SGLANG: "3", (TRT, SAFE): "3"},
    ),
    Case(
        name="num_aux_hidden_states",
        setting="num_aux",
        tiny=replace(TINY, num_aux=4),
        keys={IDS: [2, 4, 6, 9], "eagle_config": None, "num_aux_hidden_states": 4},
        says={VLLM: "4", SGLANG[:1]: "3", SGLANG[1:]: "4"},
    ),
    Case(
        name="fc_norm",
        setting="fc_norm",
        tiny=replace(TINY, fc_norm=True),
        says={VLLM: "true", SGLANG[:1]: "false", SGLANG[1:]: "true", (TRT,): "true", (SAFE,): "false"},
    ),
    Case(
        name="SGLang's own name for fc_norm",
        setting="fc_norm",
        producer="sglang",
        tiny=replace(TINY, fc_norm=True),
        says={SGLANG[:1]: "false", SGLANG[1:]: "true", VLLM: REFUSES},
    ),
    Case(
        name="norm_before_fc at the top level",
        setting="norm_before_fc",
        tiny=replace(TINY, norm_before_fc=True),
        says={VLLM: "true", SGLANG: "false", (TRT, SAFE): "false"},
    ),
    Case(
        name="norm_before_fc in eagle_config",
        setting="norm_before_fc",
        tiny=replace(TINY, norm_before_fc=True),
        keys={"norm_before_fc": None, "eagle_config": {"norm_before_fc": True}},
        says={VLLM: "true", SGLANG[:2]: "false", SGLANG[2:]: "true", (TRT,): "true"},
    ),
    Case(
        name="TensorRT-LLM applies one of the two norms",
        setting="norm_before_fc",
        tiny=replace(TINY, norm_before_fc=True, fc_norm=True),
        keys={"eagle_config": {"norm_before_fc": True}},
        says={VLLM: "true", (TRT,): "false"},
    ),
    Case(
        name="norm_output at the top level",
        setting="norm_output",
        keys={"norm_output": True},
        says={VLLM: "true", SGLANG[:1]: "false", SGLANG[1:]: "true", (TRT,): "true", (SAFE,): "false"},
    ),
    Case(
        name="norm_output in eagle_config is nobody's; return_hidden_post_norm is TensorRT-LLM's",
        setting="norm_output",
        keys={"eagle_config": {"norm_output": True, "return_hidden_post_norm": True}},
        says={VLLM: "false", SGLANG: "false", (TRT,): "true"},
    ),
    Case(
        name="norm_before_residual is vLLM's alone",
        setting="norm_before_residual",
        keys={"norm_before_residual": True},
        says={VLLM: "true", (*SGLANG, TRT, SAFE): "false"},
    ),
    Case(
        name="norm_before_residual of a speculators checkpoint that does not state it",
        setting="norm_before_residual",
        producer="speculators",
        says={VLLM: "true"},
    ),
    Case(
        name="the embedding",
        setting="embeddings",
        says={VLLM: "its own", (*SGLANG, TRT, SAFE): "the target's"},
    ),
    Case(
        name="the embedding of a narrower drafter",
        setting="embeddings",
        tiny=replace(TINY, hidden=8, heads=2, kv_heads=1),
        says={EVERY: "its own"},
    ),
    Case(
        name="tied embeddings",
        setting="lm_head",
        keys={"tie_word_embeddings": True},
        says={SGLANG: "embed_tokens (tied)", (*VLLM, TRT, SAFE): "its own"},
    ),
    Case(
        name="rope_parameters alone",
        setting="rope",
        keys={"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        says={
            (*VLLM, *SGLANG[1:], TRT): "default, theta 500000",
            (SGLANG[0], SAFE): "default, theta 10000",
        },
    ),
    Case(
        name="yarn",
        setting="rope",
        keys={"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        says={(*VLLM, *SGLANG): "yarn, theta 500000, factor 4", (SAFE,): REFUSES},
    ),
    Case(
        name="a short table: raised to the target's since 0.32",
        setting="max_positions",
        keys={"max_position_embeddings": 512},
        says={(*V1[:2], *V2[:2]): "512", (*V1[2:], *V2[2:]): "2,048", SGLANG[1:]: "2,048", (SAFE,): "2,048"},
    ),
    Case(
        name="a short table of yarn: raised by 0.32 alone",
        setting="max_positions",
        keys={"max_position_embeddings": 512, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        says={(V1[1], V1[3], V2[3]): "512", (V1[2], V2[2]): "2,048"},
    ),
    Case(
        name="a window",
        setting="sliding_window",
        keys={"sliding_window": 128, "layer_types": ["sliding_attention"]},
        says={VLLM: "128", (*SGLANG, TRT, SAFE): "full attention"},
    ),
    Case(
        name="a window of a Qwen3 layer: not in 0.25.1",
        setting="sliding_window",
        producer="speculators",
        tiny=replace(TINY, qk_norm=True),
        keys={
            "transformer_layer_config.sliding_window": 64,
            "transformer_layer_config.layer_types": ["sliding_attention"],
        },
        says={(V1[0], V2[0]): "full attention", (*V1[1:], *V2[1:]): "64"},
    ),
    Case(
        name="transformers' Qwen3Config drops a window that is not switched on",
        setting="sliding_window",
        producer="vllm",
        tiny=replace(TINY, qk_norm=True),
        keys={"sliding_window": 64, "layer_types": ["sliding_attention"]},
        says={(*V1[1:], *V2[1:]): "full attention"},
    ),
    Case(
        name="biases",
        setting="qkv_bias",
        tiny=replace(TINY, attention_bias=True),
        says={(*VLLM, TRT): "true", (*SGLANG, SAFE): "false"},
    ),
    Case(
        name="vLLM's registry does not know NeMo's class",
        setting="weights",
        producer="nemo",
        says={VLLM: REFUSES},
    ),
    Case(
        name="layers.0 to an engine that expects midlayer",
        setting="weights",
        producer="vllm",
        keys={"eagle_config": {}},
        says={VLLM: "every tensor", SGLANG[1:]: "every tensor"},
    ),
    Case(
        name="input_norm without its flag is dropped by vLLM",
        setting="weights",
        tiny=replace(TINY, norm_before_fc=True),
        keys={"norm_before_fc": None},
        says={VLLM: "not input_norm.weight", SGLANG[:2]: "not input_norm.weight"},
    ),
    Case(
        name="SGLang norms later layers' input by hidden_norm",
        setting="weights",
        tiny=replace(TINY, num_layers=2),
        says={VLLM: "every tensor", SGLANG[1:]: "not layers.1.input_layernorm.weight"},
    ),
)


def _report(case: Case, root: Path) -> CheckReport:
    import json

    from driftscope.check import check_pair
    from tests.check_pairs import write_drafter, write_target

    def fault(settings: Settings, _arrays: Arrays) -> None:
        for key, value in case.keys.items():
            *path, last = key.split(".")
            place = settings
            for name in path:
                place = place[name]
            if value is None:
                place.pop(last, None)
            else:
                place[last] = value

    target = write_target(root / "target", case.tiny, **case.target_keys)
    drafter = write_drafter(root / "eagle3", case.producer, case.tiny, fault)
    report = check_pair(str(target), str(drafter))
    assert json.loads(report.model_dump_json())
    return report


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_readings(case: Case, tmp_path: Path) -> None:
    report = _report(case, tmp_path)
    for engines, value in case.says.items():
        for engine in engines:
            assert cell(report, case.setting, engine)[0] == value, engine


def test_the_table_has_every_engine_in_every_row(tmp_path: Path) -> None:
    report = checked(tmp_path)
    for row in report.settings:
        assert [c.engine for c in row.engines] == [e.name for e in ENGINES]
        assert all(c.setting == row.setting and c.source for c in row.engines)
    assert set(EVERY) == {e.name for e in ENGINES}


def test_an_engine_that_refuses_is_never_said_to_differ(tmp_path: Path) -> None:
    report = checked(tmp_path, "nemo")
    for row in report.settings:
        cells = [c for c in row.engines if c.engine.startswith("vLLM")]
        assert all(c.refuses and c.agrees is None for c in cells)
    refusing = next(f for f in report.findings if f.id == "DS512")
    assert set(refusing.engines) == set(VLLM)
    assert not any(set(f.engines) & set(VLLM) for f in report.findings if f.id != "DS512")


def test_a_finding_names_the_engines_that_differ(tmp_path: Path) -> None:
    def fault(settings: Settings, _arrays: Arrays) -> None:
        settings |= {IDS: [3, 5, 7], "eagle_config": {}}

    finding = next(f for f in checked(tmp_path, fault=fault).findings if f.id == "DS101")
    assert set(finding.engines) == {*SGLANG, TRT, SAFE}
    assert "checkpoint: [3, 5, 7]" in finding.evidence
    assert "SGLang: [2, 6, 9]" in finding.evidence
