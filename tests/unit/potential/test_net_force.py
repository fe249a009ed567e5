"""Removal of net force and torque."""

import numpy as np
import pytest
import torch
from ase import Atoms

from faenet_calc.graphs.convert import to_batch
from faenet_calc.potential.net_force import balanced_forces


def graph_of(*structures):
    atoms = [
        Atoms(["Cu"] * len(positions), np.asarray(positions), pbc=pbc, cell=[9, 9, 9]) for positions, pbc in structures
    ]
    return to_batch(atoms, cutoff=3.0)


@pytest.fixture
def cloud():
    generator = torch.Generator().manual_seed(0)
    positions = 2 * torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return graph_of((positions, False)), torch.randn(6, 3, generator=generator, dtype=torch.float64)


def torque(forces, positions):
    return torch.linalg.cross(positions - positions.mean(dim=0), forces).sum(dim=0)


def test_both_vanish(cloud):
    graph, forces = cloud
    balanced = balanced_forces(forces, graph)
    assert forces.sum(dim=0).abs().max() > 0.1 and torque(forces, graph.positions).abs().max() > 0.1
    assert balanced.sum(dim=0).abs().max() < 1e-13
    assert torque(balanced, graph.positions).abs().max() < 1e-12


def test_balanced_forces_stay(cloud):
    graph, forces = cloud
    once = balanced_forces(forces, graph)
    torch.testing.assert_close(balanced_forces(once, graph), once, rtol=0, atol=1e-13)


def test_the_correction_is_the_smallest_one(cloud):
    """Any other correction that leaves no force and torque is longer: the change is orthogonal to balanced forces."""
    graph, forces = cloud
    other = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    change = forces - balanced_forces(forces, graph)
    assert float((change * balanced_forces(other, graph)).sum()) == pytest.approx(0.0, abs=1e-12)


def test_linear_molecules_and_single_atoms():
    line = [[0.0, 0, 0], [0, 0, 1.2], [0, 0, 2.4]]
    forces = torch.tensor([[1.0, 0, 0.5], [0, 0.3, 0], [0, 0, 0.2]], dtype=torch.float64)
    graph = graph_of((line, False))
    assert torque(balanced_forces(forces, graph), graph.positions).abs().max() < 1e-13
    assert balanced_forces(forces[:1], graph_of(([[1.0, 1, 1]], False))).tolist() == [[0.0, 0.0, 0.0]]


def test_structures_of_a_batch_are_balanced_separately_and_crystals_keep_their_torque(cloud):
    graph, forces = cloud
    positions = graph.positions
    both = balanced_forces(torch.cat([forces, forces]), graph_of((positions, False), (positions, True)))
    torch.testing.assert_close(both[:6], balanced_forces(forces, graph), rtol=0, atol=1e-13)
    torch.testing.assert_close(both[6:], forces - forces.mean(dim=0), rtol=0, atol=1e-13)
    assert torque(both[6:], positions).abs().max() > 0.1
