"""Acceptance from and to other tools: `read` an engine's metrics into requests, `store` them as a run; `export` a run.

An imported run has acceptance columns only. What a source does not determine is not made up: it is left out, counted and
said. Knows nothing of prompts' text, models or display.
"""

from driftscope.import_export.read import SOURCES, AcceptanceFile, read_acceptance
from driftscope.import_export.store import ImportOptions, store_run

__all__ = ["SOURCES", "AcceptanceFile", "ImportOptions", "read_acceptance", "store_run"]
