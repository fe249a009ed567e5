"""Energy conservation and stability of ten systems in 50 ps of NVE at 300 to 1000 K.

    python benchmarks/nve_systems.py MODEL -o FOLDER [--ps 50] [--only "Au bulk"] [--frames one]

Slabs of 12 atoms with one to six adsorbates and the lowest layer fixed, bulk crystals and a free particle, with the
lattice constants of datasets/catalysis-v1/recipes/crystals.yaml. Systems with elements that a model was not trained on
are omitted. Each system is relaxed, starts with Maxwell–Boltzmann momenta at
twice its temperature (equipartition halves it), is thermalized for 1 ps (Langevin) and then run in NVE. The time step
depends on the lightest atom: 1 fs with H, 2 fs with C, N or O (an eighth of the shortest period in molecules), 4 fs
for metals (a fiftieth of theirs). Precision and frames are the defaults of the model unless `--frames` is given.

The drift is the slope of a linear fit to the total energy over the whole run, the fluctuation the deviation from the
fit. A run has failed if the driver stopped it (temperature, energy, overlapping atoms, non-finite numbers). Flags
describe what happened to the adsorbate, which may diffuse, react or desorb on a correct energy surface, too. Rows are
JSON and are also written to FOLDER/rows.jsonl, next to the trajectories; an interrupted benchmark is resumed from
them.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from ase.constraints import FixAtoms
from rows import Row, Rows, model_words, progress, rounded, show

from faenet_calc import FAENetCalculator, relax, run_md
from faenet_calc.labelling import load_recipe
from faenet_calc.labelling.structures import Substrate, cluster, place, place_further, sites, slab
from faenet_calc.labelling.tasks import substrates
from faenet_calc.simulate import find_anomalies
from faenet_calc.simulate.ensembles import draw_momenta
from faenet_calc.simulate.trajectory import read_snapshots

RECIPE = Path(__file__).parents[1] / "datasets" / "catalysis-v1" / "recipes" / "crystals.yaml"
EQUILIBRATION_PS, CHUNK_PS, SAMPLE_FS = 1.0, 5.0, 20.0
VACUUM_A = 7.5
CU_PD = Substrate(name="CuPd", symbols=("Cu", "Pd"), crystal="fcc", a=3.8, fraction=0.5)  # held out of all recipes


def timestep_fs(atoms: Atoms) -> float:
    """Time step (fs) for the lightest atom."""
    lightest = atoms.get_masses().min()
    return 1.0 if lightest < 5 else 2.0 if lightest < 20 else 4.0


def substrate(metal: str) -> Substrate:
    """A metal or alloy of the recipe; alloys are named as in ``Cu50Pt50``."""
    pure, mixed = substrates(load_recipe(RECIPE))
    (found,) = (one for one in (*pure, *mixed, CU_PD) if one.label == metal)
    return found


def adsorbed(metal: str, facet: str, adsorbate: str, site: str, *, count: int = 1) -> Atoms:
    """2 × 2 × 3 slab with some adsorbates, the first one at a site, and the lowest layer fixed."""
    rng = np.random.default_rng(0)
    surface = slab(substrate(metal), facet, (2, 2, 3), VACUUM_A, rng)
    z = surface.positions[:, 2]
    surface.set_constraint(FixAtoms(mask=z < z.min() + 0.5))
    chosen = next(found for found in sites(surface) if found.kind == site)
    atoms = place(surface, adsorbate, chosen, 0.2, 10.0, rng)
    for _ in range(count - 1):
        atoms = place_further(atoms, adsorbate, 0.2, 10.0, rng)
    return atoms


def crystal(metal: str) -> Atoms:
    """Cubic crystal of 32 (fcc) or 54 (bcc) atoms."""
    found = substrate(metal)
    cell = bulk(metal, found.crystal, a=found.a, cubic=True)
    return cell.repeat(2 if found.crystal == "fcc" else 3)


@dataclass(frozen=True, kw_only=True)
class System:
    """A system and its temperature."""

    build: Callable[[], Atoms]
    temperature_K: float


SYSTEMS = {
    "CO on Cu(111)": System(build=lambda: adsorbed("Cu", "fcc111", "CO", "ontop"), temperature_K=400),
    "OH on Pt(111)": System(build=lambda: adsorbed("Pt", "fcc111", "OH", "ontop"), temperature_K=380),
    "O on Ru(0001)": System(build=lambda: adsorbed("Ru", "hcp0001", "O", "hcp"), temperature_K=500),
    "Au bulk": System(build=lambda: crystal("Au"), temperature_K=500),
    "NO on CuPd(100)": System(build=lambda: adsorbed("Cu50Pd50", "fcc100", "NO", "ontop"), temperature_K=380),
    "three CO on Rh(111)": System(build=lambda: adsorbed("Rh", "fcc111", "CO", "ontop", count=3), temperature_K=500),
    "three H2O on Pt(111)": System(build=lambda: adsorbed("Pt", "fcc111", "H2O", "ontop", count=3), temperature_K=300),
    "Pt19 particle": System(build=lambda: cluster(substrate("Pt"), 19, np.random.default_rng(0)), temperature_K=600),
    "CO on CuZn(111)": System(build=lambda: adsorbed("Cu75Zn25", "fcc111", "CO", "ontop"), temperature_K=400),
    "W bulk": System(build=lambda: crystal("W"), temperature_K=1000),
}


def thermalised(system: System, calc: Any, folder: Path) -> Atoms:
    """Thermalized system with momenta; read from the folder if present."""
    path, start = folder / "equilibration.traj", system.build()
    if not path.exists():
        start = relax(start, calc, fmax=0.03, steps=200).atoms
        draw_momenta(start, 2 * system.temperature_K, seed=0)
    step = timestep_fs(start)
    result = run_md(
        start,
        calc,
        ensemble="nvt-langevin",
        temperature_K=system.temperature_K,
        timestep_fs=step,
        steps=round(1000 * EQUILIBRATION_PS / step),
        trajectory=path,
        resume=True,
        interval=round(SAMPLE_FS / step),
    )
    return result.atoms


def total_energies(path: Path) -> np.ndarray:
    """[n] potential plus kinetic energy (eV/atom) of the snapshots of a trajectory."""
    snapshots = read_snapshots(path)
    return np.array([(a.get_potential_energy() + a.get_kinetic_energy()) / len(a) for a in snapshots])


def line(times_ps: np.ndarray, energies: np.ndarray) -> tuple[float, float] | tuple[None, None]:
    """Slope (meV/atom/ps) of energies (eV/atom) and deviation from the fit (meV/atom); None for fewer than three."""
    if len(energies) < 3:
        return None, None
    slope, offset = np.polyfit(times_ps, 1e3 * energies, 1)
    return round(float(slope), 5), round(float(np.std(1e3 * energies - slope * times_ps - offset)), 5)


def conserve(name: str, system: System, calc: Any, folder: Path, ps: float) -> Row:
    """Relax, thermalize and run one system."""
    folder.mkdir(parents=True, exist_ok=True)
    start = thermalised(system, calc, folder)
    step, path = timestep_fs(start), folder / "nve.traj"
    interval, last = round(SAMPLE_FS / step), round(1000 * ps / step)
    began, taken = time.process_time(), 0
    for goal in [*range(round(1000 * CHUNK_PS / step), last, round(1000 * CHUNK_PS / step)), last]:
        settings: Row = {"timestep_fs": step, "steps": goal, "interval": interval, "trajectory": path, "resume": True}
        result = run_md(start, calc, ensemble="nve", temperature_K=system.temperature_K, **settings)
        taken += len(result.times_fs) * interval - interval
        progress(system=name, ps=goal * step / 1000, temperature_K=round(float(result.temperatures[-1])))
        if result.stopped_because is not None:
            break
    energies = total_energies(path)
    slope, deviation = line(SAMPLE_FS / 1000 * np.arange(len(energies)), energies)
    temperatures = [atoms.get_temperature() for atoms in read_snapshots(path)]
    return {
        "system": name,
        "atoms": len(start),
        "timestep_fs": step,
        "ps": round(result.n_steps * step / 1000, 3),
        "mean_temperature_K": round(float(np.mean(temperatures)), 1),
        "drift_meV_per_atom_ps": slope,
        "std_meV_per_atom": deviation,
        "blown_up": result.stopped_because is not None,
        "stopped_because": result.stopped_because,
        "flags": list(find_anomalies(system.build(), result.atoms, tags="atoms")) if not start.pbc.all() else [],
        "steps_per_cpu_s": round(taken / (time.process_time() - began), 1),
    }


def run(calc: Any, rows: Rows, names: list[str], folder: Path, ps: float) -> Iterator[Row]:
    """Rows of the systems, keeping rows of an earlier run; systems with untrained elements are omitted."""
    known = {row["system"]: row for row in rows.of("system")}
    for name in names:
        if name not in known:
            outside = sorted(set(SYSTEMS[name].build().symbols) - set(calc.trained_elements))
            if outside and calc.trained_elements:
                yield {"row": "skipped", "system": name, "elements_not_trained": outside}
                continue
            words = "".join(letter if letter.isalnum() else "-" for letter in name)
            known[name] = {"row": "system", **conserve(name, SYSTEMS[name], calc, folder / words, ps)}
            rows.append(known[name])
        yield known[name]


def summary(found: list[Row]) -> Row:
    """Largest drift and number of systems that completed the run."""
    done = [row for row in found if row["row"] == "system"]
    drifts = [abs(row["drift_meV_per_atom_ps"]) for row in done if row["drift_meV_per_atom_ps"] is not None]
    whole = sum(not row["blown_up"] for row in done)
    largest = rounded(max(drifts), 5) if drifts else None
    return {"summary": True, "not_blown_up": f"{whole} of {len(done)}", "largest_drift_meV_per_atom_ps": largest}


def main() -> None:
    """Run all systems, or those selected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--ps", type=float, default=50.0)
    parser.add_argument("--only", action="append", choices=list(SYSTEMS))
    parser.add_argument("--frames", default="auto")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    calc = FAENetCalculator(arguments.model, device="cpu", frames=arguments.frames)
    words = {**model_words(arguments.model), "frames": arguments.frames}
    header = {"row": "header", **words, "ps": arguments.ps}
    rows, found = Rows(arguments.out / "rows.jsonl", header), list[Row]()
    for row in run(calc, rows, arguments.only or list(SYSTEMS), arguments.out, arguments.ps):
        found.append(row)
        show({"benchmark": "nve_systems", **row, **words})
    show({"benchmark": "nve_systems", **summary(found), **words})


if __name__ == "__main__":
    main()
