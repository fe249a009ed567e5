"""NEP of calorine with random weights and the size of UNEP-v1, for comparisons of speed alone."""

import tempfile
from pathlib import Path

import numpy as np
from ase.calculators.calculator import Calculator

ELEMENTS = ("Cu", "C", "O")
_RADIAL, _ANGULAR, _BASIS, _NEURONS = 5, 5, 9, 80  # numbers of functions: n_max + 1, n_max + 1, basis_size + 1
_PER_ANGULAR = 4 + 1 + 1  # l_max of three-body, and four- and five-body functions


def nep_file(seed: int = 0) -> str:
    """Text of a ``nep.txt`` (version 4) with random weights."""
    n_descriptors = _RADIAL + _PER_ANGULAR * _ANGULAR
    n_weights = len(ELEMENTS) * _NEURONS * (n_descriptors + 2) + 1
    n_weights += len(ELEMENTS) ** 2 * _BASIS * (_RADIAL + _ANGULAR)
    header = [
        f"nep4 {len(ELEMENTS)} {' '.join(ELEMENTS)}",
        "cutoff 6 5 300 200",
        f"n_max {_RADIAL - 1} {_ANGULAR - 1}",
        f"basis_size {_BASIS - 1} {_BASIS - 1}",
        "l_max 4 2 1",
        f"ANN {_NEURONS} 0",
    ]
    weights = np.random.default_rng(seed).normal(scale=0.01, size=n_weights)
    return "\n".join([*header, *(f"{value:.7e}" for value in weights), *["1.0000000e+00"] * n_descriptors]) + "\n"


def untrained_nep() -> Calculator:
    """The ASE calculator."""
    from calorine.calculators import CPUNEP

    folder = Path(tempfile.mkdtemp(prefix="nep-"))
    (folder / "nep.txt").write_text(nep_file())
    return CPUNEP(str(folder / "nep.txt"))
