"""S2EF on OC20 relaxations, split by system: the paper's network and that of this package beside SchNet.

    python benchmarks/oc20.py [--data FILE.extxyz…] [--snapshots 20] [--least-force 0.25] [--largest 60] [--epochs 5]
                              [--seeds 3] [--quick] [--out rows.jsonl] [--plot oc20.svg]

The default data are 340 snapshots of 17 adsorbate-slab systems (20 per relaxation, 37-185 atoms, total energies and
forces of DFT) from the example trajectories of the Open Catalyst Project (CC BY 4.0; benchmarks/data/README.md); other
files with ``sid`` in their metadata, e.g. relaxations of more systems, are given with ``--data``; of every relaxation
``--snapshots`` are chosen evenly. Most of them are close to its end and have forces of some 0.01 eV/Å on free atoms;
``--least-force`` chooses among the snapshots that have such a force (eV/Å) on a free atom. A quarter of the systems is
held out, others with every seed; most of them contain elements that training has not seen. Every fifth snapshot of the
training systems is held out as well, which is easier: neighbors in time are in the training set. Energies are relative
to the last snapshot of the relaxation, since reference energies of the elements of held-out systems are not known; OC20
itself subtracts those of slab and molecule.

Networks have 64 channels and 3 interactions; all see the same structures in the same number of steps with the same
optimizer, schedule, loss and normalization. "FAENet, paper" is the preset ``paper-s2ef``: 2D principal axes, direct
forces, the energy-conservation term of the loss; its errors are those of all frames, and of one random frame as in the
paper (SFA). "this package" has lattice frames, the smooth cutoff and gradient forces, tested with all frames and with
one; SchNet has gradient forces. Forces are learned and counted on free atoms, as in the paper.
"""

import io
import itertools
import lzma
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from experiment import Measured, Network, Trained, bars, fit, mean_of, measure, throughput
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rows import Row, Rows, progress, rounded, run_script, script_parser

from faenet_calc.errors import InputError
from faenet_calc.frames.config import FrameMode
from faenet_calc.reports.plots import STYLE
from faenet_calc.training.assessment import assess
from faenet_calc.training.preparation import Part

SNAPSHOTS = Path(__file__).parent / "data" / "oc20-snapshots.extxyz.xz"
FEWEST = 5  # snapshots of a system: one of them is held out
LARGEST_FORCE = 10.0  # eV/Å; snapshots beyond are collisions at the start of a relaxation
QUICK_ATOMS, QUICK_SNAPSHOTS = 60, 4

COMMON = (
    "model.hidden_channels=64", "model.filters=64", "model.interactions=3", "model.gaussians=32", "model.cutoff=5.0",
    "model.atoms.group_period_channels=8", "model.atoms.tag_channels=0", "model.atoms.properties=none",
    "graph.max_neighbors=30", "graph.rewiring=none",
    "normalization.references=none", "normalization.shift=0.0", "normalization.scale=fit",
    "normalization.mean_neighbors=fit",
    "loss.energy=1.0", "loss.forces=1.0", "loss.conservation=0.0", "loss.per_atom=true", "loss.energy_kind=mae",
    "loss.forces_kind=l2", "loss.free_atoms_only=true",
    "optim.kind=muon", "optim.lr=5e-3", "optim.weight_decay=1e-4", "optim.beta2=0.99", "optim.schedule=cosine",
    "optim.warmup_steps=20", "optim.batch_size=2", "optim.ema_decay=0.99", "optim.grad_clip=10.0",
    "stop.metric=loss",
)  # fmt: skip
PAPER = ("model.preset=paper-s2ef", *COMMON, "frames.kind=pca2d", "frames.proper=false")
OURS = ("model.preset=modern-s", *COMMON, "frames.kind=lattice")
NETWORKS = {
    "SchNet": Network(settings=OURS, schnet=True),
    "FAENet, paper": Network(settings=(*PAPER, "loss.conservation=0.05")),
    "this package": Network(settings=OURS),
}
TEST_FRAMES: dict[str, dict[str, FrameMode]] = {
    "SchNet": {"SchNet": "one"},
    "FAENet, paper": {"FAENet, paper": "all", "FAENet, paper, SFA": "stochastic"},
    "this package": {"this package": "all", "this package, one frame": "one"},
}
# S2EF 2M, mean of the four validation sets: eV and meV/Å.
PUBLISHED = {
    "SchNet": {"energy MAE": 1.4917, "force MAE": 83.1},
    "FAENet": {"energy MAE": 0.4642, "force MAE": 57.5},
}
HELD_OUT = 0.25  # fraction of the systems
HELD_OUT_SYSTEMS, KNOWN_SYSTEMS = "held-out systems", "other snapshots of the training systems"
PARTS = (HELD_OUT_SYSTEMS, KNOWN_SYSTEMS)
BASELINE = "mean energy, zero forces"
GAIN = "relative improvement over SchNet (%)"


