"""What a client may send: the engine's thread looks at no more of it than it needs, and nothing turns the recorder off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from driftscope.vllm_plugin.config import ProductionConfig
from driftscope.vllm_plugin.sampling import UNLABELLED, Sampler
from driftscope.vllm_plugin.turns import END, MAX_MARKERS, START, TEMPLATE, UNKNOWN, RoleMarkers
from driftscope.vllm_plugin.workers import SentHeads, TakenHeads
from probes.record import TEXT_REGIONS
from probes.vllm.attach import schedule
from probes.vllm.recorder import Recorder, RecorderConfig
from probes.vllm.requests import NewRequest, RequestRounds
from probes.vllm.rows import RowLayout

LAYOUT = RowLayout(level="counts", depth=3, num_aux=3, num_layers=1, num_heads=2)
SYSTEM, USER = TEXT_REGIONS.index("system"), TEXT_REGIONS.index("user")


class Sealed(Sequence[int]):
    """Has a length, and fails whoever looks at an element or makes it text: its cost would grow with that length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("the engine's thread read an element")

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the engine's thread read the elements")

    def __str__(self) -> str:
        raise AssertionError("the engine's thread made text of a value")

    __repr__ = __str__


class CountedText(str):
    """Text that counts how many of its characters were taken."""

    taken = 0

    def __getitem__(self, key: Any) -> str:
        part = str.__getitem__(self, key)
        CountedText.taken += len(part)
        return part

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the engine's thread went through the whole text")

    def encode(self, *_: Any) -> bytes:
        raise AssertionError("the engine's thread encoded the whole text")


def recorder_of(written: list[RequestRounds], **config: Any) -> tuple[Recorder, Sampler]:
    sampler = Sampler(ProductionConfig(out=Path("a.drift"), level="counts", **config))
    recorder = Recorder(RecorderConfig(level="counts", decide=sampler.decide, write=written.append))
    recorder.prepare(LAYOUT, num_rows=2, max_model_len=64, device=torch.device("cpu"))
    return recorder, sampler


def arrive(recorder: Recorder, request_id: str = "chatcmpl-1", **given: Any) -> None:
    """A request as vLLM's scheduler hands it to a worker, through all that runs on the engine's thread."""
    sampling = {"stop_token_ids": None, "eos_token_id": 2, "extra_args": {}, "temperature": 0.0, "max_tokens": 8}
    sampling |= {name: given.pop(name) for name in list(given) if name in sampling}
    new = SimpleNamespace(
        req_id=request_id,
        prompt_token_ids=given.pop("prompt_token_ids", [1, 2, 3]),
        sampling_params=SimpleNamespace(**sampling),
    )
    assert not given
    output = SimpleNamespace(
        scheduled_new_reqs=[new],
        finished_req_ids=(),
        preempted_req_ids=None,
        scheduled_spec_decode_tokens={},
        num_scheduled_tokens={request_id: 1},
    )
    recorder.guarded(schedule, recorder, output)


def test_a_prompt_and_stop_tokens_of_any_length_are_not_read_on_the_engines_thread() -> None:
    recorder, _ = recorder_of([], rate=1)
    arrive(recorder, prompt_token_ids=Sealed(32_768), stop_token_ids=Sealed(1_000_000))
    assert (recorder.failure, recorder.num_requests) == (None, 1)
    recorder.transport.stop()


@pytest.mark.parametrize("label", [Sealed(10), [1.5, 2], {"a": 1}, 7, 1.5, True, False, b"policy"])
@pytest.mark.parametrize(("rate", "is_recorded"), [(0, False), (1, True)])
def test_a_label_that_is_not_text_is_counted_and_its_request_goes_without(
    label: object, rate: int, is_recorded: bool
) -> None:
    recorder, sampler = recorder_of([], rate=rate, label_rate=1 - rate)
    arrive(recorder, extra_args={"driftscope": label})
    arrive(recorder, "chatcmpl-2", extra_args={"driftscope": None})
    assert recorder.failure is None
    assert sampler.num_unusable_labels == 1
    assert [s.label for _, s in recorder._recorded.values()] == [UNLABELLED] * (2 * is_recorded)
    recorder.transport.stop()


def test_a_long_label_is_cut_before_anything_is_done_with_it() -> None:
    CountedText.taken = 0
    recorder, _ = recorder_of([])
    arrive(recorder, extra_args={"driftscope": CountedText("x" * 1_000_000)})
    [(_, sampled)] = recorder._recorded.values()
    assert (recorder.failure, sampled.label, CountedText.taken) == (None, "x" * 64, 64)
    recorder.transport.stop()


