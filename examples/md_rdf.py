"""Molecular dynamics of copper at constant temperature, and its radial distribution function.

python examples/md_rdf.py [--quick] [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.io import read
from ase.neighborlist import neighbor_list

from faenet_calc import FAENetCalculator, run_md


def radial_distribution(snapshots: list[Atoms], cutoff: float, n_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances (Å) and radial distribution function g(r)."""
    edges = np.linspace(0.0, cutoff, n_bins + 1)
    shells = 4 / 3 * np.pi * np.diff(edges**3)
    counts = np.zeros(n_bins)
    for atoms in snapshots:
        found, _ = np.histogram(neighbor_list("d", atoms, cutoff), edges)
        counts += found / (len(atoms) * shells * len(atoms) / atoms.get_volume())
    return (edges[1:] + edges[:-1]) / 2, counts / len(snapshots)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer atoms and steps")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    size, steps = (1, 60) if args.quick else (3, 2000)

    atoms = bulk("Cu", a=3.63, cubic=True) * (size, size, size)
    trajectory = args.out / "md.traj"
    result = run_md(
        atoms,
        FAENetCalculator(),
        ensemble="nvt-bussi",
        temperature_K=600,
        timestep_fs=2.0,
        steps=steps,
        trajectory=trajectory,
        overwrite=True,
        progress=True,
    )
    print(f"{len(atoms)} atoms, {result.n_steps} steps in {result.wall_s:.1f} s")
    print(f"temperature {result.temperatures.mean():.0f} ± {result.temperatures.std():.0f} K")
    if result.drift is not None:
        print(f"drift of the conserved quantity {result.drift.meV_per_atom_ps:.4f} meV/atom/ps")

    snapshots = read(trajectory, index=":")[len(result.times_fs) // 4 :]  # discard the first quarter
    distance, g = radial_distribution(snapshots, cutoff=7.0, n_bins=70)
    first = distance[np.argmax(g)]
    print(f"first peak of g(r) at {first:.2f} Å, nearest neighbors of the ideal lattice at {3.63 / np.sqrt(2):.2f} Å")
    np.savetxt(args.out / "rdf.txt", np.column_stack([distance, g]), header="r/Å g(r)", fmt="%.4f")

    try:
        import matplotlib
    except ImportError:
        raise SystemExit("The picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.5))
    axis.plot(distance, g)
    axis.set(xlabel="r (Å)", ylabel="g(r)", title="Cu, 600 K")
    figure.savefig(args.out / "rdf.png", dpi=120, bbox_inches="tight")
    plt.close(figure)
    print(f"wrote {args.out / 'rdf.png'}")


if __name__ == "__main__":
    main()
