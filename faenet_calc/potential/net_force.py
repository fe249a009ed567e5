"""Removal of the net force and torque of directly predicted forces.

A direct head does not know Newton's third law; what it leaves pushes a structure through space and heats it up.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def remove_net_force(forces: Floats) -> Floats:
    """Forces [n_atoms, 3] (eV/Å) minus their mean over all atoms."""
    balanced: Floats = forces - forces.mean(axis=0)
    return balanced


def remove_torque(forces: Floats, positions: Floats) -> Floats:
    """The forces [n_atoms, 3] (eV/Å) nearest to the given ones that have the same sum and no torque.

    With d_i = r_i − centroid, the correction is −α × d_i where (Σ |d|² 1 − d dᵀ) α = Σ d × f. The pseudo-inverse serves
    linear molecules, which have no torque along their axis.
    """
    arm = positions - positions.mean(axis=0)
    torque = np.cross(arm, forces).sum(axis=0)
    inertia = (arm**2).sum() * np.eye(3) - arm.T @ arm
    turn = np.linalg.pinv(inertia, rcond=1e-10) @ torque
    balanced: Floats = forces - np.cross(turn, arm)
    return balanced
