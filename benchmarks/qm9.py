"""Learning curves on QM9: the paper's network beside SchNet, by the same training loop.

    python benchmarks/qm9.py [--train 1000 3000 10000] [--targets U0 mu gap alpha] [--passes 20000] [--seeds 1]
                             [--settings] [--quick] [--out rows.jsonl] [--plot qm9.svg]
    python benchmarks/qm9.py --paper                   # 110,000 molecules, the paper's widths and schedule (GPU)

QM9 (Ramakrishnan et al., Sci. Data 1, 140022 (2014)) is read from the PyPI package ``qm9pack`` (MIT licence, 104 MB;
``pip install faenet-calc[qm9]``): 130,831 molecules in a random order (seed 123), of which the first 110,000 are for
training, 10,000 for validation and the rest for the test, as in the released code of the paper. Smaller sets are the
first molecules of each. One network is trained per target.

FAENet is the preset ``paper-qm9``; without ``--paper`` it is reduced to what a CPU can train: 96 channels, 3
interactions, and ``--passes`` molecules seen in steps of 16, whatever the size of the training set. Errors are those of
all frames, and of one random frame per molecule ("SFA") as in the paper. SchNet has the same width, depth, cutoff,
data, references of elements, loss, optimizer and number of steps. "composition" is a linear fit to the numbers of atoms
of each element. The relative improvement is the paper's R = (MAE of SchNet - MAE) / MAE of SchNet.

Optimizer and learning rate are chosen for each network by the validation error of U0 after seeing 9,000 molecules, from
the same candidates for both; ``--settings`` runs these trainings, and those of FAENet with one other setting.
"""

import argparse
import ast
import importlib.util
import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ase.io
import ase.units
import numpy as np
import torch
from ase import Atoms
from experiment import Network, Trained, fit, mean_of
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from rows import Row, Rows, progress, rounded, run_script, script_parser

from faenet_calc.errors import InputError
from faenet_calc.frames.config import FrameMode
from faenet_calc.reports.plots import COLORS, STYLE, LogFormatter
from faenet_calc.training.assessment import assess

SAMPLE = Path(__file__).parent / "data" / "qm9-sample.extxyz.xz"
SPLIT_SEED, N_TRAIN, N_VAL = 123, 110_000, 10_000
PAPER_EPOCHS = 1500  # at most


@dataclass(frozen=True, kw_only=True)
class Target:
    """A property of QM9.

    Attributes:
        column: Of the tables in qm9pack.
        factor: From the unit there to the unit of training.
        unit: Of training.
        shown: Unit of the reported error.
        shown_factor: From the unit of training.
        paper: MAE of SchNet and FAENet in the paper's table, in the shown unit.
    """

    column: str
    unit: str
    shown: str
    paper: tuple[float, float]
    factor: float = 1.0
    shown_factor: float = 1.0


def _electronvolts(column: str, schnet: float, faenet: float) -> Target:
    return Target(
        column=column, unit="eV", shown="meV", paper=(schnet, faenet), factor=ase.units.Hartree, shown_factor=1e3
    )


TARGETS = {
    "mu": Target(column="Dipole_debye", unit="D", shown="D", paper=(0.033, 0.0289)),
    "alpha": Target(column="Polarizability_bohr3", unit="a0^3", shown="a0³", paper=(0.235, 0.0527)),
    "homo": _electronvolts("HOMO_au", 41.0, 24.5),
    "lumo": _electronvolts("LUMO_au", 34.0, 20.0),
    "gap": _electronvolts("HOMO_LUMO_gap_au", 63.0, 40.2),
    "r2": Target(column="R2_bohr2", unit="a0^2", shown="a0²", paper=(0.073, 0.498)),
    "zpve": _electronvolts("ZPVE_au", 1.7, 1.26),
    "U0": _electronvolts("InternalEnergy_0K_au", 14.0, 6.79),
    "U": _electronvolts("InternalEnergy_298K_au", 19.0, 6.80),
    "H": _electronvolts("Enthalphy_298K_au", 14.0, 6.74),
    "G": _electronvolts("GibbsFreeEnergy_298K_au", 14.0, 7.91),
    "cv": Target(column="Heatcapacity_Cv_cal_mol_K", unit="cal/mol/K", shown="cal/mol/K", paper=(0.033, 0.023)),
}

