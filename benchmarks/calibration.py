"""Is the uncertainty of the energy calibrated, and does it find structures that the model cannot know?

    python benchmarks/calibration.py metals-m [metals-s …] [--plot calibration.svg] [--json rows.jsonl]
    python benchmarks/calibration.py metals-m --final

Without `--final` on the validation set of datasets/metals-v1, on which the shipped uncertainties were calibrated: each
half of its systems is scored with the factor that the other half gives. `--final` opens the sealed test set, records
this in benchmarks/results/openings.jsonl, and uses the uncertainty as it is stored.

Scores: `uncertainty` (energy_uncertainty), `frame spread` (energy_frame_std) and, with several models, `committee` (the
standard deviation of their energies). The last two have no scale of their own and are always multiplied by the factor
that makes their mean square standardized error one. Rows:

coverage_68, coverage_95    share of errors within 1 and 1.96 standard deviations; 0.683 and 0.950 for a normal
                            distribution.
coverage_interval           share of errors within energy_uncertainty_95, or within the same quantile of the other half
                            of the systems; 0.950 if calibrated.
coverage_left_out           by system, metal, adsorbate and facet: share of the errors within the interval that all
                            structures with another value give; only without `--final`. 0.950 if the interval holds for
                            systems of a kind that the calibration has not seen.
rank_correlation            Spearman's, between score and error of the energy; per_atom for both divided by the atoms.
auroc                       probability that a structure far outside (oxides, graphene, high coverage, water layers,
                            unknown elements, fused and compressed atoms) has a larger score per atom than one of the
                            data; also for `distance`, the largest domain_distance of the atoms.
guard                       share of the data and of the structures far outside that the guard marks.

The plot compares the root mean square error with the predicted standard deviation in ten groups of equal size, of the
structures that the guard does not mark.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from ase.spacegroup import crystal
from heldout_errors import evaluated_files, record_opening
from numpy.typing import NDArray
from rows import Row, Rows, model_words, rounded, show
from scipy.stats import rankdata, spearmanr
from trust import UP, foreign_structures

from faenet_calc import FAENetCalculator
from faenet_calc.data.formats import Record, read_records
from faenet_calc.potential.uncertainty import COVERAGE, grouped_quantile

Floats = NDArray[np.float64]
SMALLEST = 1e-3  # (eV) of a score: by symmetry, some structures have the same energy in all frames
LEFT_OUT = ("system", "metal", "adsorbate", "facet")


def far_outside() -> dict[str, Atoms]:
    """Structures that have nothing to do with the training data."""
    cuprite = {"spacegroup": 224, "cellpar": [4.72, 4.72, 4.72, 90, 90, 90]}
    rutile = {"spacegroup": 136, "cellpar": [4.51, 4.51, 3.16, 90, 90, 90]}
    found = foreign_structures() | {
        "CoO": bulk("CoO", "rocksalt", a=4.26, cubic=True),
        "CuO": bulk("CuO", "rocksalt", a=4.25, cubic=True),
        "Ag2O": crystal(["Ag", "O"], [(0.25, 0.25, 0.25), (0, 0, 0)], **cuprite),
        "IrO2": crystal(["Ir", "O"], [(0, 0, 0), (0.3077, 0.3077, 0)], **rutile),
        "diamond": bulk("C", "diamond", a=3.567, cubic=True),
        "Fe": bulk("Fe"),
        "compressed Cu": bulk("Cu", a=2.9, cubic=True),
        "Cu in a cell of 1 Å": Atoms("Cu", cell=[1.0] * 3, pbc=True),
        "fused Pt2": Atoms("Pt2", positions=[(0, 0, 0), (0, 0, 1.0)]),
        "fused CuO": Atoms("CuO", positions=[(0, 0, 0), (0, 0, 0.8)]),
    }
    silver = fcc111("Ag", (2, 2, 3), vacuum=8.0)
    top = silver.positions[silver.positions[:, 2] > silver.positions[:, 2].max() - 0.1]
    found["full layer of O on Ag(111)"] = silver + Atoms("O4", positions=top + 1.9 * UP)
    return found


def scores(calculators: Sequence[FAENetCalculator], structures: Sequence[Atoms]) -> dict[str, Floats]:
    """Energies (eV), standard deviations (eV), distances and marks of the first model; the spread over all models."""
    wanted = ("energy", "energy_uncertainty", "energy_uncertainty_95", "energy_frame_std", "domain_distance")
    first = calculators[0].predict(structures, properties=wanted)
    found = {
        "energy": np.array([result["energy"] for result in first]),
        "uncertainty": np.array([result["energy_uncertainty"] for result in first]),
        "interval": np.array([result["energy_uncertainty_95"] for result in first]),
        "frame spread": np.array([result["energy_frame_std"] for result in first]),
        "distance": np.array([result["domain_distance"].max() for result in first]),
        "outside": np.array([result["domain"] == "outside" for result in first], dtype=float),
    }
    if len(calculators) > 1:
        others = [[result["energy"] for result in calc.predict(structures, ("energy",))] for calc in calculators[1:]]
        found["committee"] = np.std([found["energy"], *others], axis=0)
    return found


def cross_calibrated(deviation: Floats, error: Floats, half: NDArray[np.bool_]) -> Floats:
    """Deviations [n] multiplied by the factor that calibrates those of the other half."""
    scaled = deviation.copy()
    for chosen in (half, ~half):
        scaled[chosen] *= np.sqrt(np.mean((error[~chosen] / deviation[~chosen]) ** 2))
    return scaled


def auroc(inside: Floats, outside: Floats) -> float:
    """Probability that a score outside is larger than one inside; ties count half."""
    ranks = rankdata(np.concatenate([inside, outside]))[len(inside) :]
    return float((ranks.sum() - len(outside) * (len(outside) + 1) / 2) / (len(inside) * len(outside)))


def intervals(deviation: Floats, error: Floats, half: NDArray[np.bool_], group: NDArray[np.int64]) -> Floats:
    """[n] (eV) half widths of 95 % intervals from the errors of the other half, every group with the same weight."""
    standardized, width = torch.as_tensor(np.abs(error) / deviation), np.empty_like(deviation)
    for chosen in (half, ~half):
        other = torch.as_tensor(~chosen)
        factor = grouped_quantile(standardized[other], torch.as_tensor(group)[other], COVERAGE)
        width[chosen] = factor * deviation[chosen]
    return width


def left_out_coverage(deviation: Floats, error: Floats, labels: NDArray[np.str_], group: NDArray[np.int64]) -> float:
    """Share of errors [n] within the 95 % interval that the structures with other labels [n] give."""
    standardized, covered = np.abs(error) / deviation, np.zeros(len(error), dtype=bool)
    for label in np.unique(labels):
        chosen = labels == label
        others = torch.as_tensor(standardized[~chosen]), torch.as_tensor(group[~chosen])
        covered[chosen] = standardized[chosen] <= grouped_quantile(*others, COVERAGE)
    return float(covered.mean())


def agreement(deviation: Floats, width: Floats, error: Floats, n_atoms: Floats) -> Row:
    """How well standard deviations [n] and half widths of 95 % intervals [n] describe errors [n] (eV)."""
    standardized = np.abs(error) / deviation
    return {
        "coverage_interval": float((np.abs(error) <= width).mean()),
        "coverage_68": float((standardized < 1).mean()),
        "coverage_95": float((standardized < 1.96).mean()),
        "rank_correlation": float(spearmanr(deviation, np.abs(error)).statistic),
        "rank_correlation_per_atom": float(spearmanr(deviation / n_atoms, np.abs(error) / n_atoms).statistic),
    }


def groups(deviation: Floats, error: Floats, n: int = 10) -> tuple[Floats, Floats]:
    """Root mean square deviation and error (eV) of groups of equal size, by deviation."""
    parts = np.array_split(np.argsort(deviation), n)
    return tuple(np.array([np.sqrt(np.mean(x[part] ** 2)) for part in parts]) for x in (deviation, error))  # type: ignore[return-value]


def plot(curves: dict[str, tuple[Floats, Floats]], path: Path) -> None:
    """The reliability plot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(4.5, 4.2), layout="constrained")
    for label, (predicted, found) in curves.items():
        axes.loglog(1e3 * predicted, 1e3 * found, "o-", label=label)
    limits = [min(*axes.get_xlim(), *axes.get_ylim()), max(*axes.get_xlim(), *axes.get_ylim())]
    axes.loglog(limits, limits, color="0.6", linewidth=1, zorder=0)
    axes.set_xlabel("predicted standard deviation of the energy (meV)")
    axes.set_ylabel("root mean square error (meV)")
    axes.legend(frameon=False)
    figure.savefig(path)


