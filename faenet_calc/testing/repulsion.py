"""Energy curves of atoms that are pushed together: dimers, adsorbates above a surface, compressed crystals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from faenet_calc import elements
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.config import RepulsionConfig
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.predictor import Predictor
from faenet_calc.potential.repulsion import switching_ranges

Floats = NDArray[np.float64]
CLOSEST = 0.2  # (Å)


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """Energy along a distance.

    Attributes:
        distance: [n] (Å), ascending.
        energy: [n] (eV).
    """

    distance: Floats
    energy: Floats

    @property
    def rise(self) -> float:
        """(eV) sum of all increases of the energy with the distance; 0 for a repulsive wall."""
        steps = np.diff(self.energy)
        return float(steps[steps > 0].sum())


def short_distances(first: str, second: str, n_points: int = 25) -> Floats:
    """[n_points] (Å) from 0.2 Å to the distance where the repulsion of two elements ends."""
    pair = torch.tensor([[elements.atomic_number(first), elements.atomic_number(second)]])
    return np.linspace(CLOSEST, float(switching_ranges(RepulsionConfig(), pair).zbl[0, 1]), n_points)


def dimer_curve(potential: Potential, first: str, second: str) -> Curve:
    """Energy of two atoms from 0.2 Å to the end of the repulsion."""
    distance = short_distances(first, second)
    tags = [1, 2]
    dimer = potential.graph(Atoms([first, second], [[0, 0, 0], [0, 0, 1.0]], tags=tags))
    return _curve(potential, distance, [dimer.replace(positions=dimer.positions * d) for d in distance])


def approach_curve(potential: Potential, slab: Atoms, symbol: str) -> Curve:
    """Energy of an atom above the highest atom of a slab (z up), from 0.2 Å to the end of their repulsion."""
    top = int(slab.positions[:, 2].argmax())
    distance = short_distances(slab.symbols[top], symbol)
    placed = slab + Atoms(symbol, [slab.positions[top] + [0, 0, 1.0]], tags=[2])
    graph = potential.graph(placed)
    up = torch.zeros_like(graph.positions)
    up[-1, 2] = 1.0
    return _curve(potential, distance, [graph.replace(positions=graph.positions + (d - 1.0) * up) for d in distance])


def compression_curve(potential: Potential, crystal: Atoms, n_points: int = 15) -> Curve:
    """Energy of a crystal of one element from nearest neighbors at 0.5 Å to where crowding removes atoms no more."""
    nearest = float(crystal.get_all_distances(mic=True)[0, 1:].min()) if len(crystal) > 1 else _nearest_image(crystal)
    number = int(crystal.numbers[0])
    removed = switching_ranges(RepulsionConfig(), torch.tensor([[number, number]])).removed
    distance, graphs = np.linspace(0.5, 0.95 * float(removed[0, 1]), n_points), []
    for d in distance:
        squeezed = crystal.copy()
        squeezed.set_cell(crystal.cell * (d / nearest), scale_atoms=True)
        graphs.append(potential.graph(squeezed))
    return _curve(potential, distance, graphs)


def _nearest_image(crystal: Atoms) -> float:
    """(Å) shortest lattice vector among the combinations of neighboring cells."""
    steps = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    lengths = np.linalg.norm(steps @ crystal.cell.array, axis=1)
    return float(lengths[lengths > 0].min())


def _curve(potential: Potential, distance: Floats, graphs: Sequence[AtomGraph]) -> Curve:
    predictor = Predictor(potential, forces="gradient", frames="one")
    energy = [float(prediction.energy[0]) for prediction in predictor.predict(graphs, ["energy"])]
    return Curve(distance=distance, energy=np.array(energy))
