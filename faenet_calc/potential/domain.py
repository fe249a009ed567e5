"""TrainingDomain: ranges of the training data of a potential, and whether a prediction is plausible beside them."""

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from ase.data import covalent_radii
from numpy.typing import NDArray
from torch import Tensor

from faenet_calc import elements
from faenet_calc.errors import enumerated
from faenet_calc.frames.open_directions import n_closed
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.graphs.tags import NONMETALS
from faenet_calc.potential.edge_lengths import EdgeLengths
from faenet_calc.potential.prediction import Prediction

# How far beyond the training data a prediction may be.
_ENERGY_MARGIN = 0.5  # of the width of the training range, on both sides
_FORCE_MARGIN = 2.0  # times the largest training force
_FEW_ENERGY_MARGIN = 1.0  # (eV/atom) at least, where few training structures do not span the plausible range
_FEW_LARGEST_FORCE = 20.0  # (eV/Å) at least, likewise
_CLOSER = 0.85  # of the shortest training distance
_BONDED = 1.2  # times the sum of covalent radii: nonmetals closer than this to another atom are bonded to it
_UNCERTAINTY_MARGIN = 3.0  # times the training quantile
_REPULSION = 0.5  # (eV) energy of overlapping atoms, which replaces that of the network
_DISTANCE_MARGIN = 2.0  # times the distance of the farthest training atoms
_WELL_INSIDE = 0.5  # of the limits of uncertainty and distance from the training data
_CONTACT_WELL_INSIDE = 1.1  # of the shortest plausible distance
_KINDS = (("molecules", "clusters"), ("wires",), ("slabs",), ("bulk crystals",))  # by the number of closed directions


