"""A chunk's attention in pieces, merged by log-sum-exp, against one softmax; which kernel a chunk takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probes.attention import chunk
from probes.attention.chunk import Part, attend_chunk, attend_in_pieces, merge


def attend_plainly(q: Tensor, k: Tensor, v: Tensor, scale: float | None, *, is_causal: bool) -> Part:
    """One softmax, in float32 at least, causality aligned at the end."""
    repeats = q.shape[1] // k.shape[1]
    dtype = torch.promote_types(q.dtype, torch.float32)
    k, v = (x.to(dtype).repeat_interleave(repeats, dim=1) for x in (k, v))
    logits = q.to(dtype) @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        is_later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        logits = logits.masked_fill(is_later, -torch.inf)
    return (logits.softmax(-1) @ v).to(q.dtype), logits.logsumexp(-1)


def random_chunk(
    num_queries: int, num_before: int, *, heads: int = 6, kv_heads: int = 2, seed: int = 0
) -> list[Tensor]:
    """q, k and v as transformers hands them over: q a transposed view."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, num_queries, heads, 16, generator=generator).transpose(1, 2)
    k, v = (torch.randn(1, kv_heads, num_before + num_queries, 16, generator=generator) for _ in range(2))
    return [q, k, v]


@given(
    num_queries=st.integers(2, 23),
    num_before=st.integers(1, 60),
    piece=st.integers(1, 70),
    shape=st.sampled_from([(6, 2), (4, 4), (5, 1)]),
    scale=st.sampled_from([None, 0.3, 2.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_pieces_merge_into_one_softmax(
    num_queries: int, num_before: int, piece: int, shape: tuple[int, int], scale: float | None, seed: int
) -> None:
    """In float64: a softmax of large logits loses more digits in float32 than a mistake in the merging might cost."""
    q, k, v = (x.double() for x in random_chunk(num_queries, num_before, heads=shape[0], kv_heads=shape[1], seed=seed))
    expected, _ = attend_plainly(q, k, v, scale, is_causal=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "PIECE_SLOTS", piece)
        found = attend_in_pieces(q, k, v, scale, attend_plainly)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_the_merged_log_sum_exp_is_that_of_all_slots() -> None:
    q, k, v = random_chunk(7, 30)
    expected = attend_plainly(q, k, v, 0.4, is_causal=False)
    parts = (
        attend_plainly(q, k[:, :, a:b], v[:, :, a:b], 0.4, is_causal=False) for a, b in ((0, 3), (3, 20), (20, 37))
    )
    for found, reference in zip(merge(parts), expected, strict=True):
        torch.testing.assert_close(found, reference, atol=1e-5, rtol=0)


def test_sixteen_bits_are_merged_in_float32() -> None:
    """Eight pieces: rounded once at the end, not at each merge."""
    q, k, v = (x.bfloat16() for x in random_chunk(9, 64))
    expected, _ = attend_plainly(q.float(), k.float(), v.float(), None, is_causal=True)

    def in_float32(*args: Tensor, is_causal: bool) -> Part:
        out, lse = attend_plainly(args[0].float(), *args[1:], is_causal=is_causal)
        return out, lse

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "PIECE_SLOTS", 8)
        found = attend_in_pieces(q, k, v, None, in_float32)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected.bfloat16(), atol=0, rtol=2**-7)


def refuse(*_args: object, is_causal: bool) -> Part:
    raise RuntimeError("no execution plans support the graph")


def mistaken(*args: Tensor, is_causal: bool) -> Part:
    """A log-sum-exp to base 2."""
    out, lse = attend_plainly(*args, is_causal=is_causal)
    return out, lse / 0.6931


def not_a_number(*args: Tensor, is_causal: bool) -> Part:
    out, lse = attend_plainly(*args, is_causal=is_causal)
    return out * torch.nan, lse


@pytest.mark.parametrize(
    ("by_cudnn", "is_kept"), [(attend_plainly, True), (refuse, False), (mistaken, False), (not_a_number, False)]
)
def test_cudnn_is_kept_only_where_it_agrees_and_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, by_cudnn: chunk.Attend, is_kept: bool
) -> None:
    calls: list[str] = []

    def counted(name: str, attend: chunk.Attend) -> chunk.Attend:
        def call(*args: Tensor, is_causal: bool) -> Part:
            calls.append(name)
            return attend(*args, is_causal=is_causal)

        return call

    monkeypatch.setattr(chunk, "by_flash", counted("flash", attend_plainly))
    monkeypatch.setattr(chunk, "by_cudnn", counted("cudnn", by_cudnn))
    monkeypatch.setattr(chunk, "_agrees", {})
    q, k, v = random_chunk(8, 19)
    expected, _ = attend_plainly(q, k, v, 0.3, is_causal=True)
    for _ in range(2):
        calls.clear()
        torch.testing.assert_close(attend_chunk(q, k, v, 0.3, is_whole=True), expected, atol=1e-5, rtol=0)
    assert calls == (["cudnn", "cudnn"] if is_kept else ["flash"])
    # a shorter chunk, and one behind few slots, would each need a plan of their own
    calls.clear()
    attend_chunk(q, k, v, 0.3, is_whole=False)
    attend_chunk(q, k[:, :, -12:], v[:, :, -12:], 0.3, is_whole=True)
    assert calls == ["flash", "flash"]
