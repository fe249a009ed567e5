"""Effect of the Verlet skin on speed and on the trajectory.

    python benchmarks/verlet_skin.py [--steps 200] [--checkpoint tests/data/emt-copper.safetensors]

NVE of a copper slab at 300 K with a skin of 0, 0.5 and 1 Å, one thread, in steps per CPU second. Rows are JSON.
"""

import argparse
import json
import time

import numpy as np
import torch
from ase import units
from ase.build import fcc111
from ase.md.verlet import VelocityVerlet

from faenet_calc import FAENetCalculator


def run(checkpoint: str, size: tuple[int, int, int], skin: float, steps: int) -> tuple[np.ndarray, float, int]:
    """Positions after the run, steps per CPU second and number of neighbor searches."""
    atoms = fcc111("Cu", size, a=3.6, vacuum=6.0, periodic=True)
    atoms.calc = FAENetCalculator(checkpoint, device="cpu", frames="one", skin=skin)
    spread = np.sqrt(atoms.get_masses() * units.kB * 600)[:, None]
    momenta = spread * np.random.default_rng(0).normal(size=(len(atoms), 3))
    atoms.set_momenta(momenta - momenta.mean(axis=0))
    atoms.get_forces()
    start = time.process_time()
    VelocityVerlet(atoms, 2 * units.fs).run(steps)
    return atoms.positions, steps / (time.process_time() - start), atoms.calc.n_neighbor_rebuilds


def main() -> None:
    """Compare skins on two slabs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", default="tests/data/emt-copper.safetensors")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for size in ((2, 2, 3), (4, 4, 4)):
        reference, _, _ = run(arguments.checkpoint, size, 0.0, arguments.steps)
        base = None
        for skin in (0.0, 0.5, 1.0):
            positions, speed, rebuilds = run(arguments.checkpoint, size, skin, arguments.steps)
            base = base or speed
            row = {
                "benchmark": "verlet_skin",
                "case": f"{np.prod(size)} atoms, skin {skin} Å, {arguments.steps} steps",
                "steps_per_cpu_s": round(speed, 1),
                "ratio": round(speed / base, 3),
                "rebuilds": rebuilds,
                "largest_difference_of_positions": float(np.abs(positions - reference).max()),
            }
            print(json.dumps(row))


if __name__ == "__main__":
    main()
