"""Cost of one calculator step, in total and by part.

    python benchmarks/calculator_step.py [--steps 50]

A 40-atom Cu(111) slab whose atoms move slightly before every step, one thread; and the steps of ``metals-m`` for 12
atoms of the slab of ``speed.py`` beside the part of them that the compiled engine takes.
Rows are JSON with the keys benchmark, case, metric, value and unit.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import speed
import torch
from ase import Atoms
from ase.build import fcc111

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.network.engine import Engine, engine_for
from faenet_calc.network.engine_output import EngineOutput


def row(case: str, metric: str, value: float, unit: str) -> None:
    """Print one result."""
    print(json.dumps({"benchmark": "calculator_step", "case": case, "metric": metric, "value": value, "unit": unit}))


def slab() -> Atoms:
    """Cu(111) slab of 40 atoms (2 × 5 × 4)."""
    return fcc111("Cu", (2, 5, 4), a=3.61, vacuum=6.0, orthogonal=False)


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Median CPU time of a call (ms)."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * float(np.median(times))


def measure(frames: str, steps: int) -> None:
    """Time complete steps and their parts."""
    atoms, rng = slab(), np.random.default_rng(0)
    calc = FAENetCalculator(build_potential("modern-s"), frames=frames, device="cpu")
    atoms.calc = calc
    start = atoms.positions.copy()

    def move() -> None:
        atoms.positions = start + rng.normal(scale=0.01, size=start.shape)

    def step(what: str) -> None:
        move()
        calc.get_property(what, atoms)

    case = f"modern-s, 40 atoms, frames={frames}"
    atoms.get_forces()
    for what in ("energy", "forces", "stress"):
        row(case, f"step ({what})", median_ms(lambda what=what: step(what), steps), "ms")
    source, predictor = calc.source, calc.predictor
    (graph,) = source.graphs(atoms, reuse=True)
    row(case, "edges", graph.n_edges, "")
    row(case, "graph, skin", median_ms(lambda: source.graphs(atoms, reuse=True), steps), "ms")
    row(case, "graph, rebuilt", median_ms(lambda: source.graphs(atoms, reuse=False), steps), "ms")
    row(case, "copy of atoms", median_ms(atoms.copy, steps), "ms")
    row(case, "check of state", median_ms(lambda: calc.check_state(atoms), steps), "ms")
    row(case, "predictor (forces)", median_ms(lambda: predictor.predict_one(graph, ["forces"]), steps), "ms")


def measure_beside_engine(frames: str, steps: int) -> None:
    """Time complete steps and the calls of the engine in them."""
    atoms, rng = speed.slab(12), np.random.default_rng(0)
    atoms.calc = FAENetCalculator("metals-m", frames=frames, device="cpu")
    start = atoms.positions.copy()
    atoms.get_forces()
    engine = engine_for(atoms.calc.predictor.committee.members[0].model)
    assert isinstance(engine, Engine)
    evaluate, inside = engine.evaluate, list[float]()

    def timed(*args: Any, **kwargs: Any) -> EngineOutput:
        begin = time.process_time()
        found = evaluate(*args, **kwargs)
        inside.append(time.process_time() - begin)
        return found

    engine.evaluate = timed  # type: ignore[method-assign]
    total = []
    for _ in range(steps):
        atoms.positions = start + rng.normal(scale=0.01, size=start.shape)
        begin = time.process_time()
        atoms.get_forces()
        total.append(time.process_time() - begin)
    case = f"metals-m, {len(atoms)} atoms, frames={frames}"
    row(case, "step (forces)", 1e3 * float(np.median(total)), "ms")
    row(case, "engine", 1e3 * float(np.median(inside)), "ms")
    row(case, "step / engine", float(np.median(np.array(total) / np.array(inside))), "x")


def main() -> None:
    """Measure both frame settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for frames in ("one", "all"):
        measure(frames, arguments.steps)
    for frames in ("one", "pair"):
        measure_beside_engine(frames, arguments.steps)


if __name__ == "__main__":
    main()
