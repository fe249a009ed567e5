"""Element references fitted to data: a different zero of energy is not an error of the model."""

import dataclasses

import numpy as np

from faenet_calc import elements
from faenet_calc.data import statistics
from faenet_calc.data.dataset import GraphDataset
from faenet_calc.potential.potential import Potential
from faenet_calc.training.assessment import assess
from faenet_calc.training.batches import Indices


def aligned(potential: Potential, dataset: GraphDataset, indices: Indices) -> tuple[Potential, dict[str, float]]:
    """Refit the element references of a potential to labelled energies.

    Args:
        potential: The potential; the change of its references is fitted.
        dataset: A data set with energies.
        indices: Indices of the structures to fit to.

    Returns:
        The potential with new references, and the change by element symbol (eV per atom).
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
    moved.model, moved.uncertainty = potential.model, potential.uncertainty
    moved.metadata = dict(potential.metadata)
    return moved, change
