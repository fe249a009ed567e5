"""Error against throughput of the networks of is2re.py, oc20.py and qm9.py: the paper's figures redone.

    python benchmarks/paper_pareto.py [--is2re is2re.jsonl] [--oc20 oc20.jsonl] [--qm9 qm9.jsonl] [--repeats 5]
                                      [--quick] [--out rows.jsonl] [--plot pareto.svg]

Errors are read from the rows of these benchmarks (by default beside ``--out`` or in benchmarks/results): relaxed
energies of held-out surfaces (IS2RE), the energy error on other snapshots of the OC20 training systems, and the error
of U0 after the longest training on the largest set that both networks have (QM9). The throughput is measured here: all
networks take turns in one process, one thread, so that other load affects them equally; the median of the CPU times of
a batch counts. FAENet runs in compiled code where it is installed, SchNet in PyTorch. Weights are random, which do not
change the time. A network is on the front if no other one is both faster and more accurate.
"""

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import is2re
import oc20
import qm9
import torch
from experiment import Network, mean_of, untrained
from matplotlib import rc_context
from matplotlib.figure import Figure
from rows import Row, Rows, rounded, run_script, script_parser

from faenet_calc.errors import InputError
from faenet_calc.frames.config import FrameMode
from faenet_calc.potential.predictor import Predictor
from faenet_calc.reports.plots import COLORS, STYLE

