"""The summary of a run: means and intervals by condition, what `driftscope show` prints and the app starts from.

Reads runs through `driftscope.runs`, computes with `driftscope.stats`; knows no display.
"""

from driftscope.summary.run_summary import ConditionSummary, DepthIntervals, FusionShares, Summary, TokensPerRound
from driftscope.summary.summarise import summarise
from driftscope.summary.table import summary_table, write_summary

__all__ = [
    "ConditionSummary",
    "DepthIntervals",
    "FusionShares",
    "Summary",
    "TokensPerRound",
    "summarise",
    "summary_table",
    "write_summary",
]
