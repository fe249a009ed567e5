"""Relax adsorbates on copper with a shipped model and with the reference potential; needs nequix and chgnet.

    PYTHONPATH=scripts python scripts/compare_with_reference.py [--model copper-s]

Both start from the same structures, each with its own lattice constant. Rows are JSON: adsorption energies (eV)
relative to the clean slab and CO, O2/2, H2/2 and H2O - H2/2, whether the adsorbate ends at the same site (lateral
distance below 0.5 Å, in fractions of the cell), and CPU time (s).
"""

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, fcc111, molecule
from ase.constraints import FixAtoms
from metals_reference import MetalsReference

from faenet_calc import FAENetCalculator, relax

SITES = {"fcc111": (fcc111, ("ontop", "fcc", "hcp")), "fcc100": (fcc100, ("ontop", "bridge", "hollow"))}
GAS = {"CO": {"CO": 1.0}, "O": {"O2": 0.5}, "H": {"H2": 0.5}, "OH": {"H2O": 1.0, "H2": -0.5}}


def slab(facet: str, lattice: float) -> Atoms:
    """Three layers, the lower two fixed."""
    atoms = SITES[facet][0]("Cu", (2, 2, 3), a=lattice, vacuum=8.0)
    atoms.set_constraint(FixAtoms(mask=atoms.get_tags() > 1))
    atoms.set_tags(np.where(atoms.get_tags() == 1, 1, 0))
    return atoms


def adsorbed(facet: str, adsorbate: str, site: str, lattice: float) -> Atoms:
    """The starting structure."""
    atoms = slab(facet, lattice)
    added = molecule(adsorbate) if len(adsorbate) > 1 else Atoms(adsorbate)
    if adsorbate == "OH":
        added.rotate(180, "x")  # H up
    added.set_tags(2)
    add_adsorbate(atoms, added, 1.9 if site == "ontop" else 1.4, site, mol_index=1 if adsorbate == "CO" else 0)
    return atoms


def measure(calc: Any) -> dict[str, Any]:
    """All relaxations with one calculator."""
    start = time.process_time()
    lattice = relax(bulk("Cu"), calc, relax_cell=True, fmax=0.01).atoms.cell.cellpar()[0] * np.sqrt(2)
    gas = {name: relax(molecule(name), calc).energy for parts in GAS.values() for name in parts}
    found: dict[str, Any] = {"lattice": lattice}
    for facet, (_, sites) in SITES.items():
        clean = relax(slab(facet, lattice), calc).energy
        for adsorbate, parts in GAS.items():
            zero = clean + sum(count * gas[name] for name, count in parts.items())
            for site in sites:
                result = relax(adsorbed(facet, adsorbate, site, lattice), calc, steps=200)
                lateral = result.atoms.get_scaled_positions()[-1, :2]
                found[f"{adsorbate} {facet} {site}"] = (result.energy - zero, lateral, result.n_steps)
    found["cpu_s"] = time.process_time() - start
    return found


def main() -> None:
    """Print every case and the averages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="copper-s")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ours, truth = measure(FAENetCalculator(arguments.model, device="cpu")), measure(MetalsReference())
    errors, same = [], []
    for case in (name for name in truth if " " in name):
        apart = ours[case][1] - truth[case][1]
        apart = np.linalg.norm((apart - np.round(apart)) * 5.1)
        errors.append(abs(ours[case][0] - truth[case][0]))
        same.append(bool(apart < 0.5))
        energies = {"model_eV": round(ours[case][0], 3), "reference_eV": round(truth[case][0], 3)}
        print(json.dumps({"case": case, **energies, "same_site": same[-1]}), flush=True)
    summary = {
        "adsorption_energy_mae_eV": round(float(np.mean(errors)), 3),
        "same_site": f"{sum(same)} of {len(same)}",
        "lattice_constant_A": [round(float(ours["lattice"]), 4), round(float(truth["lattice"]), 4)],
        "cpu_s": [round(ours["cpu_s"], 1), round(truth["cpu_s"], 1)],
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
