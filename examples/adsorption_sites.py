"""Adsorption energies of CO at the sites of Cu(111) found by ASE and by pymatgen.

python examples/adsorption_sites.py [--quick] [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule
from ase.constraints import FixAtoms
from pymatgen.analysis.adsorption import AdsorbateSiteFinder
from pymatgen.io.ase import AseAtomsAdaptor

from faenet_calc import FAENetCalculator, relax
from faenet_calc.graphs.writing import write_structures


def sites_of_ase(slab: Atoms) -> dict[str, np.ndarray]:
    """Cartesian coordinates of ASE's named sites, on top of the slab."""
    found = {}
    for name in slab.info["adsorbate_info"]["sites"]:
        marked = slab.copy()
        add_adsorbate(marked, "H", 0.0, name)
        found[name] = marked.positions[-1]
    return found


def sites_of_pymatgen(slab: Atoms) -> dict[str, np.ndarray]:
    """Symmetry-distinct sites by triangulation of the surface."""
    finder = AdsorbateSiteFinder(AseAtomsAdaptor.get_structure(slab))
    found = finder.find_adsorption_sites(distance=0.0)
    kinds = ("ontop", "bridge", "hollow")
    return {f"{kind} {n}": np.array(site) for kind in kinds for n, site in enumerate(found[kind])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small slab and loose force limit")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    fmax, steps = (0.15, 40) if args.quick else (0.03, 300)

    calc = FAENetCalculator()
    slab = fcc111("Cu", (2, 2, 3) if args.quick else (3, 3, 4), a=3.63, vacuum=8.0)
    slab.pbc = True
    slab.set_constraint(FixAtoms(mask=slab.get_tags() > 2))
    clean, gas = relax(slab, calc, fmax=fmax), relax(molecule("CO"), calc, fmax=fmax)

    rows = []
    for finder, sites in {"ASE": sites_of_ase(slab), "pymatgen": sites_of_pymatgen(slab)}.items():
        for name, place in sites.items():
            start = clean.atoms.copy()
            co = molecule("CO", tags=[0, 0])
            co.translate([*place[:2], start.positions[:, 2].max() + 1.9] - co.positions[1])
            result = relax(start + co, calc, fmax=fmax, steps=steps)
            moved = result.atoms.positions[-1, :2] - place[:2]
            rows.append((result.energy - clean.energy - gas.energy, finder, name, np.linalg.norm(moved), result))
    rows.sort(key=lambda row: row[0])
    print(f"{'found by':<10} {'site':<10} {'E_ads/eV':>9} {'C moved/Å':>10} {'steps':>6}  converged, anomalies")
    for energy, finder, name, moved, result in rows:
        flags = " ".join([str(result.converged), *result.anomalies])
        print(f"{finder:<10} {name:<10} {energy:>9.3f} {moved:>10.2f} {result.n_steps:>6}  {flags}")
    structures = [row[-1].atoms for row in rows]
    for atoms in structures:
        atoms.info.pop("adsorbate_info", None)
    write_structures(args.out / "adsorption_sites.extxyz", structures, overwrite=True)


if __name__ == "__main__":
    main()
