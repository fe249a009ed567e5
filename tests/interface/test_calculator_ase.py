"""ASE citizenship: every optimiser, engine, filter and tool on a molecule, a slab with FixAtoms and a crystal."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from ase import units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.mixing import SumCalculator
from ase.constraints import FixAtoms, FixSymmetry
from ase.db import connect
from ase.eos import EquationOfState
from ase.filters import FrechetCellFilter, UnitCellFilter
from ase.io import read, write
from ase.io.trajectory import Trajectory
from ase.md.bussi import Bussi
from ase.md.langevin import Langevin
from ase.md.nose_hoover_chain import NoseHooverChainNVT
from ase.md.nptberendsen import NPTBerendsen
from ase.md.nvtberendsen import NVTBerendsen
from ase.md.verlet import VelocityVerlet
from ase.mep import NEB
from ase.optimize import BFGS, FIRE, LBFGS, BFGSLineSearch, MDMin
from ase.phonons import Phonons
from ase.vibrations import Vibrations
from emt_potential import cluster, crystal, slab

from faenet_calc import FAENetCalculator

OPTIMIZERS = {
    "BFGS": BFGS,
    "LBFGS": LBFGS,
    "FIRE": FIRE,
    "MDMin": lambda atoms, **kwargs: MDMin(atoms, dt=0.05, **kwargs),
    "BFGSLineSearch": BFGSLineSearch,
}
ENGINES = {
    "VelocityVerlet": lambda atoms: VelocityVerlet(atoms, 2 * units.fs),
    "Langevin": lambda atoms: Langevin(
        atoms,
        2 * units.fs,
        temperature_K=100,
        friction=0.01 / units.fs,
        fixcm=False,
        rng=np.random.RandomState(0),
    ),
    "Bussi": lambda atoms: Bussi(atoms, 2 * units.fs, 100, 50 * units.fs, rng=np.random.RandomState(0)),
    "NoseHooverChainNVT": lambda atoms: NoseHooverChainNVT(atoms, 2 * units.fs, 100, 50 * units.fs),
    "NVTBerendsen": lambda atoms: NVTBerendsen(atoms, 2 * units.fs, 100, taut=50 * units.fs),
    "NPTBerendsen": lambda atoms: NPTBerendsen(
        atoms,
        2 * units.fs,
        temperature_K=100,
        pressure_au=0.0,
        taut=50 * units.fs,
        taup=500 * units.fs,
        compressibility_au=1e-2,
    ),
}
SYSTEMS = ("molecule", "slab", "crystal")
# The pairs of the default run; the whole matrix is in the slow one.
QUICK = {
    *(("LBFGS", "slab"), ("LBFGS", "crystal"), ("FIRE", "molecule"), ("MDMin", "molecule"), ("BFGSLineSearch", "slab")),
    *(("VelocityVerlet", "slab"), ("Langevin", "molecule"), ("Bussi", "molecule"), ("NoseHooverChainNVT", "crystal")),
    *(("NVTBerendsen", "molecule"), ("NPTBerendsen", "crystal")),
}


def matrix(names):
    """All pairs of a name and a system, most of them marked slow; a barostat needs a crystal."""
    pairs = [(name, system) for name in names for system in SYSTEMS if name != "NPTBerendsen" or system == "crystal"]
    return [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow) for pair in pairs]


def start(system, calc):
    """A structure near its minimum, and what an optimiser moves: the atoms or a cell filter around them."""
    atoms = {"molecule": cluster, "slab": slab, "crystal": crystal}[system]()
    atoms.rattle(0.05, seed=4)
    atoms.calc = calc
    if system == "slab":
        atoms.set_constraint(FixAtoms(range(4)))
    if system == "crystal":
        atoms.set_cell(atoms.cell * 0.99, scale_atoms=True)
        return atoms, FrechetCellFilter(atoms)
    return atoms, atoms


def shape(atoms):
    """All distances (Å), which do not depend on where and how the structure lies."""
    return atoms.get_all_distances(mic=True)


@pytest.fixture(scope="module")
def calc(emt_potential):
    return FAENetCalculator(emt_potential)


@pytest.fixture(scope="module")
def minima(calc):
    """The minimum of every system, by tight BFGS."""
    found = {}
    for system in SYSTEMS:
        atoms, moving = start(system, calc)
        assert BFGS(moving, logfile=None).run(fmax=0.001, steps=200)
        found[system] = (atoms.get_potential_energy(), shape(atoms))
    return found


def assert_same_minimum(atoms, minimum):
    energy, distances = minimum
    assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-3)
    np.testing.assert_allclose(shape(atoms), distances, atol=0.01)


@pytest.mark.parametrize(("optimizer", "system"), matrix(OPTIMIZERS))
def test_optimizers_agree(calc, minima, optimizer, system):
    atoms, moving = start(system, calc)
    energies = []
    driver = OPTIMIZERS[optimizer](moving, logfile=None)
    driver.attach(lambda: energies.append(atoms.get_potential_energy()))
    fixed = atoms.positions[:4].copy()
    assert driver.run(fmax=0.002, steps=300)
    assert_same_minimum(atoms, minima[system])
    assert energies[0] - energies[-1] > 0.01
    if system == "slab":
        np.testing.assert_array_equal(atoms.positions[:4], fixed)


@pytest.mark.parametrize(("engine", "system"), matrix(ENGINES))
def test_engines_stay_in_the_basin(calc, minima, engine, system):
    atoms, moving = start(system, calc)
    spread = np.sqrt(atoms.get_masses() * units.kB * 100)[:, None]
    atoms.set_momenta(spread * np.random.default_rng(1).normal(size=(len(atoms), 3)))
    total = atoms.get_total_energy()
    ENGINES[engine](atoms).run(30)
    assert 10 < atoms.get_temperature() < 1500
    if engine == "VelocityVerlet":
        assert abs(atoms.get_total_energy() - total) < 2e-3 * len(atoms)
    assert LBFGS(moving, logfile=None).run(fmax=0.002, steps=200)
    assert_same_minimum(atoms, minima[system])


def test_cell_filters_agree(calc, minima):
    atoms, _ = start("crystal", calc)
    assert LBFGS(UnitCellFilter(atoms), logfile=None).run(fmax=0.002, steps=200)
    assert_same_minimum(atoms, minima["crystal"])


def test_symmetry_can_be_fixed(calc):
    atoms = bulk("Cu", cubic=True, a=3.55)
    atoms.calc = calc
    atoms.set_constraint(FixSymmetry(atoms))
    assert BFGS(FrechetCellFilter(atoms), logfile=None).run(fmax=0.002, steps=50)
    np.testing.assert_allclose(atoms.cell.angles(), 90.0, atol=1e-9)
    np.testing.assert_allclose(atoms.cell.lengths(), atoms.cell.lengths()[0], rtol=1e-9)


def test_equation_of_state(calc):
    volumes, energies = {"faenet": [], "emt": []}, {"faenet": [], "emt": []}
    for scale in np.linspace(0.97, 1.03, 7):
        atoms = bulk("Cu", cubic=True, a=3.59 * scale)
        for name, calculator in (("faenet", calc), ("emt", EMT())):
            atoms.calc = calculator
            volumes[name].append(atoms.get_volume())
            energies[name].append(atoms.get_potential_energy())
    (v0, _, b0), (v1, _, b1) = (EquationOfState(volumes[name], energies[name]).fit() for name in ("faenet", "emt"))
    assert v0 == pytest.approx(v1, rel=0.01)
    assert b0 == pytest.approx(b1, rel=0.15)


def test_vibrations(calc, minima, tmp_path):
    atoms, _ = start("molecule", calc)
    BFGS(atoms, logfile=None).run(fmax=1e-4, steps=100)
    vibrations = Vibrations(atoms, name=str(tmp_path / "vib"))
    vibrations.run()
    frequencies = vibrations.get_frequencies()
    assert (
        np.abs(frequencies[:6]).max() < 15 < 50 < frequencies[6].real
    )  # 6 of translation and rotation, 6 of vibration
    assert np.abs(frequencies[6:].imag).max() == 0


def test_phonons(calc, tmp_path):
    phonons = Phonons(bulk("Cu", a=3.59), calc, supercell=(2, 2, 2), delta=0.05, name=str(tmp_path / "phonon"))
    phonons.run()
    phonons.read(acoustic=True)
    (at_gamma, at_x) = phonons.band_structure(np.array([[0.0, 0, 0], [0.5, 0.5, 0]]))
    assert np.abs(at_gamma).max() < 2e-3
    assert np.real(at_x).min() > 0.01 and np.real(at_x).max() < 0.05


def test_neb_with_shared_and_own_calculators(calc, emt_potential):
    first = slab()
    last = slab()
    last.positions[-1] += [0.4, 0.2, 0.3]
    forces = {}
    for shared in (True, False):
        images = [first.copy(), *(first.copy() for _ in range(3)), last.copy()]
        band = NEB(images, allow_shared_calculator=shared, method="improvedtangent")
        band.interpolate()
        for image in images:
            image.calc = calc if shared else FAENetCalculator(emt_potential)
        forces[shared] = band.get_forces()
        energies = [image.get_potential_energy() for image in images]
        assert energies[-1] > energies[2] > energies[0]
    np.testing.assert_allclose(forces[True], forces[False], atol=1e-12)


def test_sum_with_another_calculator(calc):
    atoms, _ = start("crystal", calc)
    pair = LennardJones(sigma=2.3, epsilon=0.01, rc=5.0, smooth=True)
    both = SumCalculator([calc, pair])
    for name in ("energy", "forces", "stress"):
        expected = calc.get_property(name, atoms) + pair.get_property(name, atoms)
        np.testing.assert_allclose(both.get_property(name, atoms), expected, atol=1e-12)
    atoms.calc = both
    assert BFGS(atoms, logfile=None).run(fmax=0.01, steps=100)


def test_results_are_written_and_read(calc, tmp_path):
    atoms, _ = start("crystal", calc)
    forces, stress = atoms.get_forces(), atoms.get_stress()
    with Trajectory(tmp_path / "a.traj", "w") as trajectory:
        trajectory.write(atoms)
    write(tmp_path / "a.extxyz", atoms)
    with connect(tmp_path / "a.db") as database:
        database.write(atoms)
    for stored in (read(tmp_path / "a.traj"), read(tmp_path / "a.extxyz"), connect(tmp_path / "a.db").get_atoms(1)):
        np.testing.assert_allclose(stored.get_forces(), forces, atol=1e-6)
        np.testing.assert_allclose(stored.get_stress(), stress, atol=1e-6)


def in_process(repository, arguments):
    """Run python with the package from here, installed or not."""
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=repository, env=environment)


def test_a_plain_script(repository):
    """What a user types first, in a process of its own."""
    script = (
        "from ase.build import bulk\n"
        "from ase.optimize import LBFGS\n"
        "from faenet_calc import FAENetCalculator\n"
        f"atoms = bulk('Cu', cubic=True)\natoms.rattle(0.05)\n"
        f"atoms.calc = FAENetCalculator({str(repository / 'tests/data/emt-copper.safetensors')!r}, device='cpu')\n"
        "LBFGS(atoms).run(fmax=0.05)\nprint('energy', atoms.get_potential_energy())\n"
    )
    run = in_process(repository, ["-W", "error::UserWarning", "-c", script])
    assert run.returncode == 0, run.stderr
    assert "energy" in run.stdout


@pytest.mark.slow
def test_memory_does_not_grow(repository):
    """In a process of its own: 2,000 steps after a warm-up (benchmarks/memory_md.py takes 100,000)."""
    run = in_process(repository, ["benchmarks/memory_md.py", "--steps", "2000", "--warm-up", "300"])
    assert run.returncode == 0, run.stderr
    rows = {row["metric"]: row["value"] for row in map(json.loads, run.stdout.splitlines())}
    assert rows["growth_mb"] < 5.0
    assert abs(rows["drift_mev_per_atom_ps"]) < 0.2
