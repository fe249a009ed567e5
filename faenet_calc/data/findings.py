"""Findings of a check of training data, and their report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from faenet_calc.data.inspection import Facts

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding about a data set.

    Attributes:
        code: Identifier of the kind of finding.
        severity: "error", "warning" or "note".
        count: Number of structures (or elements) concerned.
        message: What was found.
        advice: What to do about it.
        examples: Names of some of the structures.
    """

    code: str
    severity: Severity
    count: int
    message: str
    advice: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """Findings about a data set, sorted by severity.

    Attributes:
        n_structures: Structures read.
        n_atoms: Atoms of all structures.
        n_energies: Structures with an energy.
        n_forces: Structures with forces.
        n_stresses: Structures with a stress.
        elements: Symbols that occur.
        findings: What was found.
    """

    n_structures: int
    n_atoms: int
    n_energies: int
    n_forces: int
    n_stresses: int
    elements: tuple[str, ...]
    findings: tuple[Finding, ...]

    def count(self, severity: Severity) -> int:
        """Number of findings of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return self.count("error") == 0


def about(code: str, severity: Severity, facts: Sequence[Facts], message: str, advice: str) -> Iterator[Finding]:
    """Yield one finding about the given structures, or nothing if there are none."""
    if facts:
        yield Finding(
            code=code,
            severity=severity,
            count=len(facts),
            message=message,
            advice=advice,
            examples=tuple(fact.name for fact in facts[:_EXAMPLES]),
        )
