"""What both runners' hooks share: a method wrapped, the row's layout from a loaded drafter, the scheduler's requests.

What is wrapped is an instance's method, so an engine without a recorder is vLLM's own code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from probes.vllm.recorder import Recorder
from probes.vllm.requests import NewRequest
from probes.vllm.rows import HOOKED, RowLayout
from probes.vllm.versions import refuse_unknown

NOT_RECORDED = {
    "pipeline_parallel_size": "the drafter is on the last stage only; use tensor parallelism alone",
    "decode_context_parallel_size": "no worker has all keys of a request",
    "prefill_context_parallel_size": "no worker has all keys of a request",
}
"""Ways of vLLM to spread a model over workers, and why an engine that uses them is not recorded."""

WARM_UPS = ("_warmup_", "_v2_mixed_warmup_", "_sparse_mla_v2_warmup_")
"""How the ids of requests begin that nobody made: the V2 runner steps through some before it serves, like any other
(v1/worker/gpu/warmup.py in 0.26.0)."""


def refuse_unsupported(config: Any) -> None:
    """Raises NotImplementedError for an engine (`VllmConfig`) whose drafter is not recorded."""
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None:
        raise NotImplementedError("the engine was started without speculation: give it a speculative_config")
    if speculative.method != "eagle3":
        raise NotImplementedError(f"speculative method {speculative.method!r}: only eagle3 is recorded")
    for name, reason in NOT_RECORDED.items():
        if getattr(parallel, name, 1) > 1:
            raise NotImplementedError(f"{name} = {getattr(parallel, name)}: {reason}")


def prepare(recorder: Recorder, runner: Any, model: Any, *, runner_name: str, device: torch.device) -> None:
    """Allocates the recorder's rows for this drafter. Raises NotImplementedError for what was never read."""
    refuse_unknown(runner_name)
    config = runner.vllm_config
    speculative = config.speculative_config
    inner = model.model
    attention = inner.layers[0].self_attn.attn
    recorder.runner_name = runner_name
    recorder.attention_backend = type(attention.impl).__name__.removesuffix("Impl")
    is_eager = int(getattr(config.compilation_config.mode, "value", config.compilation_config.mode) or 0) == 0
    recorder.prepare(
        RowLayout(
            level=recorder.config.level,
            depth=speculative.num_speculative_tokens,
            num_aux=getattr(inner, "num_aux_hidden_states", None) or 1,
            num_layers=len(inner.layers),
            num_heads=attention.impl.num_heads,
            num_ranks=num_head_ranks(inner.layers[0].self_attn),
            is_eager=is_eager,
        ),
        num_rows=config.scheduler_config.max_num_seqs,
        max_model_len=config.model_config.max_model_len,
        device=device,
    )
    if not is_eager:
        reason = "compiled code calls no hooks inside the layer"
        for name in HOOKED:
            recorder.unmeasured[name] = reason
    # a compiled drafter without the residual norm's operator must not be taken from vLLM's compilation cache
    additional = config.additional_config
    if isinstance(additional, dict):
        additional["driftscope_level"] = recorder.config.level


def num_head_ranks(attention: Any) -> int:
    """Over how many tensor parallel workers the query heads of this attention layer are split."""
    return int(attention.total_num_heads) // int(attention.num_heads)


def schedule(recorder: Recorder, output: Any) -> None:
    """The scheduler's output of a step that begins."""
    recorder.requests_changed(
        [_new_request(new) for new in output.scheduled_new_reqs if not new.req_id.startswith(WARM_UPS)],
        output.finished_req_ids,
        output.preempted_req_ids or (),
    )
    num_drafts = {request: len(tokens) for request, tokens in output.scheduled_spec_decode_tokens.items()}
    recorder.begin_step(list(output.num_scheduled_tokens), num_drafts)


def _new_request(new: Any) -> NewRequest:
    """From the scheduler's description; `eos_token_id` of the sampling parameters is None where it is ignored."""
    sampling = new.sampling_params
    return NewRequest(
        request_id=new.req_id,
        prompt_token_ids=new.prompt_token_ids or (),
        extra_args=(sampling and sampling.extra_args) or {},
        temperature=sampling.temperature if sampling else 0.0,
        max_tokens=sampling.max_tokens if sampling else None,
        stop_token_ids=(sampling and sampling.stop_token_ids) or (),
        eos_token_id=sampling.eos_token_id if sampling else None,
    )


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replaces one instance's method by `around(the method, *its arguments)`."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(method, *args, **kwargs)

    setattr(owner, name, wrapped)
