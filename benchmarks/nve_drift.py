"""Energy conservation in NVE with gradient forces and with direct forces.

    python benchmarks/nve_drift.py [--steps 10000] [--checkpoint tests/data/emt-copper.safetensors]

A 48-atom copper slab, time step 2 fs, one thread, starting from the perfect lattice at 600 K (equipartition leaves 300
K). The given conservative model is compared with a direct-force model of the size of the EMT model, trained on the
same data for the same number of steps. Rows are JSON.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from ase.build import fcc111

from faenet_calc import FAENetCalculator, run_md

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import emt_potential


def measure(name: str, checkpoint: Any, frames: str, steps: int, remove_net_force: Any = "auto") -> dict[str, Any]:
    """Drift (meV/atom/ps), fluctuation and temperature of one run."""
    atoms = fcc111("Cu", (4, 4, 3), a=3.61, vacuum=6.0, periodic=True)
    calc = FAENetCalculator(checkpoint, device="cpu", frames=frames, remove_net_force=remove_net_force)
    start = time.process_time()
    result = run_md(atoms, calc, ensemble="nve", temperature_K=600, timestep_fs=2.0, steps=steps, seed=0)
    return {
        "benchmark": "nve_drift",
        "case": f"48 atoms, 2 fs, {2e-3 * result.n_steps:g} ps, {name}, frames={frames}",
        "drift_meV_per_atom_ps": None if result.drift is None else round(result.drift.meV_per_atom_ps, 5),
        "std_meV_per_atom": None if result.drift is None else round(result.drift.std_meV_per_atom, 5),
        "mean_temperature_K": round(float(result.temperatures.mean()), 1),
        "stopped_because": result.stopped_because,
        "steps_per_cpu_s": round(result.n_steps / (time.process_time() - start), 1),
    }


def main() -> None:
    """Measure gradient forces, direct forces, and direct forces including their net force."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--checkpoint", default="tests/data/emt-copper.safetensors")
    parser.add_argument("--training-steps", type=int, default=emt_potential.N_STEPS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for frames in ("one", "all"):
        print(json.dumps(measure("gradient forces", arguments.checkpoint, frames, arguments.steps)), flush=True)
    direct = emt_potential.train(n_steps=arguments.training_steps, forces_kind="direct")
    print(json.dumps(measure("direct forces", direct, "one", arguments.steps)), flush=True)
    print(json.dumps(measure("direct forces, net force left in", direct, "one", arguments.steps, False)), flush=True)


if __name__ == "__main__":
    main()
