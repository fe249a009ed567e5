"""Supercells, batches and separated fragments: the energy is a sum over atoms."""

import pytest
from ase.build import molecule

from faenet_calc.testing import laws

STRUCTURES = laws.structures()
CRYSTALS = [name for name, atoms in STRUCTURES.items() if atoms.pbc.any()]


@pytest.mark.parametrize("name", CRYSTALS)
@pytest.mark.parametrize("repeat", [(2, 1, 1), (2, 3, 1)])
def test_supercell(modern, name, repeat):
    found = laws.supercell_deviation(modern, STRUCTURES[name], repeat)
    assert found.energy_per_atom <= 1e-9
    assert found.forces <= 1e-8


def test_three_dimensional_supercell(modern):
    assert laws.supercell_deviation(modern, STRUCTURES["hcp Ru"], (2, 2, 2)).energy_per_atom <= 1e-9


def test_supercell_test_can_fail(paper_network):
    atoms = STRUCTURES["Cu(111)+CO"]
    assert laws.supercell_deviation(paper_network, atoms, (2, 1, 1)).energy_per_atom > 1e-6


def test_batch_of_32_equals_each_alone(modern_float32):
    many = [atoms for atoms in STRUCTURES.values()] * 3
    found = laws.batch_deviation(modern_float32, many[:32])
    assert found.energy_per_atom <= 1e-6
    assert found.forces <= 1e-6


def test_graph_norm_is_taken_per_structure(paper_network):
    """Upstream's statistics over a batch would fail this; ours are one structure each."""
    assert laws.batch_deviation(paper_network, [STRUCTURES["NH3"], STRUCTURES["hcp Ru"]]).energy_per_atom < 1e-9


def test_separated_layers_add_up(modern):
    found = laws.separation_deviation(modern, molecule("H2O"), molecule("CH3OH"))
    assert found.energy_per_atom <= 1e-9
    assert found.forces <= 1e-8


def test_separated_layers_do_not_add_up_with_paper_frames(paper_frames):
    assert laws.separation_deviation(paper_frames, molecule("H2O"), molecule("CH3OH")).energy_per_atom > 1e-7


def test_per_atom_energies_sum_to_the_energy(modern):
    prediction = modern.predict(STRUCTURES["Pt(211)+OH"], ("energy", "energies"))
    assert float((prediction.energies.sum() - prediction.energy[0]).abs()) < 1e-9


def test_float32_is_close_to_float64(modern_float32):
    exact = laws.in_float64(modern_float32)
    for name, atoms in STRUCTURES.items():
        narrow, wide = (p.predict(atoms) for p in (modern_float32, exact))
        assert float((narrow.energy - wide.energy).abs()) / len(atoms) <= 1e-5, name
        assert float((narrow.forces - wide.forces).abs().max()) <= 1e-4, name
