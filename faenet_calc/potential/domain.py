"""TrainingDomain: ranges of the training data of a potential, and whether a prediction is plausible beside them."""

from dataclasses import dataclass, field

import numpy as np
from ase.data import covalent_radii
from numpy.typing import NDArray

from faenet_calc import elements
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.prediction import Prediction

# How far beyond the training data a prediction may be.
_ENERGY_MARGIN = 0.5  # of the width of the training range, on both sides
_FORCE_MARGIN = 2.0  # times the largest training force
_CLOSER = 0.85  # of the shortest training distance
_UNCERTAINTY_MARGIN = 3.0  # times the training quantile
_DISTANCE_MARGIN = 2.0  # times the distance of the farthest training atoms


@dataclass(frozen=True, kw_only=True)
class TrainingDomain:
    """Ranges of the training data.

    Attributes:
        lowest_energy: (eV/atom) smallest energy label after subtraction of the references.
        highest_energy: (eV/atom) largest one.
        largest_force: (eV/Å) largest force label on an atom; None without force labels.
        shortest: (Å) shortest distance of each pair of elements, e.g. {"Cu-O": 1.71}; symbols by atomic number.
        uncertainty: (eV/atom) exceeded by one in a thousand training structures.
        n_structures: Number of training structures that were examined.
    """

    lowest_energy: float
    highest_energy: float
    largest_force: float | None = None
    shortest: dict[str, float] = field(default_factory=dict)
    uncertainty: float
    n_structures: int = 0


class DomainGuard:
    """Compares predictions with a training domain.

    Args:
        domain: The ranges.
        references: (eV) reference energies by atomic number.
    """

    def __init__(self, domain: TrainingDomain, references: tuple[float, ...]) -> None:
        self.domain = domain
        width = domain.highest_energy - domain.lowest_energy
        self.energies = domain.lowest_energy - _ENERGY_MARGIN * width, domain.highest_energy + _ENERGY_MARGIN * width
        self._references = np.array(references)
        shortest = np.zeros((elements.MAX_Z + 1, elements.MAX_Z + 1))
        for pair, distance in domain.shortest.items():
            one, other = (elements.atomic_number(symbol) for symbol in pair.split("-"))
            bond = float(covalent_radii[one] + covalent_radii[other])  # elements that never met may still touch
            shortest[one, other] = shortest[other, one] = _CLOSER * min(distance, bond)
        self._shortest = shortest

    def reasons(self, graph: AtomGraph, prediction: Prediction) -> tuple[str, ...]:
        """Why the prediction of one structure is outside the domain; empty if it is inside.

        Args:
            graph: The structure.
            prediction: With energy, energy_uncertainty and domain_distance, and forces if they were computed.
        """
        found = []
        numbers, n = graph.atomic_numbers.cpu().numpy(), graph.n_atoms
        assert prediction.energy_uncertainty is not None and prediction.domain_distance is not None
        if close := self._too_close(graph, numbers):
            found.append(close)
        energy = (float(prediction.energy[0]) - float(self._references[numbers].sum())) / n
        low, high = self.energies
        if not low <= energy <= high:
            found.append(
                f"energy of {energy:.4g} eV/atom above the references (training data: {self.domain.lowest_energy:.2f} "
                f"to {self.domain.highest_energy:.2f})"
            )
        if prediction.forces is not None and self.domain.largest_force is not None:
            force = float(np.linalg.norm(prediction.forces.cpu().numpy(), axis=1).max())
            if not force <= _FORCE_MARGIN * self.domain.largest_force:
                found.append(f"force of {force:.4g} eV/Å (training data: up to {self.domain.largest_force:.1f})")
        deviation = float(prediction.energy_uncertainty[0]) / n
        if not deviation <= _UNCERTAINTY_MARGIN * self.domain.uncertainty:
            found.append(
                f"energy uncertainty of {deviation:.3g} eV/atom (99.9 % of the training data: below "
                f"{self.domain.uncertainty:.2g})"
            )
        farthest = int(prediction.domain_distance.argmax())
        distance = float(prediction.domain_distance[farthest])
        if not distance <= _DISTANCE_MARGIN:
            found.append(
                f"environment of atom {farthest} ({elements.symbol(int(numbers[farthest]))}) unlike any in the "
                f"training data (distance {distance:.3g}; 99.9 % of the training atoms: below 1)"
            )
        return tuple(found)

    def _too_close(self, graph: AtomGraph, numbers: NDArray[np.int64]) -> str | None:
        """The pair of atoms that is closest in comparison with the training data, if too close."""
        positions, cell, shift, centre, neighbor = (
            tensor.detach().cpu().numpy()
            for tensor in (graph.positions, graph.cell[0], graph.shift, graph.centre, graph.neighbor)
        )
        vectors = positions[neighbor] + shift @ cell - positions[centre]
        distances = np.sqrt(np.einsum("ei,ei->e", vectors, vectors))
        limits = self._shortest[numbers[centre], numbers[neighbor]]
        if not (distances < limits).any():
            return None
        with np.errstate(divide="ignore"):
            edge = int(np.argmin(distances / limits))
        one, other = (elements.symbol(int(numbers[atom])) for atom in (centre[edge], neighbor[edge]))
        return (
            f"atoms {centre[edge]} and {neighbor[edge]} ({one}-{other}) {distances[edge]:.2f} Å apart (training data: "
            f"{limits[edge] / _CLOSER:.2f} or more)"
        )
