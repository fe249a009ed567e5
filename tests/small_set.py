"""A small labelled set and small settings for tests of training: rattled slabs with EMT energies and forces."""

from pathlib import Path

import numpy as np
from ase.build import add_adsorbate, fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.io import write

SMALL = (
    "model.hidden_channels=48", "model.filters=16", "model.interactions=2", "model.gaussians=12", "model.cutoff=4.0",
    "model.atoms.group_period_channels=4", "run.tensorboard=false", "run.report=false",
)  # fmt: skip


def write_small_set(path: Path, n: int = 12, seed: int = 0, rattle: float = 0.05) -> Path:
    """Cu and Pd slabs of 2-3 layers, some with O, the lowest layer fixed."""
    random = np.random.default_rng(seed)
    structures = []
    for number in range(n):
        atoms = fcc111("Cu" if number % 2 else "Pd", (1, 1 + number % 2, 2 + number % 3 // 2), vacuum=6.0)
        if number % 3 == 0:
            add_adsorbate(atoms, "O", 1.4, "fcc")
        atoms.info = {}
        atoms.pbc = True
        atoms.rattle(rattle, rng=random)
        lowest = atoms.positions[:, 2] < atoms.positions[:, 2].min() + 1.0
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.set_constraint(FixAtoms(mask=lowest))
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        structures.append(atoms)
    write(path, structures)
    return path
