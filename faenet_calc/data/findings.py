"""What a check of training data says: findings with a weight, and their report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from faenet_calc.data.inspection import Facts

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something about a data set.

    Attributes:
        code: A fixed word for it.
        severity: "error", "warning" or "note".
        count: How many structures (or elements) it concerns.
        message: What was found.
        advice: What to do.
        examples: Some of the structures.
    """

    code: str
    severity: Severity
    count: int
    message: str
    advice: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """The findings about a data set, worst first.

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
        """How many findings of this weight there are."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; warnings may remain."""
        return self.count("error") == 0


def about(code: str, severity: Severity, facts: Sequence[Facts], message: str, advice: str) -> Iterator[Finding]:
    """A finding about these structures; none if there are none."""
    if facts:
        yield Finding(
            code=code,
            severity=severity,
            count=len(facts),
            message=message,
            advice=advice,
            examples=tuple(fact.name for fact in facts[:_EXAMPLES]),
        )
