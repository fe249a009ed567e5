"""The structure that a driver works on: a copy of the user's, with a calculator."""

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, CalculatorError
from ase.calculators.singlepoint import SinglePointCalculator

from faenet_calc.errors import InputError

RUN_ERRORS = (InputError, CalculatorError, ArithmeticError, np.linalg.LinAlgError, RuntimeError)
"""What a calculator or an integrator may raise in the middle of a run, on a geometry it cannot go on from."""

_KEPT = ("energy", "free_energy", "forces", "stress", "energies")


def working_copy(atoms: Atoms, calc: Calculator | None) -> Atoms:
    """A copy of the atoms with the calculator (their own if None) to run on."""
    if not isinstance(atoms, Atoms):
        raise InputError(f"atoms is a {type(atoms).__name__}, expected ase.Atoms")
    if len(atoms) == 0:
        raise InputError("the structure has no atoms")
    calc = atoms.calc if calc is None else calc
    if calc is None or not hasattr(calc, "get_property"):
        raise InputError(f"calc is {calc!r}, expected an ASE calculator, e.g. FAENetCalculator()")
    work = atoms.copy()
    work.calc = calc
    return work


def freeze(atoms: Atoms) -> Atoms:
    """A copy of the atoms that carries the results at hand and no calculator."""
    frozen = atoms.copy()
    if atoms.calc is not None:
        known = getattr(atoms.calc, "results", {})
        results = {name: known[name] for name in _KEPT if known.get(name) is not None}
        frozen.calc = SinglePointCalculator(frozen, **results)
    return frozen
