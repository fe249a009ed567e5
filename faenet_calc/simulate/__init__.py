"""Relaxation and molecular dynamics with any ASE calculator.

In: ASE atoms (or pymatgen structures) and a calculator. Out: relaxed structures, trajectories and result objects.
May import ``calculator`` and what lies below it.
"""

from faenet_calc.simulate.anomalies import find_anomalies
from faenet_calc.simulate.md import MDResult, MDStoppedWarning, run_md
from faenet_calc.simulate.relax import RelaxResult, relax

__all__ = ["MDResult", "MDStoppedWarning", "RelaxResult", "find_anomalies", "relax", "run_md"]