def snapshots(
    paths: Iterable[Path], *, per_system: int = 20, largest: int | None = None, least_force: float = 0.0
) -> list[Atoms]:
    """Evenly chosen snapshots with energies relative to the last one of their system.

    Args:
        paths: extxyz files, also .xz, with ``sid`` in the metadata and optionally ``relaxed_energy`` (eV). Where there
            are several runs of a system (``run``), that of VASP counts.
        per_system: Number of snapshots.
        largest: Largest number of atoms.
        least_force: Least of the largest force component on free atoms (eV/Å); systems with fewer than five such
            snapshots are left out.
    """
    systems: dict[str, list[Atoms]] = {}
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path} does not exist; give extxyz files of relaxations with --data")
        # The text is read first, since seeking in compressed files is slow.
        text = lzma.decompress(path.read_bytes()).decode() if path.suffix == ".xz" else path.read_text()
        for atoms in ase.io.read(io.StringIO(text), ":", format="extxyz"):
            if "sid" not in atoms.info:
                raise InputError(f"{path}: a structure has no sid in its metadata, which names its system")
            if atoms.info.get("run", "vasp") == "vasp" and len(atoms) <= (largest or len(atoms)):
                systems.setdefault(str(atoms.info["sid"]), []).append(atoms)
    found = []
    for sid, members in systems.items():
        relaxed = members[-1].info.get("relaxed_energy", members[-1].calc.results["energy"])
        usable = [
            atoms
            for atoms in members
            if np.abs(atoms.calc.results["forces"]).max() < LARGEST_FORCE
            and (least_force == 0 or np.abs(free_forces(atoms)).max() >= least_force)
        ]
        if least_force > 0 and len(usable) < FEWEST:
            continue
        for place in np.linspace(0, len(usable) - 1, min(per_system, len(usable))).round().astype(int):
            atoms = usable[place]
            copy = atoms.copy()
            copy.info = {"sid": sid}
            energy = atoms.calc.results["energy"] - relaxed
            copy.calc = SinglePointCalculator(copy, energy=energy, forces=atoms.calc.results["forces"])
            found.append(copy)
    return found


def free_forces(atoms: Atoms) -> NDArray[np.float64]:
    """[n, 3] forces on free atoms (eV/Å)."""
    forces: NDArray[np.float64] = atoms.calc.results["forces"][atoms.arrays["fixed"] == 0]
    return forces


@dataclass(frozen=True, kw_only=True)
class Split:
    """Snapshots of training systems, other snapshots of the same systems, and held-out systems.

    Attributes:
        train: All but every fifth snapshot of three quarters of the systems.
        known: Every fifth snapshot of these systems.
        held_out: Snapshots of the other systems.
    """

    train: list[Atoms]
    known: list[Atoms]
    held_out: list[Atoms]


