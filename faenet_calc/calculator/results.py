"""Predictions as ASE results, and the checks that they pass."""

import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from ase.calculators.calculator import CalculationFailed, PropertyNotImplementedError
from ase.stress import full_3x3_to_voigt_6_stress

from faenet_calc import elements
from faenet_calc.errors import counted
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.prediction import Prediction


def ase_results(prediction: Prediction, without: Collection[str] = ()) -> dict[str, Any]:
    """Convert the prediction of one structure to ASE's form: floats and float64 arrays, Voigt stress, free energy.

    Values of committee members come first: ``energy_comm`` [n_members], ``forces_comm`` [n_members, n_atoms, 3].

    Args:
        prediction: Of one structure.
        without: Names to leave out.
    """
    results: dict[str, Any] = {}
    for name, tensor in prediction.values().items():
        if name in ("gradient_forces", "direct_forces", "closest_contact", "repulsion_energy") or name in without:
            continue
        value: Any = tensor.cpu().double().numpy()
        if name in ("stress", "stress_var"):
            value = full_3x3_to_voigt_6_stress(value[0])
        elif name == "forces_comm":
            value = value.transpose(1, 0, 2)
        elif name in ("energy_comm", "torque"):
            value = value[0]
        elif name.startswith("energy"):
            value = float(value[0])
        results[name] = value
    results["free_energy"] = results["energy"]
    return results


def _is_finite(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else bool(np.isfinite(value).all())


def check_volume(graph: AtomGraph, where: str = "") -> None:
    """Raise PropertyNotImplementedError for a structure without the periodic volume that stress needs."""
    periodic, volume = bool(graph.pbc.any()), float(graph.volume[0])
    if not periodic or volume < 1e-6:
        state = f"the cell has a volume of {volume:.3g} Å³" if periodic else "the structure is not periodic"
        raise PropertyNotImplementedError(
            f"{where}stress is not available: it is a force per area of a periodic cell, and here {state}. "
            "Set atoms.pbc and three cell vectors, or ask for energy and forces only."
        )


def check_finite(results: dict[str, Any], numbers: Iterable[Any], where: str = "") -> None:
    """Raise CalculationFailed for NaN or infinite results.

    Args:
        results: Of one structure.
        numbers: [n_atoms] atomic numbers.
        where: Prefix of the message that names the structure.
    """
    # The distance of elements that were never trained on is infinite by definition.
    bad = [name for name, value in results.items() if name != "domain_distance" and not _is_finite(value)]
    if not bad:
        return
    message = f"{where}the model gave NaN or infinite {', '.join(bad)}"
    if "forces" in bad:
        atoms = np.flatnonzero(~np.isfinite(results["forces"]).all(axis=1)).tolist()
        symbols = [elements.symbol(int(number)) for number in numbers]
        named = ", ".join(f"{index} ({symbols[index]})" for index in atoms[:5])
        message += f"; forces of {counted(len(atoms), 'atom')}: {named}{', …' if len(atoms) > 5 else ''}"
    raise CalculationFailed(
        f"{message}. Check for overlapping atoms, a time step that is too long or a damaged checkpoint "
        "(faenet-calc check); dtype='float64' prevents overflow. check_finite=False returns them anyway."
    )
