"""Structures to graphs and back, what is refused and with which words, and tags."""

import lzma
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, bcc110, bulk, fcc100, fcc111, fcc211, hcp0001, molecule
from ase.io import read

from faenet_calc.errors import InputError
from faenet_calc.graphs.convert import infer_tags, resolve_tags, to_atoms, to_batch, to_graph, validate
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.graphs.neighbors import VerletList, neighbor_list


def slab_with(adsorbate="CO", builder=fcc111, symbol="Cu", size=(3, 3, 4)):
    slab = builder(symbol, size, vacuum=8.0)
    add_adsorbate(slab, molecule(adsorbate) if isinstance(adsorbate, str) else adsorbate, 1.9, position=(2.0, 1.5))
    return slab


def assert_same_graph(a: AtomGraph, b: AtomGraph, atol=0.0):
    for name in ("atomic_numbers", "tags", "pbc", "graph_of_atom", "centre", "neighbor", "shift"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    for name in ("positions", "cell"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), atol=atol, rtol=0)


# ase.Atoms


def test_a_cell_that_becomes_singular_in_place_is_refused_every_time():
    atoms = bulk("Cu", cubic=True)
    to_graph(atoms, cutoff=5.0)
    atoms.cell[:, 2] = 0.0
    for _ in range(2):
        with pytest.raises(InputError, match="singular cell"):
            to_graph(atoms, cutoff=5.0)
    atoms.pbc = (True, True, False)
    to_graph(atoms, cutoff=5.0)


def test_a_graph_holds_the_atoms_and_their_edges():
    atoms = slab_with()
    graph = to_graph(atoms, cutoff=5.0, dtype=torch.float32)
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, 5.0)
    assert graph.positions.dtype == graph.cell.dtype == torch.float32
    assert graph.shift.numpy().tolist() == edges.shift.tolist()
    np.testing.assert_allclose(graph.edge_vectors().norm(dim=1).numpy(), edges.distance, atol=2e-6)
    (back,) = to_atoms(to_graph(atoms, cutoff=5.0))
    assert back == atoms  # numbers, positions, cell, pbc
    assert (back.get_tags() == atoms.get_tags()).all()


def test_a_graph_does_not_share_memory_with_the_atoms():
    atoms = bulk("Cu", cubic=True)
    graph = to_graph(atoms, cutoff=3.0)
    before = graph.positions.clone()
    atoms.positions += 1.0
    assert torch.equal(graph.positions, before)


def test_edges_do_not_depend_on_the_dtype():
    atoms = bulk("Cu", cubic=True)
    atoms.positions += 900.0  # in float32 these positions are good to 6e-5 Å only
    cutoff = 3.61 + 1e-7  # just beyond the lattice constant
    single, double = (to_graph(atoms, cutoff=cutoff, dtype=d) for d in (torch.float32, torch.float64))
    assert single.n_edges == double.n_edges == 4 * 18


def test_the_cap_reaches_the_graph():
    atoms = bulk("Cu", cubic=True)
    assert to_graph(atoms, cutoff=5.0, max_neighbors=12).n_edges == 12 * 4


def test_a_verlet_list_gives_the_same_graph_and_must_fit():
    atoms = slab_with()
    verlet = VerletList(5.0, skin=0.5)
    for _ in range(3):
        atoms.rattle(0.01, rng=np.random.RandomState(1))
        assert_same_graph(to_graph(atoms, cutoff=5.0, neighbors=verlet), to_graph(atoms, cutoff=5.0))
    assert (verlet.n_calls, verlet.n_rebuilds) == (3, 1)
    with pytest.raises(ValueError, match=r"neighbors\.cutoff=5\.0"):
        to_graph(atoms, cutoff=4.0, neighbors=verlet)