def measured(
    calculators: Sequence[FAENetCalculator], records: Sequence[Record], *, final: bool
) -> tuple[list[Row], dict[str, tuple[Floats, Floats]]]:
    """Rows and reliability curves of the first model."""
    found = scores(calculators, [record.atoms for record in records])
    outside = scores(calculators, list(far_outside().values()))
    foreign_sizes = np.array([len(atoms) for atoms in far_outside().values()], dtype=float)
    error = found["energy"] - np.array([record.results["energy"] for record in records])
    n_atoms = np.array([len(record.atoms) for record in records], dtype=float)
    systems = sorted({str(record.info.get("system")) for record in records})
    group = np.array([systems.index(str(record.info.get("system"))) for record in records])
    half = np.array([systems.index(str(record.info.get("system"))) % 2 == 0 for record in records])
    labels = {key: np.array([str(record.info.get(key)) for record in records]) for key in LEFT_OUT}
    rows: list[Row] = []
    curves = {}
    for name in ("uncertainty", "frame spread", "committee", "distance"):
        if name not in found:
            continue
        row: Row = {"score": name}
        if name != "distance":
            deviation = np.maximum(found[name], SMALLEST)
            width = found["interval"]
            if name != "uncertainty" or not final:
                deviation = cross_calibrated(deviation, error, half)
                width = intervals(deviation, error, half, group)
            row |= agreement(deviation, width, error, n_atoms)
            if not final:
                row["coverage_left_out"] = {
                    key: left_out_coverage(found[name].clip(SMALLEST), error, labels[key], group) for key in LEFT_OUT
                }
            inside = found["outside"] == 0
            curves[name] = groups(deviation[inside], error[inside])
        per_atom = (1.0, 1.0) if name == "distance" else (n_atoms, foreign_sizes)
        row["auroc"] = auroc(found[name] / per_atom[0], outside[name] / per_atom[1])
        rows.append(row)
    marked = {"score": "guard", "marked_inside": float(found["outside"].mean())}
    return [*rows, marked | {"marked_outside": float(outside["outside"].mean())}], curves


def main() -> None:
    """A row per score; several models also form a committee with the first one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--final", action="store_true", help="open the sealed test set and record it")
    parser.add_argument("--plot", type=Path, help="write the reliability plot to this file")
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = evaluated_files(None, arguments.final)
    if arguments.final:
        record_opening(arguments.models, files, [Path(sys.argv[0]).name, *sys.argv[1:]])
    records = [record for file in files for record in read_records(file) if "energy" in record.results]
    options: dict[str, Any] = {"device": "cpu", "frames": "all", "on_unknown_element": "ignore", "check_finite": False}
    kept = Rows(arguments.json)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calculators = [FAENetCalculator(name, **options) for name in arguments.models]
        rows, curves = measured(calculators, records, final=arguments.final)
    words = {"benchmark": "calibration", **model_words(arguments.models[0]), "committee": arguments.models}
    for row in rows:
        full = words | {"data": "test" if arguments.final else "validation", "n": len(records)} | rounded(row)
        kept.append(full)
        show(full)
    if arguments.plot is not None:
        plot(curves, arguments.plot)


if __name__ == "__main__":
    main()
