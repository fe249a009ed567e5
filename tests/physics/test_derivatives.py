"""Forces and stress are the derivatives of the energy, frames included, everywhere that is difficult."""

import dataclasses
import itertools

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.cluster import Icosahedron, Octahedron
from scipy.spatial.transform import Rotation

from faenet_calc.frames.config import FramesConfig
from faenet_calc.testing import laws

STRUCTURES = laws.structures()


def displaced(atoms, size, seed=0):
    atoms.positions += np.random.default_rng(seed).normal(scale=size, size=atoms.positions.shape)
    return atoms


def bent(name, size):
    return displaced(molecule(name), size)


NEAR_DEGENERACY = {
    "CH4 1e-5 Å from tetrahedral": bent("CH4", 1e-5),
    "C6H6 1e-6 Å from six-fold": bent("C6H6", 1e-6),
    "CO2 almost linear": bent("CO2", 1e-4),
    "CO2 bent": bent("CO2", 0.05),
    "C2H2 almost linear": bent("C2H2", 1e-3),
    "NH3 distorted": bent("NH3", 0.02),
    "linear HCN": molecule("HCN"),
}
AT_THE_CUTOFF = {
    "neighbour inside the cutoff": Atoms("CuOCu", [[0, 0, 0], [1.8, 0.4, 0], [5.0 - 5e-5, 0, 0]]),
    "neighbour outside the cutoff": Atoms("CuOCu", [[0, 0, 0], [1.8, 0.4, 0], [5.0 + 5e-5, 0, 0]]),
}
RING = [[3.7 * np.cos(angle), 3.7 * np.sin(angle), 0] for angle in np.arange(18) * np.pi / 9]
LARGE = {  # more atoms than pair.FEW_ATOMS
    "octahedral cluster": Octahedron("Cu", 3, 0),
    "octahedral cluster 1e-5 Å from symmetry": displaced(Octahedron("Cu", 3, 0), 1e-5),
    "distorted cluster": displaced(Octahedron("Cu", 3, 0), 0.15),
    "ring of 18 atoms": Atoms("C18", RING),
}
WIRE = {"wire": Atoms("CuOCu", [[0, 0, 0], [1.8, 0.3, 0.2], [2.9, -1.0, 0.4]], cell=[4.0, 10, 10], pbc=[1, 0, 0])}
ALL = STRUCTURES | NEAR_DEGENERACY | AT_THE_CUTOFF | LARGE | WIRE


@pytest.mark.parametrize("name", ALL)
def test_forces_and_stress_are_derivatives(modern, name):
    laws.assert_conservative(modern, ALL[name], forces=1e-6, stress=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["icosahedron", "cuboctahedron", "C60"])
def test_large_symmetric_molecules(modern, name):
    atoms = {"icosahedron": Icosahedron("Cu", 3), "cuboctahedron": Octahedron("Cu", 5, 2), "C60": molecule("C60")}[name]
    assert laws.force_deviation(modern, atoms, n_atoms=1) < 1e-6
    for law in (laws.rotation_deviation, laws.reflection_deviation, laws.permutation_deviation):
        found = law(modern, atoms)
        assert found.energy_per_atom < 1e-9
        assert found.forces < 1e-8


def test_fixed_paper_frames_are_not_conservative(paper_network):
    potential = laws.scaled(paper_network, 100.0)
    assert laws.force_deviation(potential, molecule("CH3CH2OH")) > 1e-3


def test_differentiable_paper_frames_are_conservative_away_from_degeneracy(paper_frames):
    assert laws.force_deviation(paper_frames, molecule("CH3CH2OH")) < 1e-6


def test_assert_conservative_can_fail(paper_network):
    with pytest.raises(AssertionError, match="forces differ"):
        laws.assert_conservative(laws.scaled(paper_network, 100.0), molecule("CH3CH2OH"))


