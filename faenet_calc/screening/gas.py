"""Gas references: the zero of adsorption energies.

An adsorption energy is E(slab + adsorbate) − E(slab) − Σ_elements n μ, with chemical potentials μ from gas molecules.
By default, as in OC20: μ_H = ½ E(H2), μ_O = E(H2O) − E(H2), μ_C = E(CO) − μ_O, μ_N = ½ E(N2). For CO, H2O, H2 and N2
this is the energy relative to the molecule itself. O2 is avoided because DFT and its approximations describe it badly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.formula import Formula
from numpy.typing import NDArray

from faenet_calc.errors import InputError

DEFAULT_MOLECULES = {"H": "H2", "O": "H2O", "C": "CO", "N": "N2", "S": "H2S", "F": "HF", "Cl": "HCl"}
"""Element -> the gas molecule that fixes its chemical potential, together with those of the other elements in it."""


@dataclass(frozen=True, kw_only=True)
class GasReference:
    """Chemical potentials of the elements of adsorbates.

    Attributes:
        molecules: Element -> gas molecule.
        energies: Gas molecule -> energy (eV).
        potentials: Element -> chemical potential (eV).
    """

    molecules: dict[str, str]
    energies: dict[str, float]
    potentials: dict[str, float]

    def of(self, symbols: list[str]) -> float:
        """Energy (eV) of the atoms of an adsorbate in the gas references."""
        return sum(self.potentials[symbol] for symbol in symbols)

    def molecules_of(self, symbols: list[str]) -> dict[str, float]:
        """Gas molecule -> number of molecules that hold the atoms of an adsorbate, e.g. OH: {"H2O": 1, "H2": -0.5}."""
        elements, names, counts = _counts(self.molecules)
        numbers = np.linalg.solve(counts.T.astype(float), [symbols.count(element) for element in elements])
        return {name: float(number) for name, number in zip(names, numbers, strict=True) if abs(number) > 1e-12}

    def describe(self) -> str:
        """The references in words, e.g. ``H from H2; O from H2O``."""
        return "; ".join(f"{element} from {name}" for element, name in sorted(self.molecules.items()))


def reference_molecules(elements: set[str], chosen: Mapping[str, str] | None = None) -> dict[str, str]:
    """Element -> gas molecule for the elements of some adsorbates and of those molecules themselves.

    Args:
        elements: Elements of the adsorbates.
        chosen: Replaces defaults, e.g. ``{"O": "O2"}``.

    Raises:
        InputError: If an element has no default and none was chosen, or the molecules do not determine the potentials.
    """
    table = DEFAULT_MOLECULES | dict(chosen or {})
    needed: dict[str, str] = {}
    waiting = sorted(elements)
    while waiting:
        element = waiting.pop()
        if element in needed:
            continue
        if element not in table:
            raise InputError(f"no gas reference for {element}; choose one, e.g. --gas {element}=MOLECULE")
        needed[element] = table[element]
        waiting += sorted(Formula(_formula(table[element])).count())
    return needed


def gas_molecules(references: Mapping[str, str]) -> dict[str, Atoms]:
    """The structures of the gas references, by name."""
    return {name: molecule(name) for name in sorted(set(references.values()))}


def gas_reference(references: Mapping[str, str], energies: Mapping[str, float]) -> GasReference:
    """Solve the chemical potentials from the energies (eV) of the gas molecules."""
    elements, names, counts = _counts(references)
    if np.linalg.matrix_rank(counts) < len(elements):
        raise InputError(f"the gas references {dict(references)} do not determine one chemical potential per element")
    values = np.linalg.solve(counts.astype(float), np.array([energies[name] for name in names]))
    return GasReference(
        molecules=dict(references),
        energies=dict(energies),
        potentials={element: float(value) for element, value in zip(elements, values, strict=True)},
    )


def _counts(references: Mapping[str, str]) -> tuple[list[str], list[str], NDArray[np.int64]]:
    """Elements, their gas molecules, and the number of atoms of each element in each molecule [molecule, element]."""
    elements = sorted(references)
    names = [references[element] for element in elements]
    counts = [[Formula(_formula(name)).count().get(element, 0) for element in elements] for name in names]
    return elements, names, np.array(counts)


def _formula(name: str) -> str:
    """Chemical formula of a molecule of ASE's g2 collection."""
    try:
        return str(molecule(name).symbols)
    except KeyError as error:
        raise InputError(f"gas reference {name!r} is not a molecule of ASE's g2 collection") from error
