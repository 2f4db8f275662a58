"""Which depth K: expected speed against plain decoding, from walk acceptance and the costs of a draft and a verify.

Reads runs through `driftscope.runs`, computes with `driftscope.stats`; measures nothing, knows no display.
"""

from driftscope.advise.advice import Advice, ConditionAdvice, DepthAdvice, Recommendation
from driftscope.advise.advise import advise
from driftscope.advise.costs import RoundCosts, given_costs

__all__ = [
    "Advice",
    "ConditionAdvice",
    "DepthAdvice",
    "Recommendation",
    "RoundCosts",
    "advise",
    "given_costs",
]
