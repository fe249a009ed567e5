"""The only conversion factors of the package.

Inside, everything is in eV, Å and atomic mass units, which makes the unit of time Å·√(u/eV) ≈ 10.18 fs. Users type K,
fs and GPa; multiply by the factor here to come in, divide to go out:

    symbol              value                        meaning
    K                   k_B in eV                    temperature_K * K            → energy (eV)
    FS                  1 fs in Å·√(u/eV)            timestep_fs * FS             → internal time
    GPA                 1 GPa in eV/Å³               pressure_GPa * GPA           → pressure (eV/Å³)

The constants are CODATA 2014, the set that ASE uses by default, so that a trajectory means the same in both.
"""

from typing import Any

_ELEMENTARY_CHARGE = 1.6021766208e-19  # C
_BOLTZMANN = 1.38064852e-23  # J/K
_ATOMIC_MASS = 1.660539040e-27  # kg

K = _BOLTZMANN / _ELEMENTARY_CHARGE
FS = 1e-15 * 1e10 * (_ELEMENTARY_CHARGE / _ATOMIC_MASS) ** 0.5
GPA = 1e9 / _ELEMENTARY_CHARGE / 1e30

VOIGT = ("xx", "yy", "zz", "yz", "xz", "xy")
"""The order of the six components of a symmetric tensor, as in ASE."""

_ROWS, _COLUMNS = [0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]
_VOIGT_OF = [[0, 5, 4], [5, 1, 3], [4, 3, 2]]


def full_to_voigt(tensor: Any) -> Any:
    """The six components of a tensor's symmetric part.

    Args:
        tensor: [..., 3, 3], numpy array or torch tensor.

    Returns:
        [..., 6] of the same kind, in the order `VOIGT`.
    """
    if tensor.shape[-2:] != (3, 3):
        raise ValueError(f"{tensor.shape=}, expected [..., 3, 3]")
    return (tensor[..., _ROWS, _COLUMNS] + tensor[..., _COLUMNS, _ROWS]) / 2


def voigt_to_full(components: Any) -> Any:
    """The symmetric tensor with the given components.

    Args:
        components: [..., 6] in the order `VOIGT`, numpy array or torch tensor.

    Returns:
        [..., 3, 3] of the same kind.
    """
    if components.shape[-1] != 6:
        raise ValueError(f"{components.shape=}, expected [..., 6] in the order {', '.join(VOIGT)}")
    return components[..., _VOIGT_OF]
