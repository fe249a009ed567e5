"""Guard: marks results outside the domain of the training data, and warns or raises.

Along a trajectory, uncertainty, environments and distances are examined again only when an atom has moved by ``MOVED``
since they were last found well inside their limits, as neighbor lists are: they do not change much over such a step.
Energy and forces are examined at every step.
"""

from typing import Any, Literal

import numpy as np
from ase import Atoms
from ase.calculators.calculator import CalculationFailed
from numpy.typing import NDArray

from faenet_calc.errors import OutsideDomainWarning, warn_user
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.capabilities import GUARDED
from faenet_calc.potential.committee import Committee
from faenet_calc.potential.domain import DomainGuard
from faenet_calc.potential.prediction import Prediction

OnOutside = Literal["error", "warn", "ignore"]

MOVED = 0.05
"""(Å) displacement after which a structure is examined in full again."""
_NAMED = 2  # reasons in a warning; the results have all of them


class Guard:
    """Compares predictions with the training domains of all members of a committee.

    Args:
        committee: The potentials. If one of them lacks a domain, nothing is compared; if one lacks an uncertainty,
            uncertainties and environments are not.
        on_outside_domain: What to do about predictions outside; "ignore" compares nothing.

    Attributes:
        properties: What a prediction must have to be compared in full; empty if nothing is, or without uncertainty.
    """

    def __init__(self, committee: Committee, on_outside_domain: OnOutside) -> None:
        self._on_outside, self._warned = on_outside_domain, False
        self._guards: list[DomainGuard] = []
        for member in committee.members if on_outside_domain != "ignore" else ():
            if member.config.domain is None:
                self._guards = []
                break
            references = member.config.normalization.reference_table
            self._guards.append(DomainGuard(member.config.domain, references, member.cutoff))
        fitted = all(member.uncertainty is not None for member in committee.members)
        self.properties = GUARDED if self._guards and fitted else frozenset[str]()
        self._inside: tuple[bytes, NDArray[np.float64]] | None = None  # the last structure that was well inside

    def is_near(self, atoms: Atoms) -> bool:
        """Whether a structure is, within ``MOVED``, the last one that was found well inside the domain."""
        if self._inside is None:
            return False
        kind, positions = self._inside
        return kind == _kind(atoms) and bool(np.abs(atoms.positions - positions).max() <= MOVED)

    def results(
        self, graph: AtomGraph, prediction: Prediction, where: str = "", *, examined: Atoms | None = None
    ) -> dict[str, Any]:
        """The results "domain" ("inside" or "outside") and, if outside, "why" (str) of one structure.

        Args:
            graph: The structure.
            prediction: With :attr:`properties`, unless the structure is known to be well inside.
            where: Prefix of messages that names the structure.
            examined: The structure, to be remembered if it is well inside and not changed by the caller; None for one
                that :meth:`is_near` another.

        Raises:
            CalculationFailed: The structure is outside and ``on_outside_domain`` is "error".
        """
        if not self._guards:
            return {}
        verdicts = [guard.verdict(graph, prediction) for guard in self._guards]
        if examined is not None:
            inside = all(verdict.well_inside for verdict in verdicts)
            self._inside = (_kind(examined), examined.positions) if inside else None
        reasons = [reason for verdict in verdicts for reason in verdict.reasons]
        if not reasons:
            return {"domain": "inside"}
        reasons = list(dict.fromkeys(reasons))
        why, outside = "; ".join(reasons), f"{where}outside the domain of the model"
        if self._on_outside == "error":
            raise CalculationFailed(
                f"{outside}: {why}. Use a model trained on such structures; on_outside_domain='warn' returns the "
                "results."
            )
        if not self._warned:
            self._warned = True
            first, n_more = "; ".join(reasons[:_NAMED]), len(reasons) - _NAMED
            rest = f"; and {n_more} more (results['why'])" if n_more > 0 else ""
            warn_user(
                f"{outside}: {first}{rest}. The results are unreliable. This warning is given once; results['domain'] "
                "marks every such structure",
                OutsideDomainWarning,
            )
        return {"domain": "outside", "why": why}


def _kind(atoms: Atoms) -> bytes:
    """What must be equal in structures that are near each other: elements, cell and periodicity."""
    return atoms.numbers.tobytes() + atoms.cell.array.tobytes() + atoms.pbc.tobytes()