def test_a_batch_is_its_members_in_order():
    structures = [slab_with(), molecule("CH4"), bulk("Cu"), Atoms("H")]
    batch = to_batch(structures, cutoff=4.0)
    assert batch.n_graphs == 4
    for one, structure in zip(batch.split(), structures, strict=True):
        assert_same_graph(one, to_graph(structure, cutoff=4.0))
    assert [len(atoms) for atoms in to_atoms(batch)] == [len(s) for s in structures]
    assert_same_graph(to_batch(structures[0], cutoff=4.0), to_batch([structures[0]], cutoff=4.0))


def test_tags_given_win_over_those_of_the_atoms():
    two = [Atoms("H", tags=[1]), Atoms("He", tags=[2])]
    assert to_batch(two, cutoff=3.0).tags.tolist() == [1, 2]
    assert to_batch(two, cutoff=3.0, tags=[[0], [1]]).tags.tolist() == [0, 1]
    assert to_graph(to_graph(two[0], cutoff=3.0), cutoff=3.0, tags=[2]).tags.tolist() == [2]
    with pytest.raises(InputError, match="1 structures came with 2"):
        to_batch(two, cutoff=3.0, tags=[[0]])
    with pytest.raises(InputError, match=r"tags of shape \(2,\)"):
        to_graph(two[0], cutoff=3.0, tags=[0, 1])


# What is refused


def nan_position():
    atoms = molecule("H2O")
    atoms.positions[1, 2] = np.nan
    return atoms


def inf_cell():
    atoms = bulk("Cu", cubic=True)
    cell = atoms.cell.array.copy()
    cell[0, 0] = np.inf
    atoms.cell = cell
    return atoms


def flat_cell():
    return Atoms("Cu", cell=[[3, 0, 0], [6, 0, 0], [0, 0, 3]], pbc=True)


def overlap():
    return Atoms("CuOH", [[0, 0, 0], [3, 0, 0], [3.1, 0, 0]])


def overlap_with_image():
    return Atoms("CuO", [[0, 0, 0], [3.9, 0, 0]], cell=[4, 4, 4], pbc=True)


