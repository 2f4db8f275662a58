"""What a check is: data with a stable id, from which findings take their title and docs/checks its pages.

Knows no checkpoint. The modules of `rules/` hold the checks beside the code that raises them.
"""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.check.check_report import Finding, Severity


@dataclass(frozen=True, kw_only=True)
class Check:
    """`severity` is the usual one. `reader_codes`: findings and refusals of the checkpoint reader that belong here."""

    id: str
    name: str
    title: str
    severity: Severity
    why: str  # what goes wrong and how it shows; for the page
    evidence: str  # what is looked at
    remedy: str
    reader_codes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # public addresses

    @property
    def page(self) -> str:
        return f"docs/checks/{self.id}.md"

    def finding(
        self,
        evidence: str,
        *,
        where: str,
        remedy: str = "",
        severity: Severity | None = None,
        engines: tuple[str, ...] = (),
    ) -> Finding:
        """This check raised. `remedy` and `severity` replace the usual ones."""
        return Finding(
            id=self.id,
            name=self.name,
            severity=severity or self.severity,
            what=self.title,
            where=where,
            evidence=evidence,
            remedy=remedy or self.remedy,
            engines=engines,
        )
