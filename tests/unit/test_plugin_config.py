"""The plug-in without its configuration does nothing; its configuration says what is wrong; who is sampled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from driftscope.production.config import read_config
from driftscope.production.sampling import OTHER, UNLABELLED, Sampler
from probes.errors import InputError
from probes.vllm.requests import NewRequest


def config_file(folder: Path, text: str) -> Path:
    path = folder / "driftscope.toml"
    path.write_text(text)
    return path


def request(number: int, label: str | None = None, *, num_tokens: int = 5) -> NewRequest:
    extra = {} if label is None else {"driftscope": label}
    return NewRequest(
        request_id=f"chatcmpl-{number}", prompt_token_ids=range(num_tokens), extra_args=extra, temperature=0.0
    )


def sampler(folder: Path, text: str) -> Sampler:
    return Sampler(read_config(config_file(folder, 'out = "a.drift"\n' + text)))


def test_without_configuration_nothing_is_imported() -> None:
    code = (
        "import os, sys\nos.environ.pop('VLLM_DRIFTSCOPE_CONFIG', None)\nfrom driftscope.vllm_plugin import register\n"
        "before = set(sys.modules)\nregister()\nassert set(sys.modules) == before\n"
        "heavy = [n for n in ('torch', 'vllm', 'numpy', 'pydantic', 'pyarrow') if n in sys.modules]\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr


def test_an_unusable_configuration_is_logged_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from driftscope.vllm_plugin import VARIABLE, register

    monkeypatch.setenv(VARIABLE, str(config_file(tmp_path, 'out = "a.drift"\nrate = 2\n')))
    register()
    [said] = caplog.messages
    assert "records nothing" in said
    assert "driftscope.toml" in said
    assert "rate: " in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("out = ", "not TOML"),
        ('out = "a.drift"\nrat = 1\n', "rat: "),
        ('out = "a.drift"\nrate = 1.5\n', "rate: "),
        ('out = "a.drift"\nlevel = "all"\n', "level: "),
        ('out = "a"\n', "out: "),
        ("rate = 1\n", "out: Field required"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = config_file(tmp_path, text)
    with pytest.raises(InputError) as raised:
        read_config(path)
    assert said in raised.value.message
    assert raised.value.where == str(path)
    assert raised.value.remedy


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.toml"):
        read_config(tmp_path / "no.toml")


def test_defaults_store_no_text_and_paths_are_the_files(tmp_path: Path) -> None:
    config = read_config(config_file(tmp_path, 'out = "runs/a.drift"\n'))
    assert config.out == tmp_path / "runs" / "a.drift"
    assert not config.text
    assert (config.rate, config.label_rate) == (0.01, 1.0)


def test_rates(tmp_path: Path) -> None:
    chosen = sampler(tmp_path, "rate = 0.1\nlabel_rate = 0.5\n")
    unlabelled = [chosen.decide(request(i)) for i in range(4000)]
    labelled = [chosen.decide(request(i, "a")) for i in range(4000)]
    assert sum(s is not None for s in unlabelled) == pytest.approx(400, abs=80)
    assert sum(s is not None for s in labelled) == pytest.approx(2000, abs=160)
    assert {s.label for s in unlabelled if s} == {UNLABELLED}
    assert {s.label for s in labelled if s} == {"a"}
    again = sampler(tmp_path, "rate = 0.1\nlabel_rate = 0.5\n")
    assert [again.decide(request(i)) for i in range(100)] == unlabelled[:100]  # a request's fate hangs on its id
    assert chosen.num_seen == 8000


def test_labels(tmp_path: Path) -> None:
    listed = sampler(tmp_path, 'rate = 0\nlabels = ["a"]\n')
    assert listed.decide(request(0, "a")).label == "a"
    assert listed.decide(request(0, "b")) is None
    few = sampler(tmp_path, "max_labels = 2\n")
    assert [few.decide(request(0, label)).label for label in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]
    assert few.decide(request(0, "a\n\x1b")).label == "a"
    assert len(sampler(tmp_path, "").decide(request(0, "x" * 500)).label) == 64


def test_caps(tmp_path: Path) -> None:
    chosen = sampler(tmp_path, "rate = 1\nmax_prompt_tokens = 4\n")
    assert chosen.decide(request(0)) is None
    assert chosen.num_too_long == 1
    assert chosen.decide(request(0, num_tokens=4)) is not None
    chosen.is_open = False
    assert chosen.decide(request(0, num_tokens=4)) is None


def test_regions_come_with_the_request(tmp_path: Path) -> None:
    chosen = sampler(tmp_path, "rate = 1\n")
    chosen.regions = lambda ids: (ids % 2).astype(np.uint8)
    assert chosen.decide(request(0)).region.tolist() == [0, 1, 0, 1, 0]
