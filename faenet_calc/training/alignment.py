"""Element offsets between a potential and data: another zero of energy is not an error of the model."""

import dataclasses

import numpy as np

from faenet_calc import elements
from faenet_calc.data import statistics
from faenet_calc.data.dataset import GraphDataset
from faenet_calc.potential.potential import Potential
from faenet_calc.training.assessment import assess
from faenet_calc.training.batches import Indices


def aligned(potential: Potential, dataset: GraphDataset, indices: Indices) -> tuple[Potential, dict[str, float]]:
    """The same potential with element references fitted to the labels, and the change of each (eV per atom).

    Args:
        potential: Its own references are the starting point; only what differs is fitted.
        dataset: With energies.
        indices: Structures to fit to.
    """
    found = assess(potential, dataset, indices, frames="one" if potential.config.frames.kind == "lattice" else "auto",
                   records=True)  # fmt: skip
    rest = np.array([record.energy - record.predicted_energy for record in found.records])
    chosen = np.array([record.index for record in found.records])
    known = np.isfinite(rest)
    change = statistics.fit(dataset.compositions(chosen[known]), rest[known]).by_symbol()
    references = dict(potential.config.normalization.references)
    for number in dataset.numbers:
        name = elements.symbol(number)
        references[name] = references.get(name, 0.0) + change.get(name, 0.0)
    normalization = dataclasses.replace(potential.config.normalization, references=references)
    moved = Potential(dataclasses.replace(potential.config, normalization=normalization))
    moved.model = potential.model
    moved.metadata = dict(potential.metadata)
    return moved, change
