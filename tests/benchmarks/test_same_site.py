"""Equivalent sites are the same site, others are not, however the slab is described."""

import numpy as np
import pytest
from ase.build import add_adsorbate, fcc100, fcc111, molecule
from same_site import match_sites, symmetries


def slab(alloy=False):
    atoms = fcc111("Cu", (2, 2, 3), a=3.61, vacuum=8.0)
    if alloy:
        atoms.numbers[[0, 9]] = 46
    atoms.pbc = (True, True, False)
    atoms.set_tags(np.where(atoms.get_tags() == 1, 1, 0))
    return atoms


def adsorbed(adsorbate, site, height=1.3, offset=(0, 0), alloy=False, upside_down=False, shift=(0.0, 0.0)):
    atoms = slab(alloy)
    added = molecule(adsorbate) if len(adsorbate) > 1 else adsorbate
    if upside_down:
        added.rotate(180, "x")
    carbon = 1 if adsorbate == "CO" else 0
    add_adsorbate(atoms, added, height, site, mol_index=carbon, offset=offset)
    n_slab = len(slab())
    tags = atoms.get_tags()
    tags[n_slab:] = 2
    atoms.set_tags(tags)
    atoms.positions[n_slab:, :2] += shift
    return atoms


@pytest.mark.parametrize(("build", "count"), [(fcc111, 24), (fcc100, 32)])
def test_number_of_symmetries(build, count):
    # 2 × 2 translations, times the point group of the surface: six (three-fold axis, mirrors) or eight elements.
    assert len(symmetries(build("Cu", (2, 2, 3), vacuum=8.0))) == count


def test_symmetries_map_the_slab_onto_itself():
    atoms = slab(alloy=True)
    found = symmetries(atoms)
    assert 1 <= len(found) < 24
    assert any(np.array_equal(one.image, np.arange(12)) for one in found)
    for one in found:
        assert sorted(one.image) == list(range(12))
        assert np.array_equal(atoms.numbers[one.image], atoms.numbers)


@pytest.mark.parametrize("site", ["ontop", "bridge", "fcc", "hcp"])
def test_a_site_is_the_same_as_its_images(site):
    start = adsorbed("O", site)
    other = adsorbed("O", site, offset=(1, 1), height=1.35)
    found = match_sites(start, start, other)
    assert found.same
    assert found.lateral_A < 1e-6


def test_the_three_bridges_are_equivalent():
    start = adsorbed("O", "bridge")
    turned = start.copy()
    centre = slab().positions[8]
    angle = np.deg2rad(120)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned.positions[-1, :2] = centre[:2] + rotation @ (start.positions[-1, :2] - centre[:2])
    assert match_sites(start, start, turned).same


@pytest.mark.parametrize("pair", [("fcc", "hcp"), ("ontop", "fcc"), ("bridge", "hcp"), ("bridge", "ontop")])
def test_different_sites(pair):
    one, other = (adsorbed("O", site) for site in pair)
    assert not match_sites(one, one, other).same
    assert not match_sites(one, other, one).same


def test_small_shifts_stay_at_the_site_and_large_ones_leave_it():
    start = adsorbed("O", "fcc")
    near = match_sites(start, start, adsorbed("O", "fcc", shift=(0.0, 0.3)))
    assert near.same
    assert near.lateral_A == pytest.approx(0.3, abs=1e-6)
    assert not match_sites(start, start, adsorbed("O", "fcc", shift=(0.0, 0.6))).same


def test_an_alloy_tells_sites_apart_that_a_pure_metal_does_not():
    for alloy in (False, True):
        # Atom 9 is Pd in the alloy, on top of which is offset (1, 0).
        one, other = adsorbed("O", "ontop", 1.8, alloy=alloy), adsorbed("O", "ontop", 1.8, offset=(1, 0), alloy=alloy)
        assert match_sites(one, one, other).same is not alloy


def test_a_molecule_that_turned_over_is_not_the_same():
    upright, fallen = (adsorbed("CO", "ontop", 1.85, upside_down=flag) for flag in (False, True))
    fallen.positions[-2:, 2] += 1.85 - (fallen.positions[-2:, 2].min() - slab().positions[:, 2].max())
    found = match_sites(upright, upright, fallen)
    assert found.lateral_A < 1e-6
    assert not found.same_bonds


def test_equivalent_atoms_of_the_adsorbate_may_be_swapped():
    start = adsorbed("O2", "ontop", 1.9)
    swapped = start.copy()
    swapped.positions[[-2, -1]] = start.positions[[-1, -2]]
    assert match_sites(start, start, swapped).same
