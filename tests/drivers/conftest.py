"""Small systems for the drivers, with a fast classical calculator: what is tested is the driver, not the model."""

import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.constraints import FixAtoms


@pytest.fixture
def slab() -> Atoms:
    """CO on Cu(111), the lower layers fixed; EMT relaxes it in some 20 steps."""
    atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(atoms, molecule("CO"), 2.0, "ontop", mol_index=1)
    atoms.set_constraint(FixAtoms(mask=atoms.get_tags() >= 2))
    return atoms


@pytest.fixture
def crystal() -> Atoms:
    """Cu in a cubic cell of 4 atoms, off its equilibrium."""
    atoms = bulk("Cu", a=3.7, cubic=True)
    atoms.rattle(0.05, seed=1)
    return atoms
