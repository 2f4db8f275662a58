"""vLLM's entrance: `register` is called in every process of `vllm serve` (entry point group `vllm.general_plugins`).

Without VLLM_DRIFTSCOPE_CONFIG it imports nothing and patches nothing. A configuration that cannot be used, or a vLLM
that the recorder does not know, is logged once: the server answers its requests unrecorded.
"""

from __future__ import annotations

import os

VARIABLE = "VLLM_DRIFTSCOPE_CONFIG"
"""Names the TOML file; vLLM hands variables that begin with VLLM_ on to its workers."""


def register() -> None:
    """Records a share of the requests as the configuration file says. Raises nothing."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    from driftscope.vllm_plugin.start import start

    start(path)
