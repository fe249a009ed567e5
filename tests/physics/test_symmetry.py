"""Rotation, reflection, translation, wrapping, permutation; and the paper's frames failing where they must."""

import numpy as np
import pytest
import torch
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.cluster import Octahedron

from faenet_calc.frames import lattice
from faenet_calc.frames.frames import Frames
from faenet_calc.graphs.convert import to_batch
from faenet_calc.testing import laws

STRUCTURES = laws.structures()


@pytest.mark.parametrize("name", STRUCTURES)
def test_modern_surface_is_symmetric(modern, name):
    laws.assert_symmetric(modern, STRUCTURES[name], energy=1e-9, forces=1e-8)


def test_molecules_of_many_atoms_are_symmetric(modern):
    laws.assert_symmetric(modern, Octahedron("Cu", 3, 0), energy=1e-9, forces=1e-8)


def test_forces_of_the_test_potential_are_not_negligible(modern):
    _, forces = laws.energy_and_forces(modern, STRUCTURES["Cu(111)+CO"])
    assert np.abs(forces).max() > 0.1


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("CH4", laws.rotation_deviation),  # degenerate eigenvalues
        ("fcc Cu cubic", laws.wrapping_deviation),  # PCA of unwrapped positions
        ("Cu(111)+CO", laws.wrapping_deviation),
    ],
)
def test_paper_frames_fail_where_they_must(paper_frames, name, law):
    assert law(paper_frames, STRUCTURES[name]).energy_per_atom > 1e-7


def test_paper_frames_are_symmetric_where_eigenvalues_differ(paper_frames):
    atoms = molecule("CH3CH2OH")
    assert laws.rotation_deviation(paper_frames, atoms).energy_per_atom < 1e-12


def test_one_frame_is_exact_under_reflection_only_with_a_third_cell_vector(modern):
    atoms = STRUCTURES["Cu(111)+CO"].copy()
    assert laws.rotation_deviation(modern, atoms, frames="one").forces < 1e-8
    assert laws.reflection_deviation(modern, atoms, frames="one").forces < 1e-8
    atoms.pbc, atoms.cell[2] = (True, True, False), 0.0
    assert laws.reflection_deviation(modern, atoms, frames="one").energy_per_atom > 1e-6
    assert laws.reflection_deviation(modern, atoms, frames="pair").energy_per_atom < 1e-10


def test_assert_symmetric_can_fail(paper_frames):
    with pytest.raises(AssertionError, match="CH4 under rotation"):
        laws.assert_symmetric(paper_frames, STRUCTURES["CH4"])


@pytest.mark.parametrize("frames", ["one", "pair", "all"])
@pytest.mark.parametrize("order", [(1, 2, 0), (2, 0, 1)])
@pytest.mark.parametrize("flags", ["three", "two"])
def test_a_slab_has_one_energy_wherever_its_vacuum_lies(modern, frames, order, flags):
    slab = STRUCTURES["Cu(111)+CO"].copy()
    slab.pbc = True
    other = slab.copy()
    other.set_cell(slab.cell[list(order)], scale_atoms=False)
    other.pbc = [flags == "three" or axis != order.index(2) for axis in range(3)]
    (energy, forces), (new_energy, new_forces) = (laws.energy_and_forces(modern, s, frames) for s in (slab, other))
    assert abs(new_energy - energy) < 1e-10
    assert np.abs(new_forces - forces).max() < 1e-9
    other.rotate(30, "x", rotate_cell=True)
    assert abs(laws.energy_and_forces(modern, other, frames)[0] - energy) < 1e-9


def test_the_energy_of_a_slab_depends_on_its_normal(modern):
    """The negative control: as bulk, the frame of the same cell is another one."""
    slab = STRUCTURES["Cu(111)+CO"].copy()
    slab.pbc = True
    graph = to_batch([slab], cutoff=modern.cutoff, dtype=torch.float64, device="cpu")
    energies = []
    for special in (0, 2):
        axes = lattice.lattice_axes(graph.cell, torch.tensor([special]))
        frames = Frames(rotation=axes, graph=torch.tensor([0]), weight=torch.ones(1, dtype=torch.float64))
        energies.append(float(modern.evaluate(graph, properties=("energy",), frames=frames).energy[0]))
    assert abs(energies[0] - energies[1]) > 1e-3