@dataclass(frozen=True, kw_only=True)
class TrainingDomain:
    """Ranges of the training data.

    Attributes:
        lowest_energy: (eV/atom) smallest energy label after subtraction of the references.
        highest_energy: (eV/atom) largest one.
        largest_force: (eV/Å) largest force label on an atom; None without force labels.
        shortest: (Å) shortest distance of each pair of elements, e.g. {"Cu-O": 1.71}; symbols by atomic number.
        uncertainty: (eV/atom) exceeded by one in a thousand training structures; None if there were too few of them to
            fit an uncertainty.
        closed_directions: Element → numbers of closed directions (``frames.open_directions``) of the training
            structures that contain it, e.g. {"Cu": (2, 3)} for slabs and bulk crystals; empty if not recorded.
        n_structures: Number of training structures that were examined.
    """

    lowest_energy: float
    highest_energy: float
    largest_force: float | None = None
    shortest: dict[str, float] = field(default_factory=dict)
    uncertainty: float | None = None
    closed_directions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    n_structures: int = 0

    @cached_property
    def _limits(self) -> dict[tuple[torch.dtype, torch.device], Tensor]:
        """The limits of contacts by type and device, converted once."""
        limits = torch.zeros(elements.MAX_Z + 1, elements.MAX_Z + 1, dtype=torch.float64)
        known = sorted({elements.atomic_number(symbol) for pair in self.shortest for symbol in pair.split("-")})
        for one, other in itertools.combinations_with_replacement(known, 2):
            bond = float(covalent_radii[one] + covalent_radii[other])
            if self.is_unknown_bond(one, other):
                limit = _BONDED * bond
            else:  # metals that never met may still touch
                limit = _CLOSER * min(self._shortest_of(one, other), bond)
            limits[one, other] = limits[other, one] = limit**2
        return {(limits.dtype, limits.device): limits.reshape(-1)}

    def _shortest_of(self, one: int, other: int) -> float:
        """(Å) shortest training distance of two elements; infinite if they never met."""
        return self.shortest.get("-".join(map(elements.symbol, sorted((one, other)))), np.inf)

    def is_unknown_bond(self, one: int, other: int) -> bool:
        """Whether a nonmetal is never bonded to another element in the training data that have both."""
        bond = float(covalent_radii[one] + covalent_radii[other])
        return (one in NONMETALS or other in NONMETALS) and self._shortest_of(one, other) > _BONDED * bond

    def contact_limits(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """[119 * 119] (Å²) square of the shortest plausible distance of each pair of elements."""
        key = dtype, device
        if key not in self._limits:
            self._limits[key] = next(iter(self._limits.values())).to(dtype=dtype, device=device)
        return self._limits[key]

    def contacts(self, lengths: EdgeLengths) -> Tensor:
        """[n_edges] square of each distance in units of the shortest plausible one of its two elements."""
        limits = self.contact_limits(lengths.squared.dtype, lengths.squared.device)
        return lengths.squared / limits.index_select(0, lengths.pair)

    def closest_contact(self, graph: AtomGraph, lengths: EdgeLengths) -> Tensor:
        """[n_graphs] shortest distance in units of the shortest plausible one of its two elements."""
        closest = lengths.squared.new_full((graph.n_graphs,), torch.inf)
        return closest.scatter_reduce(0, graph.graph_of_edge, self.contacts(lengths), "amin").sqrt()


class Verdict(NamedTuple):
    """On the prediction of one structure.

    Attributes:
        reasons: Why it is outside the domain; empty if it is inside.
        well_inside: Whether uncertainty, environments and distances were computed and are all far from their limits.
    """

    reasons: tuple[str, ...]
    well_inside: bool


class DomainGuard:
    """Compares predictions with a training domain.

    Args:
        domain: The ranges.
        references: (eV) reference energies by atomic number.
        vacuum: (Å) thickness of an empty layer that opens a direction: the cutoff of the potential.
    """

    def __init__(self, domain: TrainingDomain, references: tuple[float, ...], vacuum: float) -> None:
        self.domain, self._vacuum = domain, vacuum
        margin = _ENERGY_MARGIN * (domain.highest_energy - domain.lowest_energy)
        self._largest_force = torch.inf if domain.largest_force is None else _FORCE_MARGIN * domain.largest_force
        self._most_uncertain = torch.inf
        if domain.uncertainty is None:
            margin, self._largest_force = max(margin, _FEW_ENERGY_MARGIN), max(self._largest_force, _FEW_LARGEST_FORCE)
        else:
            self._most_uncertain = _UNCERTAINTY_MARGIN * domain.uncertainty
        self.energies = domain.lowest_energy - margin, domain.highest_energy + margin
        self._references = np.array(references)
        self._numbers, self._offset = b"", 0.0
        self._foreign: dict[int, list[str]] = {}  # of these elements, by the number of closed directions

    def reasons(self, graph: AtomGraph, prediction: Prediction) -> tuple[str, ...]:
        """Why the prediction of one structure is outside the domain; empty if it is inside. As :meth:`verdict`."""
        return self.verdict(graph, prediction).reasons

    def verdict(self, graph: AtomGraph, prediction: Prediction) -> Verdict:
        """Compare the prediction of one structure with the domain.

        Args:
            graph: The structure.
            prediction: With energy, and with forces, energy_uncertainty and domain_distance if they were computed.
        """
        numbers = graph.atomic_numbers.cpu().numpy()
        if (now := numbers.tobytes()) != self._numbers:  # seldom in simulations
            self._numbers, self._offset = now, float(self._references[numbers].sum())
            self._foreign = {}
        reasons, well_inside = self._of_features(graph, prediction)
        return Verdict((*reasons, *self._of_results(prediction, len(numbers))), well_inside)

    def _of_results(self, prediction: Prediction, n_atoms: int) -> list[str]:
        """Implausible energies and forces."""
        energy = (_value(prediction.energy) - self._offset) / n_atoms
        low, high = self.energies
        found = []
        if not low <= energy <= high:
            found.append(
                f"energy {abs(energy):.4g} eV/atom {'below' if energy < 0 else 'above'} the element references "
                f"(training data: {self.domain.lowest_energy:.2f} to {self.domain.highest_energy:.2f} eV/atom relative "
                "to them)"
            )
        if prediction.forces is not None:
            forces = prediction.forces.cpu().numpy()
            largest = max(forces.max(), -forces.min())  # component; the vector is longer by a factor of at most √3
            if not 3**0.5 * largest <= self._largest_force:
                force = float(np.linalg.norm(forces, axis=1).max())
                if not force <= self._largest_force:
                    found.append(f"force of {force:.4g} eV/Å (training data: up to {self.domain.largest_force:.1f})")
        return found

    def _of_features(self, graph: AtomGraph, prediction: Prediction) -> tuple[list[str], bool]:
        """Short distances, uncertainty and unknown environments, as far as computed; whether all are well inside."""
        found, margins, closest = list[str](), list[bool](), prediction.closest_contact
        if closest is None and self.domain.uncertainty is None:  # no examination of features found it
            closest = self.domain.closest_contact(graph, EdgeLengths.of(graph, graph.edge_vectors()))
        if closest is not None:
            contact = _value(closest)
            margins.append(contact >= _CONTACT_WELL_INSIDE)
            if not contact >= 1:
                found.append(self._closest(graph, graph.atomic_numbers.cpu().numpy()))
            foreign = self._of_kind(graph)
            margins.append(not foreign)
            found += foreign
        if prediction.repulsion_energy is not None:
            repulsion = _value(prediction.repulsion_energy)
            margins.append(repulsion == 0)
            if not repulsion <= _REPULSION:
                found.append(f"overlapping atoms, whose repulsion contributes {repulsion:.3g} eV")
        if prediction.energy_uncertainty is not None:
            deviation = _value(prediction.energy_uncertainty) / graph.n_atoms
            margins.append(deviation <= _WELL_INSIDE * self._most_uncertain)
            if not deviation <= self._most_uncertain:
                found.append(
                    f"energy uncertainty of {deviation:.3g} eV/atom (99.9 % of the training data: below "
                    f"{self.domain.uncertainty:.2g})"
                )
        if prediction.domain_distance is not None:
            distances = prediction.domain_distance.cpu().numpy()
            largest = distances.max()
            margins.append(largest <= _WELL_INSIDE * _DISTANCE_MARGIN)
            if not largest <= _DISTANCE_MARGIN:
                farthest = int(distances.argmax())
                found.append(
                    f"environment of atom {farthest} ({elements.symbol(int(graph.atomic_numbers[farthest]))}) unlike "
                    f"any in the training data (distance {largest:.3g}; 99.9 % of the training atoms: below 1)"
                )
        needed = (prediction.closest_contact, prediction.energy_uncertainty, prediction.domain_distance)
        return found, all(margins) and all(value is not None for value in needed)

    def _of_kind(self, graph: AtomGraph) -> list[str]:
        """Elements that the training data have in other kinds of structures only, e.g. metals but no metal clusters."""
        if not self.domain.closed_directions:
            return []
        (kind,) = n_closed(graph, self._vacuum)
        if kind not in self._foreign:
            self._foreign[kind] = self._foreign_elements(kind)
        return self._foreign[kind]

    def _foreign_elements(self, kind: int) -> list[str]:
        """Reasons by element of the present structure for a number of closed directions."""
        found = []
        for symbol in map(elements.symbol, np.unique(np.frombuffer(self._numbers, dtype=np.int64)).tolist()):
            known = self.domain.closed_directions.get(symbol, ())
            if known and kind not in known:
                words = enumerated([word for one in known for word in _KINDS[one]])
                found.append(f"{symbol} in {enumerated(_KINDS[kind])} (training data: {symbol} in {words})")
        return found

    def _closest(self, graph: AtomGraph, numbers: NDArray[np.int64]) -> str:
        """The pair of atoms that is closest in comparison with the training data."""
        lengths = EdgeLengths.of(graph, graph.edge_vectors())
        edge = int(self.domain.contacts(lengths).argmin())
        first, second = int(graph.centre[edge]), int(graph.neighbor[edge])
        one, other = (elements.symbol(int(numbers[atom])) for atom in (first, second))
        limit = float(self.domain.contact_limits(torch.float64, torch.device("cpu"))[lengths.pair[edge]]) ** 0.5
        distance = f"atoms {first} and {second} ({one}-{other}) {float(lengths.squared[edge]) ** 0.5:.2f} Å apart"
        if self.domain.is_unknown_bond(int(numbers[first]), int(numbers[second])):
            return f"{distance} (training data: no {one}-{other} bonds)"
        return f"{distance} (training data: {limit / _CLOSER:.2f} or more)"


def _value(tensor: Tensor) -> float:
    """The number in a tensor [1]."""
    return float(tensor.item())
