"""Shapes are checked here: every call in the rooms that hold tensors has its annotations tested (jaxtyping, beartype).

Triton kernels run in its interpreter, whose programs no decorator may wrap. Both must be known before the modules are
imported for the first time.
"""

from __future__ import annotations

import os
from pathlib import Path

from jaxtyping import install_import_hook

os.environ.setdefault("TRITON_INTERPRET", "1")

PROBES = Path(__file__).parents[2] / "probes"
ROOMS = ("attention", "chain", "drafter", "interventions", "job", "target", "vllm")
# nothing may look at what a client sent, a check of its items no more than others
UNREAD = PROBES / "vllm" / "requests.py"
FILES = [
    file
    for room in ROOMS
    for file in (PROBES / room).rglob("*.py")
    if file != UNREAD and "@triton.jit" not in file.read_text()
]
install_import_hook(
    [".".join(file.relative_to(PROBES.parent).with_suffix("").parts) for file in FILES], "beartype.beartype"
)
