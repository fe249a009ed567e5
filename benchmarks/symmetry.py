"""How well do ways of enforcing symmetries keep energies invariant and forces equivariant, and at what error?

    python benchmarks/symmetry.py --data oc20.extxyz [--every 30] [--steps 100] [--seeds 1] [--quick]
                                  [--out rows.jsonl] [--plot symmetry.svg]

The paper's property table (Rot-I, Refl-I, F-Rot-E, F-Refl-E, %-diff, MAE) on structures of systems that training has
not seen. Errors are absolute and per structure (see faenet_calc/training/symmetry.py); the paper averages signed
differences. As in the paper, structures are rotated about z and reflected in planes that contain z.

All methods see the same structures in the same number of steps of the same optimizer; the CPU time of training is
reported. Networks have 64 channels and 3 layers. The paper's methods share its network with direct forces; "this
package" has lattice frames, the smooth cutoff and gradient forces; SchNet has gradient forces. Stochastic frames are
used in the test, too, as in the paper. "Untrained" is the network without frames before training.

DATA is extxyz with energies and forces (e.g. OC20 trajectories, of which every n-th snapshot is taken), split by system
(``sid``). References of elements that occur in held-out systems only are unknown, which dominates the errors of total
energies on few systems. With --quick, slabs with EMT labels replace it.
"""

import argparse
import io
import lzma
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from matplotlib import rc_context
from matplotlib.figure import Figure
from peers.schnet import SchNetPotential, SchNetSize
from rows import Row, Rows, progress, rounded, show

from faenet_calc.frames.config import FrameMode
from faenet_calc.potential.potential import Potential
from faenet_calc.reports.plots import COLORS, STYLE
from faenet_calc.training.assessment import assess
from faenet_calc.training.batches import BatchMaker, epoch_batches
from faenet_calc.training.config_file import read_config
from faenet_calc.training.loss import Loss
from faenet_calc.training.preparation import Prepared, prepare
from faenet_calc.training.symmetry import symmetry_metrics

