"""What an engine held is let go of when it ends, whoever still has hold of it. vLLM is not installed here: a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from probes.errors import InputError
from probes.vllm import engine as engine_module
from probes.vllm.engine import _started


class LLM:
    def __init__(self, **arguments: Any) -> None:
        self.is_shut_down = False
        self.hooks = lambda: self  # what is wrapped refers to itself: only the collector frees it
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=self._shutdown))

    def _shutdown(self) -> None:
        self.is_shut_down = True


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    vllm, distributed = ModuleType("vllm"), ModuleType("vllm.distributed")
    vllm.LLM, distributed.cleanup_dist_env_and_memory = LLM, lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.distributed", distributed)
    return vllm


def test_a_next_engine_finds_the_memory_of_the_last_one(vllm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    is_alive_at_the_end = []

    def clean_up() -> None:
        is_alive_at_the_end.append(llm() is not None)

    monkeypatch.setattr(sys.modules["vllm.distributed"], "cleanup_dist_env_and_memory", clean_up)
    with contextmanager(_started)({}, "0.26.0", "target", is_recorded=False) as running:
        llm = weakref.ref(running.llm)
        assert not llm().is_shut_down  # type: ignore[union-attr]
    assert is_alive_at_the_end == [False]
    assert running is not None


class FailingLLM:
    """As vLLM, whose engine core is a process of its own."""

    def __init__(self, **arguments: Any) -> None:
        said = (
            "(EngineCore) ERROR [core.py:1] Traceback\n(EngineCore) ERROR [core.py:1] ValueError: too little memory\n"
        )
        subprocess.run([sys.executable, "-c", f"import sys; sys.stderr.write({said!r})"], check=True)
        raise RuntimeError(arguments["message"])


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Engine core initialization failed. See root cause above.", "does not start: ValueError: too little memory"),
        ("no such option", "does not start: no such option"),
    ],
)
def test_what_ended_a_process_of_vllms_is_in_the_error(
    message: str, expected: str, vllm: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    vllm.LLM = FailingLLM  # type: ignore[attr-defined]
    with (
        pytest.raises(InputError, match=expected),
        contextmanager(_started)({"message": message}, "0.26.0", "target", is_recorded=False),
    ):
        raise AssertionError
    os.write(2, b"after\n")
    assert capfd.readouterr().err.splitlines()[-2:] == [
        "(EngineCore) ERROR [core.py:1] ValueError: too little memory",
        "after",
    ]


@pytest.mark.parametrize(
    ("version", "has_metrics"), [("0.26.0", False), ("0.32.0", True), ("0.100.0", True), ("0.4.0", False)]
)
def test_metrics_of_each_request_are_asked_for_by_version_not_by_letters(
    version: str, has_metrics: bool, vllm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def started(arguments: dict[str, Any], *_: Any, **__: Any) -> Any:
        asked.update(arguments)
        yield None

    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(engine_module, "vllm_version", lambda: version)
    monkeypatch.setattr(engine_module, "_started", started)
    monkeypatch.setattr(engine_module.os, "environ", dict(os.environ))
    with engine_module.engine("org/target", "org/drafter", depth=2, dtype="float32", level=None):
        pass
    assert ("per_request_spec_decode_metrics" in asked) == has_metrics
