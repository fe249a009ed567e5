"""Element references fitted to data: a different zero of energy is not an error of the model."""

import dataclasses
from collections.abc import Collection

import numpy as np

from faenet_calc import elements
from faenet_calc.data import statistics
from faenet_calc.data.dataset import GraphDataset
from faenet_calc.potential.potential import Potential
from faenet_calc.training.assessment import assess
from faenet_calc.training.batches import Indices

MAX_STRUCTURES = 2_000
"""With which references of new elements are fitted."""


def aligned(
    potential: Potential, dataset: GraphDataset, indices: Indices, only: Collection[int] | None = None
) -> tuple[Potential, dict[str, float]]:
    """Refit the element references of a potential to labelled energies.

    Args:
        potential: The potential; the change of its references is fitted.
        dataset: A data set with energies.
        indices: Indices of the structures to fit to.
        only: Atomic numbers whose references may change; fitted to at most `MAX_STRUCTURES` structures that have one of
            them. None for all elements and all structures.

    Returns:
        The potential with new references, and the change by element symbol (eV per atom).
    """
    if only is not None:
        having = indices[dataset.compositions(indices)[:, sorted(only)].any(axis=1)]
        if not len(having):
            return potential, {}
        size = min(len(having), MAX_STRUCTURES)
        indices = np.sort(np.random.default_rng(0).choice(having, size, replace=False))
    found = assess(potential, dataset, indices, frames="one" if potential.config.frames.kind == "lattice" else "auto",
                   records=True)  # fmt: skip
    rest = np.array([record.energy - record.predicted_energy for record in found.records])
    chosen = np.array([record.index for record in found.records])
    known = np.isfinite(rest)
    compositions = dataset.compositions(chosen[known])
    if only is None:
        change = statistics.fit(compositions, rest[known]).by_symbol()
    else:
        numbers = sorted(only)
        size_of = compositions.sum(axis=1)
        rows = compositions[:, numbers] / size_of[:, None]
        solution = np.linalg.lstsq(rows, rest[known] / size_of, rcond=None)[0]
        change = {elements.symbol(number): float(value) for number, value in zip(numbers, solution, strict=True)}
    references = dict(potential.config.normalization.references)
    for number in dataset.numbers:
        name = elements.symbol(number)
        references[name] = references.get(name, 0.0) + change.get(name, 0.0)
    normalization = dataclasses.replace(potential.config.normalization, references=references)
    moved = Potential(dataclasses.replace(potential.config, normalization=normalization))
    moved.model, moved.uncertainty = potential.model, potential.uncertainty
    moved.metadata = dict(potential.metadata)
    return moved, change
