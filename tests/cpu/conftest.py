"""Triton kernels run in its interpreter here. It must know before triton is imported for the first time."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
