"""Copies of structures: with a calculator to run on, and with stored results to keep."""

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, CalculatorError
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixCartesian
from numpy.typing import NDArray

from faenet_calc.errors import InputError
from faenet_calc.graphs.convert import as_atoms

RUN_ERRORS = (InputError, CalculatorError, ArithmeticError, np.linalg.LinAlgError, RuntimeError)
"""Errors of a calculator or an integrator that end a run at a geometry which cannot be computed."""

_STORED = ("energy", "free_energy", "forces", "stress", "energies")


def starting_atoms(structure: Any) -> Atoms:
    """The ASE atoms of a structure with at least one atom.

    Args:
        structure: ase.Atoms, returned as it is, or a pymatgen structure or molecule, whose ``selective_dynamics``
            become constraints.
    """
    atoms = as_atoms(structure)
    if len(atoms) == 0:
        raise InputError("the structure has no atoms")
    movable = None if atoms is structure else structure.site_properties.get("selective_dynamics")
    if movable is not None:
        atoms.set_constraint([FixCartesian(i, ~np.array(flags)) for i, flags in enumerate(movable) if not all(flags)])
    return atoms


def working_copy(atoms: Atoms, calc: Calculator | None) -> Atoms:
    """A copy of the atoms with a calculator: the one given, or that of the atoms."""
    calc = atoms.calc if calc is None else calc
    if calc is None or not hasattr(calc, "get_property"):
        raise InputError(f"calc is {calc!r}, expected an ASE calculator, e.g. FAENetCalculator()")
    work = atoms.copy()
    work.calc = calc
    return work


def why_outside(atoms: Atoms) -> str | None:
    """Why the calculator's present results are outside the domain of its training data; None if they are not."""
    known = getattr(atoms.calc, "results", {})
    return str(known.get("why", "")) if known.get("domain") == "outside" else None


def with_stored_results(atoms: Atoms) -> Atoms:
    """A copy of the atoms that holds the calculator's present results, but not the calculator."""
    return Moment.of(atoms).on(atoms)


@dataclass(frozen=True, kw_only=True, eq=False)
class Moment:
    """What changes in a structure during a run: cheaper to keep at every step than copies of the atoms.

    Attributes:
        positions: [n_atoms, 3] (Å).
        cell: [3, 3] (Å).
        momenta: [n_atoms, 3], or None if there are none.
        results: Of the calculator.
    """

    positions: NDArray[np.float64]
    cell: NDArray[np.float64]
    momenta: NDArray[np.float64] | None
    results: dict[str, Any] | None

    @classmethod
    def of(cls, atoms: Atoms) -> "Moment":
        """The present moment of atoms with or without a calculator."""
        results = None
        if atoms.calc is not None:
            known = getattr(atoms.calc, "results", {})
            # Copies: some calculators write the next results into the same arrays.
            results = {name: copy(known[name]) for name in _STORED if known.get(name) is not None}
        return cls(
            positions=atoms.positions.copy(),
            cell=atoms.cell.array.copy(),
            momenta=atoms.get_momenta() if atoms.has("momenta") else None,
            results=results,
        )

    def on(self, atoms: Atoms) -> Atoms:
        """A copy of the atoms at this moment, with the results in a SinglePointCalculator."""
        twin = atoms.copy()
        twin.positions, twin.cell = self.positions, self.cell
        if self.momenta is not None:
            twin.set_array("momenta", self.momenta, float, (3,))
        if self.results is not None:
            twin.calc = SinglePointCalculator(twin, **self.results)
        return twin
