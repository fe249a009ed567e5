"""Batched relaxation compared with relaxation one by one, in one run.

    python benchmarks/batched_relaxation.py [--model metals-m] [--count 64] [--threads 1 2] [-o FILE]

Slabs of Cu, Pt, Pd and Ni (111) with CO, O, OH and H on every distinct site (about 38 atoms) are relaxed to 0.05 eV/Å:
one by one with ``relax`` and together with ``relax_batch``, in turns of 16 structures, with every number of threads.
Rows are JSON: CPU and wall time, their ratios, largest differences of energies and positions, and where the CPU time of
a batch goes (cProfile).
"""

import argparse
import cProfile
import pstats
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.build import bulk
from rows import Rows, model_words, rounded, show

from faenet_calc import FAENetCalculator, relax, relax_batch
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
    """Relax groups in turn, one by one and together, with every number of threads; one row per number."""
    calc = FAENetCalculator(model, device="cpu")
    first = FAENetCalculator(model, device="cpu", frames="one")
    atoms = structures(count)
    relax_batch(atoms[:GROUP], calc, **options | {"steps": 1})  # what happens once is not timed
    methods = {
        "one_by_one": lambda group: [relax(one, calc, prerelax=first, **options) for one in group],
        "batched": lambda group: relax_batch(group, calc, one_frame_first=True, **options),
    }
    spent = {(name, threads): np.zeros(2) for name in methods for threads in all_threads}
    found: dict[tuple[str, int], list[RelaxResult]] = {key: [] for key in spent}
    for start in range(0, count, GROUP):
        for name, threads in spent:
            torch.set_num_threads(threads)
            results, *times = timed(partial(methods[name], atoms[start : start + GROUP]))
            found[name, threads] += results
            spent[name, threads] += times
    return [
        {
            "row": "batched_relaxation",
            **model_words(model),
            "structures": count,
            "atoms": [min(map(len, atoms)), max(map(len, atoms))],
            "threads": threads,
            **options,
            **{name: {"cpu_s": spent[name, threads][0], "wall_s": spent[name, threads][1]} for name in methods},
            "ratio": {
                "cpu": spent["one_by_one", threads][0] / spent["batched", threads][0],
                **{
                    f"wall_against_{other}_threads": spent["one_by_one", other][1] / spent["batched", threads][1]
                    for other in all_threads
                },
            },
            **agreement(found["one_by_one", threads], found["batched", threads]),
        }
        for threads in all_threads
    ]


def agreement(alone: list[RelaxResult], together: list[RelaxResult]) -> dict[str, Any]:
    """Differences of the minima."""
    pairs = [(a, b) for a, b in zip(alone, together, strict=True) if a.converged and b.converged]
    return {
        "converged": [sum(one.converged for one in alone), sum(one.converged for one in together)],
        "same_steps": sum(a.n_steps == b.n_steps for a, b in pairs),
        "largest_energy_difference_eV": max(abs(a.energy - b.energy) for a, b in pairs),
        "largest_displacement_A": max(float(np.abs(a.atoms.positions - b.atoms.positions).max()) for a, b in pairs),
    }


def profile(model: str, count: int, options: dict[str, Any]) -> dict[str, Any]:
    """Share of the time of a batch by part of the package."""
    calc = FAENetCalculator(model, device="cpu")
    torch.set_num_threads(1)
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(relax_batch, structures(count), calc, one_frame_first=True, **options)
    shares: dict[str, float] = {}
    for (file, _, name), (_, _, own, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        shares[_part(file, name)] = shares.get(_part(file, name), 0.0) + own
    total = sum(shares.values())
    return {"row": "profile", "structures": count, "share": {key: value / total for key, value in shares.items()}}


def _part(file: str, name: str) -> str:
    path = Path(file).as_posix()
    if "faenet_calc/network" in path or "torch" in path or "torch" in name or "run_backward" in name:
        return "network"
    for part in ("graphs", "frames", "potential", "calculator", "simulate"):
        if f"faenet_calc/{part}" in path:
            return part
    return "ase" if "/ase/" in path else "python and numpy"


def main() -> None:
    """Compare and profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="metals-m")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--optimizer", default="LBFGS")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    options = {"optimizer": arguments.optimizer, "fmax": 0.05, "steps": 300, "tags": "atoms"}
    rows = Rows(arguments.output)
    for row in (
        *compare(arguments.model, arguments.count, arguments.threads, options),
        profile(arguments.model, min(arguments.count, GROUP), options),
    ):
        rows.append(rounded(row))
        show(rounded(row))


if __name__ == "__main__":
    main()
