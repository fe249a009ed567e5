"""How close atoms are in a training set, and the short-range repulsion that leaves these structures to the network.

The ranges of the repulsion suit metals and small molecules near equilibrium. Where the training data have shorter
contacts (hot liquids, compressed crystals, soft metals such as Li), the network learns them from the labels, and the
repulsion must begin below them: it would remove such atoms from the network, in training and afterwards.
"""

import dataclasses

import numpy as np
import torch

from faenet_calc.data.dataset import GraphDataset
from faenet_calc.potential.config import RepulsionConfig
from faenet_calc.potential.repulsion import crowding, relative_distances
from faenet_calc.training.batches import Indices

_MOST_STRUCTURES = 4000
_RARE = 0.002  # of the structures may be closer: a few overlapping atoms do not switch the repulsion off
_BELOW = 0.97  # of the shortest distance
_ABOVE = 1.05  # of the largest crowding
_SMALLEST_OUTER = 0.4  # of a bond: no label is believed below


def fit_repulsion(
    own: RepulsionConfig, dataset: GraphDataset, indices: Indices, *, cutoff: float, seed: int = 0
) -> tuple[RepulsionConfig, list[str]]:
    """The repulsion with ranges that begin below the contacts of a training set, and notes; never wider than before.

    Args:
        own: Of the preset or of the initial model.
        dataset: The data.
        indices: Of the training structures.
        cutoff: Of the edges (Å).
        seed: For the choice of the structures that are examined.
    """
    if own.kind == "none" or len(indices) == 0:
        return own, []
    chosen = np.random.default_rng(seed).permutation(indices)[:_MOST_STRUCTURES]
    closest, crowded = np.ones(len(chosen)), np.zeros(len(chosen))
    for number, index in enumerate(chosen.tolist()):
        graph = dataset[index].graph
        if graph.n_edges:
            distance = torch.linalg.vector_norm(graph.edge_vectors(), dim=1).double()
            closest[number] = float(relative_distances(own, graph, distance).min())
            crowded[number] = float(crowding(own, graph, distance, cutoff).max())
    shortest = max(_SMALLEST_OUTER, _BELOW * float(np.quantile(closest, _RARE, method="lower")))
    most = _ABOVE * float(np.quantile(crowded, 1 - _RARE, method="higher"))
    found, notes = own, []
    if shortest < own.outer:
        found = dataclasses.replace(found, outer=round(shortest, 3), inner=round(own.inner * shortest / own.outer, 3))
        notes.append(f"begins at {found.outer} instead of {own.outer} bond lengths")
    if most > own.crowding_start:
        start = round(most, 2)
        found = dataclasses.replace(
            found, crowding_start=start, crowding_end=round(start + own.crowding_end - own.crowding_start, 2)
        )
        notes.append(f"tolerates {start} instead of {own.crowding_start} close metal neighbors")
    if not notes:
        return found, []
    reason = "because the training data have such contacts (the section repulsion of the settings changes this)"
    return found, [f"the short-range repulsion {' and '.join(notes)}, {reason}"]