RESULTS = Path(__file__).parent / "results"
BATCH = 16
IS2RE_CASES = ("SchNet", "Full FA", "SFA", "this package")
# Throughput (structures/s on a GPU) and energy MAE (meV) of IS2RE, throughput and force MAE (meV/Å) of S2EF 2M; time of
# an epoch (s) and MAE of U0 (meV) of QM9.
PUBLISHED = {
    "IS2RE": {"SchNet": (3597, 684.0), "FAENet": (2469, 567.9)},
    "OC20": {"SchNet": (509, 83.1), "FAENet": (623, 57.5)},
    "QM9": {"SchNet": (98, 14.0), "FAENet": (87, 6.79)},
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """Throughput (structures per second of CPU time) and error of a network."""

    case: str
    throughput: float
    error: float


def front(points: Sequence[Point]) -> list[str]:
    """Cases on the Pareto front, fastest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (-point.throughput, point.error)):
        if not kept or point.error < kept[-1].error:
            kept.append(point)
    return [point.case for point in kept]


def throughputs(calls: dict[str, Callable[[], int]], repeats: int) -> dict[str, float]:
    """Structures per second of CPU time; the calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    counts = {name: call() for name, call in calls.items()}  # warms up
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.process_time()
            call()
            times[name].append(time.process_time() - began)
    return {name: counts[name] / statistics.median(times[name]) for name in calls}


def call_of(network: Network, settings: Sequence[str], mode: FrameMode) -> Callable[[], int]:
    """Predict a batch of the validation set; returns the number of structures."""
    built = untrained(network, settings)
    val = built.prepared.val
    graphs = [val.dataset[int(index)].graph for index in val.indices[:BATCH]]
    predictor = Predictor(built.potential, frames=mode, seed=0)
    wanted = [name for name in ("energy", "forces") if name in predictor.properties and val.dataset.n_labels.get(name)]
    return lambda: sum(1 for _ in predictor.predict(iter(graphs), wanted))


def is2re_points(rows: Sequence[Row], folder: Path, repeats: int) -> list[Point]:
    """Errors of relaxed energies."""
    training, held_out = is2re.split_surfaces(is2re.read_slabs(is2re.SLABS))
    settings = [*is2re.data_settings(training[::20], held_out[:BATCH], folder), "run.seed=0", "run.max_epochs=1"]
    methods = {case: is2re.METHODS[case] for case in IS2RE_CASES}
    calls = {case: call_of(method.network, settings, method.test) for case, method in methods.items()}
    return [
        Point(case=case, throughput=speed, error=mean_of(rows, table=is2re.TABLE, case=case, metric="energy MAE"))
        for case, speed in throughputs(calls, repeats).items()
    ]


def oc20_points(rows: Sequence[Row], folder: Path, repeats: int, *, quick: bool) -> list[Point]:
    """Energy errors of OC20."""
    data = oc20.snapshots([oc20.SNAPSHOTS], largest=oc20.QUICK_ATOMS if quick else None)
    settings = oc20.data_settings(data, folder, seed=0, epochs=1)
    calls = {
        case: call_of(network, settings, mode)
        for name, network in oc20.NETWORKS.items()
        for case, mode in oc20.TEST_FRAMES[name].items()
    }
    speeds = throughputs(calls, repeats)
    return [
        Point(
            case=case, throughput=speed, error=mean_of(rows, table=oc20.KNOWN_SYSTEMS, case=case, metric="energy MAE")
        )
        for case, speed in speeds.items()
    ]


def qm9_points(rows: Sequence[Row], folder: Path, repeats: int) -> list[Point]:
    """Errors of U0 of QM9 after the longest training on the largest set."""
    members = [row for row in rows if row.get("target") == "U0" and "seed" in row]
    cases: dict[str, tuple[str, FrameMode]] = {
        "SchNet": ("SchNet", "one"),
        "FAENet": ("FAENet", "all"),
        "FAENet, SFA": ("FAENet", "stochastic"),
    }
    runs = [{(row["train"], row["passes"]) for row in members if row["case"] == case} for case in cases]
    largest, longest = max(set.intersection(*runs))
    sets = qm9.write_sample(folder, [40])
    settings = [*qm9.REDUCED, *sets.settings(40, folder), "data.energy_key=U0", "energy.unit=eV", "run.max_epochs=1"]
    calls = {case: call_of(qm9.NETWORKS[name], settings, mode) for case, (name, mode) in cases.items()}
    speeds = throughputs(calls, repeats)
    return [
        Point(case=case, throughput=speed, error=mean_of(members, case=case, train=largest, passes=longest))
        for case, speed in speeds.items()
    ]


def table_rows(table: str, points: Sequence[Point], metric: str, unit: str) -> list[Row]:
    """Rows of a table."""
    best, found = front(points), []
    for point in sorted(points, key=lambda point: -point.throughput):
        words = {"benchmark": "pareto", "table": table, "case": point.case}
        found += [
            words | {"metric": metric, "value": rounded(point.error), "unit": unit},
            words | {"metric": "throughput", "value": rounded(point.throughput), "unit": "structures/s"},
            words | {"metric": "on the front", "value": "yes" if point.case in best else "no", "unit": ""},
        ]
    return found


def published_rows() -> list[Row]:
    """The paper's own numbers of the two networks."""
    words = {"benchmark": "pareto", "table": "published"}
    found: list[Row] = []
    for case in ("SchNet", "FAENet"):
        relaxed_speed, relaxed = PUBLISHED["IS2RE"][case]
        speed, forces = PUBLISHED["OC20"][case]
        epoch, energy = PUBLISHED["QM9"][case]
        values = {
            "IS2RE throughput": (relaxed_speed, "structures/s"),
            "IS2RE energy MAE": (relaxed, "meV"),
            "S2EF 2M throughput": (speed, "structures/s"),
            "S2EF 2M force MAE": (forces, "meV/Å"),
            "QM9 epoch": (epoch, "s"),
            "QM9 U0 MAE": (energy, "meV"),
        }
        found += [
            words | {"case": case, "metric": key, "value": value, "unit": unit} for key, (value, unit) in values.items()
        ]
    return found


def plot(panels: dict[str, tuple[list[Point], str]], path: Path) -> None:
    """Draw one panel per data set with its front; networks on it have filled markers."""
    with rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
        for number, (title, (points, label)) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(1, len(panels), number)
            best = front(points)
            line = [point for name in best for point in points if point.case == name]
            axes.plot([p.throughput for p in line], [p.error for p in line], "--", color="#999999", linewidth=1)
            for point, color, marker in zip(points, itertools.cycle(COLORS), itertools.cycle("os^Dv"), strict=False):
                fill = color if point.case in best else "none"
                words: dict[str, Any] = {"color": color, "markerfacecolor": fill, "label": point.case}
                axes.plot(point.throughput, point.error, marker, **words)
            axes.set_title(title, fontsize="medium")
            axes.set(xlabel="throughput (structures per s of CPU time)", ylabel=label)
            axes.set_xlim(0, 1.15 * max(point.throughput for point in points))
            axes.set_ylim(0, 1.15 * max(point.error for point in points))
            axes.legend(loc="lower right", fontsize="small")
        figure.savefig(path)


def stored(given: Path | None, name: str, out: Path | None) -> list[Row]:
    """Rows of another benchmark."""
    beside = [] if out is None else [out.parent / f"{name}.jsonl"]
    for path in [given] if given is not None else [*beside, RESULTS / f"{name}.jsonl"]:
        if path.is_file():
            return [json.loads(line) for line in path.read_text().splitlines()]
    raise InputError(f"there are no rows of {name}; run `faenet-calc benchmark {name}` first, or give --{name} FILE")


def main(arguments: list[str] | None = None) -> None:
    """Measure and store."""
    parser = script_parser(__doc__, quick="Small structures, one repeat; errors of stored rows.", seeds=None)
    parser.add_argument("--is2re", type=Path, help="Rows of is2re.py.")
    parser.add_argument("--oc20", type=Path, help="Rows of oc20.py.")
    parser.add_argument("--qm9", type=Path, help="Rows of qm9.py.")
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    repeats = 1 if chosen.quick else chosen.repeats
    relaxed, slabs, molecules = (stored(getattr(chosen, name), name, chosen.out) for name in ("is2re", "oc20", "qm9"))
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("is2re", "oc20", "qm9")]
        for folder in folders:
            folder.mkdir()
        on_relaxed = is2re_points(relaxed, folders[0], repeats)
        on_slabs = oc20_points(slabs, folders[1], repeats, quick=chosen.quick)
        on_molecules = qm9_points(molecules, folders[2], repeats)
    rows = Rows(chosen.out)
    rows.derive(
        lambda _: [
            *table_rows("IS2RE, relaxed energies of held-out surfaces", on_relaxed, "energy MAE", "meV"),
            *table_rows("OC20, other snapshots of the training systems", on_slabs, "energy MAE", "eV"),
            *table_rows("QM9, U0", on_molecules, "MAE", "meV"),
            *published_rows(),
        ]
    )
    if chosen.plot is not None:
        panels = {
            "IS2RE": (on_relaxed, "MAE of the relaxed energy (meV)"),
            "OC20": (on_slabs, "energy MAE (eV)"),
            "QM9": (on_molecules, "MAE of U0 (meV)"),
        }
        plot(panels, chosen.plot)


if __name__ == "__main__":
    run_script(main)