LARGEST_FORCE = 10.0  # eV/Å; snapshots beyond are collisions at the start of a relaxation
STRUCTURES_PER_STEP = 2
LR = 2e-3
NETWORK = (
    "model.hidden_channels=64", "model.filters=64", "model.interactions=3", "model.gaussians=32", "model.cutoff=5.0",
    "model.atoms.group_period_channels=8", "model.atoms.tag_channels=0", "model.atoms.properties=none",
    "graph.max_neighbors=30", "graph.rewiring=none", "normalization.references=fit",
    "normalization.shift=0.0", "normalization.mean_neighbors=fit", "loss.energy=1.0", "loss.forces=1.0",
    "loss.conservation=0.0", "loss.per_atom=true", "loss.free_atoms_only=false",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way of enforcing symmetries.

    Attributes:
        preset: Source of the settings.
        settings: Settings of the frames.
        training: Frame mode of training.
        test: Frame mode of the test.
        steps: Share of the training steps.
        schnet: The network is SchNet.
    """

    preset: str = "paper-s2ef"
    settings: tuple[str, ...] = ("frames.kind=none",)
    training: FrameMode = "one"
    test: FrameMode = "one"
    steps: float = 1.0
    schnet: bool = False


METHODS = {
    "Full FA": Method(settings=("frames.kind=pca2d", "frames.proper=false"), training="all", test="all"),
    "SFA": Method(settings=("frames.kind=pca2d", "frames.proper=false"), training="stochastic", test="stochastic"),
    "SE(3)-SFA": Method(settings=("frames.kind=pca2d", "frames.proper=true"), training="stochastic", test="stochastic"),
    "DA": Method(settings=("frames.kind=augment2d",), training="stochastic"),
    "No FA": Method(),
    "Untrained": Method(steps=0.0),
    "SchNet": Method(schnet=True),
    "this package": Method(preset="modern-s", settings=("frames.kind=lattice",), training="stochastic", test="all"),
}


def snapshots(path: Path, every: int) -> list[Atoms]:
    """Every n-th structure of an extxyz file; the text is read first, since seeking in compressed files is slow."""
    text = lzma.decompress(path.read_bytes()).decode() if path.suffix == ".xz" else path.read_text()
    found = ase.io.read(io.StringIO(text), index=f"::{every}", format="extxyz")
    return [atoms for atoms in found if np.abs(atoms.calc.results["forces"]).max() <= LARGEST_FORCE]


def emt_slabs(count: int = 16) -> list[Atoms]:
    """Small slabs with EMT labels for quick runs."""
    random, made = np.random.default_rng(0), []
    for number in range(count):
        atoms = fcc111(("Cu", "Pd")[number % 2], (2, 2, 2), vacuum=6.0)
        add_adsorbate(atoms, "O", 1.4, "fcc")
        atoms.info, atoms.pbc = {"sid": number}, True
        atoms.rattle(0.1, rng=random)
        atoms.calc = EMT()
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        atoms.calc = SinglePointCalculator(atoms, **labels)
        made.append(atoms)
    return made


def build(method: Method, data: Path, cache: Path, seed: int) -> tuple[Potential, Prepared]:
    """A potential with random weights and its data."""
    changes = [
        *NETWORK,
        *method.settings,
        f"data.train=[{data}]",
        f"data.cache_dir={cache}",
        "data.split=trajectory",
        "data.val_fraction=0.25",
        f"model.preset={method.preset}",
        f"run.seed={seed}",
        f"optim.batch_size={STRUCTURES_PER_STEP}",
    ]
    prepared = prepare(read_config("", changes), torch.device("cpu"))
    if not method.schnet:
        return prepared.potential, prepared
    ours = prepared.potential.config
    torch.manual_seed(seed)
    size = SchNetSize(hidden_channels=64, num_filters=64, num_interactions=3, num_gaussians=32)
    return SchNetPotential(size, cutoff=ours.model.cutoff, normalization=ours.normalization), prepared


def fit(potential: Potential, prepared: Prepared, method: Method, steps: int) -> float:
    """Train for a number of steps with AdamW and a cosine schedule; CPU time (s)."""
    began = time.process_time()
    train, seed = prepared.train, prepared.config.run.seed
    potential.train().requires_grad_(True)
    loss = Loss(prepared.config.loss, potential.config.forces)
    maker = BatchMaker(train.dataset, potential.config, method.training, seed)
    optimizer = torch.optim.AdamW(potential.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=max(steps, 1), pct_start=0.1)
    costs, done, epoch = train.dataset.n_edges[train.indices].astype(float), 0, 0
    while done < steps:
        for members in epoch_batches(costs, STRUCTURES_PER_STEP, seed=seed, epoch=epoch)[: steps - done]:
            batch = maker.make(train.indices[members], epoch)
            prediction = loss.predict(potential, batch.labelled, batch.frames)
            total = loss.total(loss.terms(prediction, batch.labelled, loss.counts(batch.labelled)))
            optimizer.zero_grad()
            total.backward()
            torch.nn.utils.clip_grad_norm_(potential.parameters(), 10.0)
            optimizer.step()
            schedule.step()
            done += 1
        epoch += 1
    potential.eval().requires_grad_(False)
    return time.process_time() - began


def properties(potential: Potential, prepared: Prepared, method: Method, limit: int) -> dict[str, tuple[float, str]]:
    """Name → value and unit on the held-out systems."""
    val = prepared.val
    found = assess(potential, val.dataset, val.indices, frames=method.test).metrics
    chosen = val.indices[:: max(1, len(val) // limit)]
    kept = symmetry_metrics(potential, val.dataset, chosen, frames=method.test, about_z=True)
    assert kept.f_rot_e is not None and kept.f_refl_e is not None
    return {
        "Rot-I": (1e3 * kept.rot_i, "meV"),
        "Refl-I": (1e3 * kept.refl_i, "meV"),
        "%-diff": (kept.percent_diff, "%"),
        "F-Rot-E": (1e3 * kept.f_rot_e, "meV/Å"),
        "F-Refl-E": (1e3 * kept.f_refl_e, "meV/Å"),
        "energy MAE": (1e3 * found["energy_mae_per_atom"], "meV/atom"),
        "force MAE": (1e3 * found["forces_mae"], "meV/Å"),
    }


def measure(data: Path, cache: Path, methods: Sequence[str], seeds: int, steps: int, limit: int, rows: Rows) -> None:
    """Append the rows of all methods that are not there yet."""
    done = {row["case"] for row in rows.rows}
    for name in methods:
        if name in done:
            continue
        method, values = METHODS[name], defaultdict(list)
        for seed in range(seeds):
            potential, prepared = build(method, data, cache, seed)
            spent = fit(potential, prepared, method, round(steps * method.steps))
            found = properties(potential, prepared, method, limit) | {"training": (spent, "s")}
            for metric, (value, unit) in found.items():
                values[metric, unit].append(value)
        for (metric, unit), measured in values.items():
            row: Row = {"benchmark": "symmetry", "case": name, "metric": metric, "value": float(np.mean(measured))}
            if seeds > 1:
                row["spread"] = float(np.std(measured))
            rows.append(rounded(row, 6) | {"unit": unit, "runs": seeds})
            show(rows.rows[-1])
        progress(done=name, train=len(prepared.train), val=len(prepared.val))


def plot(rows: list[Row], path: Path) -> None:
    """Rot-I against the force error."""
    value = {(row["case"], row["metric"]): row["value"] for row in rows}
    names = [name for name in METHODS if (name, "Rot-I") in value]
    with rc_context(STYLE):
        figure = Figure(figsize=(5.0, 3.5), layout="constrained")
        axes = figure.add_subplot()
        for number, name in enumerate(names):
            x, y = max(value[name, "Rot-I"], 1e-6), value[name, "force MAE"]
            axes.scatter(x, y, color=COLORS[number % len(COLORS)])
            axes.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize="small")
        axes.set(xscale="log", xlabel="Rot-I (meV)", ylabel="force MAE (meV/Å)")
        figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="extxyz file, also .xz")
    parser.add_argument("--every", type=int, default=30, help="take every n-th snapshot")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--test", type=int, default=12, help="structures for the symmetry metrics")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--quick", action="store_true", help="EMT slabs, few steps.")
    parser.add_argument("--out", type=Path, help="File for the rows (JSON lines).")
    parser.add_argument("--plot", type=Path, help="File for the plot.")
    chosen = parser.parse_args(arguments)
    if chosen.data is None and not chosen.quick:
        parser.error("give --data with labelled trajectories, or --quick")
    torch.set_num_threads(1)
    rows = Rows(chosen.out)
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data.extxyz"
        ase.io.write(data, emt_slabs() if chosen.quick else snapshots(chosen.data, chosen.every))
        steps, limit = (12, 4) if chosen.quick else (chosen.steps, chosen.test)
        measure(data, Path(scratch), chosen.methods, chosen.seeds, steps, limit, rows)
    if chosen.plot is not None:
        plot(rows.rows, chosen.plot)


if __name__ == "__main__":
    main()
