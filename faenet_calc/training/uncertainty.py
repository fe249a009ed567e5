"""Fits the uncertainty and the domain of a potential to its training data; the end of every training run calls it."""

import dataclasses
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from faenet_calc import elements
from faenet_calc.data.dataset import GraphDataset, LabelledGraph
from faenet_calc.errors import InputError
from faenet_calc.frames.open_directions import n_closed
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.capabilities import FramesChoice
from faenet_calc.potential.config import RepulsionConfig
from faenet_calc.potential.domain import TrainingDomain
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.prediction import Prediction
from faenet_calc.potential.predictor import Predictor
from faenet_calc.potential.uncertainty import FAR, FeatureStatistics, LastLayerUncertainty, calibrated
from faenet_calc.training.batches import Indices

MAX_STRUCTURES = 20_000
"""Larger training sets are sampled."""

MIN_STRUCTURES = 1_000
"""From fewer structures the features of a domain are not known well enough: most new structures would be marked."""


def fit_uncertainty(
    potential: Potential,
    train: tuple[GraphDataset, Indices],
    held_out: tuple[GraphDataset, Indices],
    *,
    replay: GraphDataset | None = None,
    max_structures: int = MAX_STRUCTURES,
    seed: int = 0,
) -> Potential:
    """The potential with an uncertainty calibrated on held-out energies and the domain of its training data.

    The uncertainty is that of the network: the repulsion is off while it is fitted.

    Args:
        potential: A trained potential; its weights are shared, not copied.
        train: Training data. Their features are computed in one frame each.
        held_out: Structures with energies that were not trained on, which may have chosen the best epoch.
        replay: Earlier training data that were mixed in; they are half of a sample.
        max_structures: Larger training sets are sampled.
        seed: Random seed of the samples.

    Raises:
        InputError: No training structure, or no held-out structure with an energy.
    """
    rng = np.random.default_rng(seed)
    parts = [train] if replay is None else [train, (replay, np.arange(len(replay)))]
    parts = [
        (dataset, np.sort(rng.choice(indices, min(len(indices), max_structures // len(parts)), replace=False)))
        for dataset, indices in parts
    ]
    n_structures = sum(len(indices) for _, indices in parts)
    known = held_out[1][np.isfinite(held_out[0].energy[held_out[1]])]
    if not n_structures or not len(known):
        raise InputError(
            f"{n_structures} training structures and {len(known)} held-out structures with an energy; an uncertainty "
            "needs at least one of each"
        )
    statistics, domain = FeatureStatistics(seed=seed), _DomainStatistics(potential)
    fast: FramesChoice = "one" if potential.config.frames.kind == "lattice" else "auto"
    bare = Potential(dataclasses.replace(potential.config, repulsion=RepulsionConfig(kind="none")))
    bare.model = potential.model
    for dataset, indices in parts:
        for labelled, _, features in _predicted(Predictor(bare, frames=fast, seed=seed), dataset, indices):
            statistics.add(features, labelled.graph.atomic_numbers)
            domain.add(labelled)
    uncertainty = statistics.fit().to(potential.device)
    sums, errors = [], []
    for labelled, prediction, features in _predicted(Predictor(bare, seed=seed), held_out[0], known):
        assert labelled.energy is not None
        sums.append(features.sum(dim=0))
        errors.append(float(prediction.energy[0]) - labelled.energy)
    deviation = uncertainty.deviation(torch.stack(sums)).cpu()
    _, group = np.unique(held_out[0].compositions()[known], axis=0, return_inverse=True)
    uncertainty = calibrated(
        uncertainty, deviation, torch.tensor(errors, dtype=torch.float64), torch.as_tensor(group.reshape(-1))
    )
    return potential.with_domain(domain.result(_per_atom(uncertainty, statistics)), uncertainty)


def describe_domain(
    potential: Potential, train: tuple[GraphDataset, Indices], *, replay: GraphDataset | None = None
) -> Potential:
    """The potential with the domain of few training data: ranges of labels, distances and kinds, no uncertainty.

    Args:
        potential: A trained potential; its weights are shared, not copied.
        train: Training data with energies.
        replay: Earlier training data that were mixed in; ``MAX_STRUCTURES`` of them are read.
    """
    domain = _DomainStatistics(potential)
    parts = [train] if replay is None else [train, (replay, np.arange(len(replay)))]
    for dataset, indices in parts:
        for index in indices[:MAX_STRUCTURES].tolist():
            domain.add(dataset[index])
    return potential.with_domain(domain.result(None))


def _predicted(
    predictor: Predictor, dataset: GraphDataset, indices: Indices
) -> Iterator[tuple[LabelledGraph, Prediction, Tensor]]:
    """Every structure with its labels, its prediction and its last-layer features [n_atoms, D]."""
    device, waiting = predictor.committee.members[0].device, deque[LabelledGraph]()

    def graphs() -> Iterator[AtomGraph]:
        for index in indices.tolist():
            waiting.append(dataset[index])
            yield waiting[-1].graph.to(device=device)

    for prediction in predictor.predict(graphs(), ("energy", "atom_features")):
        assert prediction.atom_features is not None
        yield waiting.popleft(), prediction, prediction.atom_features


def _per_atom(uncertainty: LastLayerUncertainty, statistics: FeatureStatistics) -> float:
    """(eV/atom) exceeded by one in a thousand training structures."""
    sums = torch.stack(statistics.sums).to(uncertainty.factor)
    deviation = uncertainty.deviation(sums).cpu() / torch.tensor(statistics.sizes)
    return float(torch.quantile(deviation, FAR))


class _DomainStatistics:
    """Extremes of labels and distances, from which a :class:`TrainingDomain` is made."""

    def __init__(self, potential: Potential) -> None:
        self._references = torch.tensor(potential.config.normalization.reference_table, dtype=torch.float64)
        self._energies: list[float] = []
        self._force = 0.0
        self._shortest = torch.full((elements.MAX_Z + 1, elements.MAX_Z + 1), torch.inf, dtype=torch.float64)
        self._closed = np.zeros((elements.MAX_Z + 1, 4), dtype=bool)  # element, number of closed directions
        self._vacuum = potential.cutoff
        self._n = 0

    def add(self, labelled: LabelledGraph) -> None:
        """Add a structure."""
        self._n += 1
        graph, numbers = labelled.graph, labelled.graph.atomic_numbers
        self._closed[numbers.cpu().numpy(), n_closed(graph, self._vacuum)[0]] = True
        if labelled.energy is not None:
            self._energies.append((labelled.energy - float(self._references[numbers].sum())) / graph.n_atoms)
        if labelled.forces is not None:
            lengths = torch.linalg.vector_norm(labelled.forces.double(), dim=1)
            self._force = max(self._force, float(lengths.nan_to_num().max()))
        distances = torch.linalg.vector_norm(graph.edge_vectors(), dim=1).double()
        pairs = numbers[graph.centre] * len(self._shortest) + numbers[graph.neighbor]
        self._shortest.view(-1).scatter_reduce_(0, pairs, distances, "amin")

    def result(self, uncertainty: float | None) -> TrainingDomain:
        """The domain; ``uncertainty`` (eV/atom) as in :class:`TrainingDomain`."""
        both = torch.minimum(self._shortest, self._shortest.t())
        pairs = torch.nonzero(torch.isfinite(both).triu()).tolist()
        return TrainingDomain(
            lowest_energy=min(self._energies),
            highest_energy=max(self._energies),
            largest_force=self._force or None,
            shortest={
                f"{elements.symbol(one)}-{elements.symbol(other)}": round(float(both[one, other]), 4)
                for one, other in pairs
            },
            uncertainty=uncertainty,
            closed_directions={
                elements.symbol(number): tuple(np.flatnonzero(self._closed[number]).tolist())
                for number in np.flatnonzero(self._closed.any(axis=1)).tolist()
            },
            n_structures=self._n,
        )
