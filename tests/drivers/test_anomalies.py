"""Each flag with structures that have the anomaly and structures that nearly do."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, fcc111, molecule

from faenet_calc.simulate import find_anomalies


def co_on_cu(*, site="ontop", height=1.85) -> Atoms:
    slab = fcc111("Cu", (3, 3, 4), vacuum=8.0)
    add_adsorbate(slab, molecule("CO"), height, site, mol_index=1)
    slab.set_tags([0] * 27 + [1] * 9 + [2] * 2)
    assert slab.symbols[-1] == "C" and slab.positions[-2, 2] > slab.positions[-1, 2]
    return slab


def moved(atoms: Atoms, index, vector) -> Atoms:
    other = atoms.copy()
    other.positions[index] += vector
    return other


START = co_on_cu()
C, O_ = -1, -2
TOP = 35  # a surface atom
BELOW = 26  # in the layer under it


def test_nothing_happens():
    assert find_anomalies(START, START) == ()


@pytest.mark.parametrize(("stretch", "flags"), [(0.3, ()), (0.6, ()), (1.2, ("dissociated",)), (1.6, ("dissociated",))])
def test_dissociated(stretch, flags):
    final = moved(START, O_, [0, 0, stretch])
    # O may leave the surface as a whole when it flies away; here it stays within reach of its group.
    assert find_anomalies(START, final) == flags


def test_hydrogen_molecule_dissociates_but_an_elongated_one_does_not():
    slab = fcc111("Pt", (2, 2, 3), vacuum=8.0)
    slab.set_tags([0] * 8 + [1] * 4)
    slab += Atoms("H2", positions=slab.positions[-1] + [[0, 0, 1.6], [0.75, 0, 1.6]], tags=[2, 2])
    assert find_anomalies(slab, moved(slab, -1, [0.1, 0, 0])) == ()
    assert find_anomalies(slab, moved(slab, -1, [1.2, 0, -0.3])) == ("dissociated",)


@pytest.mark.parametrize(("rise", "flags"), [(0.0, ()), (0.8, ()), (2.0, ("desorbed",)), (4.0, ("desorbed",))])
def test_desorbed(rise, flags):
    assert find_anomalies(START, moved(START, [C, O_], [0, 0, rise])) == flags


def test_one_of_two_adsorbates_desorbs():
    both = START.copy()
    both += Atoms("O", positions=[START.positions[31] + [0, 0, 1.8]], tags=[2])
    assert find_anomalies(both, both) == ()
    assert find_anomalies(both, moved(both, -1, [0, 0, 5.0])) == ("desorbed",)


def test_a_hydrogen_bonded_second_layer_is_not_desorbed():
    slab = fcc111("Cu", (3, 3, 3), vacuum=10.0)
    slab.set_tags([0] * 18 + [1] * 9)
    flat = Atoms("OH2", positions=[[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]], tags=[2, 2, 2])
    down = Atoms("OH2", positions=[[0, 0, 0], [0, 0, -0.96], [0.93, 0, 0.24]], tags=[2, 2, 2])
    for water, height in ((flat, 2.2), (down, 5.01)):  # a hydrogen bond of 1.85 Å between them
        water.translate(slab.positions[22] + [0, 0, height])
        slab += water
    assert find_anomalies(slab, slab) == ()
    assert find_anomalies(slab, moved(slab, [30, 31, 32], [0, 0, 3.0])) == ("desorbed",)


@pytest.mark.parametrize(
    ("index", "vector", "flags"),
    [
        (TOP, [0, 0, 0.2], ()),  # rumpling
        (TOP, [0.15, 0.1, -0.2], ()),
        (TOP, [0, 0, 1.8], ("reconstructed",)),  # becomes an adatom
        (BELOW, [0, 1.4, 0], ("reconstructed",)),
    ],
)
def test_reconstructed(index, vector, flags):
    found = find_anomalies(START, moved(START, index, vector))
    assert tuple(flag for flag in found if flag == "reconstructed") == flags


def test_breathing_and_shifting_slabs_are_not_reconstructed():
    final = START.copy()
    final.positions[START.get_tags() == 1, 2] -= 0.25  # the first layer relaxes inwards by 12 %
    final.positions += [0.7, -0.4, 0.3]
    assert find_anomalies(START, final) == ()
    strained = START.copy()
    strained.set_cell(START.cell.array * 1.04, scale_atoms=True)
    assert find_anomalies(START, strained) == ()


@pytest.mark.parametrize("facet", ["octahedral", "tetrahedral"])
def test_intercalated(facet):
    slab = fcc111("Pd", (3, 3, 4), vacuum=8.0)
    slab.set_tags([0] * 27 + [1] * 9)
    add_adsorbate(slab, "H", 0.9, "fcc")
    tags = slab.get_tags()
    tags[-1] = 2
    slab.set_tags(tags)
    assert find_anomalies(slab, slab) == ()
    layer = slab.positions[27, 2] - slab.positions[18, 2]
    depth = layer / 2 if facet == "octahedral" else layer / 4
    site = slab.positions[-1].copy()
    if facet == "tetrahedral":  # below a surface atom, between it and three atoms of the next layer
        site = slab.positions[31].copy()
        depth = 3 * layer / 4
    site[2] = slab.positions[27, 2] - depth
    final = slab.copy()
    final.positions[-1] = site
    assert find_anomalies(slab, final) == ("intercalated",)


def test_an_atom_in_a_hollow_is_not_intercalated():
    slab = fcc100("Ni", (3, 3, 3), vacuum=8.0)
    slab.set_tags([0] * 18 + [1] * 9)
    add_adsorbate(slab, "N", 0.3, "hollow")
    tags = slab.get_tags()
    tags[-1] = 2
    slab.set_tags(tags)
    assert find_anomalies(slab, slab) == ()


def test_several_flags_come_in_order():
    final = moved(START, O_, [0, 0, 6.0])
    final.positions[TOP] += [0, 0, 1.8]
    assert find_anomalies(START, final)[:3] == ("dissociated", "desorbed", "reconstructed")


def test_tags_of_ase_builders_are_understood():
    slab = fcc111("Cu", (3, 3, 4), vacuum=8.0)
    add_adsorbate(slab, molecule("CO"), 1.85, "ontop", mol_index=1)
    assert set(slab.get_tags()) == {0, 1, 2, 3, 4}
    assert find_anomalies(slab, moved(slab, [C, O_], [0, 0, 4.0])) == ("desorbed",)


@pytest.mark.parametrize(
    ("height", "flags"),
    # O on Cu: the sum of covalent radii is 1.98 Å, a real bond 1.8 Å; models without repulsion ended at 0.92–1.06 Å.
    [(1.8, ()), (1.3, ()), (1.06, ("overlap",)), (0.92, ("overlap",))],
)
def test_overlap(height, flags):
    slab = fcc111("Cu", (3, 3, 4), vacuum=8.0)
    add_adsorbate(slab, "O", 1.8, "ontop")
    final = slab.copy()
    final.positions[-1, 2] += height - 1.8
    assert find_anomalies(slab, final) == flags


def test_overlap_in_any_kind_of_structure():
    fused = bulk("Cu", a=1.6)  # one atom, 1.13 Å from its own images
    assert find_anomalies(fused, fused) == ("overlap",)
    assert find_anomalies(bulk("Cu", a=3.0), bulk("Cu", a=3.0)) == ()  # 30 GPa and more
    co = molecule("CO")
    assert find_anomalies(co, moved(co, 0, [0, 0, -0.35])) == ("overlap",)
    for name in ("H2", "N2", "CO", "C2H2", "HCN"):
        assert find_anomalies(molecule(name), molecule(name)) == ()
    chromium = Atoms("Cr2", [[0, 0, 0], [0, 0, 1.68]])  # the shortest bond between metal atoms
    assert find_anomalies(chromium, chromium) == ()


def test_bulk_raises_no_flag_and_a_molecule_only_dissociates():
    cubic = bulk("Cu", cubic=True)
    assert find_anomalies(cubic, moved(cubic, 0, [1.5, 0, 0])) == ()
    co = molecule("CO")
    assert find_anomalies(co, moved(co, 0, [0, 0, 2.0])) == ("dissociated",)


def test_images_across_the_boundary_are_followed():
    start = START.copy()
    start.positions += 0.5 * start.cell[0] + 0.5 * start.cell[1]
    start.wrap()
    final = moved(start, slice(None), [1.6, -1.1, 0.0])
    wrapped = final.copy()
    wrapped.wrap()
    assert np.abs(wrapped.positions - final.positions).max() > 3.0, "nothing was wrapped"
    assert find_anomalies(start, final) == find_anomalies(start, wrapped) == ()
    assert find_anomalies(start, wrapped, unwrap=False) != (), "the test above can fail"
    wrapped.positions[[C, O_], 2] += 4.0
    assert find_anomalies(start, wrapped) == ("desorbed",)


def test_far_travellers_are_followed_if_nothing_was_wrapped():
    far = moved(START, [C, O_], 1.45 * START.cell[0] / 3)
    assert "dissociated" not in find_anomalies(START, far, unwrap=False)
