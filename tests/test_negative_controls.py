"""Every law of physics that the package checks: it holds for an exact potential, and a small defect breaks it.

Each defect is an energy that is added to the prediction of the exact potential and violates the law. A check that
cannot fail would not find it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from faenet_calc.potential.potential import build_potential
from faenet_calc.testing import laws, selfcheck

SIZE = 1e-4  # (eV) scale of the defects
STRUCTURES = laws.structures()
CRYSTAL, MOLECULE = STRUCTURES["Pt(211)+OH"], molecule("CH3OH")
MOLECULE.rattle(0.1, seed=0)  # without mirror plane


class Defective:
    """A potential whose energy has an additional term; its forces and stress do not know about it."""

    def __init__(self, potential, term: Callable[[Atoms, int], float]) -> None:
        self._potential, self._term = potential, term

    def __getattr__(self, name):
        return getattr(self._potential, name)

    def predict(self, structures: Atoms | Sequence[Atoms], *args, **kwargs):
        members = [structures] if isinstance(structures, Atoms) else list(structures)
        prediction = self._potential.predict(structures, *args, **kwargs)
        terms = [SIZE * self._term(atoms, len(members)) for atoms in members]
        return replace(prediction, energy=prediction.energy + torch.tensor(terms, dtype=prediction.energy.dtype))


def _width(atoms: Atoms, n_members: int) -> float:
    """Depends on orientation and on the choice of periodic images."""
    return float(np.var(atoms.positions[:, 0]) * len(atoms))


def _handedness(atoms: Atoms, n_members: int) -> float:
    """Changes its sign under reflection; invariant under rotation."""
    a, b, c = atoms.positions[1:4] - atoms.positions[0]
    return float(np.dot(a, np.cross(b, c)))


@dataclass(frozen=True)
class Law:
    """One row: how a law is measured, its limit, and an energy term (structure, number in the batch) that breaks it."""

    measure: Callable[[object], float]
    limit: float
    defect: Callable[[Atoms, int], float]


LAWS = {
    "rotation_deviation": Law(lambda p: laws.rotation_deviation(p, CRYSTAL).energy_per_atom, 1e-9, _width),
    "reflection_deviation": Law(lambda p: laws.reflection_deviation(p, MOLECULE).energy_per_atom, 1e-9, _handedness),
    "translation_deviation": Law(
        lambda p: laws.translation_deviation(p, CRYSTAL).energy_per_atom, 1e-9, lambda atoms, n: atoms.positions.sum()
    ),
    "wrapping_deviation": Law(lambda p: laws.wrapping_deviation(p, CRYSTAL).energy_per_atom, 1e-9, _width),
    "permutation_deviation": Law(
        lambda p: laws.permutation_deviation(p, CRYSTAL).energy_per_atom,
        1e-9,
        lambda atoms, n: float(np.arange(len(atoms)) @ atoms.numbers),
    ),
    "supercell_deviation": Law(
        lambda p: laws.supercell_deviation(p, CRYSTAL, (2, 1, 1)).energy_per_atom, 1e-9, lambda atoms, n: 1.0
    ),
    "batch_deviation": Law(
        lambda p: laws.batch_deviation(p, [CRYSTAL, MOLECULE]).energy_per_atom, 1e-9, lambda atoms, n: float(n)
    ),
    "separation_deviation": Law(
        lambda p: laws.separation_deviation(p, molecule("H2O"), MOLECULE).energy_per_atom,
        1e-9,
        lambda atoms, n: float(len(atoms) ** 2),
    ),
    "force_deviation": Law(
        lambda p: laws.force_deviation(p, CRYSTAL), 1e-6, lambda atoms, n: float(np.sin(atoms.positions).sum())
    ),
    "stress_deviation": Law(lambda p: laws.stress_deviation(p, CRYSTAL), 1e-7, lambda atoms, n: atoms.get_volume()),
    "cutoff_step": Law(
        selfcheck.cutoff_step, 1e-6, lambda atoms, n: float(atoms.get_distance(0, 1) < 5.0)  # cutoff of `modern`
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
def test_law_holds(modern, name):
    law = LAWS[name]
    assert law.measure(modern) <= law.limit


@pytest.mark.parametrize("name", LAWS)
def test_defect_is_found(modern, name):
    law = LAWS[name]
    assert law.measure(Defective(modern, law.defect)) > 10 * law.limit


def test_energy_drift_shows_forces_that_are_not_a_gradient(emt_potential):
    crystal = bulk("Cu", cubic=True)
    crystal.rattle(0.05, seed=0)
    direct = build_potential("modern-s", dtype="float64", forces="direct", hidden_channels=64, interactions=1)
    assert selfcheck.nve_drift(emt_potential, crystal, steps=50) < 1e-3
    assert selfcheck.nve_drift(direct, crystal, steps=50) > 1e-2


def test_every_deviation_has_a_row():
    measured = {name for name in vars(laws) if name.endswith("_deviation")}
    assert measured <= set(LAWS)


@pytest.mark.parametrize("name", ["assert_symmetric", "assert_conservative"])
def test_shipped_assertions_fail_with_a_defect(modern, name):
    getattr(laws, name)(modern, CRYSTAL)
    with pytest.raises(AssertionError, match=CRYSTAL.get_chemical_formula()):
        getattr(laws, name)(Defective(modern, _width), CRYSTAL)
