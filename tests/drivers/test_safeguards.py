"""Relaxations whose optimiser goes astray: uphill, stuck, or led by forces that are not a gradient."""

import ase.optimize
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT
from ase.filters import FrechetCellFilter
from ase.io import read
from ase.optimize import BFGS, LBFGS

from faenet_calc.simulate import relax
from faenet_calc.simulate.relax import OPTIMIZERS
from faenet_calc.simulate.safeguards import MAX_STIFF_STEPS, UPHILL_LIMIT_EV, SafeguardedOptimizer


class Waves(Calculator):
    """E = Σ 1 − cos x (eV): minima at multiples of 2π Å, with tops between them. `tilt` is added to the energy only."""

    implemented_properties = ("energy", "forces")

    def __init__(self, tilt: float = 0.0) -> None:
        super().__init__()
        self.tilt = tilt

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        x = self.atoms.positions[:, 0]
        self.results["energy"] = float((1.0 - np.cos(x) + self.tilt * x).sum())
        self.results["forces"] = np.stack([-np.sin(x), 0 * x, 0 * x], axis=1)


NEAR_TOP = np.pi + 0.3  # the minimum it belongs to is at 2π


def wanderer(x: float = NEAR_TOP, calc: Calculator | None = None) -> Atoms:
    atoms = Atoms("H", [(x, 0.0, 0.0)])
    atoms.calc = calc or Waves()
    return atoms


def energies(path) -> np.ndarray:
    return np.array([snapshot.get_potential_energy() for snapshot in read(path, ":")])


def test_lbfgs_goes_down_where_the_surface_curves_downwards(tmp_path):
    plain = wanderer()
    assert LBFGS(plain, logfile=None).run(fmax=0.01, steps=100)
    assert plain.positions[0, 0] == pytest.approx(np.pi, abs=0.02), "ASE's own climbs to the top and rests there"
    result = relax(wanderer(), optimizer="LBFGS", fmax=0.01, trajectory=tmp_path / "run.traj")
    assert result.converged and result.atoms.positions[0, 0] == pytest.approx(2 * np.pi, abs=0.02)
    assert (np.diff(energies(tmp_path / "run.traj")) < 0).all()
    assert result.n_steps < 30, "as many as BFGS takes, which follows such ways by itself"


LEAPS = {"alpha": 0.1, "maxstep": 1.0}  # much too soft: the first step goes as far as it may


@pytest.mark.parametrize("optimizer", ["BFGS", "LBFGS"])
def test_steps_far_uphill_are_taken_back(optimizer, tmp_path):
    plain = wanderer(0.2)
    driver = getattr(ase.optimize, optimizer)(plain, logfile=None, **LEAPS)
    highest = max(plain.get_potential_energy() for _ in driver.irun(fmax=0.01, steps=100))
    result = relax(
        wanderer(0.2), optimizer=optimizer, fmax=0.01, optimizer_options=LEAPS, trajectory=tmp_path / "run.traj"
    )
    assert result.converged and result.atoms.positions[0, 0] == pytest.approx(0.0, abs=0.02)
    seen = energies(tmp_path / "run.traj")
    assert seen.max() <= seen[0] + UPHILL_LIMIT_EV < highest, "ASE's own goes higher"
    assert len(seen) == result.n_steps + 1, "undone steps count, and have a snapshot"
    assert seen[1] == seen[0], "of the structure that was returned to"


def test_the_return_is_to_the_lowest_structure_on_the_way():
    class Leaping(BFGS):
        """Three good steps, then one far uphill."""

        def step(self, gradient=None):
            x = self.optimizable.get_x()
            x[0] += -0.1 if self.nsteps < 3 else 2.0
            self.optimizable.set_x(x)

    atoms, seen = wanderer(1.0), []
    driver = SafeguardedOptimizer(lambda: Leaping(atoms, logfile=None), atoms)
    for _ in driver.irun(fmax=0.01, steps=4):
        seen.append(atoms.positions[0, 0])
    assert seen == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.7]) and driver.n_undone == 1


def test_limits_recover_with_a_new_lowest_energy():
    """A creeping optimiser is not held back for the rest of a run by one short step that was undone."""
    steps = iter([-0.01, 0.2, *[-0.01] * 10])

    class Told(BFGS):
        def step(self, gradient=None):
            x = self.optimizable.get_x()
            x[0] += next(steps)
            self.optimizable.set_x(x)
            limits.append(self.maxstep)

    atoms, limits = wanderer(1.5), []
    driver = SafeguardedOptimizer(lambda: Told(atoms, logfile=None), atoms)
    for _ in driver.irun(fmax=0.01, steps=8):
        pass
    assert driver.n_undone == 1 and limits[:2] == [0.2, 0.2]
    assert limits[2] == pytest.approx(0.1) and limits[-1] == 0.2


