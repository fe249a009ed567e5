"""Conditions that stop molecular dynamics: runs that explode, or leave what the model knows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms

from faenet_calc.errors import InputError
from faenet_calc.simulate.anomalies import overlapping_pair
from faenet_calc.simulate.structures import why_outside


@dataclass(frozen=True)
class StopLimits:
    """Limits beyond which a run is stopped.

    Attributes:
        max_temperature_K: Kinetic temperature.
        max_energy_change: (eV/atom) change of the potential energy since the start, up or down.
        max_frame_std: (eV/Å) largest standard deviation of a force over frames; None disables the check.
        max_committee_std: (eV/Å) largest standard deviation of a force over a committee; None disables the check.
    """

    max_temperature_K: float
    max_energy_change: float
    max_frame_std: float | None = None
    max_committee_std: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise InputError(f"{name}={value}, expected a positive number")


class StopConditions:
    """Checks a running structure against limits.

    Args:
        atoms: The structure at the start, with its calculator.
        limits: The limits.
    """

    def __init__(self, atoms: Atoms, limits: StopLimits) -> None:
        self._limits = limits
        self._start_energy = float(atoms.get_potential_energy())
        self._spreads = [
            (limit, _spread_reader(atoms.calc, name, argument), what, argument)
            for limit, name, what, argument in (
                (limits.max_frame_std, "forces_frame_std", "spread over frames", "max_frame_std"),
                (limits.max_committee_std, "forces_var", "committee spread", "max_committee_std"),
            )
            if limit is not None
        ]

    def reason(self, atoms: Atoms) -> str | None:
        """Why the run must stop at this structure; None if it may continue."""
        energy, forces = float(atoms.get_potential_energy()), atoms.get_forces(apply_constraint=False)
        state = (energy, forces, atoms.positions, atoms.get_momenta(), atoms.cell.array)
        if not all(np.isfinite(values).all() for values in state):
            return "energy, forces, positions or momenta are not finite numbers"
        limits = self._limits
        temperature = atoms.get_temperature()
        if temperature > limits.max_temperature_K:
            return f"the temperature exploded: {temperature:.0f} K, limit {limits.max_temperature_K:.0f} K"
        change = (energy - self._start_energy) / len(atoms)
        if abs(change) > limits.max_energy_change:
            return (
                f"the potential energy exploded: {change:+.2f} eV/atom since the start, limit "
                f"{limits.max_energy_change} eV/atom"
            )
        return self._overlap(atoms) or self._too_uncertain(atoms) or self.outside_domain(atoms)

    def _overlap(self, atoms: Atoms) -> str | None:
        pair = overlapping_pair(atoms)
        if pair is None:
            return None
        i, j, distance = pair
        return f"atoms overlap: {atoms.symbols[i]}{i} and {atoms.symbols[j]}{j} are {distance:.2f} Å apart"

    def outside_domain(self, atoms: Atoms) -> str | None:
        """Why the run must stop, if the present results of the calculator are outside its domain."""
        why = why_outside(atoms)
        return None if why is None else f"outside the domain of the model: {why}"

    def _too_uncertain(self, atoms: Atoms) -> str | None:
        for limit, read, what, argument in self._spreads:
            spread = read(atoms)
            worst = int(np.argmax(spread))
            if not spread[worst] <= limit:
                return (
                    f"the model is uncertain: {what} of the force on atom {worst} ({atoms.symbols[worst]}) is "
                    f"{spread[worst]:.3f} eV/Å, {argument}={limit}"
                )
        return None


def _spread_reader(calc: Any, name: str, argument: str) -> Callable[[Atoms], Any]:
    """A function that returns the standard deviations [n_atoms] (eV/Å) of the forces."""
    if name not in getattr(calc, "implemented_properties", ()):
        raise InputError(
            f"{argument} was given, but {type(calc).__name__} has no {name}; "
            + ("give several models" if name == "forces_var" else "use FAENetCalculator, or leave the limit out")
        )

    def read(atoms: Atoms) -> Any:
        value = np.asarray(calc.get_property(name, atoms))
        if name == "forces_var":
            return np.sqrt(value.reshape(len(atoms), -1).sum(axis=1))
        return np.linalg.norm(value.reshape(len(atoms), -1), axis=1)

    return read
