"""The live loop against what a user would run instead, on the same models: tokens per second, greedy, one request a time.

`python -m benchmarks.live [OUT] [--device cuda --dtype bfloat16] [--assistant FOLDER] [--batch 8]`: the built-in target and
drafter. "eagle loop" is the loop of the EAGLE authors' code in its shape (draft K one by one, verify, keep; plain PyTorch,
keys and values concatenated), written here; "assisted" is transformers' assisted generation with a draft model, where one
is given; "prompt lookup" the same with the prompt's own n-grams. Every prompt goes through all of them in turn; a ratio is
taken prompt by prompt.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM

from benchmarks.timing import summary, synchronize, write
from driftscope.builtin import resolve_drafter, resolve_target, sample_prompts
from driftscope.prompts import read_prompts
from probes.attention.slots import text_regions
from probes.chain.live import LiveOptions, record_live, run_live_batch
from probes.conditions import Job
from probes.drafter.model import Drafter
from probes.job.loaded import load_models
from probes.prompt.rendering import render
from probes.record import TEXT_REGIONS, PromptRecord
from probes.target.family import new_cache
from probes.target.model import Target
from probes.target.sampler import Sampler

DEPTH = 7


class EagleLoop:
    """Draft K, verify, accept: the plain way, one request, greedy."""

    def __init__(self, drafter: Drafter, target: Target) -> None:
        self.drafter, self.target = drafter, target

    def _read(self, token_ids: Tensor, hidden: Tensor, first: int, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The stream of these slots; `past` [layer] of (keys, values) grows by them."""
        embeds = self.drafter.embed_tokens(token_ids)
        rotation = self.drafter.rotation(torch.arange(first, first + len(token_ids), device=token_ids.device))
        for index, layer in enumerate(self.drafter.layers):
            q, k, v, residual = layer.project(embeds, hidden, rotation)
            if index < len(past):
                k, v = torch.cat([past[index][0], k]), torch.cat([past[index][1], v])
                past[index] = (k, v)
            else:
                past.append((k, v))
            mask = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).tril(len(k) - len(q))
            if layer.window is not None:
                mask = mask.triu(len(k) - len(q) - layer.window + 1)
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            hidden = layer.finish(out[0].transpose(0, 1).flatten(-2), residual)
        return hidden

    @torch.inference_mode()
    def __call__(self, prompt: np.ndarray, max_new_tokens: int) -> list[int]:
        target, drafter = self.target, self.drafter
        ids = torch.as_tensor(prompt, dtype=torch.int64, device=target.device)
        cache = new_cache(target.config)
        logits, states = target.forward(ids[None], cache)
        text = torch.cat([ids, logits[0, -1:].argmax(-1)])
        past: list[tuple[Tensor, Tensor]] = []
        new = {i: s[0] for i, s in states.items()}  # of the slots that the drafter has not read
        end = len(prompt) + max_new_tokens
        while len(text) < end and not target.stop_ids & set(text[len(prompt) :].tolist()):
            first = past[0][0].shape[0] if past else 0
            fused = drafter.true_state(drafter.features(new, slice(0, len(text) - 1 - first)))
            stream = self._read(text[first + 1 :], fused, first, past)[-1:]
            verified = list(past)
            drafts: list[Tensor] = []
            for k in range(DEPTH):
                logits, feedback = drafter.predict(stream)
                drafts.append(drafter.to_target_ids(logits.argmax(-1)))
                if k + 1 < DEPTH:
                    stream = self._read(drafts[-1], feedback, len(text) - 1 + k, past)
            past = verified
            drafted = torch.cat(drafts)
            logits, states = target.forward(torch.cat([text[-1:], drafted])[None], cache, num_logits=DEPTH + 1)
            chosen = logits[0].argmax(-1)
            accepted = int((chosen[:-1] == drafted).long().cumprod(0).sum())
            if accepted < DEPTH:
                cache.crop(accepted - DEPTH)
            new = {i: s[0, : accepted + 1] for i, s in states.items()}
            text = torch.cat([text, chosen[: accepted + 1]])
        return text[len(prompt) :].tolist()


