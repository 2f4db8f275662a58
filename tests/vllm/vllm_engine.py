"""A vLLM engine on the CPU in this process, and a record of all that its drafter is given and gives back.

Written for vLLM 0.32.0, whose CPU engine uses the V1 runner: `model_runner.drafter.model` is vLLM's own
`Eagle3LlamaForCausalLM`. Nothing in the engine is replaced: the wrappers call the original and keep copies.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ForwardCall:
    """One forward of the drafter's decoder: all new slots at depth 1, one slot at each later depth."""

    token_ids: Tensor  # [slot]
    positions: Tensor  # [slot]
    hidden: Tensor  # [slot, hidden] what enters the layer
    feedback: Tensor  # [slot, hidden] what vLLM would feed back
    logits: Tensor  # [slot, vocab] over the target's ids, -inf outside the draft vocabulary


@dataclass(kw_only=True)
class Proposal:
    """What one call of `EagleProposer.propose` did: one round's drafts, for a batch of one request."""

    aux: Tensor  # [slot, fused] the target's states as vLLM captured them
    fused: Tensor  # [slot, hidden]
    calls: list[ForwardCall] = field(default_factory=list)
    draft_token: Tensor | None = None  # [depth]


@contextmanager
def engine(target: Path | str, drafter: Path | str, *, depth: int, **options: object) -> Iterator[object]:
    """A `vllm.LLM` in float32 without compilation; gone, with its process groups, on leaving."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(
        model=str(target),
        speculative_config={"method": "eagle3", "model": str(drafter), "num_speculative_tokens": depth},
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        per_request_spec_decode_metrics="detailed",
        **options,
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def proposer(llm: object) -> object:
    """vLLM's `EagleProposer`; its `.model` is the drafter."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner.drafter


@contextmanager
def recorded(llm: object) -> Iterator[list[Proposal]]:
    """While inside, every proposal is appended to the list; the engine's tensors are copied, its buffers are reused."""
    drafter = proposer(llm)
    model = drafter.model
    proposals: list[Proposal] = []
    combine, forward, propose = model.combine_hidden_states, model.forward, drafter.propose

    def recording_combine(aux: Tensor) -> Tensor:
        fused = combine(aux)
        proposals.append(Proposal(aux=aux.clone(), fused=fused.clone()))
        return fused

    def recording_forward(
        input_ids: Tensor, positions: Tensor, hidden_states: Tensor, inputs_embeds: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        assert inputs_embeds is None, "a text-only drafter is given token ids"
        token_ids, at, hidden = input_ids.clone(), positions.clone(), hidden_states.clone()
        normed, feedback = forward(input_ids, positions, hidden_states)
        proposals[-1].calls.append(
            ForwardCall(
                token_ids=token_ids,
                positions=at,
                hidden=hidden,
                feedback=feedback.clone(),
                logits=model.compute_logits(normed).clone(),
            )
        )
        return normed, feedback

    def recording_propose(*args: object, **kwargs: object) -> Tensor:
        drafts = propose(*args, **kwargs)
        assert drafts.shape[0] == 1, "the record is of one request at a time"
        proposals[-1].draft_token = drafts[0].clone()
        return drafts

    model.combine_hidden_states, model.forward, drafter.propose = (
        recording_combine,
        recording_forward,
        recording_propose,
    )
    try:
        yield proposals
    finally:
        del model.combine_hidden_states, model.forward, drafter.propose


@dataclass(frozen=True, kw_only=True)
class Generated:
    token_ids: list[int]
    finish_reason: str
    accepted_drafts: list[int]  # [round], counted before vLLM trims at the stop
    num_drafts: list[int]  # [round]


def generate(llm: object, prompts: list[list[int]], *, max_tokens: int, ignore_eos: bool = False) -> list[Generated]:
    """Greedy; one result for each prompt, in order."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
    results = []
    for output in outputs:
        completion = output.outputs[0]
        metrics = completion.spec_decode_metrics
        results.append(
            Generated(
                token_ids=list(completion.token_ids),
                finish_reason=completion.finish_reason,
                accepted_drafts=list(metrics.per_step_accepted),
                num_drafts=list(metrics.per_step_drafted),
            )
        )
    return results
