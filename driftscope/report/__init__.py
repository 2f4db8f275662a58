"""The HTML report: one self-contained, offline file of one or several runs.

Statistics come from `summary`, `diagnosis`, `advise` and `stats`, figures from `figures`: the report only chooses and lays
out. Everything that came from a file is text to it, never markup.
"""

from driftscope.report.page import Report, make_report, write_report

__all__ = ["Report", "make_report", "write_report"]
