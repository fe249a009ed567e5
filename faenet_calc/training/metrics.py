"""Error metrics of predictions, as sums that can be added over batches and processes."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from faenet_calc import elements
from faenet_calc.data.dataset import LabelledBatch
from faenet_calc.potential.prediction import Prediction

ENERGY_THRESHOLD = 0.02  # eV: EwT and EFwT of the Open Catalyst Project
FORCE_THRESHOLD = 0.03  # eV/Å, largest component: EFwT
HIGHER_IS_BETTER = ("energy_within", "energy_forces_within", "forces_cosine")
TAG_NAMES = {0: "sub-surface", 1: "surface", 2: "adsorbate"}


@dataclass(frozen=True, kw_only=True)
class MetricSums:
    """Sum and count of every metric.

    Attributes:
        sums: Metric → summed error.
        counts: Metric → number of terms.
    """

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, name: str, values: Tensor) -> None:
        """Add terms to a metric."""
        self.sums[name] += float(values.double().sum())
        self.counts[name] += values.numel()

    def merge(self, other: "MetricSums") -> None:
        """Add the sums of another batch or process."""
        for name, value in other.sums.items():
            self.sums[name] += value
            self.counts[name] += other.counts[name]

    def means(self) -> dict[str, float]:
        """Mean of every metric (square root of it for RMSEs), sorted by name."""
        result = {}
        for name in sorted(self.sums):
            if self.counts[name]:
                mean = self.sums[name] / self.counts[name]
                result[name] = math.sqrt(mean) if "rmse" in name else mean
        return result


def batch_metrics(prediction: Prediction, batch: LabelledBatch, *, free_atoms_only: bool = False) -> MetricSums:
    """Compute the sums of one batch.

    Energies: ``energy_mae`` (eV), ``energy_mae_per_atom``, ``energy_rmse_per_atom`` (eV/atom), ``energy_within`` (EwT).
    Forces: ``forces_mae``, ``forces_rmse`` (eV/Å, per component), ``forces_l2`` (mean length of the error),
    ``forces_cosine``, and ``forces_mae[...]`` by element, by tag, and for free atoms. Stress: ``stress_mae`` (eV/Å³).
    ``energy_forces_within`` (EFwT) needs both.
    """
    sums = MetricSums()
    known = ~torch.isnan(batch.energy)
    energy_error = (prediction.energy - batch.energy).abs()
    per_atom = energy_error[known] / batch.graph.atoms_per_graph[known]
    sums.add("energy_mae", energy_error[known])
    sums.add("energy_mae_per_atom", per_atom)
    sums.add("energy_rmse_per_atom", per_atom.square())
    sums.add("energy_within", (energy_error[known] < ENERGY_THRESHOLD).double())
    if prediction.forces is not None:
        _add_forces(sums, prediction.forces, batch, energy_error, free_atoms_only)
    if prediction.stress is not None:
        known = ~torch.isnan(batch.stress).flatten(1).any(dim=1)
        sums.add("stress_mae", (prediction.stress - batch.stress)[known].abs())
    return sums


def _add_forces(
    sums: MetricSums, predicted: Tensor, batch: LabelledBatch, energy_error: Tensor, free_atoms_only: bool
) -> None:
    graph, true = batch.graph, batch.forces
    labelled = ~torch.isnan(true).any(dim=1)
    counted = labelled & batch.free if free_atoms_only else labelled
    error = (predicted - true).abs()
    sums.add("forces_mae", error[counted])
    sums.add("forces_rmse", error[counted].square())
    sums.add("forces_l2", torch.linalg.vector_norm(error[counted], dim=1))
    sums.add("forces_cosine", torch.nn.functional.cosine_similarity(predicted[counted], true[counted], dim=1))
    if not bool(batch.free.all()):
        sums.add("forces_mae[free]", error[labelled & batch.free])
    for number in graph.atomic_numbers[counted].unique().tolist():
        sums.add(f"forces_mae[{elements.symbol(number)}]", error[counted & (graph.atomic_numbers == number)])
    present = graph.tags[counted].unique().tolist()
    if present != [0]:
        for tag in present:
            name = TAG_NAMES.get(tag, f"tag {tag}")
            sums.add(f"forces_mae[{name}]", error[counted & (graph.tags == tag)])
    largest = error.new_zeros(graph.n_graphs)
    worst = torch.where(counted, error.amax(dim=1), torch.zeros_like(error[:, 0]))
    largest = largest.scatter_reduce(0, graph.graph_of_atom, worst, reduce="amax")
    complete = ~torch.isnan(energy_error) & (graph.sum_over_atoms(labelled.long()) == graph.atoms_per_graph)
    within = (energy_error < ENERGY_THRESHOLD) & (largest < FORCE_THRESHOLD)
    sums.add("energy_forces_within", within[complete].double())
