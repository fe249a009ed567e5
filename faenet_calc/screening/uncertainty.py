"""Uncertainty of adsorption energies, with the correlation of the errors of structures that share atoms.

An adsorption energy is a difference of energies whose errors largely cancel. The energy of a structure is described by
a vector that is linear in its error: the sum of its last-layer features, or the energies of the members of a committee.
The difference of the vectors gives the standard deviation of the difference of the energies, and samples of its error.
Samples are drawn with the same random numbers for all structures, so that they can be compared between configurations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from faenet_calc.calculator import FAENetCalculator

N_SAMPLES = 64
"""Samples of an error: enough to estimate the probability of a rank to about 5 %."""
_SEED = 0

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Uncertainty:
    """Uncertainty of an energy difference.

    Attributes:
        deviation: Standard deviation (eV).
        samples: [n_samples] possible errors (eV).
    """

    deviation: float
    samples: Vector


def error_vectors(calc: FAENetCalculator, structures: Sequence[Atoms]) -> list[Vector] | None:
    """A vector per structure that is linear in the error of its energy; None if the model has no uncertainty."""
    available = calc.implemented_properties
    if "energy_comm" in available:
        return [np.asarray(one["energy_comm"]) for one in calc.predict(structures, ("energy_comm",))]
    if {"energy_uncertainty", "atom_features"} <= set(available):
        return [np.asarray(one["atom_features"]).sum(axis=0) for one in calc.predict(structures, ("atom_features",))]
    return None


def uncertainty_of(calc: FAENetCalculator, difference: Vector) -> Uncertainty:
    """The uncertainty of the energy difference that belongs to a difference of :func:`error_vectors`."""
    member, *others = calc.predictor.committee.members
    if others:
        return Uncertainty(deviation=float(difference.std()), samples=difference - difference.mean())
    assert member.uncertainty is not None
    vector = torch.from_numpy(difference).to(member.uncertainty.factor)
    draws = member.uncertainty.draws(N_SAMPLES, torch.Generator().manual_seed(_SEED))
    return Uncertainty(
        deviation=float(member.uncertainty.deviation(vector[None])[0]),
        samples=(draws @ vector).double().cpu().numpy(),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceVectors:
    """Error vectors of the relaxed clean slabs and gas molecules of a screening, by name."""

    slabs: dict[str, Vector]
    gas: dict[str, Vector]

    def uncertainty(
        self, calc: FAENetCalculator, relaxed: Atoms, slab: str, gas: Mapping[str, float], coverage: int
    ) -> Uncertainty | None:
        """The uncertainty of an adsorption energy per adsorbate; None if the model has none.

        Args:
            calc: The calculator of the screening.
            relaxed: Slab with adsorbates.
            slab: Name of the clean slab.
            gas: Gas molecule -> number of molecules in the reference of the adsorbates.
            coverage: Number of adsorbates.
        """
        vectors = error_vectors(calc, [relaxed])
        if vectors is None:
            return None
        reference: Any = sum(count * self.gas[name] for name, count in gas.items())
        return uncertainty_of(calc, (vectors[0] - self.slabs[slab] - reference) / coverage)


def reference_vectors(calc: FAENetCalculator, slabs: Mapping[str, Atoms], gas: Mapping[str, Atoms]) -> ReferenceVectors:
    """The error vectors of relaxed clean slabs and gas molecules; empty if the model has no uncertainty."""
    vectors = error_vectors(calc, [*slabs.values(), *gas.values()]) or []
    return ReferenceVectors(
        slabs=dict(zip(slabs, vectors, strict=False)), gas=dict(zip(gas, vectors[len(slabs) :], strict=False))
    )
