"""Rattled copper slabs with EMT labels and the words that generated data have."""

from pathlib import Path

import numpy as np
from ase.build import add_adsorbate, fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write


def write_slabs(path: Path, words: list[dict[str, str]], seed: int = 0) -> Path:
    """One slab per entry of ``words``, with O on it where the entry says so."""
    random, structures = np.random.default_rng(seed), []
    for number, info in enumerate(words):
        atoms = fcc111("Cu", (1, 2, 2 + number % 2), vacuum=5.0)
        atoms.set_tags(np.where(atoms.get_tags() == 1, 1, 0))
        if info.get("adsorbate") == "O":
            add_adsorbate(atoms, "O", 1.4, "fcc")
            atoms[-1].tag = 2
        atoms.info, atoms.pbc = dict(info), True
        atoms.rattle(0.06, rng=random)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        structures.append(atoms)
    write(path, structures)
    return path


def words(split: str, adsorbate: str = "none", facet: str = "fcc111") -> dict[str, str]:
    """The words of one structure."""
    last = "clean" if adsorbate == "none" else adsorbate
    return {
        "system": f"Cu_{facet}_{last}",
        "split": split,
        "recipe": "metals:sha256-0",
        "how": "rattle",
        "metal": "Cu",
        "facet": facet,
        "adsorbate": adsorbate,
    }
