"""Relaxation and molecular dynamics with any ASE calculator (L3)."""

from faenet_calc.drivers.anomalies import find_anomalies
from faenet_calc.drivers.md import MDResult, MDStoppedWarning, run_md
from faenet_calc.drivers.relax import RelaxResult, relax

__all__ = ["MDResult", "MDStoppedWarning", "RelaxResult", "find_anomalies", "relax", "run_md"]
