"""Random configs: a report or a DriftscopeError, never another exception, and no time or memory by a number in a file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.check import check_pair
from probes.errors import DriftscopeError
from tests.check_pairs import IDS, write_drafter, write_target
from tests.checkpoint_writers import PRODUCERS

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-3, 99), st.text(max_size=3), st.none()), max_size=4),
    st.dictionaries(
        st.sampled_from(
            [IDS, "use_aux_hidden_state", "norm_before_fc", "rope_type", "factor", "model_type", "verifier"]
        ),
        st.one_of(st.integers(-3, 99), st.lists(st.integers(0, 9), max_size=3), st.text(max_size=5), st.booleans()),
        max_size=3,
    ),
)
DRAFTER_KEYS = (
    *("architectures", IDS, "eagle_config", "num_aux_hidden_states", "num_aux_layers", "use_aux_norm", "fc_norm"),
    *("norm_output", "norm_before_residual", "norm_before_fc", "tie_word_embeddings", "draft_vocab_size", "vocab_size"),
    *("target_hidden_size", "num_hidden_layers", "layer_types", "sliding_window", "use_sliding_window", "rope_theta"),
    *("rope_scaling", "rope_parameters", "max_position_embeddings", "attention_bias", "bias", "speculators_config"),
    *("speculators_model_type", "transformer_layer_config", "model_type"),
)
TARGET_KEYS = (
    *("text_config", "model_type", "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"),
    *("rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps", "quantization_config", "eos_token_id"),
    *("architectures", "tie_word_embeddings", "head_dim", "num_attention_heads", "_name_or_path"),
)


@settings(max_examples=150, deadline=None)
@given(
    producer=st.sampled_from(PRODUCERS),
    drafter=st.dictionaries(st.sampled_from(DRAFTER_KEYS), JUNK, max_size=3),
    target=st.dictionaries(st.sampled_from(TARGET_KEYS), JUNK, max_size=3),
    generation=st.dictionaries(st.sampled_from(["do_sample", "temperature", "eos_token_id"]), JUNK, max_size=2),
)
def test_random_configs(
    producer: str, drafter: dict[str, object], target: dict[str, object], generation: dict[str, object]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        target_folder = write_target(Path(root) / "target", **target)
        (target_folder / "generation_config.json").write_text(json.dumps(generation))
        drafter_folder = write_drafter(Path(root) / "eagle3", producer, fault=lambda s, _: s.update(drafter))
        refusal = None
        try:
            report = check_pair(str(target_folder), str(drafter_folder))
        except DriftscopeError as error:
            refusal = error
        if refusal is not None:
            assert refusal.where
            assert refusal.remedy
            return
        assert len(report.model_dump_json()) < 200_000
        assert report.is_clean == (not any(f.severity.value != "info" for f in report.findings))


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json"])
def test_a_broken_file_beside_the_target_is_named(tmp_path: Path, name: str) -> None:
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "eagle3")
    (target / name).write_text("{")
    (drafter / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    with pytest.raises(DriftscopeError) as caught:
        check_pair(str(target), str(drafter))
    assert caught.value.code == "bad_json"
    assert caught.value.where.endswith(name)
