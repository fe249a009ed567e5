"""What do the uncertainty and the domain guard cost per call?

    python benchmarks/guard_cost.py metals-m [--rounds 30]

CPU time of energy and forces with and without the guard, alternating in one process so that both see the same load;
medians over the rounds. Slabs of Cu(111) with CO in the default frames of the model and in one frame.
"""

import argparse
import time

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule
from rows import Row, model_words, rounded, show

from faenet_calc import FAENetCalculator


def slab(size: int) -> Atoms:
    """CO on a (111) surface of copper with ``size``² atoms per layer."""
    atoms = fcc111("Cu", (size, size, 3), vacuum=8.0)
    add_adsorbate(atoms, molecule("CO"), 1.85, "ontop", mol_index=1)
    return atoms


def seconds(calc: FAENetCalculator, atoms: Atoms, calls: int) -> float:
    """(s) CPU time per call while the atoms move a little."""
    rng = np.random.default_rng(0)
    start = time.process_time()
    for _ in range(calls):
        atoms.positions += rng.normal(0, 1e-4, atoms.positions.shape)
        calc.calculate(atoms, ["energy", "forces"])
    return (time.process_time() - start) / calls


def measured(model: str, frames: str, size: int, rounds: int) -> Row:
    """Cost of one system."""
    atoms, calls = slab(size), max(2, 60 // size**2)
    calculators = {
        name: FAENetCalculator(model, device="cpu", frames=frames, on_outside_domain=name)
        for name in ("ignore", "warn")
    }
    for calc in calculators.values():
        seconds(calc, atoms, calls)
    times: dict[str, list[float]] = {name: [] for name in calculators}
    for number in range(rounds):
        for name in sorted(calculators, reverse=bool(number % 2)):
            times[name].append(seconds(calculators[name], atoms, calls))
    without, guarded = (float(np.median(times[name])) for name in ("ignore", "warn"))
    cost = float(np.median(np.array(times["warn"]) / np.array(times["ignore"]))) - 1
    return {
        "frames": frames,
        "atoms": len(atoms),
        "ms_without": 1e3 * without,
        "ms_with_guard": 1e3 * guarded,
        "cost_percent": 100 * cost,
    }


def main() -> None:
    """A row per frame mode and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for frames in ("auto", "one"):
        for size in (2, 4, 6):
            row = measured(arguments.model, frames, size, arguments.rounds)
            show({"benchmark": "guard_cost", **model_words(arguments.model), **rounded(row, 3)})


if __name__ == "__main__":
    main()
