"""Batched relaxation compared with relaxation one by one, in one run.

    python benchmarks/batched_relaxation.py [--model metals-m] [--count 64] [--threads 1 2] [-o FILE]

Slabs of Cu, Pt, Pd and Ni (111) with CO, O, OH and H on every distinct site (about 38 atoms) are relaxed to 0.05 eV/Å:
one by one with ``relax`` and together with ``relax_batch``, with every number of threads. Rows are JSON: CPU and wall
time, their ratios, where the CPU time goes, and the largest differences of energies and positions from one by one with
the first number of threads. Batches use one thread per group of structures, so their results do not depend on the
number of threads; those of ``relax`` do, because the engine then adds in another order.
"""

import argparse
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.build import bulk
from rows import Rows, model_words, rounded, show

from faenet_calc import FAENetCalculator, relax, relax_batch
from faenet_calc.calculator import Predictor
from faenet_calc.calculator.graph_source import GraphSource
from faenet_calc.calculator.guard import Guard
from faenet_calc.network.engine import Engine
from faenet_calc.screening.adsorbates import adsorbate
from faenet_calc.screening.placement import enumerate_all
from faenet_calc.screening.surfaces import cut_slab
from faenet_calc.simulate import RelaxResult

GROUP = 16


def structures(count: int) -> list[Any]:
    """Initial structures in a fixed, mixed order."""
    slabs = [slab for symbol in ("Cu", "Pt", "Pd", "Ni") for slab in cut_slab(bulk(symbol), (1, 1, 1))]
    configurations = enumerate_all(slabs, [adsorbate(name) for name in ("CO", "O", "OH", "H")])
    order = np.random.default_rng(0).permutation(len(configurations))
    return [configurations[index].atoms for index in order[:count]]


def timed(function: Any) -> tuple[Any, float, float]:
    """Result, CPU time (s) of all threads and wall time (s)."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = function()
    return result, time.process_time() - cpu, time.perf_counter() - wall


def compare(model: str, count: int, all_threads: list[int], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Relax all structures one by one and together, with every number of threads; one row per number.

    One by one in turns of GROUP structures, so that both see the same load of the machine.
    """
    calc = FAENetCalculator(model, device="cpu")
    first = FAENetCalculator(model, device="cpu", frames="one")
    atoms = structures(count)
    relax_batch(atoms[:GROUP], calc, **options | {"steps": 1})  # what happens once is not timed
    methods = {
        "one_by_one": lambda group: [relax(one, calc, prerelax=first, **options) for one in group],
        "batched": lambda group: relax_batch(group, calc, one_frame_first=True, **options),
    }
    sizes = {"one_by_one": GROUP, "batched": count}
    cases = [(name, threads) for threads in all_threads for name in methods]
    spent, shares = {case: np.zeros(2) for case in cases}, dict[tuple[str, int], dict[str, float]]()
    found: dict[tuple[str, int], list[RelaxResult]] = {case: [] for case in cases}
    loads = []
    for start in range(0, count, GROUP):
        for name, threads in cases:
            if start % sizes[name]:
                continue
            torch.set_num_threads(threads)
            with timed_parts() as parts:
                results, *times = timed(partial(methods[name], atoms[start : start + sizes[name]]))
            found[name, threads] += results
            spent[name, threads] += times
            own = shares.setdefault((name, threads), dict.fromkeys(parts, 0.0))
            for part, seconds in parts.items():
                own[part] += seconds
            loads.append(os.getloadavg()[0])
    return [
        {
            "row": "batched_relaxation",
            **model_words(model),
            "structures": count,
            "atoms": [min(map(len, atoms)), max(map(len, atoms))],
            "threads": threads,
            **options,
            **{
                name: {
                    "cpu_s": spent[name, threads][0],
                    "wall_s": spent[name, threads][1],
                    "parts_cpu_s": shares[name, threads] if threads == 1 else None,
                }
                for name in methods
            },
            "ratio": {
                "cpu": spent["one_by_one", threads][0] / spent["batched", threads][0],
                **{
                    f"wall_against_{other}_threads": spent["one_by_one", other][1] / spent["batched", threads][1]
                    for other in all_threads
                },
            },
            "load": [min(loads), max(loads)],
            **agreement(found["one_by_one", all_threads[0]], found["batched", threads]),
        }
        for threads in all_threads
    ]


@contextmanager
def timed_parts() -> Iterator[dict[str, float]]:
    """CPU time (s) of the parts of a relaxation in all threads; what is left belongs to optimizers and calculators."""
    functions: dict[str, tuple[Any, str]] = {
        "engine": (Engine, "run"),
        "predictor": (Predictor, "_predict_within_budget"),
        "neighbors and graphs": (GraphSource, "graphs"),
        "guard": (Guard, "results"),
        "anomalies": (import_module("faenet_calc.simulate.relax"), "find_anomalies"),
    }
    spent, lock, originals = dict.fromkeys(functions, 0.0), threading.Lock(), dict[str, Any]()

    def counted(part: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            start = time.thread_time()
            result = originals[part](*arguments, **keywords)
            with lock:
                spent[part] += time.thread_time() - start
            return result

        return call

    for part, (owner, name) in functions.items():
        originals[part] = getattr(owner, name)
        setattr(owner, name, counted(part))
    try:
        yield spent
    finally:
        for part, (owner, name) in functions.items():
            setattr(owner, name, originals[part])
        spent["predictor"] -= spent["engine"]


def agreement(alone: list[RelaxResult], together: list[RelaxResult]) -> dict[str, Any]:
    """Differences of the minima."""
    pairs = [(a, b) for a, b in zip(alone, together, strict=True) if a.converged and b.converged]
    return {
        "converged": [sum(one.converged for one in alone), sum(one.converged for one in together)],
        "same_steps": sum(a.n_steps == b.n_steps for a, b in pairs),
        "largest_energy_difference_eV": max(abs(a.energy - b.energy) for a, b in pairs),
        "largest_displacement_A": max(float(np.abs(a.atoms.positions - b.atoms.positions).max()) for a, b in pairs),
    }


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="metals-m")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--optimizer", default="LBFGS")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    options = {"optimizer": arguments.optimizer, "fmax": 0.05, "steps": 300, "tags": "atoms"}
    rows = Rows(arguments.output)
    for row in compare(arguments.model, arguments.count, arguments.threads, options):
        rows.append(rounded(row))
        show(rounded(row))


if __name__ == "__main__":
    main()
