"""Energy, forces and stress of one structure, and energies of many at once.

python examples/single_point.py [--quick] [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
from ase.build import bulk, fcc100, fcc111, molecule

from faenet_calc import FAENetCalculator
from faenet_calc.units import GPA


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller structures")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    calc = FAENetCalculator()
    print(f"model {calc.info['names'][0]}: {calc.energy_kind} energies, {calc.level_of_theory}")

    copper = bulk("Cu", cubic=True)
    copper.rattle(0.05, seed=0)
    copper.calc = calc
    print(f"\nCu4, rattled: {copper.get_potential_energy():.4f} eV")
    for atom, force in zip(copper, copper.get_forces(), strict=True):
        print(f"  {atom.symbol}{atom.index}  force {force[0]:8.4f} {force[1]:8.4f} {force[2]:8.4f} eV/Å")
    print("  stress (xx yy zz yz xz xy)", np.array2string(copper.get_stress() / GPA, precision=3), "GPa")

    # Predicting many structures in batches is faster than one by one.
    size = (1, 1, 3) if args.quick else (2, 2, 4)
    structures = {
        "Cu bulk": bulk("Cu"),
        "Cu(111)": fcc111("Cu", size, vacuum=8.0),
        "Cu(100)": fcc100("Cu", size, vacuum=8.0),
        "CO": molecule("CO"),
    }
    results = calc.predict(structures.values(), properties=("energy", "forces"))
    lines = [f"{'structure':<10} {'atoms':>5} {'energy/eV':>12} {'eV/atom':>10} {'max force/(eV/Å)':>17}"]
    for (name, atoms), result in zip(structures.items(), results, strict=True):
        force = np.linalg.norm(result["forces"], axis=1).max()
        energy = result["energy"]
        lines.append(f"{name:<10} {len(atoms):>5} {energy:>12.4f} {energy / len(atoms):>10.4f} {force:>17.4f}")
    print("\n" + "\n".join(lines))
    (args.out / "single_point.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
