"""relax(): the minimum, the result, files, failures."""

import warnings

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT
from ase.filters import FrechetCellFilter
from ase.io import read
from ase.optimize import BFGS
from pymatgen.core import Molecule
from pymatgen.io.ase import AseAtomsAdaptor
from scipy.linalg import expm, logm

from faenet_calc.errors import InputError
from faenet_calc.graphs.writing import reserved
from faenet_calc.simulate import relax
from faenet_calc.simulate.cell_filter import matrix_logarithm
from faenet_calc.simulate.relax import OPTIMIZERS


def skewed(c):
    """A matrix with the eigenvalues 1, 1 and 2 and eigenvectors that differ by c."""
    return np.array([[1 - 1 / c, 1 / c, 0], [-(1 + c) / c, 2 + 1 / c, 0], [0, 0, 1]])


@pytest.fixture(scope="module")
def reference():
    """The minimum of the `slab` fixture by ASE alone."""
    from ase.build import add_adsorbate
    from ase.constraints import FixAtoms

    atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(atoms, molecule("CO"), 2.0, "ontop", mol_index=1)
    atoms.set_constraint(FixAtoms(mask=atoms.get_tags() >= 2))
    atoms.calc = EMT()
    assert BFGS(atoms, logfile=None).run(fmax=0.001, steps=500)
    return atoms


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_finds_the_minimum(slab, reference, optimizer):
    result = relax(slab, EMT(), optimizer=optimizer, fmax=0.005, steps=2000)
    assert result.converged and result.error is None
    assert result.fmax <= 0.005 and result.n_steps > 0 and result.wall_s > 0
    assert result.energy == pytest.approx(reference.get_potential_energy(), abs=1e-3)
    assert np.abs(result.atoms.positions - reference.positions).max() < 0.01


def test_the_input_is_left_alone(slab):
    before = slab.copy()
    result = relax(slab, EMT(), steps=3)
    assert np.array_equal(slab.positions, before.positions) and slab.calc is None
    assert result.atoms is not slab and result.n_steps == 3 and not result.converged
    moved = np.abs(result.atoms.positions - before.positions).max(axis=1)
    assert moved[-1] > 0 and (moved[:8] == 0).all(), "fixed layers stay"
    assert result.atoms.info == before.info


def test_the_result_carries_energy_and_forces(slab):
    result = relax(slab, EMT())
    assert result.atoms.get_potential_energy() == result.energy
    again = result.atoms.copy()
    again.calc = EMT()
    assert again.get_potential_energy() == pytest.approx(result.energy, abs=1e-10)
    assert np.linalg.norm(again.get_forces(), axis=1).max() == pytest.approx(result.fmax, abs=1e-9)
    assert result.anomalies == ()


def test_the_calculator_of_the_atoms_is_used(slab):
    slab.calc = EMT()
    assert relax(slab).converged
    assert isinstance(slab.calc, EMT)


def test_the_cell_relaxes(crystal):
    reference = crystal.copy()
    reference.calc = EMT()
    BFGS(FrechetCellFilter(reference), logfile=None).run(fmax=0.001)
    result = relax(crystal, EMT(), relax_cell=True, fmax=0.001)
    assert result.converged
    assert result.energy == pytest.approx(reference.get_potential_energy(), abs=1e-5)
    assert result.atoms.cell.lengths() == pytest.approx([3.59] * 3, abs=0.01)
    assert np.abs(result.atoms.get_stress()).max() < 1e-3
    pressed = relax(crystal, EMT(), relax_cell=True, fmax=0.001, pressure_GPa=10.0)
    assert pressed.atoms.get_volume() < 0.96 * result.atoms.get_volume()
    assert -pressed.atoms.get_stress()[:3].mean() / 0.0062415 == pytest.approx(10.0, rel=0.02)


def test_rounding_errors_of_the_matrix_logarithm_are_no_warning():
    with pytest.warns(RuntimeWarning, match="logm result may be inaccurate"):
        logm(skewed(1e-3))
    result = matrix_logarithm(skewed(1e-3))
    assert np.abs(expm(result) - skewed(1e-3)).max() < 1e-8 * 1000
    for wrong in (skewed(1e-4), np.diag([1.0, 1.0, -1.0])):
        with pytest.raises(ArithmeticError, match="no accurate logarithm"):
            matrix_logarithm(wrong)