def cut(tokens: list[int], stop_ids: frozenset[int], max_new_tokens: int) -> list[int]:
    """The response: up to its first stop token, at most `max_new_tokens`."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in stop_ids), len(tokens))
    return tokens[: min(end, max_new_tokens)]


def generate(target: Target, prompt: np.ndarray, max_new_tokens: int, **options: Any) -> list[int]:
    ids = torch.as_tensor(prompt, dtype=torch.int64, device=target.device)[None]
    mask = torch.ones_like(ids)
    stops = sorted(target.stop_ids)
    out = target.model.generate(
        ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=stops,
        pad_token_id=stops[0], **options,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def systems(drafter: Drafter, target: Target, assistant: Any, n: int) -> dict[str, Callable[[np.ndarray], list[int]]]:
    def live(prompt: np.ndarray, *, records: bool = False, **options: bool) -> list[int]:
        live_options = LiveOptions(depth=DEPTH, max_new_tokens=n, sampler=Sampler(), **options)
        trace, rounds = run_live_batch(drafter, target, [prompt], ["0"], live_options)[0]
        if records and rounds.starts:
            region = text_regions(np.full(len(prompt), TEXT_REGIONS.index("user"), np.uint8), len(trace.token_ids))
            record = PromptRecord(
                prompt_id="0", system_prompt="default", template="default", context_tokens=0,
                token_ids=trace.token_ids.cpu().numpy(), region=region, num_prompt_tokens=len(prompt),
                num_response_tokens=trace.num_response_tokens, num_continuation_tokens=0, finish_reason="length",
            )  # fmt: skip
            record_live(drafter, trace, rounds, record, name="d")
        return trace.token_ids[len(prompt) :].tolist()

    eagle = EagleLoop(drafter, target)
    found: dict[str, Callable[[np.ndarray], list[int]]] = {
        "plain generate": lambda p: generate(target, p, n),
        "prompt lookup": lambda p: generate(target, p, n, prompt_lookup_num_tokens=DEPTH),
        "eagle loop": lambda p: eagle(p, n),
        "live": live,
        "live, recorded": lambda p: live(p, records=True),
    }
    if target.device.type == "cuda":
        found["live without a graph"] = lambda p: live(p, use_graph=False)
    if assistant is not None:
        found["assisted"] = lambda p: generate(target, p, n, assistant_model=assistant)
    return found


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    synchronize()
    begin = time.perf_counter()
    result = function()
    synchronize()
    return result, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", default="runs/benchmarks")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--drafter", default="demo:eagle3.1")
    parser.add_argument("--assistant", default=None, help="a causal LM with the target's tokenizer")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    arguments = parser.parse_args()
    job = Job(
        target=resolve_target("demo"), drafters={"d": resolve_drafter(arguments.drafter)}, prompts=(),
        device=arguments.device, dtype=arguments.dtype,
    )  # fmt: skip
    models = load_models(job)
    target, drafter = models.target, models.drafters[0].model
    assistant = None
    if arguments.assistant:
        assistant = AutoModelForCausalLM.from_pretrained(arguments.assistant, dtype=getattr(torch, arguments.dtype)).to(
            arguments.device
        )
    asked = read_prompts(sample_prompts() / "user_turns.jsonl").prompts[: arguments.prompts]
    prompts = [render(target.tokenizer, [dict(m) for m in p.messages]).token_ids for p in asked]

    n = arguments.max_new_tokens
    functions = systems(drafter, target, assistant, n)
    for function in functions.values():
        function(prompts[0])
    rates: dict[str, list[float]] = {name: [] for name in functions}
    num_equal = dict.fromkeys(functions, 0)
    for prompt in prompts:
        plain: list[int] = []
        for name, function in functions.items():
            tokens, seconds = timed(lambda: function(prompt))  # noqa: B023
            tokens = cut(tokens, target.stop_ids, n)
            plain = plain or tokens
            num_equal[name] += tokens == plain
            rates[name].append(len(tokens) / seconds)
    rows: list[dict[str, Any]] = [
        {
            "what": name,
            "tokens/s": summary(rates[name]),
            "times plain generate": summary([a / b for a, b in zip(rates[name], rates["plain generate"], strict=True)]),
            "times eagle loop": summary([a / b for a, b in zip(rates[name], rates["eagle loop"], strict=True)]),
            "equal texts": f"{num_equal[name]} of {len(prompts)}",
        }
        for name in functions
    ]
    batched = []
    for begin in range(0, len(prompts), arguments.batch):
        batch = prompts[begin : begin + arguments.batch]
        names = [str(i) for i in range(len(batch))]
        options = LiveOptions(depth=DEPTH, max_new_tokens=n, sampler=Sampler())
        lived, seconds = timed(lambda: run_live_batch(drafter, target, batch, names, options))  # noqa: B023
        batched.append(sum(trace.num_response_tokens for trace, _ in lived) / seconds)
    rows.append({"what": f"live, {arguments.batch} requests at once", "tokens/s": summary(batched)})
    write(
        Path(arguments.out), "live", rows, device=arguments.device, dtype=arguments.dtype, drafter=arguments.drafter,
        depth=DEPTH, max_new_tokens=n, threads=torch.get_num_threads(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
