"""Vibrations of CO in the gas phase and on Cu(111), and the free energy of adsorption.

python examples/vibrations.py [--quick] [--out FOLDER]
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.build import add_adsorbate, fcc111, molecule
from ase.constraints import FixAtoms
from ase.thermochemistry import HarmonicThermo, IdealGasThermo
from ase.vibrations import Vibrations

from faenet_calc import FAENetCalculator, relax


def vibrational_energies(atoms: Atoms, calc: FAENetCalculator, indices: list[int], folder: Path) -> np.ndarray:
    """Vibrational energies (eV; imaginary for unstable modes) of the atoms in ``indices``, by finite differences."""
    shutil.rmtree(folder, ignore_errors=True)  # remove results of an earlier run
    atoms = atoms.copy()
    atoms.calc = calc
    vibrations = Vibrations(atoms, indices=indices, name=str(folder))
    vibrations.run()
    return vibrations.get_energies()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller slab")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    parser.add_argument("--temperature", type=float, default=300.0, help="temperature in K")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    calc = FAENetCalculator(dtype="float64")  # finite differences need float64
    slab = fcc111("Cu", (2, 2, 2) if args.quick else (2, 2, 4), a=3.63, vacuum=8.0)
    slab.set_constraint(FixAtoms(mask=slab.get_tags() > 1))
    start = slab.copy()
    add_adsorbate(start, molecule("CO"), 1.9, "ontop", mol_index=1)
    fmax = 0.02 if args.quick else 0.005
    clean, gas, adsorbed = (relax(atoms, calc, fmax=fmax) for atoms in (slab, molecule("CO"), start))

    carbon_oxygen = [len(start) - 2, len(start) - 1]
    in_gas = vibrational_energies(gas.atoms, calc, [0, 1], args.out / "vib-gas")
    on_slab = vibrational_energies(adsorbed.atoms, calc, carbon_oxygen, args.out / "vib-slab")
    print(f"{'mode':>4} {'gas/cm-1':>10} {'adsorbed/cm-1':>14}    (i: imaginary)")
    for n, (a, b) in enumerate(zip(in_gas, on_slab, strict=True)):
        words = [f"{abs(e) / units.invcm:.0f}{'i' if abs(e.imag) > abs(e.real) else ''}" for e in (a, b)]
        print(f"{n:>4} {words[0]:>10} {words[1]:>14}")

    # Six modes on the surface; soft modes (below 50 cm-1 or imaginary) are set to 50 cm-1.
    harmonic = HarmonicThermo(np.maximum(on_slab.real, 50 * units.invcm))
    ideal = IdealGasThermo(in_gas.real[-1:], "linear", atoms=gas.atoms, symmetrynumber=1, spin=0, potentialenergy=0.0)
    free_adsorbed = harmonic.get_helmholtz_energy(args.temperature, verbose=False)
    free_gas = ideal.get_gibbs_energy(args.temperature, pressure=1e5, verbose=False)
    energy = adsorbed.energy - clean.energy - gas.energy
    print(f"adsorption energy                          {energy:8.3f} eV")
    print(f"free-energy correction of adsorbed CO      {free_adsorbed:8.3f} eV")
    print(f"free-energy correction of gas (1 bar)      {free_gas:8.3f} eV")
    print(f"free energy of adsorption at {args.temperature:.0f} K         {energy + free_adsorbed - free_gas:8.3f} eV")


if __name__ == "__main__":
    main()
