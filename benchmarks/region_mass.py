"""The region-mass kernel against the bytes and operations it cannot avoid, and against what one would do without it.

`python -m benchmarks.region_mass [OUT]` on a CUDA device. Decode: one query a request on a paged cache, against the
measured copy bandwidth and torch's attention, once as called from Python and once replayed from a CUDA graph, as engines
do. Replay: a causal prefill, against torch's fastest attention forward (which gives no masses), transformers' eager
attention with its probabilities, and "keep q and k, softmax later". `--tune`: tiles and splits of the decode shapes only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import one_hot, scaled_dot_product_attention
from transformers.models.llama.modeling_llama import eager_attention_forward

from benchmarks.timing import GRAPH_CALLS, captured, copy_bandwidth, per_call, summary, table, time_in_turn, write
from probes.attention.band import Band
from probes.attention.region_kernel import Paged, attend_banded, attend_paged
from probes.attention.tiles import Blocks, choose_blocks

HEADS, KV_HEADS, HEAD_DIM, NUM_REGIONS = 32, 8, 128, 9
SCALE = HEAD_DIM**-0.5
DTYPE = torch.bfloat16
QUERY_BLOCK = 256
"""Of "softmax later": rows of float32 logits held together."""
DECODE_SHAPES = ((16, 4096), (8, 8192), (64, 8192), (1, 65536), (256, 4096))
DECODE_BLOCKS = tuple(
    Blocks(16, slots, num_warps, num_stages)
    for slots, num_warps, num_stages in (
        (128, 4, 3), (128, 4, 5), (64, 4, 3), (64, 4, 5), (64, 4, 7), (64, 8, 5), (32, 4, 5), (32, 4, 7),
    )
)  # fmt: skip


def decode_rows() -> list[dict[str, Any]]:
    bandwidth = copy_bandwidth()
    rows = []
    for num_requests, num_slots in DECODE_SHAPES:
        ours, stock, num_bytes = decode_calls(num_requests, num_slots)
        called = time_in_turn({"ours": ours, "stock": stock}, 11, num_warmups=3, num_inner=GRAPH_CALLS)
        graphs = {"ours": captured(ours), "stock": captured(stock)}
        replayed = per_call(time_in_turn(graphs, 11, num_warmups=3))
        floor = num_bytes / bandwidth * 1e3
        rows.append(
            {
                "requests": num_requests,
                "slots": num_slots,
                "K and V MiB": num_bytes / 2**20,
                "floor ms": floor,
                "region mass ms": summary(called["ours"]),
                "times the floor": summary(called["ours"])["median"] / floor,
                "SDPA, no masses, contiguous ms": summary(called["stock"]),
                "region mass in a graph ms": summary(replayed["ours"]),
                "in a graph, times the floor": summary(replayed["ours"])["median"] / floor,
                "SDPA in a graph ms": summary(replayed["stock"]),
            }
        )
        del ours, stock, graphs
    return rows


def decode_calls(num_requests: int, num_slots: int) -> tuple[Callable[..., Any], Callable[[], Any], int]:
    """Ours (takes attend_paged's options), torch's SDPA on as many contiguous slots, and the bytes of K and V."""
    block = 16
    per_request = num_slots // block
    k, v = (_random(num_requests * per_request, block, KV_HEADS, HEAD_DIM) for _ in range(2))
    q = _random(num_requests, HEADS, HEAD_DIM)
    block_table = torch.randperm(num_requests * per_request, device="cuda").int().view(num_requests, -1)
    lengths = torch.full((num_requests,), num_slots, device="cuda", dtype=torch.int32)
    starts = torch.arange(num_requests + 1, device="cuda", dtype=torch.int32)
    bounds = torch.tensor([[1, 200, num_slots - 60, num_slots - 4]], device="cuda").expand(num_requests, -1)
    bounds = bounds.int().contiguous()
    paged = Paged(block_table, lengths, starts, 1, num_slots)
    k_whole, v_whole = (_random(num_requests, KV_HEADS, num_slots, HEAD_DIM) for _ in range(2))
    ours = partial(attend_paged, q, k, v, paged, SCALE, bounds=bounds)
    stock = partial(scaled_dot_product_attention, q[:, :, None], k_whole, v_whole, scale=SCALE, enable_gqa=True)
    return ours, stock, 2 * k.numel() * k.element_size()


def tune_decode() -> None:
    """Prints the graph-replayed time of each decode shape, times the floor, by tiles and splits; writes nothing."""
    bandwidth = copy_bandwidth()
    chosen = choose_blocks(DTYPE, HEAD_DIM, HEADS // KV_HEADS)
    print(f"chosen: {chosen}; times the floor, median of 5", flush=True)
    for num_requests, num_slots in DECODE_SHAPES:
        ours, _, num_bytes = decode_calls(num_requests, num_slots)
        floor = num_bytes / bandwidth * 1e3
        rows = []
        for blocks in DECODE_BLOCKS:
            times: dict[str, float] = {}
            for num_splits in (None, *splits_to_try(num_requests * KV_HEADS, num_slots)):
                replay = captured(partial(ours, blocks=blocks, num_splits=num_splits))
                samples = per_call(time_in_turn({"ours": replay}, 5))["ours"]
                times["chosen" if num_splits is None else str(num_splits)] = summary(samples)["median"] / floor
            rows.append({"slots a tile": blocks.slots, "warps": blocks.num_warps, "stages": blocks.num_stages} | times)
        print(f"\n{num_requests} x {num_slots}, floor {floor:.3g} ms, by splits\n{table(rows)}", flush=True)


def splits_to_try(num_programs: int, num_slots: int) -> list[int]:
    """Those of one to four programs a multiprocessor, at least 256 slots each."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    wanted = {max(1, n * multiprocessors // num_programs) for n in (1, 2, 3, 4)}
    return sorted(n for n in wanted if n <= num_slots // 256)


def replay_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows, baselines = [], []
    for num_tokens in (2048, 8192, 32768):
        q, k, v = (_random(num_tokens, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
        region = torch.arange(num_tokens, device="cuda") * NUM_REGIONS // num_tokens
        ids = region.to(torch.uint8)
        band = Band.causal(0, query_position=0, window=None)

        ours = partial(attend_banded, q, k, v, band, SCALE, region=ids, num_regions=NUM_REGIONS)
        plain = partial(attend_banded, q, k, v, band, SCALE)
        mixed = (torch.arange(num_tokens, device="cuda") % NUM_REGIONS).to(torch.uint8)
        worst = partial(attend_banded, q, k, v, band, SCALE, region=mixed, num_regions=NUM_REGIONS)
        functions: dict[str, Callable[[], Any]] = {
            "region mass": ours,
            "region mass, regions alternate": worst,
            "the same without masses": plain,
        }
        functions |= stock_forwards(q, k, v)
        samples = {name: summary(s) for name, s in time_in_turn(functions, 7, num_warmups=2).items()}
        flops = 4 * HEADS * HEAD_DIM * num_tokens * (num_tokens + 1) / 2
        rate = {name: flops / s["median"] / 1e9 for name, s in samples.items()}
        best = max((n for n in rate if n.startswith("torch")), key=lambda n: rate[n])
        rows.append(
            {
                "tokens": num_tokens,
                "TFLOP": flops / 1e12,
                **{f"{name} TFLOP/s": r for name, r in rate.items()},
                "region mass ms": samples["region mass"],
                "share of the fastest": rate["region mass"] / rate[best],
                "fastest": best,
            }
        )
        if num_tokens <= 8192:
            masses = {
                "region mass": ours,
                "eager, output_attentions": eager(q, k, v, region),
                "softmax later": later(q, k, region),
            }
            peaks: dict[str, int] = {}
            times = time_in_turn(masses, 5, peaks=peaks)
            for name in masses:
                baselines.append(
                    {
                        "tokens": num_tokens,
                        "by": name,
                        "ms": summary(times[name]),
                        "times ours": summary(times[name])["median"] / summary(times["region mass"])["median"],
                        "peak MiB above the inputs": (peaks[name] - torch.cuda.memory_allocated()) / 2**20,
                    }
                )
    for num_tokens in (2048, 4096, 8192, 16384, 32768, 65536):  # memory of ours, by length
        q, k, v = (_random(num_tokens, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
        ids = torch.zeros(num_tokens, device="cuda", dtype=torch.uint8)
        band = Band.causal(0, query_position=0, window=None)
        ours = partial(attend_banded, q, k, v, band, SCALE, region=ids, num_regions=NUM_REGIONS)
        peaks = {}
        time_in_turn({"ours": ours}, 1, peaks=peaks)
        more = (peaks["ours"] - torch.cuda.memory_allocated()) / 2**20
        baselines.append({"tokens": num_tokens, "by": "region mass, memory", "peak MiB above the inputs": more})
    return rows, baselines


def stock_forwards(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], Any]]:
    """torch's own causal attention forwards on the same tensors, those that run on this card."""
    batched = [x.transpose(0, 1)[None] for x in (q, k, v)]
    found: dict[str, Callable[[], Any]] = {}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):

        def run(backend: SDPBackend = backend) -> object:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*batched, is_causal=True, scale=SCALE, enable_gqa=True)

        try:
            run()
        except RuntimeError as error:
            print(f"torch {name} does not run: {str(error).splitlines()[0]}", flush=True)
        else:
            found[f"torch {name}"] = run
    return found


def eager(q: Tensor, k: Tensor, v: Tensor, region: Tensor) -> Callable[[], Any]:
    """One layer of transformers with attn_implementation="eager", its probabilities summed by region."""
    module = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=False)
    batched = [x.transpose(0, 1)[None] for x in (q, k, v)]
    num = len(q)
    mask = torch.full((num, num), -torch.inf, device="cuda", dtype=DTYPE).triu(1)[None, None]
    columns = one_hot(region, NUM_REGIONS).to(DTYPE)

    def run() -> object:
        out, probability = eager_attention_forward(module, *batched, mask, scaling=SCALE)
        return out, probability @ columns

    return run


def later(q: Tensor, k: Tensor, region: Tensor) -> Callable[[], Any]:
    """q and k kept from the forward pass; the masses by a softmax of their own, some queries at a time, in float32."""
    columns = one_hot(region, NUM_REGIONS).float()
    slot = torch.arange(len(k), device="cuda")

    def run() -> object:
        keys = k.transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, dim=0)  # [head, slot, head_dim]
        masses = []
        for begin in range(0, len(q), QUERY_BLOCK):
            end = begin + QUERY_BLOCK
            logits = (q[begin:end].transpose(0, 1) @ keys[:, :end].transpose(1, 2)).float() * SCALE
            query = torch.arange(begin, end, device="cuda")[:, None]
            logits = logits.masked_fill(slot[:end] > query, -torch.inf)
            masses.append(logits.softmax(-1) @ columns[:end])
        return torch.cat(masses, dim=1)

    return run


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=DTYPE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="runs/benchmarks")
    parser.add_argument(
        "--tune", action="store_true", help="print decode times by tiles and splits, and do nothing else"
    )
    arguments = parser.parse_args()
    if arguments.tune:
        tune_decode()
        return
    out = Path(arguments.out)
    write(out, "region_mass_decode", decode_rows(), copy_bandwidth_bytes_per_second=copy_bandwidth())
    torch.cuda.empty_cache()
    rows, baselines = replay_rows()
    write(out, "region_mass_replay", rows)
    write(out, "region_mass_baselines", baselines)


if __name__ == "__main__":
    main()
