"""Find the preferred adsorption site of CO on Cu(111): energies, a picture and a report (`make demo`).

python examples/relax_co_cu111.py [--quick] [--out FOLDER]
"""

import argparse
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import fcc111
from ase.data import covalent_radii
from ase.data.colors import jmol_colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from faenet_calc import FAENetCalculator, screen
from faenet_calc.reports.screening import write_screening_report
from faenet_calc.screening.adsorbates import Adsorbate, adsorbate
from faenet_calc.screening.results import RESOLVED_EV, Row, not_distinguished
from faenet_calc.screening.screen import ScreenResult
from faenet_calc.screening.store import ScreenStore
from faenet_calc.screening.surfaces import Slab, relaxed_bulk, standard_slab
from faenet_calc.screening.worker import RelaxSettings
from faenet_calc.simulate.trajectory import read_snapshots

SITE_COLORS = {"top": "#4477aa", "bridge": "#ee6677", "fcc": "#228833", "hcp": "#aa3377"}
HALF_WIDTH_A = 5.2  # Å, half the width of a drawn view
TILT_DEG = 30.0  # all four sites survive; at 50° (four layers) the start on top slid to fcc


def tilted_co() -> Adsorbate:
    """CO that binds through carbon, tilted away from the surface normal: an upright start could not leave its site."""
    upright = adsorbate("CO")  # carbon at the origin
    tilted = upright.upright()
    tilted.rotate(TILT_DEG, "y", center=(0, 0, 0))
    return replace(upright, atoms=tilted)


def print_energies(rows: list[Row], result: ScreenResult, snapshots: dict[str, list[Atoms]]) -> None:
    """Print where each relaxation started and ended, and its adsorption energy."""
    print(f"\n{'start':<8}{'end':<8}{'E_ads/eV':>9}{'± /eV':>8}{'steps':>7}{'C-O/Å':>8}{'C-Cu/Å':>8}  notes")
    for row in rows:
        atoms = snapshots[row.key][-1]
        carbon, oxygen = len(atoms) - 1, len(atoms) - 2
        copper = atoms.get_distances(carbon, range(len(atoms) - 2), mic=True).min()
        uncertainty = "–" if row.uncertainty is None else f"{row.uncertainty:.3f}"
        notes = [*row.anomalies, *([] if row.converged else ["not converged"])]
        notes += ["same minimum as above"] if row.duplicate_of else []
        print(
            f"{kind(row.site):<8}{row.final_site:<8}{row.adsorption_energy:>9.3f}{uncertainty:>8}{row.n_steps:>7}"
            f"{atoms.get_distance(carbon, oxygen):>8.3f}{copper:>8.3f}  {', '.join(notes) or 'none'}"
        )
    print("E_ads = E(slab + CO) - E(slab) - E(CO gas)")
    print(f"gas reference: E(CO) = {result.gas.energies['CO']:.3f} eV, relaxed with the same model")


def kind(site: str) -> str:
    """Kind of a site without its number: ``top-0`` is ``top``."""
    return site.rsplit("-", 1)[0]


