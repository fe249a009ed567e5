"""relax() that begins with a faster calculator: the end is that of the slower one."""

import numpy as np
import pytest
from ase.calculators.calculator import CalculatorError, all_changes
from ase.calculators.emt import EMT
from ase.io import read

from faenet_calc.simulate import relax


class Counting(EMT):
    """EMT that counts its calculations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        self.calls += 1


class Nearby(Counting):
    """Almost the same surface: one atom is pulled a little."""

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        pull = np.array([0.0, 0.0, 0.1])
        self.results["energy"] -= float(atoms.positions[-1] @ pull)
        self.results["forces"] = self.results["forces"].copy()
        self.results["forces"][-1] += pull


class Repelling(EMT):
    """Drives the adsorbate away from the slab."""

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        self.results["forces"] = self.results["forces"].copy()
        self.results["forces"][-2:] = [0.0, 0.0, 3.0]


class Broken(Counting):
    """Fails on the way."""

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        if self.calls > 3:
            raise CalculatorError("lost")


def test_the_end_is_a_minimum_of_the_calculator_itself(slab):
    straight, own, fast = Counting(), Counting(), Nearby()
    expected = relax(slab, straight, fmax=0.01)
    result = relax(slab, own, prerelax=fast, fmax=0.01)
    assert result.converged and result.fmax <= 0.01
    assert result.energy == pytest.approx(expected.energy, abs=1e-4)
    assert np.abs(result.atoms.positions - expected.atoms.positions).max() < 0.01
    alone = relax(slab, Nearby(), fmax=0.01)
    assert np.abs(alone.atoms.positions - expected.atoms.positions).max() > 0.01, "the other surface ends elsewhere"
    assert fast.calls > 5 and own.calls < straight.calls
    assert result.n_steps == own.calls - 1


@pytest.mark.parametrize("fast", [Repelling, Broken])
def test_a_prerelaxation_that_goes_wrong_is_forgotten(slab, fast):
    expected = relax(slab, EMT())
    result = relax(slab, EMT(), prerelax=fast())
    assert result.converged and result.error is None and result.anomalies == ()
    assert np.array_equal(result.atoms.positions, expected.atoms.positions)
    assert result.n_steps == expected.n_steps


def test_a_trajectory_has_one_surface_and_can_be_resumed(slab, tmp_path):
    path = tmp_path / "run.traj"
    fast = Nearby()
    first = relax(slab, EMT(), prerelax=fast, fmax=1e-4, steps=10, trajectory=path)
    assert first.n_steps == 10 and not first.converged and len(read(path, ":")) == 11
    for atoms in read(path, ":"):
        assert EMT().get_property("energy", atoms) == pytest.approx(atoms.get_potential_energy(), abs=1e-9)
    calls = fast.calls
    resumed = relax(slab, EMT(), prerelax=fast, fmax=1e-4, trajectory=path, resume=True)
    assert resumed.converged and resumed.n_steps > first.n_steps
    assert resumed.n_prerelax_steps == first.n_prerelax_steps > 0
    assert fast.calls == calls, "what is done is not done again"


def test_the_cell_is_handed_over(crystal):
    expected = relax(crystal, EMT(), relax_cell=True, fmax=0.01)
    own = Counting()
    result = relax(crystal, own, prerelax=EMT(), relax_cell=True, fmax=0.01)
    assert own.calls == 1 and result.converged
    assert np.allclose(result.atoms.cell, expected.atoms.cell, atol=1e-9)