def test_only_periodic_directions_of_the_cell_relax():
    slab = fcc111("Cu", (1, 1, 3), a=3.7, vacuum=8.0)
    slab.pbc = [True, True, False]
    result = relax(slab, EMT(), relax_cell=True, fmax=0.01)
    assert result.converged
    assert np.array_equal(result.atoms.cell[2], slab.cell[2])
    assert result.atoms.cell.lengths()[0] < slab.cell.lengths()[0] - 0.03


def test_trajectory_and_log(slab, tmp_path):
    result = relax(slab, EMT(), trajectory=tmp_path / "run.traj", logfile=tmp_path / "run.log")
    snapshots = read(tmp_path / "run.traj", ":")
    assert len(snapshots) == result.n_steps + 1
    assert np.array_equal(snapshots[0].positions, slab.positions)
    assert np.array_equal(snapshots[-1].positions, result.atoms.positions)
    assert snapshots[-1].get_potential_energy() == result.energy
    assert len((tmp_path / "run.log").read_text().splitlines()) == result.n_steps + 2


def test_an_existing_trajectory_is_refused_or_replaced(slab, tmp_path):
    path = tmp_path / "run.traj"
    relax(slab, EMT(), steps=2, trajectory=path)
    content = path.read_bytes()
    with pytest.raises(InputError, match=r"run\.traj exists; resume=True continues it, overwrite=True replaces it"):
        relax(slab, EMT(), steps=2, trajectory=path)
    assert path.read_bytes() == content
    relax(slab, EMT(), steps=4, trajectory=path, overwrite=True)
    assert len(read(path, ":")) == 5


@pytest.mark.parametrize("how", ["failing", "wrong arguments"])
def test_a_trajectory_is_kept_until_the_new_run_has_started(slab, tmp_path, how):
    path = tmp_path / "run.traj"
    relax(slab, EMT(), steps=2, trajectory=path)
    content = path.read_bytes()
    with pytest.raises(InputError):
        if how == "failing":
            relax(slab, Failing(0, "raise"), trajectory=path, overwrite=True)
        else:
            relax(slab, EMT(), trajectory=path, overwrite=True, pressure_GPa=1.0)
    assert path.read_bytes() == content
    relax(slab, EMT(), steps=1, trajectory=path, overwrite=True)
    assert len(read(path, ":")) == 2, "the test above can fail"


def test_a_trajectory_is_written_by_one_run_at_a_time(slab, tmp_path):
    path = tmp_path / "run.traj"
    with reserved(path), pytest.raises(InputError, match=r"run\.traj is being written by another process"):
        relax(slab, EMT(), steps=1, trajectory=path)
    relax(slab, EMT(), steps=1, trajectory=path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.traj"], "a lock file was left"


def test_pymatgen_structures(slab, reference):
    structure = AseAtomsAdaptor.get_structure(slab)
    free = [bool(tag < 2) for tag in slab.get_tags()]
    structure.add_site_property("selective_dynamics", [[flag] * 3 for flag in free])
    result = relax(structure, EMT(), fmax=0.005)
    assert isinstance(result.atoms, Atoms) and result.converged
    assert result.energy == pytest.approx(reference.get_potential_energy(), abs=1e-3)
    moved = np.linalg.norm(result.atoms.positions - structure.cart_coords, axis=1)
    assert (moved[~np.array(free)] == 0).all() and moved[-1] > 0, "fixed sites stay"
    structure.remove_site_property("selective_dynamics")
    relaxed = relax(structure, EMT(), fmax=0.005).atoms.positions
    assert np.abs(relaxed - structure.cart_coords)[~np.array(free)].max() > 0.01, "the test above can fail"
    oxygen = relax(Molecule(["O", "O"], [[0, 0, 0], [0, 0, 1.4]]), EMT(), fmax=0.01)
    assert oxygen.converged and not oxygen.atoms.pbc.any()


class Failing(EMT):
    """EMT that fails, or returns NaN, after some calculations."""

    def __init__(self, after: int, how: str) -> None:
        super().__init__()
        self.left, self.how = after, how

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        self.left -= 1
        if self.left < 0:
            if self.how == "nan":
                self.results["forces"] = np.full((len(atoms), 3), np.nan)
            else:
                raise InputError("atoms 3 and 5 overlap")


@pytest.mark.parametrize(("how", "words"), [("nan", "not all finite"), ("raise", "atoms 3 and 5 overlap")])
def test_a_failure_on_the_way_is_reported_with_the_last_good_structure(slab, tmp_path, how, words):
    result = relax(slab, Failing(4, how), trajectory=tmp_path / "run.traj")
    assert not result.converged and words in result.error and "step 4 failed" in result.error
    assert result.n_steps == 3 and np.isfinite(result.energy)
    reference = relax(slab, EMT(), steps=3)
    assert np.array_equal(result.atoms.positions, reference.atoms.positions)
    assert len(read(tmp_path / "run.traj", ":")) == 4
    resumed = relax(slab, EMT(), trajectory=tmp_path / "run.traj", resume=True)
    assert resumed.converged and resumed.n_steps > 3


def test_a_failure_at_the_start_is_raised(slab):
    with pytest.raises(InputError, match="atoms 3 and 5 overlap"):
        relax(slab, Failing(0, "raise"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"optimizer": "LBFSG"}, r"'LBFSG' is unknown \(did you mean LBFGS\?\); choose from BFGS, .*MDMin"),
        (
            {"optimizer_options": {"restart": "h.json"}},
            "has restart, which relax.. sets itself; use its trajectory=",
        ),
        ({"fmax": 0.0}, "expected a finite fmax > 0"),
        ({"steps": -1}, "steps >= 0"),
        ({"relax_cell": [True, False]}, "six"),
        ({"pressure_GPa": 1.0}, "no effect without relax_cell"),
        ({"resume": True}, "needs the trajectory"),
        ({"trajectory": "run.extxyz"}, r"ends in \.traj"),
        ({"trajectory": "absent/run.traj"}, "folder absent does not exist"),
    ],
)
def test_wrong_arguments(slab, arguments, words):
    with pytest.raises(InputError, match=words):
        relax(slab, EMT(), **arguments)


