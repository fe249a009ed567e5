"""Removal of net force and torque."""

import numpy as np
import pytest

from faenet_calc.potential.net_force import remove_net_force, remove_torque


@pytest.fixture
def cloud():
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, 3)), rng.normal(size=(6, 3))


def torque(forces, positions):
    return np.cross(positions - positions.mean(axis=0), forces).sum(axis=0)


def test_both_vanish(cloud):
    positions, forces = cloud
    balanced = remove_torque(remove_net_force(forces), positions)
    assert np.abs(forces.sum(axis=0)).max() > 0.1 and np.abs(torque(forces, positions)).max() > 0.1
    np.testing.assert_allclose(balanced.sum(axis=0), 0.0, atol=1e-13)
    np.testing.assert_allclose(torque(balanced, positions), 0.0, atol=1e-13)


def test_balanced_forces_stay(cloud):
    positions, forces = cloud
    once = remove_torque(remove_net_force(forces), positions)
    np.testing.assert_allclose(remove_torque(remove_net_force(once), positions), once, atol=1e-13)


def test_the_correction_is_the_smallest_one(cloud):
    """Any other correction that leaves no force and torque is longer: the change is orthogonal to balanced forces."""
    positions, forces = cloud
    balanced = remove_torque(remove_net_force(forces), positions)
    other = remove_torque(remove_net_force(np.random.default_rng(1).normal(size=(6, 3))), positions)
    assert np.sum((forces - balanced) * other) == pytest.approx(0.0, abs=1e-12)


def test_linear_molecules_and_single_atoms():
    line = np.array([[0.0, 0, 0], [0, 0, 1.2], [0, 0, 2.4]])
    forces = np.array([[1.0, 0, 0.5], [0, 0.3, 0], [0, 0, 0.2]])
    balanced = remove_torque(remove_net_force(forces), line)
    np.testing.assert_allclose(torque(balanced, line), 0.0, atol=1e-13)
    np.testing.assert_array_equal(remove_torque(np.zeros((1, 3)), np.ones((1, 3))), np.zeros((1, 3)))
