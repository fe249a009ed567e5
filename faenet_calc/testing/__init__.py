"""Physics checks for any Potential, shipped for users and used by our own tests.

In: a Potential and structures. Out: deviations from physical laws and a :class:`CheckReport`. May import ``potential``
and what lies below it.
"""

from faenet_calc.testing.laws import (
    Deviation,
    assert_conservative,
    assert_symmetric,
    batch_deviation,
    central_difference_forces,
    central_difference_stress,
    energy_and_forces,
    force_deviation,
    in_float64,
    own_forces,
    permutation_deviation,
    random_rotation,
    reflection_deviation,
    rotation_deviation,
    scaled,
    separation_deviation,
    stress_deviation,
    structures,
    supercell_deviation,
    translation_deviation,
    turned,
    wrapping_deviation,
)
from faenet_calc.testing.selfcheck import CheckReport, check_potential

__all__ = [
    "CheckReport",
    "Deviation",
    "assert_conservative",
    "assert_symmetric",
    "batch_deviation",
    "central_difference_forces",
    "central_difference_stress",
    "check_potential",
    "energy_and_forces",
    "force_deviation",
    "in_float64",
    "own_forces",
    "permutation_deviation",
    "random_rotation",
    "reflection_deviation",
    "rotation_deviation",
    "scaled",
    "separation_deviation",
    "stress_deviation",
    "structures",
    "supercell_deviation",
    "translation_deviation",
    "turned",
    "wrapping_deviation",
]