def test_what_was_taken_back_is_in_the_log(tmp_path):
    method = {"optimizer": "BFGS", "optimizer_options": LEAPS, "fmax": 0.01, "logfile": tmp_path / "run.log"}
    relax(wanderer(0.2), **method)
    assert "step 1 undone, back to 0.019933 eV" in (tmp_path / "run.log").read_text()


def test_a_calculator_without_free_energy_relaxes_a_cell(crystal):
    class Plain(EMT):
        implemented_properties = ("energy", "forces", "stress")

        def calculate(self, *args, **kwargs):
            super().calculate(*args, **kwargs)
            del self.results["free_energy"]

    result = relax(crystal, Plain(), relax_cell=True, fmax=0.02)
    assert result.converged and result.error is None
    assert result.energy == pytest.approx(relax(crystal, EMT(), relax_cell=True, fmax=0.02).energy, abs=1e-6)


@pytest.mark.parametrize("optimizer", ["FIRE", "FIRE2"])
def test_an_optimizer_that_begins_slowly_is_left_alone(optimizer):
    if optimizer not in OPTIMIZERS:
        pytest.skip(f"this version of ASE has no {optimizer}")
    assert relax(wanderer(2.0), optimizer=optimizer, fmax=0.01, optimizer_options={"dt": 0.005}).converged


def test_a_run_that_was_stopped_after_a_return_goes_on(tmp_path):
    path = tmp_path / "run.traj"
    method = {"optimizer": "BFGS", "optimizer_options": LEAPS, "fmax": 0.01, "trajectory": path}
    assert relax(wanderer(0.2), steps=1, **method).energy == wanderer(0.2).get_potential_energy()
    result = relax(wanderer(0.2), resume=True, **method)
    assert result.converged and result.atoms.positions[0, 0] == pytest.approx(0.0, abs=0.02)
    assert len(read(path, ":")) == result.n_steps + 1


def test_a_cell_returns_too(crystal):
    # The same leap with the cell as a further variable, first without and then with somebody watching.
    target = FrechetCellFilter(crystal.copy())
    target.atoms.calc = EMT()
    start = target.get_potential_energy()
    highest = max(target.get_potential_energy() for _ in BFGS(target, logfile=None, **LEAPS).irun(0.02, steps=3))
    method = {"relax_cell": True, "optimizer": "BFGS", "fmax": 0.003}
    result = relax(crystal, EMT(), optimizer_options=LEAPS, **method)
    healthy = relax(crystal, EMT(), **method)
    assert highest > start + UPHILL_LIMIT_EV
    assert result.converged and result.energy == pytest.approx(healthy.energy, abs=1e-4)
    assert result.atoms.cell.lengths() == pytest.approx(healthy.atoms.cell.lengths(), abs=0.01)


def test_forces_that_lead_uphill_for_good_are_followed():
    """As of models whose forces are not the gradient of their energy."""
    uphill = Waves(tilt=-2.0)  # on the way from 2 to 0 the energy rises by 4 − (1 − cos 2) eV
    top = uphill.get_potential_energy(wanderer(0.0)) - uphill.get_potential_energy(wanderer(2.0))
    assert top > 20 * UPHILL_LIMIT_EV
    result = relax(wanderer(2.0, uphill), optimizer="BFGS", fmax=0.01)
    assert result.converged and result.atoms.positions[0, 0] == pytest.approx(0.0, abs=0.02)


class Stuck(BFGS):
    """Hardly moves, as BFGS does once it believes in a curvature of 1e5 eV/Å²."""

    def step(self, gradient=None):
        self.optimizable.set_x(self.optimizable.get_x() - self.optimizable.get_gradient() / 1e5)


@pytest.mark.parametrize("n_stuck", [1, 3])
def test_an_optimizer_that_is_stuck_begins_anew(n_stuck):
    atoms, made = wanderer(2.0), []

    def begin():
        made.append(Stuck if len(made) < n_stuck else BFGS)
        return made[-1](atoms, logfile=None)

    driver = SafeguardedOptimizer(begin, atoms)
    assert [*driver.irun(fmax=0.01, steps=100)][-1]
    assert len(made) == n_stuck + 1 and driver.n_undone == 0
    assert n_stuck * MAX_STIFF_STEPS < driver.nsteps < n_stuck * MAX_STIFF_STEPS + 40
    alone = wanderer(2.0)
    assert not Stuck(alone, logfile=None).run(fmax=0.01, steps=100), "it would not have moved by itself"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_healthy_descent_is_left_alone(slab, optimizer):
    atoms = slab.copy()
    atoms.calc = EMT()
    plain = getattr(ase.optimize, optimizer)(atoms, logfile=None)
    plain.run(fmax=0.05, steps=300)
    result = relax(slab, EMT(), optimizer=optimizer, fmax=0.05, steps=300)
    assert result.n_steps == plain.nsteps
    assert result.atoms.positions == pytest.approx(atoms.positions, abs=1e-9)
