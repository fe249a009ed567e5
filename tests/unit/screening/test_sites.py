"""Sites of textbook surfaces, and symmetry that is broken on purpose."""

import numpy as np
import pytest
from ase.build import bulk, fcc100, fcc110, fcc111, fcc211

from faenet_calc.errors import InputError
from faenet_calc.screening.sites import all_sites, distinct_sites, exposed_atoms, nearest_site, plane_symmetry
from faenet_calc.screening.surfaces import cut_slab, standard_slab

TEXTBOOK = {
    fcc111: ((2, 2, 3), {"top", "fcc", "hcp", "bridge"}),
    fcc100: ((2, 2, 3), {"top", "hollow", "bridge"}),
    fcc110: ((2, 2, 4), {"top", "hollow", "bridge", "longbridge"}),
}


@pytest.mark.parametrize("builder", TEXTBOOK)
def test_distinct_sites_of_textbook_surfaces(builder):
    size, expected = TEXTBOOK[builder]
    sites = distinct_sites(standard_slab(builder("Cu", size, vacuum=8.0)))
    assert {site.kind for site in sites} == expected
    assert len(sites) == len(expected)


def test_number_of_sites_per_cell():
    """A p(1×1) cell of fcc(111) has one top, one fcc, one hcp and three bridge sites."""
    slab = standard_slab(fcc111("Cu", (3, 3, 4), vacuum=8.0))
    kinds = [site.kind for site in all_sites(slab)]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"top": 9, "fcc": 9, "hcp": 9, "bridge": 27}


def test_broken_symmetry_gives_more_sites():
    slab = standard_slab(fcc111("Cu", (2, 2, 3), vacuum=8.0))
    alloy = slab.copy()
    top = int(np.argmax(alloy.positions[:, 2]))
    alloy.numbers[top] = 47
    assert len(distinct_sites(alloy)) > len(distinct_sites(slab))
    assert len(plane_symmetry(alloy)) < len(plane_symmetry(slab))


def test_only_exposed_atoms_carry_top_sites():
    slab = standard_slab(fcc100("Cu", (2, 2, 3), vacuum=8.0))
    heights = slab.positions[:, 2]
    assert np.array_equal(exposed_atoms(slab), heights > heights.max() - 0.5)


def test_steps_are_exposed():
    slab = standard_slab(fcc211("Pt", (3, 2, 3), vacuum=8.0))
    sites = distinct_sites(slab)
    assert sum(site.kind == "top" for site in sites) >= 2


def test_nearest_site():
    slab = standard_slab(fcc111("Cu", (2, 2, 3), vacuum=8.0))
    sites = all_sites(slab)
    for site in sites:
        moved = site.position + slab.cell.array[0] + np.array([0.1, -0.1, 1.5])
        assert nearest_site(slab, moved, sites) is site


def test_standard_form_does_not_depend_on_the_vacuum_axis():
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    slab.pbc = True
    expected = standard_slab(slab)
    for axis in (0, 1):
        order = [(axis + 1) % 3, (axis + 2) % 3, axis]
        turned = slab.copy()
        turned.set_cell(slab.cell.array[np.argsort(order)], scale_atoms=False)
        found = standard_slab(turned)
        assert np.allclose(np.sort(found.positions[:, 2]), np.sort(expected.positions[:, 2]), atol=1e-6)
        assert [site.name for site in distinct_sites(found)] == [site.name for site in distinct_sites(expected)]


def test_cut_slabs_have_the_asked_width_and_fixed_lower_half():
    (slab,) = cut_slab(bulk("Cu"), (1, 1, 1), min_width_A=6.0)
    assert slab.name == "Cu(111)"
    area = np.linalg.norm(np.cross(*slab.atoms.cell.array[:2]))
    assert area / slab.atoms.cell.lengths()[:2].max() >= 6.0
    assert 0 < len(slab.atoms.constraints[0].index) <= len(slab.atoms) / 2


def test_bulk_is_not_a_slab():
    with pytest.raises(InputError, match="vacuum"):
        standard_slab(bulk("Cu", cubic=True))


def test_an_adsorbate_is_not_part_of_a_clean_slab():
    from ase.build import add_adsorbate

    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(slab, "O", 1.2, "fcc")
    with pytest.raises(InputError, match="adsorbate"):
        standard_slab(slab)
