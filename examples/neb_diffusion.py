"""Barrier for the hop of an oxygen atom from an fcc to an hcp hollow of Cu(111), with a climbing-image NEB.

python examples/neb_diffusion.py [--quick] [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
from ase.build import add_adsorbate, fcc111
from ase.constraints import FixAtoms
from ase.mep import NEB
from ase.optimize import FIRE

from faenet_calc import FAENetCalculator, relax


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer images and looser forces")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    n_between, fmax, steps = (3, 0.15, 30) if args.quick else (7, 0.03, 300)

    calc = FAENetCalculator()
    ends = []
    for site in ("fcc", "hcp"):
        atoms = fcc111("Cu", (2, 2, 3), a=3.63, vacuum=8.0)
        atoms.set_constraint(FixAtoms(mask=atoms.get_tags() > 1))
        add_adsorbate(atoms, "O", 1.2, site)
        ends.append(relax(atoms, calc, fmax=fmax / 2, steps=300).atoms)

    images = [ends[0].copy() for _ in range(n_between + 1)] + [ends[1].copy()]
    for image in images:
        image.calc = calc  # all images share one calculator
    band = NEB(images, climb=True, method="improvedtangent", allow_shared_calculator=True)
    band.interpolate(mic=True)
    converged = FIRE(band, logfile=None).run(fmax=fmax, steps=steps)

    energies = np.array([image.get_potential_energy() for image in images])
    energies -= energies[0]
    path = np.array([image.positions[-1] for image in images])
    distance = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1)))
    print(f"{'image':>5} {'O moved/Å':>10} {'energy/eV':>10}")
    for n, (moved, energy) in enumerate(zip(distance, energies, strict=True)):
        print(f"{n:>5} {moved:>10.3f} {energy:>10.4f}")
    print(f"barrier {energies.max():.3f} eV, hcp - fcc {energies[-1]:.3f} eV, converged: {converged}")

    try:
        import matplotlib
    except ImportError:
        raise SystemExit("The picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.5))
    axis.plot(distance, energies, "o-")
    axis.set(xlabel="path of O (Å)", ylabel="energy (eV)", title="O on Cu(111), fcc to hcp")
    figure.savefig(args.out / "neb_diffusion.png", dpi=120, bbox_inches="tight")
    plt.close(figure)
    print(f"wrote {args.out / 'neb_diffusion.png'}")


if __name__ == "__main__":
    main()
