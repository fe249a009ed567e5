"""Predictions for ASE: :class:`~faenet_calc.calculator.calculator.FAENetCalculator`.

In: ASE Atoms. Out: ASE results (numpy arrays, eV, Å, Voigt stress). May import ``potential`` and what lies below it.
"""

from faenet_calc.calculator.calculator import FAENetCalculator

__all__ = ["FAENetCalculator"]