def split_systems(data: Iterable[Atoms], seed: int) -> Split:
    """Hold out a random quarter of the systems."""
    systems: dict[str, list[Atoms]] = {}
    for atoms in data:
        systems.setdefault(atoms.info["sid"], []).append(atoms)
    order = np.random.default_rng(seed).permutation(sorted(systems))
    n_held_out = round(HELD_OUT * len(order))
    training = [systems[sid] for sid in order[n_held_out:]]
    return Split(
        train=[atoms for members in training for n, atoms in enumerate(members) if n % 5 != 2],
        known=[atoms for members in training for atoms in members[2::5]],
        held_out=[atoms for sid in order[:n_held_out] for atoms in systems[sid]],
    )


def data_settings(data: Iterable[Atoms], folder: Path, seed: int, epochs: int) -> list[str]:
    """Write the sets of a seed; settings of the data, the duration and the seed."""
    split = split_systems(data, seed)
    files = {"train": split.train, "val": split.held_out, "test": split.known}
    for name, members in files.items():
        ase.io.write(folder / f"{name}-{seed}.extxyz", members)
    return [
        *(f"data.{name}=[{folder / f'{name}-{seed}.extxyz'}]" for name in files),
        f"data.cache_dir={folder / 'cache'}", f"run.seed={seed}", f"run.max_epochs={epochs}",
        f"run.validate_every={epochs}", "run.validation_frames=one",
    ]  # fmt: skip


def errors(trained: Trained, part: Part, mode: FrameMode) -> Measured:
    """Metrics of the paper."""
    dataset, indices = part.dataset, part.indices
    found = assess(trained.potential, dataset, indices, frames=mode, free_atoms_only=True).metrics
    return {
        "energy MAE": (found["energy_mae"], "eV"),
        "force MAE": (1e3 * found["forces_mae"], "meV/Å"),
        "force cosine": (found["forces_cosine"], ""),
        "EwT": (100 * found["energy_within"], "%"),
        "EFwT": (100 * found["energy_forces_within"], "%"),
        "throughput": (throughput(trained.potential, dataset, indices, mode), "structures/s"),
        "training": (trained.cpu_s, "s"),
    }


def zero(data: Sequence[Atoms], known: Sequence[Atoms]) -> Measured:
    """Errors of the mean energy of the training set and of no forces."""
    mean = np.mean([atoms.calc.results["energy"] for atoms in known])
    energies = np.array([atoms.calc.results["energy"] for atoms in data])
    forces = np.concatenate([free_forces(atoms) for atoms in data])
    return {
        "energy MAE": (float(np.abs(energies - mean).mean()), "eV"),
        "force MAE": (float(1e3 * np.abs(forces).mean()), "meV/Å"),
    }


