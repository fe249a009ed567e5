"""Rotation, reflection, translation, wrapping, permutation; and the paper's frames failing where they must."""

import numpy as np
import pytest
from ase.build import bulk, molecule

from faenet_calc.testing import laws

STRUCTURES = laws.structures()


@pytest.mark.parametrize("name", STRUCTURES)
def test_modern_surface_is_symmetric(modern, name):
    laws.assert_symmetric(modern, STRUCTURES[name], energy=1e-9, forces=1e-8)


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


def test_one_frame_is_equivariant_but_blind_to_reflections(modern):
    atoms = STRUCTURES["Cu(111)+CO"]
    assert laws.rotation_deviation(modern, atoms, frames="one").forces < 1e-8
    assert laws.reflection_deviation(modern, atoms, frames="one").energy_per_atom > 1e-6


def test_assert_symmetric_can_fail(paper_frames):
    with pytest.raises(AssertionError, match="CH4 under rotation"):
        laws.assert_symmetric(paper_frames, STRUCTURES["CH4"])


@pytest.mark.parametrize("matrix", [[[1, 1, 0], [-1, 1, 0], [0, 0, 1]], [[2, 1, 0], [-1, 1, 0], [0, 0, 1]]])
def test_exact_frames_remove_the_cell_description(modern, matrix):
    """(√2×√2)R45° of a square and (√3×√3)R30° of a hexagonal surface."""
    from ase.build import fcc100, fcc111, make_supercell

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
