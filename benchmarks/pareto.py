"""Accuracy against speed of models.

    python benchmarks/pareto.py metals-s metals-s:one metals-m metals-direct [--data labels.extxyz]
        [--json rows.jsonl] [--plot pareto.svg] [--reference metals_reference.MetalsReference]

Error on the validation set (as in heldout_errors.py, or read from its rows with `--errors rows.jsonl`, which must use
the same model names) against the CPU time of one energy-and-forces call of the ASE calculator: a 40-atom Cu(111) slab
whose atoms move slightly before every call, one thread. All models, and the reference if given, take turns in one
process, so that other load affects all of them equally; the median counts. A model is on the Pareto front if no other
model is both faster and more accurate in forces. The reference needs its own packages: `PYTHONPATH=scripts:.` in their
environment.

Prints a Markdown table. Rows are JSON with the keys benchmark, model, case, metric, value and unit. The suffix of the
plot file selects SVG, PNG or PDF.
"""

import argparse
import importlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import fcc111
from ase.calculators.calculator import Calculator
from heldout_errors import VALIDATION, candidate, common, label, metrics, model_errors, split_name, write_rows
from matplotlib import rc_context
from matplotlib.figure import Figure
from peers.schnet import open_model

from faenet_calc import FAENetCalculator
from faenet_calc.errors import InputError
from faenet_calc.memory import keep_freed_memory
from faenet_calc.reports.plots import COLORS, STYLE, LogFormatter

MOVE_A = 0.01
WARM_UP = 3
ERRORS = ("energy_mae", "forces_mae")


@dataclass(frozen=True, kw_only=True)
class Point:
    """Speed and error of a model.

    Attributes:
        model: Name of the model.
        ms: CPU time of a call (ms).
        energy_mae: (meV/atom); NaN for the reference, whose error is zero by definition.
        forces_mae: (meV/Å); NaN for the reference.
    """

    model: str
    ms: float
    energy_mae: float
    forces_mae: float

    @property
    def measured(self) -> bool:
        """Whether the point has an error."""
        return math.isfinite(self.forces_mae)


def slab() -> Atoms:
    """Cu(111) slab of 40 atoms (2 × 5 × 4)."""
    return fcc111("Cu", (2, 5, 4), a=3.61, vacuum=6.0, orthogonal=False)


def call_times(calculators: Mapping[str, Calculator], repeats: int, seed: int = 0) -> dict[str, float]:
    """Median CPU time (ms) of an energy-and-forces call by name; the models take turns."""
    rng, start = np.random.default_rng(seed), slab()
    times: dict[str, list[float]] = {name: [] for name in calculators}
    for turn in range(WARM_UP + repeats):
        atoms = start.copy()
        atoms.positions += rng.normal(scale=MOVE_A, size=atoms.positions.shape)
        for name, calculator in calculators.items():
            began = time.process_time()
            for what in ("forces", "energy"):  # in this order one calculation gives both
                calculator.get_property(what, atoms)
            if turn >= WARM_UP:
                times[name].append(time.process_time() - began)
    return {name: 1e3 * float(np.median(values)) for name, values in times.items()}


def front(points: Sequence[Point]) -> list[str]:
    """Models on the Pareto front of speed and force error, fastest first."""
    kept: list[Point] = []
    for point in sorted((p for p in points if p.measured), key=lambda p: (p.ms, p.forces_mae)):
        if not kept or point.forces_mae < kept[-1].forces_mae:
            kept.append(point)
    return [point.model for point in kept]


def table(points: Sequence[Point], reference: str | None) -> str:
    """Markdown table, fastest model first."""
    best, slow = front(points), next((p.ms for p in points if p.model == reference), None)
    words = ("model", "CPU time of a call (ms)", "reference ÷ this", "E MAE (meV/atom)", "F MAE (meV/Å)", "front")
    lines = [f"| {' | '.join(words)} |", "|---" * len(words) + "|"]
    for point in sorted(points, key=lambda p: p.ms):
        ratio = "–" if slow is None else f"{slow / point.ms:.1f}"
        errors = [f"{value:.3g}" if point.measured else "–" for value in (point.energy_mae, point.forces_mae)]
        mark = "yes" if point.model in best else ""
        lines.append(f"| {point.model} | {point.ms:.1f} | {ratio} | {' | '.join(errors)} | {mark} |")
    return "\n".join(lines)