REDUCED = (
    "model.hidden_channels=96", "model.filters=96", "model.interactions=3", "model.gaussians=50",
    "model.atoms.group_period_channels=16", "normalization.scale=fit", "loss.energy_kind=mae",
    "optim.kind=muon", "optim.lr=5e-3", "optim.weight_decay=1e-4", "optim.beta2=0.99", "optim.batch_size=16",
    "optim.schedule=cosine", "optim.warmup_steps=30", "optim.ema_decay=0.99", "optim.grad_clip=10.0",
    "stop.patience=null",
)  # fmt: skip
COMPOSITION = "composition"
# Choice of settings: trainings on so many molecules, seeing so many, compared by the validation error of U0.
CHOICE_TRAIN, CHOICE_PASSES = 3000, 9000
CHOICE = f"validation MAE of U0 by settings: {CHOICE_TRAIN} molecules, {CHOICE_PASSES} seen"
RATES = {
    "Muon, 2e-3": ("optim.lr=2e-3",),
    "Muon, 5e-3 (used)": (),
    "Muon, 1e-2": ("optim.lr=1e-2",),
    "AdamW, 1e-3": ("optim.kind=adamw", "optim.lr=1e-3"),
    "AdamW, 3e-3": ("optim.kind=adamw", "optim.lr=3e-3"),
}
OTHER_SETTINGS = {
    "no GraphNorm": ("model.graph_norm=false", "normalization.mean_neighbors=fit"),
    "basic MP": ("model.message=simple",),
    "no frames": ("frames.kind=none",),
}
NETWORKS = {
    "SchNet": Network(settings=("model.preset=paper-qm9",), schnet=True),
    "FAENet": Network(settings=("model.preset=paper-qm9",)),
}