@pytest.mark.parametrize("name", ["Cu(111)+CO", "fcc Cu primitive"])
def test_two_frames_are_exact_under_rotation_and_reflection(modern, name):
    atoms = STRUCTURES[name]
    for law in (laws.rotation_deviation, laws.reflection_deviation):
        assert law(modern, atoms, frames="pair").energy_per_atom < 1e-10
        assert law(modern, atoms, frames="pair").forces < 1e-8


def test_two_frames_are_exact_under_inversion_in_the_same_cell(modern):
    """At a center of inversion there is no force; one frame has one."""
    crystal = bulk("CuPd", "cesiumchloride", a=3.0)
    forces = {frames: np.abs(laws.energy_and_forces(modern, crystal, frames)[1]).max() for frames in ("one", "pair")}
    assert forces["pair"] < 1e-10 < 1e-4 < forces["one"]
    slab = STRUCTURES["Cu(111)+CO"]
    inverted = slab.copy()
    inverted.positions *= -1
    energies = {f: [laws.energy_and_forces(modern, s, f)[0] for s in (slab, inverted)] for f in ("one", "pair")}
    assert np.ptp(energies["pair"]) < 1e-10
    assert np.ptp(energies["one"]) > 1e-4


def test_all_frames_have_no_force_normal_to_a_mirror_plane(modern):
    """CO on an atom of fcc(111): the plane through the atom and normal to the first cell vector is a mirror plane."""
    slab = fcc111("Cu", (2, 2, 3), vacuum=6.0)
    add_adsorbate(slab, molecule("CO"), 1.9, "ontop", mol_index=1)
    normal = {f: np.abs(laws.energy_and_forces(modern, slab, f)[1][-2:, 0]).max() for f in ("pair", "all")}
    assert normal["all"] < 1e-10 < 1e-5 < normal["pair"]


def test_two_frames_depend_on_the_sign_of_a_cell_vector(modern):
    atoms = STRUCTURES["Cu(111)+CO"]
    other = atoms.copy()
    other.set_cell(atoms.cell.array * [[-1], [1], [1]], scale_atoms=False)
    change = {f: np.ptp([laws.energy_and_forces(modern, s, f)[0] for s in (atoms, other)]) for f in ("pair", "all")}
    assert change["pair"] > 1e-4
    assert change["all"] < 1e-10


@pytest.mark.parametrize("matrix", [[[1, 1, 0], [-1, 1, 0], [0, 0, 1]], [[2, 1, 0], [-1, 1, 0], [0, 0, 1]]])
def test_exact_frames_remove_the_cell_description(modern, matrix):
    """(√2×√2)R45° of a square and (√3×√3)R30° of a hexagonal surface."""
    from ase.build import fcc100, make_supercell

    build = fcc100 if matrix[0] == [1, 1, 0] else fcc111
    slab = build("Cu", (1, 1, 3), vacuum=8.0)
    other = make_supercell(slab, matrix)
    errors = {}
    for frames in ("all", "exact"):
        energies = [float(modern.predict(s, ("energy",), frames=frames).energy[0]) / len(s) for s in (slab, other)]
        errors[frames] = abs(energies[0] - energies[1])
    assert errors["exact"] < 1e-4 * max(errors["all"], 1e-6)
    assert errors["all"] > 1e-6


def test_icosahedral_average_shrinks_the_description_of_a_crystal(modern):
    small, cubic = bulk("Cu"), bulk("Cu", cubic=True)
    errors = {}
    for frames in ("all", "exact"):
        energies = [float(modern.predict(s, ("energy",), frames=frames).energy[0]) / len(s) for s in (small, cubic)]
        errors[frames] = abs(energies[0] - energies[1])
    assert errors["exact"] < 0.1 * errors["all"]
