"""Predictions for ASE: :class:`~faenet_calc.calculator.calculator.FAENetCalculator`, and the Predictor beneath it.

In: ASE Atoms. Out: ASE results (numpy arrays, eV, Å, Voigt stress). May import ``potential`` and what lies below it.
"""

from faenet_calc.calculator.calculator import FAENetCalculator
from faenet_calc.potential.predictor import Predictor

__all__ = ["FAENetCalculator", "Predictor"]