class Molecules:
    """QM9 in the order of its split.

    Args:
        folder: Folder ``data`` of qm9pack; None for the installed one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        import pandas as pd

        parts = sorted((folder or installed_data()).glob("qm9_part*.csv"))
        columns = ["Elements", "XYZ_Ang", *(target.column for target in TARGETS.values())]
        self.table = pd.concat([pd.read_csv(part, usecols=columns) for part in parts], ignore_index=True)
        generator = torch.Generator().manual_seed(SPLIT_SEED)
        self.order = torch.randperm(len(self.table), generator=generator).numpy()

    def take(self, start: int, count: int) -> list[Atoms]:
        """Molecules of the random order with all targets in ``info``, in their units of training."""
        found = []
        for index in self.order[start : start + count]:
            row = self.table.iloc[int(index)]
            atoms = Atoms(ast.literal_eval(row["Elements"]), ast.literal_eval(row["XYZ_Ang"]))
            atoms.info = {name: float(row[one.column]) * one.factor for name, one in TARGETS.items()}
            found.append(atoms)
        return found


def installed_data() -> Path:
    """Return the folder of the data of qm9pack, which is not imported: it needs the removed pkg_resources."""
    spec = importlib.util.find_spec("qm9pack")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "QM9 is in the package qm9pack (104 MB), which is not installed: pip install 'faenet-calc[qm9]', or give "
            "the folder of its CSV files with --qm9 FOLDER"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


@dataclass(frozen=True, kw_only=True)
class Sets:
    """Files of the training, validation and test sets.

    Attributes:
        train: Number of molecules → file.
    """

    train: dict[int, Path]
    val: Path
    test: Path

    def settings(self, n_train: int, folder: Path) -> list[str]:
        """Settings that name the files."""
        paths = {"train": self.train[n_train], "val": self.val, "test": self.test}
        return [
            *(f"data.{name}={json.dumps([str(path)])}" for name, path in paths.items()),
            f"data.cache_dir={folder / 'cache'}",
        ]


def write_sets(folder: Path, sizes: Iterable[int], n_val: int, n_test: int, source: Path | None) -> Sets:
    """Write the sets as extxyz files."""
    molecules = Molecules(source)
    train = {}
    for size in sizes:
        train[size] = folder / f"train-{size}.extxyz"
        ase.io.write(train[size], molecules.take(0, size))
    parts = {"val": molecules.take(N_TRAIN, n_val), "test": molecules.take(N_TRAIN + N_VAL, n_test)}
    for name, members in parts.items():
        ase.io.write(folder / f"{name}.extxyz", members)
    return Sets(train=train, val=folder / "val.extxyz", test=folder / "test.extxyz")


def write_sample(folder: Path, sizes: Sequence[int]) -> Sets:
    """Write the sets of a quick run, from the sample that is stored with the script."""
    members = sample()
    train = {}
    for size in sizes:
        train[size] = folder / f"train-{size}.extxyz"
        ase.io.write(train[size], members[:size])
    for name, part in {"val": members[-40:-20], "test": members[-20:]}.items():
        ase.io.write(folder / f"{name}.extxyz", part)
    return Sets(train=train, val=folder / "val.extxyz", test=folder / "test.extxyz")


@cache
def sample() -> list[Atoms]:
    """200 molecules of QM9."""
    return read(SAMPLE)


def read(path: Path) -> list[Atoms]:
    """Molecules of an extxyz file."""
    found = ase.io.read(path, ":")
    assert isinstance(found, list)
    return found


def epochs(passes: int, n_train: int) -> tuple[str, ...]:
    """Settings of a run that sees about so many molecules, with a validation at its end."""
    number = max(1, round(passes / n_train))
    return (f"run.max_epochs={number}", f"run.validate_every={number}")


def title(size: int, passes: int) -> str:
    """Of the table of a size and duration."""
    return f"test MAE after training on {size} molecules, about {passes} seen"


def test_errors(trained: Trained, target: Target, frames: dict[str, str]) -> dict[str, tuple[float, str]]:
    """Name of a frame mode → MAE on the test set and its unit."""
    test = trained.prepared.test
    assert test is not None
    return {
        name: (
            target.shown_factor
            * assess(trained.potential, test.dataset, test.indices, frames=mode).metrics["energy_mae"],  # type: ignore[arg-type]
            target.shown,
        )
        for name, mode in frames.items()
    }


def baseline_error(sets: Sets, size: int, name: str) -> float:
    """Test MAE (in the shown unit) of a linear fit to the numbers of atoms of each element."""
    train, test = (read(path) for path in (sets.train[size], sets.test))
    fitted, *_ = np.linalg.lstsq(_counts(train), np.array([atoms.info[name] for atoms in train]), rcond=None)
    errors = _counts(test) @ fitted - np.array([atoms.info[name] for atoms in test])
    return float(TARGETS[name].shown_factor * np.abs(errors).mean())


def _counts(molecules: Sequence[Atoms]) -> NDArray[np.float64]:
    """[n, 5] numbers of atoms of H, C, N, O and F."""
    return np.array([[(atoms.numbers == number).sum() for number in (1, 6, 7, 8, 9)] for atoms in molecules], float)


def relative_improvements(rows: Sequence[Row]) -> list[Row]:
    """R of the paper for every target and size that both networks have, next to the paper's own."""
    found: list[Row] = []
    table = "relative improvement of FAENet over SchNet (%)"
    runs = sorted({(row["train"], row["passes"]) for row in rows if "train" in row})
    for name in dict.fromkeys(row["target"] for row in rows if "target" in row):
        case = {"benchmark": "qm9", "table": table, "case": name, "unit": ""}
        for size, passes in runs:
            try:
                schnet, ours = (mean_of(rows, target=name, train=size, passes=passes, network=key) for key in NETWORKS)
            except KeyError:
                continue
            gain = rounded(100 * (schnet - ours) / schnet, 1)
            found.append(case | {"metric": f"{size} molecules, {passes} seen", "value": gain})
        schnet, ours = TARGETS[name].paper
        found.append(case | {"metric": "paper, 110000", "value": rounded(100 * (schnet - ours) / schnet, 1)})
    return found


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw errors against the molecules seen, a panel per target and a line per network and size; points are seeds."""
    measured = [row for row in rows if "target" in row]
    targets = list(dict.fromkeys(row["target"] for row in measured))
    sizes = sorted({row["train"] for row in measured})
    lengths = sorted({row["passes"] for row in measured})
    columns = min(2, len(targets))
    lines = math.ceil(len(targets) / columns)
    colors = dict(zip(("SchNet", "FAENet", "FAENet, SFA"), COLORS, strict=False))
    styles = dict(zip(sizes, itertools.cycle(("o-", "s:", "^--")), strict=False))
    hollow: dict[str, Any] = {"markersize": 5, "markerfacecolor": "none", "linewidth": 1}
    with rc_context(STYLE):
        figure = Figure(figsize=(3.6 * columns, 2.6 * lines + 0.5), layout="constrained")
        for number, name in enumerate(targets, start=1):
            axes = figure.add_subplot(lines, columns, number, xscale="log", yscale="log")
            for (network, color), (size, style) in itertools.product(colors.items(), styles.items()):
                words = {"target": name, "network": network, "train": size}
                members = [row for row in measured if words.items() <= row.items()]
                apart = 1.03 ** list(colors).index(network)  # points do not hide each other
                seen = sorted({row["passes"] for row in members})
                means = [mean_of(members, passes=length) for length in seen]
                axes.plot([apart * length for length in seen], means, style, color=color, **hollow)
                places = [apart * row["passes"] for row in members]
                axes.plot(places, [row["value"] for row in members], ".", color=color, markersize=3)
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axes.set_xticks([], minor=True)
            axes.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.3)
            axes.set_title(name)
            axes.set(xlabel="molecules seen", ylabel=f"test MAE ({TARGETS[name].shown})")
            axes.yaxis.set_major_formatter(LogFormatter())
            axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        handles = [Line2D([], [], color=color, label=network) for network, color in colors.items()]
        handles += [
            Line2D([], [], color="black", linestyle=style[1:], marker=style[0], label=f"{size:,} molecules", **hollow)
            for size, style in styles.items()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=3 * columns, fontsize="small")
        figure.savefig(path)


def run(arguments: argparse.Namespace, rows: Rows, folder: Path) -> None:
    """Train and test all networks, targets, sizes and seeds that are missing."""
    if arguments.quick:
        sets = write_sample(folder, arguments.train)
    else:
        sets = write_sets(folder, arguments.train, arguments.val, arguments.test, arguments.qm9)
    if arguments.settings:
        if CHOICE_TRAIN not in sets.train:
            raise InputError(f"--settings needs the {CHOICE_TRAIN} training molecules; give --train {CHOICE_TRAIN} too")
        choose_settings(rows, sets)
    for seed in range(arguments.seeds):
        for size in arguments.train:
            duration = () if arguments.paper else (*REDUCED, *epochs(arguments.passes, size))
            for name in arguments.targets:
                words = {
                    "benchmark": "qm9",
                    "table": title(size, arguments.passes),
                    "case": COMPOSITION,
                    "metric": name,
                }
                if not any(words.items() <= row.items() for row in rows.rows):
                    error = baseline_error(sets, size, name)
                    rows.append(words | {"value": rounded(error), "unit": TARGETS[name].shown})
                for network in NETWORKS:
                    _one(arguments, rows, sets.settings(size, folder), duration, seed, size, name, network)
                progress(done=name, train=size, seed=seed)


def choose_settings(rows: Rows, sets: Sets) -> None:
    """Validation errors of U0 with other optimizers (both networks) and other networks (FAENet)."""
    with tempfile.TemporaryDirectory() as folder:
        common = [
            *REDUCED, *epochs(CHOICE_PASSES, CHOICE_TRAIN), *sets.settings(CHOICE_TRAIN, Path(folder)),
            "data.energy_key=U0", "energy.unit=eV", "run.seed=0", "run.validation_frames=one",
        ]  # fmt: skip
        for case, changes in {**RATES, **OTHER_SETTINGS}.items():
            for name in NETWORKS if case in RATES else ("FAENet",):
                words = {"benchmark": "qm9", "table": CHOICE, "case": case, "metric": name}
                if any(words.items() <= row.items() for row in rows.rows):
                    continue
                trained = fit(NETWORKS[name], [*common, *changes])
                val = trained.prepared.val
                mode: FrameMode = "one" if NETWORKS[name].schnet else "stochastic"
                error = 1e3 * assess(trained.potential, val.dataset, val.indices, frames=mode).metrics["energy_mae"]
                rows.append(words | {"value": rounded(error, 1), "unit": "meV"})
                progress(done=case, network=name)


def _one(
    arguments: argparse.Namespace,
    rows: Rows,
    data: list[str],
    duration: Sequence[str],
    seed: int,
    size: int,
    name: str,
    network: str,
) -> None:
    """One network, target, size and seed."""
    target = TARGETS[name]
    table = title(size, arguments.passes)
    done = {(row["table"], row["target"], row["network"], row["seed"]) for row in rows.rows if "target" in row}
    if (table, name, network, seed) in done:
        return
    settings = [
        *duration, *data, f"data.energy_key={name}", f"energy.unit={target.unit}", f"run.seed={seed}",
        "run.validation_frames=one", f"run.device={arguments.device}",
    ]  # fmt: skip
    trained = fit(NETWORKS[network], settings)
    frames = {network: "one"} if NETWORKS[network].schnet else {network: "all", f"{network}, SFA": "stochastic"}
    words = {
        "benchmark": "qm9",
        "table": table,
        "target": name,
        "train": size,
        "passes": arguments.passes,
        "seed": seed,
    }
    rows.extend(
        words
        | {"case": case, "network": case, "metric": name, "value": rounded(value, 5), "unit": unit}
        | {"seed": seed, "cpu_s": round(trained.cpu_s, 1), "steps": trained.steps}
        for case, (value, unit) in test_errors(trained, target, frames).items()
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure and store."""
    parser = script_parser(__doc__, quick="A few molecules and steps.", seeds=1)
    parser.add_argument("--train", type=int, nargs="+", default=[1000, 3000, 10_000], metavar="N")
    parser.add_argument("--val", type=int, default=200)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=["U0", "mu", "gap", "alpha"])
    parser.add_argument("--passes", type=int, default=20_000, metavar="N", help="Molecules seen in a training.")
    parser.add_argument("--settings", action="store_true", help="Compare settings by validation errors first.")
    parser.add_argument("--paper", action="store_true", help="The paper's data, widths and schedule; needs a GPU.")
    parser.add_argument("--qm9", type=Path, help="Folder of the CSV files of qm9pack (default: the installed one).")
    parser.add_argument("--device", default="auto")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.paper:
        chosen.train, chosen.val, chosen.test = [N_TRAIN], N_VAL, 130_831
        chosen.passes = PAPER_EPOCHS * N_TRAIN
    if chosen.quick:
        chosen.train, chosen.targets, chosen.passes, chosen.seeds = [40, 80], ["U0", "mu"], 80, 1
    rows = Rows(chosen.out)
    with tempfile.TemporaryDirectory() as scratch:
        run(chosen, rows, Path(scratch))
    rows.derive(relative_improvements)
    if chosen.plot is not None:
        plot(rows.rows, chosen.plot)


if __name__ == "__main__":
    run_script(main)
