"""The plug-in without its configuration does nothing; its configuration says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from driftscope.vllm_plugin import VARIABLE, register
from driftscope.vllm_plugin.config import read_config
from probes.errors import InputError


def config_file(folder: Path, text: str) -> Path:
    path = folder / "driftscope.toml"
    path.write_text(text)
    return path


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