@pytest.mark.parametrize(("periodic", "relax_cell"), [(True, True), (False, True), (True, [1, 1, 0, 0, 0, 1])])
def test_the_cell_of_a_slab_is_relaxed_with_a_warning(periodic, relax_cell):
    atoms = fcc111("Cu", (1, 1, 3), vacuum=5.0, periodic=periodic)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        relax(atoms, EMT(), relax_cell=relax_cell, steps=1)
    found = [str(one.message) for one in caught if "lattice constant of its bulk crystal" in str(one.message)]
    assert len(found) == (1 if periodic and relax_cell is True else 0)
    assert all("vacuum along c," in message for message in found)


def test_wrong_structures(slab):
    with pytest.raises(InputError, match="no atoms"):
        relax(Atoms(), EMT())
    with pytest.raises(InputError, match=r"type builtins\.list; expected ase\.Atoms, a pymatgen Structure"):
        relax([slab], EMT())
    with pytest.raises(InputError, match=r"Use relax_batch, run_md_batch or calc\.predict for several"):
        relax([slab], EMT())
    with pytest.raises(InputError, match=r"not its class: optimizer='BFGS'; choose from"):
        relax(slab, EMT(), optimizer=BFGS)
    with pytest.raises(InputError, match="expected an ASE calculator"):
        relax(slab)
    with pytest.raises(InputError, match="periodic structure"):
        relax(molecule("CO"), EMT(), relax_cell=True)


def test_calculators_are_only_asked_for_what_is_needed(slab):
    asked = set()

    class Counting(EMT):
        def get_property(self, name, atoms=None, allow_calculation=True):
            asked.add(name)
            return Calculator.get_property(self, name, atoms, allow_calculation)

    relax(slab, Counting(), steps=2)
    assert asked <= {"energy", "free_energy", "forces"}


def test_a_cubic_metal_stays_cubic_when_its_cell_is_relaxed():
    """The default model with default settings and in the frames of MD; one frame breaks it (negative control)."""
    from faenet_calc import FAENetCalculator

    shapes = {}
    for frames in ("auto", "pair", "one"):
        calc = FAENetCalculator(frames=frames)
        result = relax(bulk("Au", a=4.15, cubic=True), calc, optimizer="BFGS", relax_cell=True, fmax=0.02, steps=60)
        lengths = result.atoms.cell.lengths()
        shapes[frames] = lengths.max() / lengths.min() - 1
    assert max(shapes["auto"], shapes["pair"]) < 1e-3
    assert shapes["one"] > 10 * max(shapes["auto"], shapes["pair"])
