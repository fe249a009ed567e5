"""Calibrated uncertainty of the energy, spread over frames, spread over a committee, and the domain of the model.

python examples/uncertainty.py [--quick] [--out FOLDER]
"""

import argparse
import copy
import warnings
from pathlib import Path

import numpy as np
import torch
from ase.build import fcc111

from faenet_calc import FAENetCalculator, Potential, load_potential
from faenet_calc.potential.shipped import default_name


def members(n_members: int) -> list[Potential]:
    """Committee for demonstration: the default model and copies with slightly perturbed weights.

    Train real committees with different seeds and pass the files (a list or a glob) to FAENetCalculator.
    """
    model = load_potential(default_name(), device="cpu")
    generator = torch.Generator().manual_seed(0)
    found = [model]
    for _ in range(n_members - 1):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for weight in other.parameters():
                weight *= 1 + 0.002 * torch.randn(weight.shape, generator=generator)
        found.append(other)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller slab")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    slab = fcc111("Cu", (1, 1, 3) if args.quick else (2, 2, 4), a=3.63, vacuum=8.0)
    noises = (0.0, 0.1, 0.2, 0.4)  # Å; far from equilibrium there are fewer training structures
    structures = []
    for noise in noises:
        atoms = slab.copy()
        atoms.rattle(noise, seed=0)
        structures.append(atoms)

    one = FAENetCalculator(frames="all")  # a single frame has no spread
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*outside the domain")  # the table has it
        frames = one.predict(structures, properties=("energy_uncertainty", "energy_frame_std", "forces_frame_std"))
    committee = FAENetCalculator(members(2 if args.quick else 4), on_outside_domain="ignore").predict(
        structures, properties=("energy_var", "forces_var")
    )
    lines = [
        f"{'':>8} {'calibrated':>13} {'spread over frames':>27} {'committee':>27}",
        f"{'noise/Å':>8} {'energy/meV':>13} {'energy/meV':>13} {'force/(meV/Å)':>13} {'energy/meV':>13} "
        f"{'force/(meV/Å)':>13} domain",
    ]
    for noise, spread, votes in zip(noises, frames, committee, strict=True):
        worst = np.sqrt(votes["forces_var"].sum(axis=1)).max()
        values = (
            spread["energy_uncertainty"],
            spread["energy_frame_std"],
            spread["forces_frame_std"].max(),
            np.sqrt(votes["energy_var"]),
            worst,
        )
        lines.append(
            f"{noise:>8.2f} " + " ".join(f"{1000 * value:>13.2f}" for value in values) + f" {spread['domain']}"
        )
    print("\n".join(lines))
    (args.out / "uncertainty.txt").write_text("\n".join(lines) + "\n")
    moved, reference = structures[1], structures[0]
    difference = one.uncertainty_of_difference([moved, reference], [1, -1])
    print(f"Energy of the second structure minus that of the first: uncertainty {1000 * difference:.2f} meV")
    print("Molecular dynamics stops when it leaves the domain; run_md(..., max_frame_std=0.5) stops earlier.")


if __name__ == "__main__":
    main()
