"""Checks of what is asked of a calculator and of what it answers."""

from collections.abc import Collection
from typing import Any

import numpy as np
from ase.calculators.calculator import CalculationFailed, PropertyNotImplementedError

from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.committee import Committee


def check_request(committee: Committee, properties: Collection[str]) -> None:
    """Raise ASE's PropertyNotImplementedError, with the reason, for what the committee cannot do."""
    for name in properties:
        if name not in committee.properties:
            raise PropertyNotImplementedError(f"{name} is not available: {committee.why_not(name)}")


def check_volume(graph: AtomGraph, properties: Collection[str], where: str = "") -> None:
    """Raise ASE's PropertyNotImplementedError if stress is asked for of a structure that has none."""
    if not {"stress", "stress_var"} & set(properties):
        return
    periodic, volume = bool(graph.pbc.any()), float(graph.volume[0])
    if not periodic or volume < 1e-6:
        state = f"the cell has a volume of {volume:.3g} Å³" if periodic else "the structure is not periodic"
        raise PropertyNotImplementedError(
            f"{where}stress is not available: it is a force per area of a periodic cell, and here {state}. "
            "Set atoms.pbc and three cell vectors, or ask for energy and forces only."
        )


def check_finite(results: dict[str, Any], symbols: Any, where: str = "") -> None:
    """Raise CalculationFailed for NaN or infinite results.

    Args:
        results: Of one structure.
        symbols: Chemical symbols [n_atoms].
        where: Put before the message, to say which structure.
    """
    bad = [name for name, value in results.items() if not np.isfinite(value).all()]
    if not bad:
        return
    message = f"{where}the model gave NaN or infinite {', '.join(bad)}"
    if "forces" in bad:
        atoms = np.flatnonzero(~np.isfinite(results["forces"]).all(axis=1)).tolist()
        named = ", ".join(f"{index} ({symbols[index]})" for index in atoms[:5])
        message += f"; forces of {len(atoms)} atom(s): {named}{', …' if len(atoms) > 5 else ''}"
    raise CalculationFailed(
        f"{message}. Look for atoms that are much too close, a time step that is too long or a damaged checkpoint "
        "(faenet-calc check); dtype='float64' helps against overflow. check_finite=False returns them anyway."
    )