def rows(points: Sequence[Point], case: str) -> list[dict[str, Any]]:
    """JSON rows, one per number."""
    best = front(points)
    found: list[dict[str, Any]] = []
    for point in points:
        values = {"call": (point.ms, "ms"), "on_front": (float(point.model in best), "")}
        if point.measured:
            values |= {"energy_mae": (point.energy_mae, "meV/atom"), "forces_mae": (point.forces_mae, "meV/Å")}
        start = {"benchmark": "pareto", "model": point.model, "case": case}
        found += [{**start, "metric": name, "value": value, "unit": unit} for name, (value, unit) in values.items()]
    return found


def plot(points: Sequence[Point]) -> Figure:
    """Plot force error against time (log-log) with the Pareto front as a line and the reference as a vertical line."""
    best = front(points)
    with rc_context(STYLE):
        figure = Figure(figsize=(6.0, 4.2), layout="constrained")
        axes = figure.add_subplot(
            xscale="log", yscale="log", xlabel="CPU time of a call, 40 atoms (ms)", ylabel="force MAE (meV/Å)"
        )
        on_front = sorted((point for point in points if point.model in best), key=lambda point: point.ms)
        axes.plot([p.ms for p in on_front], [p.forces_mae for p in on_front], "--", color=COLORS[0], linewidth=1)
        for point in points:
            if point.measured:
                color = COLORS[0] if point.model in best else "#999999"
                axes.plot(point.ms, point.forces_mae, "o", color=color, label=point.model)
                axes.annotate(point.model, (point.ms, point.forces_mae), (5, 4), textcoords="offset points")
            else:
                axes.axvline(point.ms, color=COLORS[1], linewidth=1, label=point.model)
                axes.text(
                    point.ms,
                    0.98,
                    point.model,
                    transform=axes.get_xaxis_transform(),
                    rotation=90,
                    ha="right",
                    va="top",
                    color=COLORS[1],
                )
        axes.margins(0.18)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(LogFormatter())
            axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    return figure


def stored_errors(path: Path, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Model → metric → value over all structures, from the rows of heldout_errors.py."""
    found: dict[str, dict[str, float]] = {}
    for row in map(json.loads, path.read_text().splitlines()):
        if row["case"] == "all" and row["metric"] in ERRORS:
            found.setdefault(row["model"], {})[row["metric"]] = row["value"]
    if missing := [name for name in names if set(found.get(name, {})) != set(ERRORS)]:
        raise InputError(f"{path} has no errors of {', '.join(missing)}; it has {', '.join(found) or 'none'}")
    return found


def measured_errors(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Model → metric → value, for all models on the same structures."""
    candidates = [candidate(name, arguments.data, "cpu") for name in arguments.models]
    indices = common(candidates, arguments.split, arguments.limit)
    return {one.name: metrics(model_errors(one.potential, one.dataset, indices, one.frames)) for one in candidates}


def calculators_of(arguments: argparse.Namespace) -> dict[str, Calculator]:
    """Name → calculator, the reference last."""
    found: dict[str, Calculator] = {}
    for name in arguments.models:
        source, frames = split_name(name)
        potential = open_model(source, device="cpu")
        found[label(name)] = FAENetCalculator(potential, frames=frames, on_unknown_element="ignore")
    if arguments.reference:
        module, _, factory = arguments.reference.rpartition(".")
        found[arguments.reference] = getattr(importlib.import_module(module), factory)()
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("models", nargs="+", metavar="MODEL")
    where = result.add_mutually_exclusive_group()
    where.add_argument("--data", type=Path, nargs="+", default=[VALIDATION])
    where.add_argument("--errors", type=Path, help="rows of heldout_errors.py")
    result.add_argument("--split", help="split to evaluate (default: heldout, if present)")
    result.add_argument("--limit", type=int, help="maximum number of structures, taken evenly")
    result.add_argument("--reference", metavar="MODULE.CLASS")
    result.add_argument("--repeats", type=int, default=15)
    result.add_argument("--json", type=Path)
    result.add_argument("--plot", type=Path)
    return result


def main() -> None:
    """Measure errors, then times."""
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    names = [label(name) for name in arguments.models]
    errors = measured_errors(arguments) if arguments.errors is None else stored_errors(arguments.errors, names)
    times = call_times(calculators_of(arguments), arguments.repeats)
    nothing = dict.fromkeys(ERRORS, math.nan)
    points = [
        Point(model=name, ms=ms, **{metric: errors.get(name, nothing)[metric] for metric in ERRORS})
        for name, ms in times.items()
    ]
    print(table(points, arguments.reference))
    if arguments.json is not None:
        write_rows(arguments.json, rows(points, f"{len(slab())} atoms, one thread"))
    if arguments.plot is not None:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        plot(points).savefig(arguments.plot, metadata={"Date": None} if arguments.plot.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
