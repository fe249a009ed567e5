"""Reports of training and evaluation: learning curves, parity plots, errors by element, largest errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase.formula import Formula
from matplotlib.figure import Figure

from faenet_calc import elements
from faenet_calc.reports.pages import write_page
from faenet_calc.reports.plots import bar_plot, line_plot, parity_plot
from faenet_calc.training.assessment import Assessment, StructureRecord
from faenet_calc.training.metrics import ENERGY_THRESHOLD, FORCE_THRESHOLD

N_WORST = 15
_TITLES = {"val": "validation"}
_SETS = {
    "val": "Validation set: structures that were used to choose the best weights, but not to fit them.",
    "test": "Test set: structures that were used neither to fit nor to choose the weights.",
    "data": (
        "All structures of the given files. The errors are those of new structures only if the model was not trained "
        "on these files."
    ),
}
_EWT = f"energy error below {1e3 * ENERGY_THRESHOLD:g} meV"
# metric → what it means
_MEANINGS = {
    "energy_within": f"EwT: share of structures with an {_EWT}, per structure and not per atom.",
    "energy_forces_within": (
        f"EFwT: share of structures with an {_EWT} and all errors of force components below "
        f"{1e3 * FORCE_THRESHOLD:g} meV/Å."
    ),
    "forces_cosine": (
        "Force cosine: mean cosine of the angle between predicted and reference forces: 1 if all directions are right, "
        "about 0 if they are random."
    ),
}
_SMALLEST_AVERAGE = 0.5  # of the median number of batches; training losses averaged over fewer are not plotted
# metric → (title, factor, unit)
SHOWN = {
    "energy_mae_per_atom": ("energy MAE per atom", 1e3, "meV"),
    "energy_rmse_per_atom": ("energy RMSE per atom", 1e3, "meV"),
    "energy_mae": ("energy MAE per structure", 1e3, "meV"),
    "energy_within": ("energies within 20 meV (EwT)", 100.0, "%"),
    "forces_mae": ("force MAE", 1e3, "meV/Å"),
    "forces_rmse": ("force RMSE", 1e3, "meV/Å"),
    "forces_cosine": ("force cosine", 1.0, ""),
    "energy_forces_within": ("energies and forces within thresholds (EFwT)", 100.0, "%"),
    "stress_mae": ("stress MAE", 1e3, "meV/Å³"),
}


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """A metric as it is printed."""

    title: str
    value: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class WorstRow:
    """A structure with large errors; ``energy_error`` (meV/atom), ``force_error`` the largest on an atom (meV/Å)."""

    index: int
    formula: str
    energy_error: float
    force_error: float
    source: str


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationSection:
    """Errors on one data set, ready for a page.

    Attributes:
        name: Of the data set, e.g. "test".
        n_structures: Structures compared.
        about: What the data set is, or "".
        metrics: Rows of the table of metrics.
        meanings: Explanations of the metrics that need one.
        figures: Parity plots and errors by element.
        worst: Structures with the largest errors, worst first.
    """

    name: str
    n_structures: int
    about: str
    metrics: tuple[MetricRow, ...]
    meanings: tuple[str, ...]
    figures: tuple[Figure, ...]
    worst: tuple[WorstRow, ...]


def evaluation_section(name: str, found: Assessment, sources: Sequence[str] | None = None) -> EvaluationSection:
    """Metrics, parity plots, errors by element and largest errors on one data set.

    Args:
        name: Of the data set: "test", "val", "data" for the files given to an evaluation, or another.
        found: With records.
        sources: Where each structure of the data set comes from, by index.
    """
    energies = [r for r in found.records if np.isfinite(r.energy)]
    n_atoms = np.array([len(r.numbers) for r in energies], dtype=float)
    reference = np.array([r.energy for r in energies]) / n_atoms
    predicted = np.array([r.predicted_energy for r in energies]) / n_atoms
    figures = [parity_plot("energy per atom", reference, predicted, unit="eV")]
    pairs = [
        (r.forces.ravel(), r.predicted_forces.ravel())
        for r in found.records
        if r.forces is not None and r.predicted_forces is not None
    ]
    if pairs:
        labels, guesses = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        figures.append(parity_plot("force components", labels, guesses, unit="eV/Å"))
    groups = {key[11:-1]: 1e3 * value for key, value in found.metrics.items() if key.startswith("forces_mae[")}
    figures.append(bar_plot("Force MAE by element and kind of atom", groups, x_label="force MAE (meV/Å)"))
    return EvaluationSection(
        name=_TITLES.get(name, name),
        n_structures=found.n_structures,
        about=_SETS.get(name, ""),
        metrics=metric_rows(found.metrics),
        meanings=tuple(meaning for metric, meaning in _MEANINGS.items() if metric in found.metrics),
        figures=tuple(figure for figure in figures if figure is not None),
        worst=_worst(found.records, sources),
    )


def evaluation_report(
    path: Path, *, title: str, sections: Sequence[EvaluationSection], symmetry: Sequence[tuple[str, str]] = ()
) -> None:
    """Write the page of an evaluation.

    Args:
        path: HTML file.
        title: Of the page.
        sections: From :func:`evaluation_section`.
        symmetry: (metric, value with unit) of the symmetry metrics.
    """
    write_page(path, "evaluation.html", title=title, sections=sections, symmetry=symmetry)


def training_report(
    path: Path,
    *,
    title: str,
    history: Sequence[Mapping[str, float]],
    sections: Sequence[EvaluationSection],
    config: str,
    notes: str,
) -> None:
    """Write the page of a training run.

    Args:
        path: HTML file.
        title: Of the page.
        history: One row per validation.
        sections: From :func:`evaluation_section`.
        config: The settings as YAML.
        notes: A sentence on how the run went.
    """
    curves = _learning_curves(history) if len(history) > 1 else []  # one validation is a point, not a curve
    figures = [figure for figure in curves if figure is not None]
    write_page(path, "training.html", title=title, notes=notes, figures=figures, sections=sections, config=config)


def metric_rows(metrics: Mapping[str, float]) -> tuple[MetricRow, ...]:
    """The metrics of `SHOWN` that are there, in its order."""
    return tuple(
        MetricRow(title=title, value=f"{metrics[name] * factor:.4g}", unit=unit)
        for name, (title, factor, unit) in SHOWN.items()
        if name in metrics
    )


def _training_losses(history: Sequence[Mapping[str, float]]) -> tuple[list[float], list[float]]:
    """Steps and training losses, which are averages over the batches since the previous validation.

    An average over much fewer batches than the others is noise: that of a run that ended soon after a validation, or of
    the steps before the first validation.
    """
    steps = np.array([row["step"] for row in history])
    batches = np.diff(steps, prepend=0.0)
    kept = batches >= _SMALLEST_AVERAGE * np.median(batches) if len(batches) else np.zeros(0, dtype=bool)
    losses = np.array([row.get("train_loss", np.nan) for row in history])
    return steps[kept].tolist(), losses[kept].tolist()


def _learning_curves(history: Sequence[Mapping[str, float]]) -> list[Figure | None]:
    steps = [row["step"] for row in history]

    def column(name: str, factor: float = 1.0) -> tuple[list[float], list[float]]:
        return steps, [factor * row.get(name, float("nan")) for row in history]

    losses = {"training": _training_losses(history), "validation": column("loss")}
    figures = [
        line_plot("Loss", losses, x_label="step", y_label="loss", log_y=True),
        line_plot("Learning rate", {"lr": column("lr")}, x_label="step", y_label="learning rate", log_y=True),
    ]
    for name in ("energy_mae_per_atom", "forces_mae"):
        label, factor, unit = SHOWN[name]
        curve = {"validation": column(name, factor)}
        figures.append(line_plot(f"Validation {label}", curve, x_label="step", y_label=f"{label} ({unit})", log_y=True))
    return figures


def _worst(records: Sequence[StructureRecord], sources: Sequence[str] | None) -> tuple[WorstRow, ...]:
    rows = [_worst_row(record, "" if sources is None else sources[record.index]) for record in records]
    rows.sort(key=lambda row: -(row.force_error if np.isfinite(row.force_error) else abs(row.energy_error)))
    return tuple(rows[:N_WORST])


def _worst_row(record: StructureRecord, source: str) -> WorstRow:
    force = np.nan
    if record.forces is not None and record.predicted_forces is not None:
        force = 1e3 * float(np.nanmax(np.linalg.norm(record.predicted_forces - record.forces, axis=1)))
    symbols = [elements.symbol(int(z)) for z in record.numbers]
    return WorstRow(
        index=record.index,
        formula=f"{Formula.from_list(symbols):metal}",
        energy_error=1e3 * (record.predicted_energy - record.energy) / len(record.numbers),
        force_error=force,
        source=source,
    )
