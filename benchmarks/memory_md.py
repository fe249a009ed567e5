"""Memory growth over many MD steps.

    python benchmarks/memory_md.py [--steps 100000] [--checkpoint tests/data/emt-copper.safetensors]

NVE of a 4-atom copper crystal at 300 K. Resident memory is read after a warm-up and at the end. Rows are JSON.
"""

import argparse
import gc
import json
import time

import numpy as np
import psutil
import torch
from ase import units
from ase.build import bulk
from ase.md.verlet import VelocityVerlet

from faenet_calc import FAENetCalculator


def resident_mb() -> float:
    """Resident memory of this process (MB)."""
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


def measure(checkpoint: str, steps: int, warm_up: int) -> dict[str, float]:
    """Run MD; return memory growth (MB), steps per CPU second and energy drift."""
    atoms = bulk("Cu", cubic=True, a=3.59)
    atoms.calc = FAENetCalculator(checkpoint, device="cpu", frames="one")
    spread = np.sqrt(atoms.get_masses() * units.kB * 600)[:, None]
    momenta = spread * np.random.default_rng(0).normal(size=(len(atoms), 3))
    atoms.set_momenta(momenta - momenta.mean(axis=0))
    engine = VelocityVerlet(atoms, 2 * units.fs)
    engine.run(warm_up)
    before, energy, start = resident_mb(), atoms.get_total_energy(), time.process_time()
    engine.run(steps)
    picoseconds = steps * 2e-3
    return {
        "growth_mb": resident_mb() - before,
        "resident_mb": before,
        "steps_per_cpu_s": steps / (time.process_time() - start),
        "drift_mev_per_atom_ps": 1e3 * (atoms.get_total_energy() - energy) / len(atoms) / picoseconds,
        "neighbor_rebuilds": atoms.calc.n_neighbor_rebuilds,
    }


def main() -> None:
    """Parse the arguments, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--checkpoint", default="tests/data/emt-copper.safetensors")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for metric, value in measure(arguments.checkpoint, arguments.steps, arguments.warm_up).items():
        case = f"{arguments.steps} steps, 4 atoms"
        print(json.dumps({"benchmark": "memory_md", "case": case, "metric": metric, "value": value, "unit": ""}))


if __name__ == "__main__":
    main()