def improvements(rows: Sequence[Row]) -> list[Row]:
    """Relative improvements over SchNet next to those of the paper."""
    found: list[Row] = []
    cases = [case for modes in TEST_FRAMES.values() for case in modes if case != "SchNet"]
    tables = list(dict.fromkeys(row["table"] for row in rows if row["case"] == "SchNet"))
    for table, metric in itertools.product(tables, ("energy MAE", "force MAE")):
        words = {"benchmark": "oc20", "table": f"{table}: {GAIN}", "metric": metric, "unit": ""}
        schnet = mean_of(rows, table=table, case="SchNet", metric=metric)
        for case in cases:
            gain = 100 * (schnet - mean_of(rows, table=table, case=case, metric=metric)) / schnet
            found.append(words | {"case": case, "value": rounded(gain, 1)})
        published, ours = (PUBLISHED[name][metric] for name in ("SchNet", "FAENet"))
        gain = 100 * (published - ours) / published
        found.append(words | {"case": "published (2M)", "value": rounded(gain, 1)})
    return found


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the errors of every seed as points and their means as bars, a row of panels per table."""
    cases = list(dict.fromkeys(row["case"] for row in rows if "seed" in row))
    tables = list(dict.fromkeys(row["table"] for row in rows if "seed" in row))
    with rc_context(STYLE):
        figure = Figure(figsize=(7.5, 2.3 * len(tables)), layout="constrained")
        panels = itertools.product(tables, (("energy MAE", "eV"), ("force MAE", "meV/Å")))
        for number, (table, (metric, unit)) in enumerate(panels, start=1):
            axes = figure.add_subplot(len(tables), 2, number)
            values = {
                case: [
                    row["value"]
                    for row in rows
                    if {"table": table, "case": case, "metric": metric}.items() <= row.items()
                ]
                for case in cases
            }
            bars(axes, values, f"{metric} ({unit})", names=number % 2 == 1)
            axes.set_title(textwrap.fill(table, 42), fontsize="small")
        figure.savefig(path)


def run(data: list[Atoms], rows: Rows, seeds: int, epochs: int, suffix: str = "") -> None:
    """Train and test all networks and seeds that are missing.

    Args:
        data: Snapshots.
        rows: Rows of the benchmark.
        seeds: Number of seeds.
        epochs: Of a training.
        suffix: Of the titles of the tables.
    """
    titles = {part: f"{part}{suffix}" for part in PARTS}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(seeds):
            settings = data_settings(data, Path(scratch), seed, epochs)
            split = split_systems(data, seed)
            for part, members in {HELD_OUT_SYSTEMS: split.held_out, KNOWN_SYSTEMS: split.known}.items():
                words = {"benchmark": "oc20", "table": titles[part], "case": BASELINE}
                measure(rows, words, [seed], lambda _, m=members, t=split.train: zero(m, t))
            for name, network in NETWORKS.items():
                done = {(row["table"], row["case"], row["seed"]) for row in rows.rows if "seed" in row}
                wanted = itertools.product(titles.values(), TEST_FRAMES[name], [seed])
                if done.issuperset(wanted):
                    continue
                trained = fit(network, settings)
                assert trained.prepared.test is not None
                parts = {HELD_OUT_SYSTEMS: trained.prepared.val, KNOWN_SYSTEMS: trained.prepared.test}
                for (case, mode), (part, members_of) in itertools.product(TEST_FRAMES[name].items(), parts.items()):
                    words = {"benchmark": "oc20", "table": titles[part], "case": case}
                    measure(rows, words, [seed], lambda _, t=trained, p=members_of, m=mode: errors(t, p, m))
                progress(done=name, seed=seed, steps=trained.steps)


def main(arguments: list[str] | None = None) -> None:
    """Measure and store."""
    parser = script_parser(__doc__, quick="Few snapshots of small systems, one epoch.")
    parser.add_argument("--data", type=Path, nargs="+", default=[SNAPSHOTS], metavar="FILE", help="extxyz, also .xz")
    parser.add_argument("--snapshots", type=int, default=20, metavar="N", help="of every system")
    parser.add_argument("--least-force", type=float, default=0.0, metavar="F", help="eV/Å on a free atom of a snapshot")
    parser.add_argument("--largest", type=int, metavar="N", help="Largest number of atoms.")
    parser.add_argument("--epochs", type=int, default=5)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.quick:
        chosen.epochs, chosen.seeds, chosen.snapshots, chosen.largest = 1, 1, QUICK_SNAPSHOTS, QUICK_ATOMS
    rows = Rows(chosen.out)
    data = snapshots(chosen.data, per_system=chosen.snapshots, largest=chosen.largest, least_force=chosen.least_force)
    suffix = f", forces from {chosen.least_force:g} eV/Å, {chosen.epochs} epochs" if chosen.least_force else ""
    run(data, rows, chosen.seeds, chosen.epochs, suffix)
    rows.derive(improvements)
    if chosen.plot is not None:
        plot(rows.rows, chosen.plot)


if __name__ == "__main__":
    run_script(main)