def draw(rows: list[Row], snapshots: dict[str, list[Atoms]], path: Path) -> None:
    """Draw adsorption energies along the relaxations, and the preferred site before and after."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    axis = left.subplots()
    for row in rows:
        images = snapshots[row.key]
        total = np.array([atoms.get_potential_energy() for atoms in images])
        energies = total - total[-1] + row.adsorption_energy
        name = kind(row.site)
        moved = "" if name == row.final_site else f" → {row.final_site}"
        label = f"{name}{moved}: {row.adsorption_energy:.2f} eV".replace("-", "\N{MINUS SIGN}")
        axis.plot(energies, "--" if name == "hcp" else "-", color=SITE_COLORS[name], lw=2, zorder=3, label=label)
        axis.plot(len(energies) - 1, energies[-1], "o", color=SITE_COLORS[name], zorder=3)
    axis.axhline(0, color="0.6", lw=1, ls="--")
    axis.annotate("clean slab + CO gas", (1, 0), (-4, 4), ("axes fraction", "data"), "offset points", ha="right")
    axis.set(
        xlabel="optimizer step", ylabel="adsorption energy (eV)", title="CO on Cu(111), four sites relaxed together"
    )
    axis.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.65))
    axis.spines[["top", "right"]].set_visible(False)

    best = rows[0]
    right.suptitle(f"Lowest energy: {best.final_site}")
    for column, (title, atoms) in enumerate(
        {"before": snapshots[best.key][0], "after": snapshots[best.key][-1]}.items()
    ):
        drawn = centred(atoms)
        for number, (view, axes) in enumerate({"side": (0, 2, 1), "top": (0, 1, 2)}.items()):
            place = right.add_subplot(2, 2, 1 + column + 2 * number)
            draw_view(place, drawn, axes)
            place.set_title(f"{title}, {view} view", fontsize=10)
    figure.savefig(path, dpi=110)


def centred(atoms: Atoms) -> Atoms:
    """The structure with its carbon atom at the origin of the plane, repeated to fill the view."""
    drawn = Atoms(atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=(True, True, False))
    carbon_oxygen = drawn[-2:]
    slab = drawn[:-2].repeat((3, 3, 1))
    slab.positions -= drawn.cell[0] + drawn.cell[1]  # the copy with the adsorbate is in the middle
    together = slab + carbon_oxygen
    together.positions[:, :2] -= drawn.positions[-1, :2]
    return together


def draw_view(axis: Axes, atoms: Atoms, axes: tuple[int, int, int]) -> None:
    """Draw atoms as circles from far to near, projected on the first two of three Cartesian axes."""
    across, up, depth = axes
    toward = atoms.positions[:, depth] * (-1 if depth == 1 else 1)  # a side view looks along +y
    inside = np.abs(atoms.positions[:, across]) < HALF_WIDTH_A + 1.5
    if depth == 1:  # without the atoms that would hide the adsorbate
        inside &= (atoms.positions[:, 1] > -1.0) & (atoms.positions[:, 1] < HALF_WIDTH_A)
    for index in np.flatnonzero(inside)[np.argsort(toward[inside], kind="stable")]:
        number = atoms.numbers[index]
        far = (toward[inside].max() - toward[index]) / np.ptp(toward[inside])
        color = (1 - 0.55 * far) * jmol_colors[number] + 0.55 * far
        center = atoms.positions[index, [across, up]]
        radius = 0.88 * covalent_radii[number]
        axis.add_patch(Circle(center, radius, facecolor=color, edgecolor="0.25", lw=0.6))
    top = atoms.positions[:, up].max() + 1.0
    low = top - 1.6 * HALF_WIDTH_A if depth == 1 else -0.8 * HALF_WIDTH_A
    axis.set(xlim=(-HALF_WIDTH_A, HALF_WIDTH_A), ylim=(low, low + 1.6 * HALF_WIDTH_A), aspect="equal")
    axis.set_xticks([])
    axis.set_yticks([])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller slab")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for files")
    args = parser.parse_args()
    start = time.perf_counter()
    folder = args.out / "co_cu111"
    shutil.rmtree(folder, ignore_errors=True)  # results of an earlier demo

    calc = FAENetCalculator()
    print(f"model {calc.info['names'][0]}: {calc.energy_kind} energies, {calc.level_of_theory}")
    lattice = relaxed_bulk("Cu", calc).cell.cellpar()[0] * np.sqrt(2)
    layers = fcc111("Cu", (2, 2, 3) if args.quick else (3, 3, 3), a=lattice, vacuum=8.0)
    slab = Slab(name="Cu(111)", atoms=standard_slab(layers), source="ase.build.fcc111")
    print(f"{slab.name} slab with {len(layers)} atoms, lattice constant {lattice:.3f} Å (relaxed)")
    settings = RelaxSettings(fmax=0.1 if args.quick else 0.03, one_frame_first=False)  # record every step
    result = screen([slab], [tilted_co()], folder, calculator=calc, settings=settings, rotations=1)
    seconds = time.perf_counter() - start

    store = ScreenStore(folder)
    snapshots = {row.key: read_snapshots(store.trajectory(row.key)) for row in result.rows}
    rows = [row for row in result.rows if row.error is None]
    print_energies(rows, result, snapshots)
    best = rows[0]
    others = not_distinguished(rows, best)
    print(f"\nmost stable site: {best.final_site} ({seconds:.0f} s for bulk, slab, gas and {len(rows)} relaxations)")
    print(f"not distinguished from it, within {RESOLVED_EV} eV: {', '.join(others) or 'none'}")
    print("PBE, which the model approximates, prefers the hollows; experiments find CO on top of Cu atoms.")
    picture = args.out / "co_cu111.png"
    draw(rows, snapshots, picture)
    print(f"wrote {picture} (picture) and {write_screening_report(folder)} (report, open it in a browser)")


if __name__ == "__main__":
    main()
