"""What do the uncertainty and the domain guard cost per call?

    python benchmarks/guard_cost.py metals-m [--rounds 30] [--sizes 2 4 6] [--json FILE]

CPU time of energy and forces with and without the guard, alternating in one process so that both see the same load;
medians over the rounds, and the same for a second calculator without the guard (`control_percent`), whose difference
from 0 is noise. Slabs of Cu(111) with CO in the default frames of the model and in one frame. The guard
examines uncertainty and environments again only after an atom has moved by 0.05 Å, so the cost depends on the moves:

dynamics          consecutive steps of 1 fs at 300 K; `examined` is the share of calls that were examined in full.
new structures    every call has another structure and is examined in full: the cost of single points and large steps.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from ase import Atoms, units
from ase.build import add_adsorbate, fcc111, molecule
from ase.md.verlet import VelocityVerlet
from rows import Row, Rows, model_words, rounded, show

from faenet_calc import FAENetCalculator


def slab(size: int) -> Atoms:
    """CO on a (111) surface of copper with ``size``² atoms per layer."""
    atoms = fcc111("Cu", (size, size, 3), vacuum=8.0)
    add_adsorbate(atoms, molecule("CO"), 1.85, "ontop", mol_index=1)
    return atoms


def dynamics(atoms: Atoms, calc: FAENetCalculator, n: int) -> list[np.ndarray]:
    """[n] positions along a trajectory at 300 K."""
    moving = atoms.copy()
    moving.calc = calc
    width = np.sqrt(moving.get_masses() * units.kB * 600)[:, None]  # half of the kinetic energy becomes potential
    moving.set_momenta(np.random.default_rng(0).normal(0, 1, moving.positions.shape) * width)
    driver, found = VelocityVerlet(moving, timestep=1.0 * units.fs), []
    driver.run(50)
    for _ in range(n):
        driver.run(1)
        found.append(moving.positions.copy())
    return found


def new_structures(atoms: Atoms, n: int) -> list[np.ndarray]:
    """[n] positions that differ by more than the guard ignores."""
    rng = np.random.default_rng(0)
    return [atoms.positions + rng.normal(0, 0.05, atoms.positions.shape) for _ in range(n)]


def seconds(calc: FAENetCalculator, atoms: Atoms, path: list[np.ndarray]) -> float:
    """(s) CPU time per call along a path."""
    moving = atoms.copy()
    start = time.process_time()
    for positions in path:
        moving.positions = positions
        calc.calculate(moving, ["energy", "forces"])
    return (time.process_time() - start) / len(path)


def share_examined(calc: FAENetCalculator, atoms: Atoms, path: list[np.ndarray]) -> float:
    """Share of the calls along a path that the guard examines in full."""
    moving, examined = atoms.copy(), 0
    for positions in path:
        moving.positions = positions
        examined += not calc.guard.is_near(moving)
        calc.calculate(moving, ["energy", "forces"])
    return examined / len(path)


def measured(model: str, frames: str, size: int, rounds: int) -> Iterator[Row]:
    """Cost of one system, for both kinds of moves."""
    atoms, calls = slab(size), max(20, 200 // size**2)
    calculators = {
        name: FAENetCalculator(model, device="cpu", frames=frames, on_outside_domain=name)
        for name in ("ignore", "warn")
    }
    calculators["control"] = FAENetCalculator(model, device="cpu", frames=frames, on_outside_domain="ignore")
    paths = {
        "dynamics": dynamics(atoms, calculators["ignore"], calls),
        "new structures": new_structures(atoms, calls),
    }
    for moves, path in paths.items():
        times: dict[str, list[float]] = {name: [] for name in calculators}
        for number in range(rounds + 1):  # the first round warms up
            order = list(calculators)
            for name in order[number % 3 :] + order[: number % 3]:
                times[name].append(seconds(calculators[name], atoms, path))
        without, guarded, control = (np.array(times[name][1:]) for name in ("ignore", "warn", "control"))
        yield {
            "frames": frames,
            "atoms": len(atoms),
            "moves": moves,
            "examined": share_examined(calculators["warn"], atoms, path),
            "ms_without": 1e3 * float(np.median(without)),
            "ms_with_guard": 1e3 * float(np.median(guarded)),
            "cost_percent": 100 * (float(np.median(guarded / without)) - 1),
            "control_percent": 100 * (float(np.median(control / without)) - 1),
        }


def main() -> None:
    """A row per frame mode and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 6], help="atoms along the edges of the slab")
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept = Rows(arguments.json)
    for frames in ("auto", "one"):
        for size in arguments.sizes:
            for row in measured(arguments.model, frames, size, arguments.rounds):
                full = {"benchmark": "guard_cost", **model_words(arguments.model), **rounded(row, 3)}
                kept.append(full)
                show(full)


if __name__ == "__main__":
    main()
