"""Errors of a potential over a data set: the numbers of validation, of ``evaluate`` and of reports."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from faenet_calc.data.dataset import GraphDataset, LabelledBatch, collate
from faenet_calc.frames.config import FrameMode
from faenet_calc.potential.forward import ForcesChoice
from faenet_calc.potential.potential import FramesChoice, Potential
from faenet_calc.potential.prediction import Prediction
from faenet_calc.training.batches import Indices, ordered_batches
from faenet_calc.training.distributed import Ranks
from faenet_calc.training.loss import Loss
from faenet_calc.training.metrics import MetricSums, batch_metrics

EDGE_COPIES = 120_000  # of one evaluation batch: about 1 GB of intermediate values for the large presets
FRAMES_OF_MODE: dict[str, int] = {"one": 1, "stochastic": 1, "pair": 2, "all": 8, "exact": 40}


@dataclass(frozen=True, kw_only=True, eq=False)
class StructureRecord:
    """What was predicted for one structure.

    Attributes:
        index: In the data set.
        numbers: [n_atoms] atomic numbers.
        energy, predicted_energy: (eV); NaN without a label.
        forces, predicted_forces: [n_atoms, 3] (eV/Å) or None.
    """

    index: int
    numbers: NDArray[np.int64]
    energy: float
    predicted_energy: float
    forces: NDArray[np.float64] | None
    predicted_forces: NDArray[np.float64] | None


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
    generator: torch.Generator | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Assessment:
    """Compare predictions with labels; processes share the structures and all get the result.

    Args:
        potential: With its weights as they are; nothing is changed.
        dataset: The structures.
        indices: Which of them.
        frames: "auto" is the potential's own.
        forces: "auto" is the potential's own.
        loss: Also its value, over the same structures.
        free_atoms_only: Force errors of unconstrained atoms only.
        records: Keep what was predicted for every structure.
        ranks: The processes that share the work.
        generator: For stochastic frames.
        progress: Called with the number of structures of each batch.
    """
    ranks = ranks or Ranks()
    mode: FrameMode = potential.config.frames.mode if frames == "auto" else frames
    batches = ordered_batches(indices, dataset.n_edges, EDGE_COPIES / FRAMES_OF_MODE[mode])[ranks.rank :: ranks.world]
    sums, kept = MetricSums(), []
    properties, kind = _properties(potential, dataset, forces, loss)
    with torch.no_grad():
        for members in batches:
            batch = collate([dataset[int(index)] for index in members]).to(potential.device)
            prediction = potential.evaluate(
                batch.graph, properties=properties, frames=mode, forces=kind, generator=generator
            ).detach()
            sums.merge(batch_metrics(prediction, batch, free_atoms_only=free_atoms_only))
            if loss is not None:
                _add_loss(sums, loss, prediction, batch)
            if records:
                kept += _records(prediction, batch)
            if progress is not None:
                progress(len(members))
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


def _properties(
    potential: Potential, dataset: GraphDataset, forces: ForcesChoice, loss: Loss | None
) -> tuple[list[str], ForcesChoice]:
    """What is worth predicting: what the potential has and the data set has labels for."""
    has_forces = potential.config.forces != "none" or forces != "auto"
    wanted = ["energy"]
    if has_forces and dataset.n_labels.get("forces"):
        wanted.append("forces")
    if has_forces and dataset.n_labels.get("stress") and potential.config.frames.differentiable:
        wanted.append("stress")
    if loss is not None:
        wanted = sorted({*wanted, *loss.properties})
        if loss.forces == "both":
            return wanted, "both"
    return wanted, forces


def _add_loss(sums: MetricSums, loss: Loss, prediction: Prediction, batch: LabelledBatch) -> None:
    counts = loss.counts(batch)
    for name, value in loss.terms(prediction, batch, counts).items():
        sums.sums[f"loss_{name}"] += float(value) * counts[name]
        sums.counts[f"loss_{name}"] += counts[name]


def _records(prediction: Prediction, batch: LabelledBatch) -> list[StructureRecord]:
    parts, graphs = prediction.split(), batch.graph.split()
    start, records = 0, []
    for row, (part, graph) in enumerate(zip(parts, graphs, strict=True)):
        end = start + graph.n_atoms
        true = batch.forces[start:end].cpu().numpy()
        labelled = part.forces is not None and not bool(np.isnan(true).all())
        records.append(
            StructureRecord(
                index=int(batch.index[row]),
                numbers=graph.atomic_numbers.cpu().numpy(),
                energy=float(batch.energy[row]),
                predicted_energy=float(part.energy[0]),
                forces=true if labelled else None,
                predicted_forces=part.forces.cpu().numpy() if labelled and part.forces is not None else None,
            )
        )
        start = end
    return records
