"""For every test: no network, one thread for torch's small operations (several only wait for each other).

Hypothesis takes the same inputs each time, so that a commit's tests pass or fail for the commit's reasons; `make fuzz`
searches with new ones.
"""

from __future__ import annotations

import os
from contextlib import suppress

with suppress(ModuleNotFoundError):  # the environments with vLLM have none, nor a test that needs it
    from hypothesis import settings

    settings.register_profile("repeatable", derandomize=True)
    settings.register_profile("new_inputs", derandomize=False, print_blob=True)
    settings.register_profile("fuzz", settings.get_profile("new_inputs"), max_examples=2_000)
    settings.load_profile("repeatable")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
