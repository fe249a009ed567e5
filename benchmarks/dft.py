"""Published DFT data sets on their published splits: this package beside SchNet and published errors.

    python benchmarks/dft.py [--co2 FILE.extxyz.xz] [--steps 1000] [--seeds 3] [--quick] [--out rows.jsonl]
                             [--plot dft.svg]

- mlearn (Zuo et al., J. Phys. Chem. A 124, 731 (2020)): Si, Ge, Mo and Li, training and test sets as published.
- acetylacetone (Batatia et al., arXiv:2205.06643): trained at 300 K, tested at 300 K and 600 K on structures that are
  evenly chosen from the published test sets (``--test``; molecules have many frames).
- CO2 on Ni(100), the validation half of the example set of zhangylch/REANN: not part of the repository; give the file
  with ``--co2``. There is no published split: 10 % each are drawn at random for validation and test. The shipped model
  co2-ni100 is not tested here, since it was trained on another random split of the same structures.

Networks have 64 channels and 3 interactions and take the same steps on the same data by the training loop of the
package: far fewer than the published models. "this package" is the preset ``modern-s``. Published errors are quoted
with their source where the text of the source is at hand.
"""

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
import torch
from experiment import Measured, Network, Trained, fit, mean_of
from matplotlib import rc_context
from matplotlib.figure import Figure
from rows import Row, Rows, progress, rounded, run_script, script_parser

from faenet_calc.data.dataset import GraphDataset, open_dataset
from faenet_calc.errors import InputError
from faenet_calc.potential.potential import Potential
from faenet_calc.reports.plots import COLORS, STYLE
from faenet_calc.training.assessment import assess
from faenet_calc.training.batches import Indices

