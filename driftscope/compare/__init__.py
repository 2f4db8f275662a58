"""Conditions on the same prompts, paired: differences with intervals, and the gate over them.

Reads runs through `driftscope.runs`, takes the summary's sums, computes with `driftscope.stats`; knows no display.
"""

from driftscope.compare.compare import compare
from driftscope.compare.comparison import (
    ComparedCondition,
    Comparison,
    ComparisonCell,
    Gate,
    GateCell,
    MetricDifference,
    NotCompared,
)
from driftscope.compare.gate import GateExpression, parse_gate
from driftscope.compare.metrics import METRIC_HELP, metric_of

__all__ = [
    "METRIC_HELP",
    "ComparedCondition",
    "Comparison",
    "ComparisonCell",
    "Gate",
    "GateCell",
    "GateExpression",
    "MetricDifference",
    "NotCompared",
    "compare",
    "metric_of",
    "parse_gate",
]
