"""How well do ways of enforcing symmetries keep energies invariant and forces equivariant, and at what error?

    python benchmarks/symmetry.py [--data FILE.extxyz…] [--epochs 2] [--seeds 3] [--quick] [--out rows.jsonl]
                                  [--plot symmetry.svg]

The paper's property tables (Rot-I, Refl-I, F-Rot-E, F-Refl-E, %-diff, MAE) on OC20 systems that training has not seen;
data, split, loss, optimizer and sizes of networks are those of oc20.py. Errors are absolute and per structure (see
faenet_calc/training/symmetry.py); the paper averages signed differences. As in the paper, structures are rotated about
z and reflected in planes that contain z.

All methods see the same structures in the same number of steps; the CPU time of training is reported. The paper's
methods share its network with direct forces, without the energy-conservation term; "this package" has lattice frames,
the smooth cutoff and gradient forces; SchNet has gradient forces. Stochastic frames are used in the test, too, as in
the paper. "Untrained" is the network without frames before training.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from experiment import Measured, Network, Trained, bars, fit, measure, untrained
from matplotlib import rc_context
from matplotlib.figure import Figure
from oc20 import OURS, PAPER, QUICK_ATOMS, QUICK_SNAPSHOTS, SNAPSHOTS, data_settings, snapshots
from rows import Row, Rows, progress, run_script, script_parser

from faenet_calc.frames.config import FrameMode
from faenet_calc.reports.plots import STYLE
from faenet_calc.training.assessment import assess
from faenet_calc.training.symmetry import symmetry_metrics

SHOWN = {"Rot-I": "meV", "F-Rot-E": "meV/Å", "force MAE": "meV/Å"}
FLOOR = 1e-3  # smaller values, of exact methods, are drawn here


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way of enforcing symmetries.

    Attributes:
        network: The network and its frames.
        test: Frame mode of the test.
        trains: Whether it is trained.
    """

    network: Network
    test: FrameMode = "one"
    trains: bool = True


def methods(paper: Sequence[str], ours: Sequence[str]) -> dict[str, Method]:
    """All methods.

    Args:
        paper: Settings of the paper's network.
        ours: Settings of that of this package; SchNet has its size.
    """

    def faenet(*settings: str) -> Network:
        return Network(settings=(*paper, *settings))

    return {
        "Full FA": Method(network=faenet("frames.training=all"), test="all"),
        "SFA": Method(network=faenet("frames.training=stochastic"), test="stochastic"),
        "SE(3)-SFA": Method(network=faenet("frames.proper=true", "frames.training=stochastic"), test="stochastic"),
        "DA": Method(network=faenet("frames.kind=augment2d", "frames.training=stochastic")),
        "No FA": Method(network=faenet("frames.kind=none", "frames.training=one")),
        "Untrained": Method(network=faenet("frames.kind=none", "frames.training=one"), trains=False),
        "SchNet": Method(network=Network(settings=tuple(ours), schnet=True)),
        "this package": Method(network=Network(settings=tuple(ours)), test="all"),
    }


METHODS = methods(PAPER, OURS)


def train(method: Method, settings: Sequence[str]) -> Trained:
    """Train the network of a method, or leave it untrained; ``settings`` name the data, the duration and the seed."""
    return (fit if method.trains else untrained)(method.network, settings)


def kept_symmetries(trained: Trained, method: Method, limit: int) -> dict[str, tuple[float, str]]:
    """Symmetry metrics on about so many structures of the validation set; with forces if the network has them."""
    val = trained.prepared.val
    chosen = val.indices[:: max(1, len(val) // limit)]
    kept = symmetry_metrics(trained.potential, val.dataset, chosen, frames=method.test, about_z=True)
    found = {
        "Rot-I": (1e3 * kept.rot_i, "meV"),
        "Refl-I": (1e3 * kept.refl_i, "meV"),
        "%-diff": (kept.percent_diff, "%"),
    }
    if kept.f_rot_e is not None and kept.f_refl_e is not None:
        found |= {"F-Rot-E": (1e3 * kept.f_rot_e, "meV/Å"), "F-Refl-E": (1e3 * kept.f_refl_e, "meV/Å")}
    return found


def properties(method: Method, settings: Sequence[str], limit: int) -> Measured:
    """Train and test a method on the held-out systems.

    Args:
        method: The method.
        settings: Data, duration and seed.
        limit: Number of structures for the symmetry metrics.
    """
    trained = train(method, settings)
    val = trained.prepared.val
    found = assess(trained.potential, val.dataset, val.indices, frames=method.test, free_atoms_only=True).metrics
    return {
        **kept_symmetries(trained, method, limit),
        "energy MAE": (1e3 * found["energy_mae"], "meV"),
        "force MAE": (1e3 * found["forces_mae"], "meV/Å"),
        "training": (trained.cpu_s, "s"),
    }


def plot(rows: Sequence[Row], shown: Mapping[str, str], path: Path) -> None:
    """Draw a panel per metric: bars for the means of all methods, points for the seeds.

    Args:
        rows: Rows of the benchmark.
        shown: Metric → unit; those that exact methods keep at zero have a logarithmic scale.
        path: File.
    """
    names = [name for name in METHODS if any(row["case"] == name for row in rows)]
    with rc_context(STYLE):
        figure = Figure(figsize=(8.0, 2.9), layout="constrained")
        for number, (metric, unit) in enumerate(shown.items()):
            axes = figure.add_subplot(1, len(shown), number + 1)
            exact = not metric.endswith("MAE")
            floor = FLOOR if exact else 0.0
            values = {
                name: [
                    max(row["value"], floor)
                    for row in rows
                    if {"case": name, "metric": metric}.items() <= row.items() and "seed" in row
                ]
                for name in names
            }
            bars(axes, values, f"{metric} ({unit})", names=number == 0)
            if exact:
                axes.set_xscale("log")
                axes.set_xlim(left=FLOOR / 2)
                axes.set_xticks([FLOOR, 1e-1, 1e1, 1e3], [f"≤{FLOOR:g}", "0.1", "10", "1000"])
        figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Measure and store."""
    parser = script_parser(__doc__, quick="Few snapshots of small systems, one epoch.")
    parser.add_argument("--data", type=Path, nargs="+", default=[SNAPSHOTS], metavar="FILE", help="extxyz, also .xz")
    parser.add_argument("--snapshots", type=int, default=20, metavar="N", help="of every system")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--test", type=int, default=20, help="structures for the symmetry metrics")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.quick:
        chosen.epochs, chosen.seeds, chosen.test = 1, 1, 3
    rows = Rows(chosen.out)
    with tempfile.TemporaryDirectory() as scratch:
        data = snapshots(
            chosen.data,
            per_system=QUICK_SNAPSHOTS if chosen.quick else chosen.snapshots,
            largest=QUICK_ATOMS if chosen.quick else None,
        )
        for seed in range(chosen.seeds):
            settings = data_settings(data, Path(scratch), seed, chosen.epochs)
            for name in chosen.methods:
                words = {"benchmark": "symmetry", "table": "held-out systems", "case": name}
                method = METHODS[name]
                measure(rows, words, [seed], lambda _, m=method, s=settings: properties(m, s, chosen.test))
                progress(done=name, seed=seed)
    if chosen.plot is not None:
        plot(rows.rows, SHOWN, chosen.plot)


if __name__ == "__main__":
    run_script(main)