def test_of_a_long_id_the_ends_decide() -> None:
    """vLLM puts its own random letters at the end."""
    sampler = Sampler(ProductionConfig(out=Path("a.drift"), rate=0.5))
    CountedText.taken = 0

    def is_recorded(request_id: str) -> bool:
        new = NewRequest(request_id=request_id, prompt_token_ids=[1], extra_args={}, temperature=0.0)
        return sampler.decide(new) is not None

    found = [is_recorded(CountedText("x" * 1_000_000 + f"-{i}")) for i in range(400)]
    assert CountedText.taken == 400 * 512
    assert sum(found) == pytest.approx(200, abs=50)


def test_a_lone_surrogate_in_an_id_turns_nothing_off() -> None:
    written: list[RequestRounds] = []
    recorder, _ = recorder_of(written, rate=1)
    arrive(recorder, "chatcmpl-\ud800")
    recorder.requests_changed([], ["chatcmpl-\ud800"], [])
    recorder.transport.flush()
    assert recorder.failure is None
    assert [rounds.request.request_id for rounds in written] == ["chatcmpl-\ud800"]
    recorder.transport.stop()


def test_heads_of_such_an_id_find_their_way(tmp_path: Path) -> None:
    sampler = Sampler(ProductionConfig(out=Path("a.drift")))
    sent = SentHeads(folder=tmp_path, rank=1, sampler=sampler)
    rounds = SimpleNamespace(request=SimpleNamespace(request_id="\udfff"), rows=np.ones(2, [("start", "<i4")]))
    sent.write(rounds)  # type: ignore[arg-type]
    [rows] = TakenHeads(folder=tmp_path, num_ranks=2).take("\udfff")
    assert rows is not None
    assert rows["start"].tolist() == [1, 1]


def test_what_turned_the_recorder_off_can_be_stored_whatever_a_client_wrote() -> None:
    recorder, _ = recorder_of([])
    recorder._fail(KeyError("\ud800" * 10_000))
    assert recorder.failure is not None
    assert len(recorder.failure.encode()) < 5_000  # no surrogate is left
    recorder.transport.stop()


def test_what_else_a_client_sent_is_not_kept_while_the_request_runs() -> None:
    recorder, _ = recorder_of([], rate=1)
    arrive(recorder, extra_args={"x" * 1_000_000: Sealed(10), **dict.fromkeys(map(str, range(10_000)), 1)})
    [(request, _)] = recorder._recorded.values()
    assert (recorder.failure, request.extra_args) == (None, {})
    recorder.transport.stop()


# regions, at level heads on the engine's thread

MARKERS = RoleMarkers(
    {
        (START, SYSTEM): (1, 8),
        (SYSTEM, USER): (2, 7, 1, 9),
        (USER, SYSTEM): (2, 7, 1, 8),
        (USER, END): (2, 7),
    },
    frozenset({1, 2, 3}),
)


def regions(ids: list[int]) -> list[int]:
    return MARKERS.regions(np.array(ids, np.int32)).tolist()


def test_turns_are_found_and_given_up_at_a_special_token() -> None:
    t, s, u, x = TEMPLATE, SYSTEM, USER, UNKNOWN
    assert regions([1, 8, 50, 2, 7, 1, 9, 60, 61, 2, 7]) == [t, t, s, t, t, t, t, u, u, t, t]
    assert regions([1, 8, 50, 3, 51, 2, 7, 1, 9, 60]) == [t, t, s, x, x, t, t, t, t, u]
    assert regions([1, 8, 50, 2, 7, 1, 8, 60]) == [t, t, s, x, x, x, x, x]  # no system turn after a system turn
    assert regions([2, 7]) == [t, t]
    assert regions([2, 7, 5]) == [x, x, x]  # an end that is not the end
    assert regions([2, 2, 2]) == [x, x, x]
    assert regions([]) == []


def test_a_prompt_of_nothing_but_markers_is_looked_at_only_so_far() -> None:
    turn = [2, 7, 1, 9, 60, 2, 7, 1, 8, 50]  # two markers
    found = np.array(regions([1, 8, 50, *turn * 3_000]))
    known = 3 + MAX_MARKERS // 2 * len(turn)
    one = [TEMPLATE] * 4 + [USER] + [TEMPLATE] * 4 + [SYSTEM]
    assert found[:known].tolist() == [TEMPLATE, TEMPLATE, SYSTEM, *one * (MAX_MARKERS // 2)]
    assert set(found[known:].tolist()) == {UNKNOWN}
