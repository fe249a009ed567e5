"""Adsorbates on sites: contact, orientation, clashes, coverage, keys; and the gas references of their energies."""

import numpy as np
import pytest
from ase.build import fcc111, molecule
from ase.data import covalent_radii
from ase.geometry import get_distances
from ase.io import write

from faenet_calc.errors import InputError
from faenet_calc.screening.adsorbates import adsorbate
from faenet_calc.screening.gas import gas_reference, reference_molecules
from faenet_calc.screening.placement import configurations, enumerate_all
from faenet_calc.screening.surfaces import Slab, standard_slab


@pytest.fixture(scope="module")
def slab():
    return Slab(name="Cu(111)", atoms=standard_slab(fcc111("Cu", (2, 2, 3), vacuum=8.0)), source="test")


def test_an_atom_touches_the_surface(slab):
    for one in configurations(slab, adsorbate("O"), height_A=0.2):
        n_slab = len(slab.atoms)
        distances = get_distances(
            one.atoms.positions[n_slab:], one.atoms.positions[:n_slab], cell=one.atoms.cell, pbc=one.atoms.pbc
        )[1]
        contact = covalent_radii[8] + covalent_radii[29]
        assert contact - 1e-6 <= distances.min() <= contact + 0.2 + 1e-6
        assert np.array_equal(one.atoms.get_tags()[n_slab:], [2])
        assert np.array_equal(one.atoms.positions[:n_slab], slab.atoms.positions)


def test_axial_molecules_have_one_orientation_per_site(slab):
    assert len(configurations(slab, adsorbate("CO"), rotations=4)) == 4
    assert len(configurations(slab, adsorbate("CHO"), rotations=2)) == 4 * (2 + 2)  # upright and bidentate


def test_keys_are_unique_and_stable(slab):
    adsorbates = [adsorbate(name) for name in ("CO", "O", "OH", "COOH")]
    keys = [one.key for one in enumerate_all([slab], adsorbates)]
    assert len(set(keys)) == len(keys)
    assert keys == [one.key for one in enumerate_all([slab], adsorbates)]


def test_an_adsorbate_that_meets_its_image_is_dropped(slab):
    small = Slab(name="small", atoms=standard_slab(fcc111("Cu", (1, 1, 3), vacuum=8.0)), source="test")
    assert configurations(small, adsorbate("C6H6")) == []
    wide = Slab(name="wide", atoms=standard_slab(fcc111("Cu", (4, 4, 3), vacuum=8.0)), source="test")
    assert configurations(wide, adsorbate("C6H6"))


def test_coverage_spreads_adsorbates(slab):
    (top, *_) = configurations(slab, adsorbate("O"), coverage=4)
    oxygen = top.atoms[top.atoms.numbers == 8]
    assert len(oxygen) == 4
    distances = oxygen.get_all_distances(mic=True)
    assert distances[distances > 0].min() > 2.0
    assert configurations(slab, adsorbate("O"), coverage=5) == []


def test_adsorbates_from_files_need_a_binding_atom(tmp_path):
    path = tmp_path / "methanol.xyz"
    write(path, molecule("CH3OH"))
    with pytest.raises(InputError, match="which one or two bind"):
        adsorbate(str(path))
    assert adsorbate(str(path), (1,)).binding == (1,)
    with pytest.raises(InputError, match="indices below 6"):
        adsorbate(str(path), (6,))


def test_unknown_adsorbates_are_refused():
    with pytest.raises(InputError, match="unobtainium"):
        adsorbate("unobtainium")


def test_the_binding_atom_is_at_the_bottom():
    for name in ("CO", "OH", "NH3", "COOH"):
        upright = adsorbate(name).upright()
        assert upright.positions[adsorbate(name).binding[0], 2] == pytest.approx(0.0)
        assert upright.positions[:, 2].mean() >= 0
    lying = adsorbate("C2H4").bidentate()
    assert np.allclose(lying.positions[[0, 1], 2], 0.0)


def test_gas_references_are_energies_of_the_molecules_themselves():
    references = reference_molecules({"C", "O"})
    assert references == {"C": "CO", "O": "H2O", "H": "H2"}
    gas = gas_reference(references, {"H2": -6.8, "H2O": -14.2, "CO": -14.8})
    assert gas.of(["C", "O"]) == pytest.approx(-14.8)
    assert gas.of(["O", "H", "H"]) == pytest.approx(-14.2)
    assert gas.of(["O"]) == pytest.approx(-14.2 + 6.8)


def test_gas_references_must_determine_every_element():
    with pytest.raises(InputError, match="no gas reference for Xe"):
        reference_molecules({"Xe"})
    with pytest.raises(InputError, match="do not determine"):
        gas_reference({"O": "H2O", "H": "H2O"}, {"H2O": -14.2})
