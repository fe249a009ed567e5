"""The paper's ablation study on real data: every row of its table, trained for the same number of steps.

    python benchmarks/ablation.py [--train 3000] [--passes 12000] [--seeds 3] [--quick] [--out rows.jsonl]
                                  [--plot ablation.svg]

The paper's table is for IS2RE on OC20, an energy per structure. Here the energy is U0 of QM9 (see qm9.py), with the
network of the preset ``paper-is2re`` in a width that a CPU can train (96 channels, 3 interactions) and 3D instead of 2D
frames, one random frame in training and in the test. Rows change one setting each; the text of the paper describes two
rows the wrong way round (its released configurations and the throughput of the table agree with each other): the
baseline has one layer in the embeddings and two in every interaction ("complex MP"). Throughput is in molecules per
second of CPU time in batches.
"""

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from experiment import Measured, Network, bars, fit, mean_of, measure, throughput
from matplotlib import rc_context
from matplotlib.figure import Figure
from qm9 import REDUCED, TARGETS, Sets, epochs, test_errors, write_sample, write_sets
from rows import Row, Rows, progress, rounded, run_script, script_parser

from faenet_calc.reports.plots import COLORS, STYLE

TARGET = "U0"
BASELINE = (
    "model.preset=paper-is2re", "frames.kind=pca3d", "frames.proper=false", "graph.rewiring=none",
    "graph.max_neighbors=30", "model.atoms.tag_channels=0", "energy.kind=other", "normalization.references=fit",
    "normalization.shift=0.0", "loss.per_atom=false",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row of the table.

    Attributes:
        settings: What differs from the baseline.
        throughput: In the paper (samples/s on a GPU).
        mae: In the paper (meV).
    """

    settings: tuple[str, ...] = ()
    throughput: float
    mae: float


VARIANTS = {
    "FAENet (baseline)": Variant(throughput=2129, mae=568),
    "only r_ij": Variant(settings=("model.edge_features=r",), throughput=2390, mae=603),
    "only spherical harmonics": Variant(settings=("model.edge_features=harmonics",), throughput=1441, mae=626),
    "all edge features": Variant(settings=("model.edge_features=all",), throughput=1560, mae=585),
    "2nd layer in MLP": Variant(settings=("model.atoms.second_layer=true",), throughput=1828, mae=588),
    "simple MP": Variant(settings=("model.message=edge_filter",), throughput=2706, mae=606),
    "basic MP": Variant(settings=("model.message=simple",), throughput=3065, mae=629),
    "updownscale MP": Variant(settings=("model.message=updownscale_base",), throughput=1505, mae=592),
    "attention": Variant(settings=("model.message=attention",), throughput=1929, mae=712),
    "no complex MP": Variant(settings=("model.extra_layer=false",), throughput=2265, mae=586),
    "simple energy head": Variant(settings=("model.energy_weighting=none",), throughput=2224, mae=589),
    "no jumping connections": Variant(settings=("model.jumping=none",), throughput=2038, mae=582),
}
BASE = next(iter(VARIANTS))
CHANGE = "change relative to the baseline (%)"


def train_and_test(name: str, settings: Sequence[str], seed: int) -> Measured:
    """Error and throughput of a variant; ``settings`` name the data and the duration."""
    settings = [*settings, f"data.energy_key={TARGET}", f"run.seed={seed}", "run.validation_frames=one"]
    trained = fit(Network(settings=(*BASELINE, *REDUCED, *VARIANTS[name].settings)), settings)
    test = trained.prepared.test
    assert test is not None
    return {
        **test_errors(trained, TARGETS[TARGET], {"MAE": "stochastic"}),
        "throughput": (throughput(trained.potential, test.dataset, test.indices, "stochastic"), "molecules/s"),
        "training": (trained.cpu_s, "s"),
    }


def tables_of(rows: Sequence[Row]) -> list[str]:
    """Titles of the measured tables; each has a size of the training set and a duration."""
    return list(dict.fromkeys(row["table"] for row in rows if "seed" in row))


def changes(rows: Sequence[Row]) -> list[Row]:
    """Changes of error and throughput relative to the baseline, here and in the paper (%)."""
    found: list[Row] = []
    measured = {(row["table"], row["case"]) for row in rows if "seed" in row}
    for table, (name, variant) in itertools.product(tables_of(rows), VARIANTS.items()):
        if name == BASE or (table, name) not in measured:
            continue
        words = {"benchmark": "ablation", "table": f"{table}: {CHANGE}", "case": name, "unit": ""}
        for metric, paper, base in (
            ("MAE", variant.mae, VARIANTS[BASE].mae),
            ("throughput", variant.throughput, VARIANTS[BASE].throughput),
        ):
            reference = mean_of(rows, table=table, case=BASE, metric=metric)
            change = 100 * (mean_of(rows, table=table, case=name, metric=metric) / reference - 1)
            found.append(words | {"metric": metric, "value": rounded(change, 1)})
            found.append(words | {"metric": f"{metric}, paper", "value": rounded(100 * (paper / base - 1), 1)})
    return found


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw changes of error and throughput relative to the baseline, of the last table; diamonds are the paper's."""
    published = {
        "MAE": {name: variant.mae for name, variant in VARIANTS.items()},
        "throughput": {name: variant.throughput for name, variant in VARIANTS.items()},
    }
    measured = [row for row in rows if "seed" in row and row["table"] == tables_of(rows)[-1]]
    with rc_context(STYLE):
        figure = Figure(figsize=(8.0, 3.8), layout="constrained")
        for number, (metric, paper) in enumerate(published.items(), start=1):
            axes = figure.add_subplot(1, 2, number)
            reference = mean_of(measured, case=BASE, metric=metric)
            changes_here = {
                name: [
                    100 * (row["value"] / reference - 1)
                    for row in measured
                    if (row["case"], row["metric"]) == (name, metric)
                ]
                for name in {row["case"]: None for row in measured}
            }
            bars(axes, changes_here, f"change of {metric} (%)", names=number == 1, color=COLORS[0])
            changes_there = [100 * (paper[name] / paper[BASE] - 1) for name in changes_here]
            axes.plot(
                changes_there, range(len(changes_there)), "D", color=COLORS[1], markersize=5, label="paper (IS2RE)"
            )
            axes.axvline(0, color="black", linewidth=0.8)
        handles, labels = axes.get_legend_handles_labels()
        shown = [handles[labels.index(BASE)], handles[labels.index("paper (IS2RE)")]]
        figure.legend(shown, ["here (U0 of QM9)", "paper (IS2RE)"], loc="outside upper center", ncols=2)
        figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Measure and store."""
    parser = script_parser(__doc__, quick="A few molecules and steps.")
    parser.add_argument("--train", type=int, default=3000, metavar="N")
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--passes", type=int, default=12_000, metavar="N", help="Molecules seen in a training.")
    parser.add_argument("--qm9", type=Path, help="Folder of the CSV files of qm9pack (default: the installed one).")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = Rows(chosen.out)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if chosen.quick:
            chosen.train, chosen.passes, chosen.seeds = 40, 40, 1
            sets: Sets = write_sample(folder, [chosen.train])
        else:
            sets = write_sets(folder, [chosen.train], 200, chosen.test, chosen.qm9)
        settings = [*sets.settings(chosen.train, folder), *epochs(chosen.passes, chosen.train)]
        table = f"U0 of QM9, {chosen.train} molecules, {chosen.passes} seen"
        for seed in range(chosen.seeds):
            for name in VARIANTS:
                words = {"benchmark": "ablation", "table": table, "case": name}
                measure(rows, words, [seed], lambda seed, name=name: train_and_test(name, settings, seed))
                progress(done=name, seed=seed)
    rows.derive(changes)
    if chosen.plot is not None:
        plot(rows.rows, chosen.plot)


if __name__ == "__main__":
    run_script(main)
