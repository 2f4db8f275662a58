"""What an engine held is let go of when it ends, whoever still has hold of it. vLLM is not installed here: a stand-in."""

from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from probes.vllm.engine import _started


class LLM:
    def __init__(self, **arguments: Any) -> None:
        self.is_shut_down = False
        self.hooks = lambda: self  # what is wrapped refers to itself: only the collector frees it
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=self._shutdown))

    def _shutdown(self) -> None:
        self.is_shut_down = True


def test_a_next_engine_finds_the_memory_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    is_alive_at_the_end = []

    def clean_up() -> None:
        is_alive_at_the_end.append(llm() is not None)

    vllm, distributed = ModuleType("vllm"), ModuleType("vllm.distributed")
    vllm.LLM, distributed.cleanup_dist_env_and_memory = LLM, clean_up  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.distributed", distributed)
    with contextmanager(_started)({}, "0.26.0", "target", is_recorded=False) as running:
        llm = weakref.ref(running.llm)
        assert not llm().is_shut_down  # type: ignore[union-attr]
    assert is_alive_at_the_end == [False]
    assert running is not None
