"""`driftscope check`: what files alone show about a target and its drafter. No torch, no transformers.

`pair` reads, `rules/` find, `engines/` say what each engine makes of the same files, `table` compares, `coverage` counts
what the draft vocabulary reaches. `registry` lists every check with its stable id; docs/checks is made of it.
"""

from driftscope.check.check_report import CheckList, CheckReport
from driftscope.check.run import check_pair, list_checks

__all__ = ["CheckList", "CheckReport", "check_pair", "list_checks"]