REFUSED = [
    (Atoms, "has no atoms"),
    (nan_position, r"NaN or infinite positions of atom 1 \(H\)"),
    (inf_cell, "NaN or infinite numbers in the cell"),
    (lambda: Atoms("Cu", pbc=True), "axis 0 has length 0, axis 1 has length 0, axis 2 has length 0"),
    (lambda: Atoms("Cu", cell=[3, 3, 0], pbc=True), r"singular cell.*axis 2 has length 0\. Set a cell"),
    (flat_cell, "axis 0 lies in the span of others, axis 1 lies in the span"),
    (overlap, r"overlapping atoms, closer than 0.3 Å: O1–H2 0\.100 Å"),
    (overlap_with_image, r"Cu0–O1 in image \(-1, 0, 0\) 0\.100 Å"),
    (lambda: Atoms("Cu", cell=[0.2, 4, 4], pbc=True), "periodic axis 0 is only 0.2 Å long"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_computed_is_refused_with_reasons(make, message):
    for check in (validate, lambda atoms: to_graph(atoms, cutoff=4.0)):
        with pytest.raises(InputError, match=message):
            check(make())


def test_a_batch_names_the_bad_structure():
    with pytest.raises(InputError, match=r"structure 1: overlapping atoms"):
        to_batch([molecule("H2O"), overlap()], cutoff=4.0)
    with pytest.raises(InputError, match="batch of 0"):
        to_batch([], cutoff=4.0)


@pytest.mark.parametrize(
    "atoms",
    [
        Atoms("H"),
        Atoms("H", cell=[0, 0, 0]),
        Atoms("H2", [[0, 0, 0], [0.31, 0, 0]]),
        Atoms("Cu", cell=[3, 3, 0], pbc=[True, True, False]),
        bulk("Cu"),
    ],
)
def test_unusual_but_right_structures_pass(atoms):
    validate(atoms)
    assert to_graph(atoms, cutoff=4.0).atomic_numbers.tolist() == atoms.numbers.tolist()


@pytest.mark.parametrize("wrong", ["POSCAR", 3, None, {"positions": []}])
def test_other_types_are_answered_with_what_is_expected(wrong):
    with pytest.raises(InputError, match=r"expected ase\.Atoms"):
        to_batch(wrong, cutoff=4.0)


# PyG


def test_pyg_round_trip_with_upstream_names():
    batch = to_batch([slab_with(), molecule("CH4"), bulk("Cu")], cutoff=4.0)
    data = batch.to_pyg()
    assert {"pos", "atomic_numbers", "tags", "cell", "edge_index", "cell_offsets", "natoms", "batch"} <= set(
        data.keys()
    )
    assert_same_graph(to_graph(data, cutoff=4.0), batch)
    pieces = to_batch(data.to_data_list(), cutoff=4.0)
    assert_same_graph(pieces, batch)


def test_pyg_data_without_edges_gets_them():
    from torch_geometric.data import Batch, Data

    structures = [slab_with(), molecule("CH4"), bulk("Cu")]

    def bare(atoms, flags):
        data = Data(
            pos=torch.tensor(atoms.positions),
            z=torch.tensor(atoms.numbers),
            tags=torch.tensor(atoms.get_tags()),
            cell=torch.tensor(atoms.cell.array)[None],
        )
        if flags:
            data.pbc = torch.tensor(atoms.pbc)[None]
        return data

    expected = to_batch(structures, cutoff=4.0)
    assert_same_graph(to_graph(Batch.from_data_list([bare(s, True) for s in structures]), cutoff=4.0), expected)
    # Without flags a cell means periodic everywhere, and a zero cell a molecule.
    for atoms in structures:
        whole = atoms.copy()
        whole.pbc = atoms.cell.rank == 3
        assert_same_graph(to_graph(bare(atoms, False), cutoff=4.0), to_graph(whole, cutoff=4.0))


def test_pyg_data_is_not_changed_and_must_have_positions():
    from torch_geometric.data import Data

    data = Data(pos=torch.zeros(1, 3), z=torch.tensor([1]))
    to_graph(data, cutoff=3.0)
    assert sorted(data.keys()) == ["pos", "z"]
    with pytest.raises(InputError, match="needed are pos"):
        to_graph(Data(z=torch.tensor([1])), cutoff=3.0)
    data.pos[0, 1] = np.inf
    data.edge_index = torch.zeros(2, 0, dtype=torch.long)
    with pytest.raises(InputError, match=r"positions of the batch's atoms \[0\]"):
        to_graph(data, cutoff=3.0)


# pymatgen


def test_pymatgen_structures_give_the_graph_of_the_same_atoms():
    from pymatgen.core import IStructure, Lattice, Molecule, Structure

    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    structure = Structure(atoms.cell.array, list(atoms.symbols), atoms.positions, coords_are_cartesian=True)
    frozen = IStructure.from_sites(list(structure))
    methane = molecule("CH4")
    plain = Molecule(list(methane.symbols), methane.positions)
    for ours, theirs in ((atoms, structure), (atoms, frozen), (methane, plain)):
        assert_same_graph(to_graph(theirs, cutoff=4.0), to_graph(ours, cutoff=4.0), atol=1e-9)
    assert to_batch([structure, plain], cutoff=4.0).n_graphs == 2
    assert to_batch(structure, cutoff=4.0).n_graphs == 1  # a structure is a sequence of sites, not of structures
    slab = Structure(Lattice(np.diag([4.0, 4, 20]), pbc=(True, True, False)), ["Cu"], [[0, 0, 0]])
    slab.add_site_property("tags", [1])
    graph = to_graph(slab, cutoff=4.5)
    assert graph.pbc.tolist() == [[True, True, False]]
    assert graph.tags.tolist() == [1]


def test_partial_occupation_is_refused():
    from pymatgen.core import Lattice, Structure

    with pytest.raises(InputError, match=r"sites \[0\] are partially occupied"):
        to_graph(Structure(Lattice.cubic(4), [{"Cu": 0.5, "Au": 0.5}], [[0, 0, 0]]), cutoff=4.0)


def test_pymatgen_and_pyg_are_not_imported_for_ase_atoms():
    code = (
        "import sys; from ase.build import bulk; from faenet_calc.graphs.convert import to_batch; "
        "to_batch([bulk('Cu')], cutoff=4.0); "
        "assert not {'pymatgen', 'pymatgen.core', 'torch_geometric'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Tags

SLABS = {
    "fcc111": (fcc111, "Cu", (3, 3, 4)),
    "fcc100": (fcc100, "Cu", (2, 2, 4)),
    "fcc211": (fcc211, "Pt", (3, 3, 3)),
    "bcc110": (bcc110, "Fe", (2, 2, 4)),
    "hcp0001": (hcp0001, "Ru", (3, 3, 4)),
}


@pytest.mark.parametrize("facet", SLABS)
@pytest.mark.parametrize("adsorbate", ["CO", "OH", "H2O", "CH3", "NH3", "CH3OH", "O", "H", None])
@pytest.mark.parametrize("periodic", [False, True])
def test_inferred_tags_of_ase_slabs(facet, adsorbate, periodic):
    builder, symbol, size = SLABS[facet]
    slab = builder(symbol, size, vacuum=8.0)
    n_slab = len(slab)
    if adsorbate is not None:
        add_adsorbate(slab, molecule(adsorbate), 1.9, position=(2.0, 1.5))
    slab.pbc = [True, True, periodic]
    slab.rattle(0.03, rng=np.random.RandomState(0))
    tags = infer_tags(slab)
    assert (tags[n_slab:] == 2).all()
    assert (tags[:n_slab] < 2).all()
    heights = slab.positions[:n_slab, 2]
    assert tags[:n_slab][heights < np.median(heights) - 0.5].max() == 0
    assert tags[np.argmax(heights)] == 1
    if facet in ("fcc111", "fcc100", "hcp0001"):  # flat: what is within 2 Å of the top, for fcc100 two layers
        assert (tags[:n_slab] == (heights > heights.max() - 2.0)).all()


def test_inferred_tags_do_not_depend_on_orientation_wrapping_or_order():
    atoms = slab_with("CH3OH")
    atoms.pbc = True
    expected = infer_tags(atoms)
    moved = atoms.copy()
    moved.positions -= 0.45 * atoms.cell.array[2]
    moved.wrap()
    moved.rotate(37, (1, 2, 3), rotate_cell=True)
    order = np.random.default_rng(0).permutation(len(atoms))
    assert (infer_tags(moved[order]) == expected[order]).all()
    cycled = moved.copy()
    cycled.set_cell(moved.cell.array[[2, 0, 1]])  # the normal along the first axis
    assert (infer_tags(cycled) == expected).all()


def test_inferred_tags_of_adatoms_oxides_and_layers():
    adatom = fcc111("Cu", (3, 3, 4), vacuum=8.0)
    add_adsorbate(adatom, "Cu", 2.0, "fcc")
    assert (infer_tags(adatom) == 2).tolist() == [False] * 36 + [True]
    magnesia = bulk("MgO", "rocksalt", a=4.21, cubic=True).repeat((2, 2, 2))
    magnesia.center(vacuum=8.0, axis=2)
    magnesia.pbc = [True, True, False]
    n_slab = len(magnesia)
    assert set(infer_tags(magnesia)) == {0, 1}
    magnesia += Atoms("CO", magnesia.positions[magnesia.positions[:, 2].argmax()] + [[0, 0, 2.3], [0, 0, 3.45]])
    assert (infer_tags(magnesia) == 2).tolist() == [False] * n_slab + [True] * 2


def test_inferred_tags_without_a_surface():
    assert infer_tags(bulk("Cu", cubic=True)).tolist() == [0] * 4
    assert infer_tags(molecule("CH4")).tolist() == [2] * 5
    boxed = molecule("H2O", vacuum=6.0)
    boxed.pbc = True
    assert infer_tags(boxed).tolist() == [2] * 3
    assert infer_tags(Atoms("Au2", [[0, 0, 0], [2.5, 0, 0]])).tolist() == [0, 0]


def test_inferred_tags_of_dft_relaxations(data_dir):
    """OC20 systems: adsorbates of H, C, N and O on slabs without these elements; fixed atoms are the sub-surface."""
    n_wrong, n_atoms = 0, 0
    with lzma.open(data_dir / "oc20-starts.extxyz.xz", "rt") as file:
        systems = read(file, ":", format="extxyz")
    for atoms in systems:
        tags, fixed = infer_tags(atoms), atoms.arrays["fixed"] == 1
        np.testing.assert_array_equal(tags == 2, np.isin(atoms.numbers, [1, 6, 7, 8]), err_msg=str(atoms.info))
        n_wrong += int((fixed & (tags == 1)).sum() + (~fixed & (tags == 0)).sum())
        n_atoms += len(atoms)
    assert n_wrong <= 0.05 * n_atoms


@pytest.mark.parametrize(("layers", "adsorbate"), [(1, "CO"), (2, "CO"), (4, "CO"), (2, None), (3, None)])
def test_ase_layer_numbers_are_translated(layers, adsorbate):
    slab = fcc111("Cu", (2, 2, layers), vacuum=8.0)
    if adsorbate:
        add_adsorbate(slab, molecule(adsorbate), 1.9, "ontop")
    given = slab.get_tags()
    tags, note = resolve_tags(slab)
    assert "ASE's layer numbers" in note
    assert (tags == np.select([given == 0, given == 1], [2, 1], 0)).all()
    slab.set_tags(tags)  # and now they are right and stay
    again, note = resolve_tags(slab)
    assert note is None
    assert (again == tags).all()


@pytest.mark.parametrize("adsorbate", ["CO", None])
def test_tags_of_catalysis_data_are_taken_as_they_are(adsorbate):
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    slab.set_tags([0] * 8 + [1] * 4)
    if adsorbate:
        add_adsorbate(slab, Atoms("CO", [[0, 0, 0], [0, 0, 1.15]], tags=[2, 2]), 1.9)
    tags, note = resolve_tags(slab)
    assert note is None
    assert (tags == slab.get_tags()).all()


def test_missing_and_foreign_tags_are_inferred_with_a_remark():
    slab = slab_with()
    expected = infer_tags(slab)
    for given, reason in ((0, "no tags"), (7, r"tags \[7\] that are not all 0, 1 or 2")):
        slab.set_tags(given)
        tags, note = resolve_tags(slab, "auto")
        assert (tags == expected).all()
        assert re.search(reason, note)
        assert "2 adsorbate" in note


def test_the_other_ways_to_give_tags():
    atoms = Atoms("H2", [[0, 0, 0], [1, 0, 0]], tags=[0, 0])
    assert resolve_tags(atoms, "atoms")[0].tolist() == [0, 0]
    assert resolve_tags(atoms, [1, 2])[0].tolist() == [1, 2]
    assert resolve_tags(atoms, lambda a: np.full(len(a), 2))[0].tolist() == [2, 2]
    for wrong, message in (
        ("guess", "tags='guess'"),
        ([1], r"shape \(1,\)"),
        ([0, 3], r"3 for atom 1 \(H\)"),
        (lambda a: [-1, 0], "function's result has -1 for atom 0"),
    ):
        with pytest.raises(InputError, match=message):
            resolve_tags(atoms, wrong)
