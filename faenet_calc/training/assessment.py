"""Errors of a potential over a data set, for validation, ``evaluate`` and reports."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faenet_calc.data.dataset import GraphDataset, LabelledBatch, LabelledGraph, collate
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.capabilities import ForcesChoice, FramesChoice
from faenet_calc.potential.domain import DomainGuard
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.prediction import Prediction
from faenet_calc.potential.predictor import BatchSize, Predictor
from faenet_calc.training.batches import Indices
from faenet_calc.training.distributed import Ranks
from faenet_calc.training.loss import Loss
from faenet_calc.training.metrics import MetricSums, batch_metrics


@dataclass(frozen=True, kw_only=True, eq=False)
class StructureRecord:
    """Labels and predictions of one structure.

    Attributes:
        index: In the data set.
        numbers: [n_atoms] atomic numbers.
        energy, predicted_energy: (eV); NaN without a label.
        forces, predicted_forces: [n_atoms, 3] (eV/Å) or None.
        energy_uncertainty: (eV) or None.
        why: Why the structure is outside the domain of the potential; None if it is inside or nothing is known.
    """

    index: int
    numbers: NDArray[np.int64]
    energy: float
    predicted_energy: float
    forces: NDArray[np.float64] | None
    predicted_forces: NDArray[np.float64] | None
    energy_uncertainty: float | None = None
    why: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Assessment:
    """Errors over a data set.

    Attributes:
        metrics: Name → mean (see ``metrics.py``), with the ``loss`` if one was given.
        n_structures: How many structures were compared.
        records: One per structure if they were asked for, in the order of the data set.
    """

    metrics: dict[str, float]
    n_structures: int
    records: tuple[StructureRecord, ...] = ()


def assess(
    potential: Potential,
    dataset: GraphDataset,
    indices: Indices,
    *,
    frames: FramesChoice = "auto",
    forces: ForcesChoice = "auto",
    loss: Loss | None = None,
    free_atoms_only: bool = False,
    records: bool = False,
    ranks: Ranks | None = None,
    seed: int = 0,
    batch_size: BatchSize = "auto",
    progress: Callable[[int], Any] | None = None,
) -> Assessment:
    """Compare predictions with labels; processes share the structures and all get the result.

    Args:
        potential: The potential, in its current state.
        dataset: The structures.
        indices: Indices of the structures to compare.
        frames: "auto" for the potential's own mode.
        forces: "auto" for the potential's own kind.
        loss: Also compute this loss over the same structures.
        free_atoms_only: Count force errors of unconstrained atoms only.
        records: Keep the prediction of every structure.
        ranks: The processes that share the work.
        seed: Random seed of stochastic frames.
        batch_size: As in :meth:`Predictor.predict`.
        progress: Called with the number of structures of each batch.
    """
    ranks = ranks or Ranks()
    if loss is not None and len(loss.properties) > 1:
        forces = loss.forces
    predictor = Predictor(potential, frames=frames, forces=forces, seed=seed)
    labelled = [name for name in ("forces", "stress") if name in predictor.properties and dataset.n_labels.get(name)]
    properties = {"energy", *labelled, *(() if loss is None else loss.properties)}
    domain, guard = potential.config.domain, None
    if records and domain is not None and potential.uncertainty is not None:
        guard = DomainGuard(domain, potential.config.normalization.reference_table, potential.cutoff)
        properties |= {"energy_uncertainty", "domain_distance"}
    waiting: deque[LabelledGraph] = deque()

    def graphs() -> Iterator[AtomGraph]:
        by_size = sorted(indices.tolist(), key=lambda index: (int(dataset.n_edges[index]), index))
        for index in by_size[ranks.rank :: ranks.world]:
            waiting.append(dataset[index])
            yield waiting[-1].graph.to(device=potential.device)

    sums, kept = MetricSums(), []
    for prediction in predictor.predict_batches(graphs(), properties, batch_size=batch_size):
        batch = collate([waiting.popleft() for _ in range(prediction.n_graphs)]).to(potential.device)
        sums.merge(batch_metrics(prediction, batch, free_atoms_only=free_atoms_only))
        if loss is not None:
            _add_loss(sums, loss, prediction, batch)
        if records:
            kept += _records(prediction, batch, guard)
        if progress is not None:
            progress(prediction.n_graphs)
    total, everything = MetricSums(), []
    for part_sums, part_records in ranks.gather((sums, kept)):
        total.merge(part_sums)
        everything += part_records
    metrics = total.means()
    if loss is not None:
        metrics["loss"] = sum(
            weight * metrics[f"loss_{name}"] for name, weight in loss.weights.items() if f"loss_{name}" in metrics
        )
    everything.sort(key=lambda record: record.index)
    return Assessment(metrics=metrics, n_structures=len(indices), records=tuple(everything))


def _add_loss(sums: MetricSums, loss: Loss, prediction: Prediction, batch: LabelledBatch) -> None:
    counts = loss.counts(batch)
    for name, value in loss.terms(prediction, batch, counts).items():
        sums.sums[f"loss_{name}"] += float(value) * counts[name]
        sums.counts[f"loss_{name}"] += counts[name]


def _records(prediction: Prediction, batch: LabelledBatch, guard: DomainGuard | None) -> list[StructureRecord]:
    parts, graphs = prediction.split(), batch.graph.split()
    start, records = 0, []
    for row, (part, graph) in enumerate(zip(parts, graphs, strict=True)):
        end = start + graph.n_atoms
        true = batch.forces[start:end].cpu().numpy()
        labelled = part.forces is not None and not bool(np.isnan(true).all())
        deviation = part.energy_uncertainty
        records.append(
            StructureRecord(
                index=int(batch.index[row]),
                numbers=graph.atomic_numbers.cpu().numpy(),
                energy=float(batch.energy[row]),
                predicted_energy=float(part.energy[0]),
                forces=true if labelled else None,
                predicted_forces=part.forces.cpu().numpy() if labelled and part.forces is not None else None,
                energy_uncertainty=None if deviation is None else float(deviation[0]),
                why=None if guard is None else "; ".join(guard.reasons(graph, part)) or None,
            )
        )
        start = end
    return records