@pytest.mark.parametrize("name", ["HCN", "CO2", "C2H2"])
def test_energy_is_continuous_at_the_linear_geometry(modern, name):
    """Central differences are even in the bend and cannot see a jump there; energies can."""
    straight = molecule(name)
    energies = []
    for size in (0.0, 1e-8, 1e-6, 1e-5, 1e-4):
        atoms = straight.copy()
        atoms.positions[0, 0] += size
        energies.append(float(modern.predict(atoms, ("energy",)).energy[0]))
    assert np.ptp(energies) < 1e-5


def test_spread_of_forces_vanishes_only_for_symmetric_frames(modern):
    properties = ("energy", "forces", "energy_frame_std", "forces_frame_std")
    rough = modern.predict(STRUCTURES["Cu(111)+CO"], properties)
    atom = modern.predict(STRUCTURES["Cu atom"], properties)
    assert float(rough.energy_frame_std[0]) > 1e-3
    assert float(rough.forces_frame_std.max()) > 1e-3
    assert float(atom.energy_frame_std[0]) < 1e-12


def test_force_spread_is_that_of_single_frames(modern):
    """Against the definition: the network without frames on the crystal turned into each of its eight frames."""
    atoms = STRUCTURES["Pt(211)+OH"]
    bare = laws.scaled(modern, 1.0)
    bare.config = dataclasses.replace(modern.config, frames=FramesConfig(kind="none"))
    singles = []
    for signs in itertools.product([1.0, -1.0], repeat=3):
        frame = lattice_axes(atoms) @ np.diag(signs)
        _, forces = laws.energy_and_forces(bare, laws.turned(atoms, frame))
        singles.append(forces @ frame.T)
    deviation = np.stack(singles) - np.mean(singles, axis=0)
    expected = np.sqrt((deviation**2).sum(axis=2).mean(axis=0))
    found = modern.predict(atoms, ("forces", "forces_frame_std"), frames="all")
    assert found.forces.numpy() == pytest.approx(np.mean(singles, axis=0), abs=1e-10)
    assert found.forces_frame_std.numpy() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["Pt(211)+OH", "Cu(111)+CO", "CH4"])
def test_torque_is_the_derivative_by_orientation(modern, name):
    """Against rotated structures, for the network without frames; the energy of a frame average does not change."""
    atoms = STRUCTURES[name]
    bare = laws.scaled(modern, 1.0)
    bare.config = dataclasses.replace(modern.config, frames=FramesConfig(kind="none"))

    def energy(axis, angle):
        turn = Rotation.from_rotvec(angle * np.eye(3)[axis]).as_matrix()
        return laws.energy_and_forces(bare, laws.turned(atoms, turn.T))[0]

    step = 1e-4
    expected = [(energy(axis, step) - energy(axis, -step)) / (2 * step) for axis in range(3)]
    assert np.abs(expected).max() > 1e-3
    assert bare.predict(atoms, ("torque",)).torque[0].numpy() == pytest.approx(expected, abs=1e-6)


def test_torque_of_the_average_is_that_of_its_frames(modern):
    """Frames turned against the structure: the same for each way to compute it, and zero for a single atom."""
    graph = modern.graph([STRUCTURES["Pt(211)+OH"], STRUCTURES["Cu atom"]])
    request = {"properties": ("energy", "torque"), "frames": "pair"}
    in_parts = modern.evaluate(graph, **request).torque
    one_graph = modern.evaluate(graph, **request, create_graph=True).torque.detach()
    assert in_parts.numpy() == pytest.approx(one_graph.numpy(), abs=1e-10)
    assert in_parts[0].norm() > 1e-3
    assert in_parts[1].norm() < 1e-12


def lattice_axes(atoms):
    first, second = atoms.cell.array[:2]
    e1 = first / np.linalg.norm(first)
    normal = np.cross(first, second)
    e3 = normal / np.linalg.norm(normal)
    return np.stack([e1, np.cross(e3, e1), e3], axis=1)