FOLDER = Path(__file__).parent / "data"
TEST_FOLDER = Path(__file__).parents[1] / "tests" / "data" / "mlearn"
CO2 = "CO2/Ni(100)"
SETTINGS = (
    "model.preset=modern-s", "model.hidden_channels=64", "model.filters=64", "model.interactions=3",
    "optim.warmup_steps=20", "optim.ema_decay=0.99", "optim.batch_size=2", "run.validation_frames=one",
)  # fmt: skip
NETWORKS = {"SchNet": Network(settings=SETTINGS, schnet=True), "this package": Network(settings=SETTINGS)}
BASELINE = "mean energy, zero forces"


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set with its published split.

    Attributes:
        train: Training file.
        tests: Name of a table → test file; empty for a random split.
        batch: Structures per step.
        size: Number of training structures, without those for validation.
    """

    train: Path
    tests: dict[str, Path]
    size: int
    batch: int = 2

    def settings(self, folder: Path, steps: int, seed: int) -> list[str]:
        """Settings of data, duration (about so many steps) and seed."""
        number = max(1, round(steps * self.batch / self.size))
        found = [
            f"data.train={json.dumps([str(self.train)])}", f"data.cache_dir={folder}", "data.split=random",
            f"run.seed={seed}", f"run.max_epochs={number}", f"run.validate_every={number}",
            f"optim.batch_size={self.batch}",
        ]  # fmt: skip
        return [*found, "data.val_fraction=0.05"] if self.tests else [*found, "data.test_fraction=0.1"]


def data_sets(co2: Path | None) -> dict[str, DataSet]:
    """All data sets that are at hand."""
    found = {
        element: DataSet(
            train=FOLDER / "mlearn" / f"{element}.extxyz.xz",
            tests={f"mlearn {element}": TEST_FOLDER / f"{element}.extxyz.xz"},
            size=size,
        )
        for element, size in {"Si": 203, "Ge": 217, "Mo": 184, "Li": 229}.items()
    }
    folder = FOLDER / "acetylacetone"
    found["acetylacetone"] = DataSet(
        train=folder / "train_300K.extxyz.xz",
        tests={f"acetylacetone {name}": folder / f"test_MD_{name}.extxyz.xz" for name in ("300K", "600K")},
        batch=8,
        size=475,
    )
    if co2 is not None:
        if not co2.is_file():
            raise InputError(f"{co2} does not exist; --co2 takes the extxyz file of the CO2/Ni(100) structures")
        found[CO2] = DataSet(train=co2, tests={}, size=634)
    return found


def shortened(data: DataSet, folder: Path, name: str, count: int) -> DataSet:
    """The first structures of a training set, for quick runs."""
    path = folder / f"{name}.extxyz"
    ase.io.write(path, ase.io.read(data.train, f":{count}"))
    return dataclasses.replace(data, train=path, size=count)


# Test MAE of energies (meV/atom) and forces (meV/Å).
PUBLISHED = {
    "mlearn Si": {
        "published: neural network, power spectrum (PyXtal_FF)": (3.95, 82.6),
        "published: neural network, bispectrum (PyXtal_FF)": (3.83, 89.4),
    }
}
SOURCE = "MaterSim/PyXtal_FF, examples/UCSD-Si-214-25/README.md, 4000 epochs"


def errors(potential: Potential, dataset: GraphDataset, indices: Indices) -> Measured:
    """Errors of energies and forces."""
    found = assess(potential, dataset, indices, frames="one" if potential.config.frames.kind == "none" else "pair")
    metrics = found.metrics
    return {
        "energy MAE": (1e3 * metrics["energy_mae_per_atom"], "meV/atom"),
        "force MAE": (1e3 * metrics["forces_mae"], "meV/Å"),
        "energy RMSE": (1e3 * metrics["energy_rmse_per_atom"], "meV/atom"),
        "force RMSE": (1e3 * metrics["forces_rmse"], "meV/Å"),
    }


def baseline(train: GraphDataset, test: GraphDataset, indices: Indices) -> Measured:
    """Errors of the mean energy per atom of the training set and of no forces."""
    mean = float(np.mean(train.energy / train.n_atoms))
    error = np.asarray(test.energy)[indices] / test.n_atoms[indices] - mean
    forces = np.concatenate([test.arrays["forces"][test.atoms_of(int(index))] for index in indices])
    return {
        "energy MAE": (1e3 * float(np.abs(error).mean()), "meV/atom"),
        "force MAE": (1e3 * float(np.abs(forces).mean()), "meV/Å"),
        "energy RMSE": (1e3 * float(np.sqrt(np.mean(error**2))), "meV/atom"),
        "force RMSE": (1e3 * float(np.sqrt(np.mean(forces**2))), "meV/Å"),
    }


def test_sets(
    name: str, data: DataSet, trained: Trained, folder: Path, limit: int
) -> dict[str, tuple[GraphDataset, Indices]]:
    """Name of a table → structures."""
    if not data.tests:
        test = trained.prepared.test
        assert test is not None
        return {name: (test.dataset, test.indices)}
    found = {}
    for table, file in data.tests.items():
        dataset = open_dataset([file], cutoff=trained.potential.cutoff, cache_dir=folder)
        found[table] = dataset, np.linspace(0, len(dataset) - 1, min(limit, len(dataset))).round().astype(np.int64)
    return found


def run(chosen: argparse.Namespace, rows: Rows, folder: Path) -> None:
    """Train and test all data sets, networks and seeds that are missing."""
    if others := {row["asked_steps"] for row in rows.rows if "seed" in row} - {chosen.steps}:
        raise InputError(
            f"--steps {chosen.steps}, but the stored rows are of --steps {', '.join(map(str, sorted(others)))}; a mean "
            "over both would mean nothing: give the same number, or start anew without --resume"
        )
    for seed in range(chosen.seeds):
        for name, data in data_sets(chosen.co2).items():
            if name not in chosen.sets:
                continue
            if chosen.quick:
                data = shortened(data, folder, name, 24)
            for network in NETWORKS:
                done = {(row["set"], row["case"], row["seed"]) for row in rows.rows if "seed" in row}
                if (name, network, seed) in done:
                    continue
                trained = fit(NETWORKS[network], data.settings(folder, chosen.steps, seed))
                found: list[Row] = []
                for table, (dataset, indices) in test_sets(name, data, trained, folder, chosen.test).items():
                    words = {"benchmark": "dft", "table": table, "set": name}
                    if seed == 0 and network == next(iter(NETWORKS)):
                        found += _rows(
                            words | {"case": BASELINE}, baseline(trained.prepared.train.dataset, dataset, indices)
                        )
                        for case, (energy, forces) in PUBLISHED.get(table, {}).items():
                            quoted = {"energy MAE": (energy, "meV/atom"), "force MAE": (forces, "meV/Å")}
                            found += _rows(words | {"case": case, "source": SOURCE}, quoted)
                    cost = {"training": (trained.cpu_s, "s"), "steps": (trained.steps, "")}
                    measured = {**errors(trained.potential, dataset, indices), **cost}
                    found += _rows(words | {"case": network, "seed": seed, "asked_steps": chosen.steps}, measured)
                rows.extend(found)
                progress(done=name, network=network, seed=seed)


def _rows(words: Row, measured: Measured) -> list[Row]:
    return [
        words | {"metric": metric, "value": rounded(float(value)), "unit": unit}
        for metric, (value, unit) in measured.items()
    ]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the force errors of all test sets."""
    tables = list(dict.fromkeys(row["table"] for row in rows if "set" in row))
    cases = (BASELINE, *NETWORKS)
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        axes = figure.add_subplot(yscale="log")
        for number, case in enumerate(cases):
            values = [mean_of(rows, table=table, case=case, metric="force MAE") for table in tables]
            axes.bar(np.arange(len(tables)) + 0.27 * (number - 1), values, 0.25, color=COLORS[number], label=case)
        published = [
            (place, row["value"])
            for place, table in enumerate(tables)
            for row in rows
            if row.get("table") == table and "source" in row and row["metric"] == "force MAE"
        ]
        if published:
            places, values = zip(*published, strict=True)
            axes.hlines(values, np.array(places) - 0.42, np.array(places) + 0.42, color="black", label="published")
        axes.set_xticks(range(len(tables)), [table.replace(" ", "\n", 1) for table in tables], fontsize="small")
        axes.set_ylabel("test force MAE (meV/Å)")
        axes.legend(fontsize="small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Measure and store."""
    parser = script_parser(__doc__, quick="One epoch on a few structures.")
    parser.add_argument("--co2", type=Path, metavar="FILE", help="CO2/Ni(100) structures as extxyz, also .xz.")
    names = [*data_sets(None), CO2]
    parser.add_argument("--sets", nargs="+", choices=names, default=names, help="Only these data sets.")
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="about so many, in whole epochs")
    parser.add_argument(
        "--test", type=int, default=50, help="largest number of test structures with files of their own"
    )
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.quick:
        chosen.sets, chosen.steps, chosen.seeds, chosen.test = ["Si", "acetylacetone"], 1, 1, 3
    rows = Rows(chosen.out)
    with tempfile.TemporaryDirectory() as scratch:
        run(chosen, rows, Path(scratch))
    if chosen.plot is not None:
        plot(rows.rows, chosen.plot)


if __name__ == "__main__":
    run_script(main)
