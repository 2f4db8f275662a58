"""vLLM reads its settings from the environment at import: they are made here, before any test module is collected."""

import os

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",  # GiB, the smallest it takes
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in this process, so that its drafter can be reached
    VLLM_USE_FLASHINFER_SAMPLER="0",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_CPU_OMP_THREADS_BIND="nobind",  # two workers on one NUMA node: vLLM would refuse to bind them
)
