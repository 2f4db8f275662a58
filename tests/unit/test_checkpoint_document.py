"""docs/checkpoints.md is what the registry makes, and what it says of each producer is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probes.checkpoint.document import checkpoints_document
from probes.checkpoint.producer import TESTED_IN_VLLM, Producer
from probes.checkpoint.producers import all_producers

FILE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_the_file_is_what_the_registry_makes() -> None:
    assert FILE.read_text() == checkpoints_document(), (
        "stale: run `python -m probes.checkpoint.document > docs/checkpoints.md`"
    )


@pytest.mark.parametrize("producer", all_producers(), ids=lambda producer: producer.name)
def test_every_producer_has_a_row_with_its_ids_defaults_and_doubts(producer: Producer) -> None:
    [row] = [line for line in checkpoints_document().splitlines() if f"(`{producer.name}`)" in line]
    assert row.count(" | ") == 4
    assert producer.source in row
    for key in producer.aux_id_keys:
        assert f"`{key.label}`: {'boundary ids' if key.convention == 'boundary' else 'layer outputs'}" in row
    for flag, (default, _) in (
        ("norm_output", producer.norm_output_default),
        ("norm_before_residual", producer.norm_before_residual_default),
    ):
        assert f"`{flag}` absent: {str(default).lower()}" in row
    for doubt in producer.doubts:
        assert f"finding `{doubt.code}`" in row


def test_it_says_how_to_make_it_again() -> None:
    assert "python -m probes.checkpoint.document > docs/checkpoints.md" in checkpoints_document().splitlines()[2]


@pytest.mark.parametrize("producer", all_producers(), ids=lambda producer: producer.name)
def test_what_is_said_to_be_tested_in_vllm_has_its_test(producer: Producer) -> None:
    file = re.search(r"tests/vllm/\w+\.py", producer.tested)
    if producer.tested.startswith(TESTED_IN_VLLM):
        assert file is not None
        names = {"specforge": "LlamaForCausalLMEagle3"}  # the older file's own writer
        text = (FILE.parents[1] / "tests" / "vllm" / "tiny_pair.py").read_text() if producer.name in names else ""
        text += (FILE.parents[1] / file[0]).read_text()
        assert names.get(producer.name, f'producer="{producer.name}"') in text
    else:
        assert producer.tested.startswith("-")
