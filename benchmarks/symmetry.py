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

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from experiment import Measured, Network, fit, measure, untrained
from matplotlib import rc_context
from matplotlib.figure import Figure
from oc20 import OURS, PAPER, SNAPSHOTS, data_settings, snapshots
from rows import Row, Rows, progress, run_script

from faenet_calc.frames.config import FrameMode
from faenet_calc.reports.plots import COLORS, STYLE
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


def _paper(*settings: str) -> Network:
    return Network(settings=(*PAPER, *settings))


METHODS = {
    "Full FA": Method(network=_paper("frames.training=all"), test="all"),
    "SFA": Method(network=_paper("frames.training=stochastic"), test="stochastic"),
    "SE(3)-SFA": Method(network=_paper("frames.proper=true", "frames.training=stochastic"), test="stochastic"),
    "DA": Method(network=_paper("frames.kind=augment2d", "frames.training=stochastic")),
    "No FA": Method(network=_paper("frames.kind=none", "frames.training=one")),
    "Untrained": Method(network=_paper("frames.kind=none", "frames.training=one"), trains=False),
    "SchNet": Method(network=Network(settings=OURS, schnet=True)),
    "this package": Method(network=Network(settings=OURS), test="all"),
}


def properties(method: Method, settings: Sequence[str], limit: int) -> Measured:
    """Train and test a method on the held-out systems.

    Args:
        method: The method.
        settings: Data, duration and seed.
        limit: Number of structures for the symmetry metrics.
    """
    trained = (fit if method.trains else untrained)(method.network, settings)
    potential, val = trained.potential, trained.prepared.val
    found = assess(potential, val.dataset, val.indices, frames=method.test, free_atoms_only=True).metrics
    chosen = val.indices[:: max(1, len(val) // limit)]
    kept = symmetry_metrics(potential, val.dataset, chosen, frames=method.test, about_z=True)
    assert kept.f_rot_e is not None and kept.f_refl_e is not None
    return {
        "Rot-I": (1e3 * kept.rot_i, "meV"),
        "Refl-I": (1e3 * kept.refl_i, "meV"),
        "%-diff": (kept.percent_diff, "%"),
        "F-Rot-E": (1e3 * kept.f_rot_e, "meV/Å"),
        "F-Refl-E": (1e3 * kept.f_refl_e, "meV/Å"),
        "energy MAE": (1e3 * found["energy_mae"], "meV"),
        "force MAE": (1e3 * found["forces_mae"], "meV/Å"),
        "training": (trained.cpu_s, "s"),
    }


def plot(rows: list[Row], path: Path) -> None:
    """Draw Rot-I, F-Rot-E and the force error of all methods: bars for the means, points for the seeds."""
    names = [name for name in METHODS if any(row["case"] == name for row in rows)]
    with rc_context(STYLE):
        figure = Figure(figsize=(8.0, 2.9), layout="constrained")
        for number, (metric, unit) in enumerate(SHOWN.items()):
            axes = figure.add_subplot(1, len(SHOWN), number + 1)
            for place, name in enumerate(names):
                found = [row["value"] for row in rows if row["case"] == name and row["metric"] == metric]
                values, color = [max(value, FLOOR) for value in found], COLORS[place % len(COLORS)]
                axes.barh(place, sum(values) / len(values), color=color, alpha=0.5)
                axes.plot(values, [place] * len(values), "o", color=color, markersize=4)
            axes.set_yticks(range(len(names)), [""] * len(names) if number else names)
            axes.invert_yaxis()
            axes.set_xlabel(f"{metric} ({unit})")
            if metric != "force MAE":
                axes.set_xscale("log")
                axes.set_xlim(left=FLOOR / 2)
        figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", default=[SNAPSHOTS], metavar="FILE", help="extxyz, also .xz")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test", type=int, default=20, help="structures for the symmetry metrics")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--quick", action="store_true", help="Few snapshots of small systems, one epoch.")
    parser.add_argument("--out", type=Path, help="File for the rows (JSON lines).")
    parser.add_argument("--plot", type=Path, help="File for the plot.")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.quick:
        chosen.epochs, chosen.seeds, chosen.test = 1, 1, 3
    rows = Rows(chosen.out)
    with tempfile.TemporaryDirectory() as scratch:
        data = snapshots(chosen.data, quick=chosen.quick)
        for seed in range(chosen.seeds):
            settings = data_settings(data, Path(scratch), seed, chosen.epochs)
            for name in chosen.methods:
                words = {"benchmark": "symmetry", "table": "held-out systems", "case": name}
                method = METHODS[name]
                measure(rows, words, [seed], lambda _, m=method, s=settings: properties(m, s, chosen.test))
                progress(done=name, seed=seed)
    if chosen.plot is not None:
        plot(rows.rows, chosen.plot)


if __name__ == "__main__":
    run_script(main)
