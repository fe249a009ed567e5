"""Equation of state of copper: lattice constant and bulk modulus, compared with a cell relaxation.

python examples/equation_of_state.py [--quick] [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
from ase.build import bulk
from ase.eos import EquationOfState

from faenet_calc import FAENetCalculator, relax
from faenet_calc.units import GPA


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer points")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    calc = FAENetCalculator()
    relaxed = relax(bulk("Cu", cubic=True), calc, relax_cell=True, fmax=0.005)
    lattice = relaxed.atoms.cell.lengths().mean()
    structures = []
    for strain in np.linspace(-0.03, 0.03, 7 if args.quick else 13):
        atoms = relaxed.atoms.copy()
        atoms.set_cell(atoms.cell * (1 + strain), scale_atoms=True)
        structures.append(atoms)
    results = calc.predict(structures, properties=("energy", "stress"))
    volumes = np.array([atoms.get_volume() / len(atoms) for atoms in structures])
    energies = np.array([result["energy"] / 4 for result in results])
    pressures = np.array([-result["stress"][:3].mean() for result in results])

    print(f"{'V/(Å³/atom)':>12} {'E/(eV/atom)':>12} {'P/GPa':>8}")
    for row in zip(volumes, energies, pressures / GPA, strict=True):
        print(f"{row[0]:>12.3f} {row[1]:>12.5f} {row[2]:>8.2f}")
    curve = EquationOfState(volumes, energies, eos="birchmurnaghan")
    volume, _, modulus = curve.fit()
    slope = -volume * np.gradient(pressures, volumes)[len(volumes) // 2]
    print(f"lattice constant {(4 * volume) ** (1 / 3):.4f} Å from the fit, {lattice:.4f} Å from relaxing the cell")
    print(f"bulk modulus {modulus / GPA:.1f} GPa from the fit, {slope / GPA:.1f} GPa from the stress")

    try:
        import matplotlib
    except ImportError:
        raise SystemExit("The picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.5))
    axis.plot(volumes, energies, "o")
    fine = np.linspace(volumes[0], volumes[-1], 100)
    axis.plot(fine, curve.func(fine, *curve.eos_parameters))
    axis.set(xlabel="volume (Å³/atom)", ylabel="energy (eV/atom)", title="Cu")
    figure.savefig(args.out / "equation_of_state.png", dpi=120, bbox_inches="tight")
    plt.close(figure)
    print(f"wrote {args.out / 'equation_of_state.png'}")


if __name__ == "__main__":
    main()
