"""Relax CO on Cu(111): energies, adsorption energy, bond lengths, a picture and a trajectory (`make demo`).

python examples/relax_co_cu111.py [--quick] [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.constraints import FixAtoms

from faenet_calc import FAENetCalculator, relax


def draw(before: Atoms, after: Atoms, path: Path) -> None:
    """Draw side and top views before and after the relaxation."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("The picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from ase.visualize.plot import plot_atoms

    figure, axes = plt.subplots(2, 2, figsize=(8, 8))
    for column, (title, atoms) in enumerate({"before": before, "after": after}.items()):
        for row, (view, rotation) in enumerate({"side": "-90x", "top": ""}.items()):
            plot_atoms(atoms, axes[row, column], rotation=rotation)
            axes[row, column].set_title(f"{title}, {view}")
            axes[row, column].set_axis_off()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller slab")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    calc = FAENetCalculator()
    print(f"model {calc.info['names'][0]}: {calc.energy_kind} energies, {calc.level_of_theory}")
    lattice = relax(bulk("Cu"), calc, relax_cell=True, fmax=0.01).atoms.cell.cellpar()[0] * np.sqrt(2)
    clean = fcc111("Cu", (2, 2, 3) if args.quick else (3, 3, 4), a=lattice, vacuum=8.0)
    layers = clean.get_tags()  # counted from the top
    clean.set_constraint(FixAtoms(mask=layers >= layers.max() - 1))
    clean.set_tags(np.where(layers == 1, 1, 0))  # 0 sub-surface, 1 surface, 2 adsorbate
    start = clean.copy()
    add_adsorbate(start, molecule("CO", tags=[2, 2]), height=2.1, position=clean.positions[-1, :2], mol_index=1)

    slab = relax(clean, calc)
    gas = relax(molecule("CO"), calc)
    trajectory = args.out / "co_cu111.traj"
    result = relax(start, calc, fmax=0.03, trajectory=trajectory, overwrite=True, progress=True)

    carbon, oxygen = len(start) - 1, len(start) - 2
    first = calc.get_potential_energy(start)
    to_copper = result.atoms.get_distances(carbon, range(len(clean)), mic=True).min()
    print(f"{len(start)} atoms, lattice constant of Cu {lattice:.3f} Å")
    print(f"energy before         {first:12.4f} eV")
    print(f"energy after          {result.energy:12.4f} eV  ({result.n_steps} steps, {result.wall_s:.1f} s)")
    print(f"converged             {result.converged!s:>12}     (largest force {result.fmax:.4f} eV/Å)")
    print(f"adsorption energy     {result.energy - slab.energy - gas.energy:12.4f} eV")
    print(f"C-O distance          {result.atoms.get_distance(carbon, oxygen):12.3f} Å")
    print(f"C-Cu distance         {to_copper:12.3f} Å")
    print(f"anomalies             {', '.join(result.anomalies) or 'none':>12}")
    if "energy_frame_std" in calc.implemented_properties:
        print(f"spread over frames    {1000 * calc.get_property('energy_frame_std', result.atoms):12.2f} meV")
    draw(start, result.atoms, args.out / "co_cu111.png")
    print(f"wrote {trajectory} and {args.out / 'co_cu111.png'}")


if __name__ == "__main__":
    main()
