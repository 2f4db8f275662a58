"""The two kernels that a chunk may take, in pieces, against one softmax in float32."""

from __future__ import annotations

import pytest
import torch

from probes.attention import chunk
from probes.attention.chunk import Attend, attend_in_pieces, by_cudnn, by_flash

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("attend", [by_cudnn, by_flash])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(8, 2, 128), (9, 3, 64), (4, 4, 80)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_queries", [333, 1024])
def test_pieces_give_one_softmax(
    monkeypatch: pytest.MonkeyPatch,
    attend: Attend,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    num_queries: int,
) -> None:
    torch.manual_seed(0)
    num_slots = num_queries + 1500
    q = torch.randn(1, num_queries, heads, head_dim, device="cuda", dtype=dtype).transpose(1, 2)
    k, v = (torch.randn(1, kv_heads, num_slots, head_dim, device="cuda", dtype=dtype) for _ in range(2))
    monkeypatch.setattr(chunk, "PIECE_SLOTS", 700)  # pieces of 700, 700 and 100
    scale = 3 * head_dim**-0.5  # peaked enough that the pieces weigh unequally
    try:
        found = attend_in_pieces(q, k, v, scale, attend)
    except RuntimeError as error:
        if torch.cuda.get_device_capability()[0] == 9:
            raise
        pytest.skip(str(error).splitlines()[0])
    wide_k, wide_v = (x.float().repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    is_later = torch.ones(num_queries, num_slots, dtype=torch.bool, device="cuda").triu(1501)
    logits = (q.float() @ wide_k.transpose(2, 3) * scale).masked_fill(is_later, -torch.inf)
    expected = logits.softmax(-1) @ wide_v
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=2.0**-6 * float(v.abs().max()), rtol=0)
