"""Neighbor lists against ASE's on random cells of every kind, the cap, and the reuse between steps."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from ase.build import bulk, fcc111, molecule
from ase.geometry import complete_cell
from ase.neighborlist import primitive_neighbor_list
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faenet_calc.errors import InputError
from faenet_calc.graphs import convert
from faenet_calc.graphs.neighbors import VerletList, axis_heights, keep_nearest, neighbor_list, neighbor_tensors

PERIODICITIES = list(itertools.product([False, True], repeat=3))
FIELDS = ("centre", "neighbor", "shift", "distance")


def random_structure(seed: int, pbc: tuple[bool, bool, bool]):
    """A skewed, often small and left-handed cell with atoms in it and far outside of it; a safe cutoff."""
    rng = np.random.default_rng(seed)
    while True:
        cell = rng.normal(size=(3, 3)) * rng.uniform(0.8, 5.0, size=(3, 1))
        height = axis_heights(cell, [True] * 3).min()
        if height > 0.7:
            break
    n_atoms = int(rng.integers(1, 12))
    spread = 1.0 if rng.random() < 0.5 else 6.0
    positions = (rng.random((n_atoms, 3)) - 0.5) * spread @ cell + rng.normal(size=3) * 10 * (rng.random() < 0.5)
    cutoff = float(rng.uniform(0.8, min(6.0, 3.0 * height)))  # up to 3 images each way: ASE loops over them in Python
    if rng.random() < 0.3:  # vectors of non-periodic directions may be absent
        cell[~np.array(pbc)] = 0.0
    return positions, cell, np.array(pbc), cutoff


def oracle(positions, cell, pbc, cutoff):
    # ASE's own completion of missing vectors: without it rounding makes astronomically many bins of a zero row.
    i, j, shift, vector = primitive_neighbor_list("ijSD", pbc, complete_cell(cell), positions, cutoff)
    order = np.lexsort((*shift.T[::-1], j, i))
    return i[order], j[order], shift[order], vector[order]


def near_cutoff(positions, cell, pbc, cutoff):
    distance = primitive_neighbor_list("d", pbc, complete_cell(cell), positions, cutoff + 1e-6)
    return bool((abs(distance - cutoff) < 1e-9).any())


def brute_force(positions, cell, pbc, cutoff):
    """Every pair of atoms in the home cell and its images, for structures whose cell is wider than the cutoff."""
    found = set()
    images = itertools.product(*[(-1, 0, 1) if periodic else (0,) for periodic in pbc])
    for shift in images:
        difference = positions[None] + np.array(shift) @ cell - positions[:, None]
        near = np.linalg.norm(difference, axis=2) < cutoff
        if shift == (0, 0, 0):
            np.fill_diagonal(near, False)
        found |= {(i, j, shift) for i, j in np.argwhere(near).tolist()}
    return found


@pytest.mark.parametrize("pbc", PERIODICITIES)
@pytest.mark.parametrize("distance", [1e3, 1e5, 1e6, 9e7])
def test_atoms_far_away_along_non_periodic_axes(pbc, distance):
    """Positions from which the backend alone would kill the process."""
    cell = np.array([[9.0, 0, 0], [1.0, 8.0, 0], [0.5, -1.0, 10.0]])
    far = distance * np.eye(3)[~np.array(pbc)]
    near = np.random.default_rng(0).uniform(0, 7, size=(6, 3))
    groups = [near, *[near[:3] + one for one in far], *([near[:2] - far.sum(axis=0)] if len(far) else [])]
    positions = np.concatenate(groups)
    edges = neighbor_list(positions, cell, pbc, 5.0)
    found = set(zip(edges.centre.tolist(), edges.neighbor.tolist(), map(tuple, edges.shift.tolist()), strict=True))
    assert found == brute_force(positions, cell, pbc, 5.0)
    assert len(found) > 12


@pytest.mark.parametrize("pbc", [(True, True, False), (False, False, False), (True, True, True)])
def test_flat_boxes_of_many_bins(pbc):
    """A thin sheet of 1200 Å: more bins than the backend has, almost none of them across the sheet."""
    grid = np.stack(np.meshgrid(*[np.arange(0.0, 1200.0, 6.0)] * 2), axis=-1).reshape(-1, 2)
    pairs = np.concatenate([np.column_stack([grid, 0 * grid[:, :1] + z]) for z in (0.0, 1.0)])
    edges = neighbor_list(pairs, np.diag([1200.0, 1200.0, 6.0]), pbc, 3.0)
    assert len(edges) == len(pairs)
    assert edges.distance.max() == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2e8])
def test_coordinates_without_meaning_are_refused(value):
    positions = np.array([[0.0, 0, 0], [0, 0, value], [1.0, 0, 0]])
    with pytest.raises(InputError, match=r"of atom 1 \(1 such atoms\), expected finite coordinates"):
        neighbor_list(positions, np.eye(3) * 9, [True, True, False], 5.0)


def vectors(edges, positions, cell):
    return positions[edges.neighbor] + edges.shift @ cell - positions[edges.centre]


def same(a, b) -> bool:
    return a.n_dropped == b.n_dropped and all(np.array_equal(getattr(a, f), getattr(b, f)) for f in FIELDS)


@pytest.mark.parametrize("pbc", PERIODICITIES)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_identical_to_ase(pbc, seed):
    positions, cell, periodic, cutoff = random_structure(seed, pbc)
    if near_cutoff(positions, cell, periodic, cutoff):
        return
    edges = neighbor_list(positions, cell, periodic, cutoff)
    i, j, shift, vector = oracle(positions, cell, periodic, cutoff)
    np.testing.assert_array_equal(edges.centre, i)
    np.testing.assert_array_equal(edges.neighbor, j)
    np.testing.assert_array_equal(edges.shift, shift)
    np.testing.assert_allclose(vectors(edges, positions, cell), vector, atol=1e-12 * max(1, abs(positions).max()))
    np.testing.assert_allclose(edges.distance, np.linalg.norm(vector, axis=1), atol=1e-11)


def test_random_cells_cover_what_they_claim():
    drawn = [random_structure(seed, pbc) for seed in range(40) for pbc in PERIODICITIES]
    full = [(p, c, k, r) for p, c, k, r in drawn if np.linalg.matrix_rank(c) == 3]
    assert sum(np.linalg.det(c) < 0 for _, c, _, _ in full) > 50  # left-handed
    assert sum(k.all() and axis_heights(c, k).min() < r for _, c, k, r in full) > 20  # smaller than the cutoff
    assert sum((c == 0).all() for _, c, _, _ in drawn) > 3  # no cell at all
    assert sum(abs(p @ np.linalg.inv(c)).max() > 2 for p, c, _, _ in full) > 50  # far outside


def test_the_comparison_sees_a_wrong_periodicity_and_a_wrong_cutoff():
    positions, cell, _, _ = random_structure(3, (True, True, True))
    right = neighbor_list(positions, cell, [True, True, True], 5.0)
    assert len(right) != len(oracle(positions, cell, [True, True, False], 5.0)[0])
    assert len(right) != len(oracle(positions, cell, [True, True, True], 4.5)[0])


@pytest.mark.parametrize("pbc", PERIODICITIES)
def test_every_edge_has_its_reverse_at_the_same_distance(pbc):
    positions, cell, periodic, cutoff = random_structure(13, pbc)
    edges = neighbor_list(positions, cell, periodic, cutoff)
    forward = {(i, j, *s): d for i, j, s, d in zip(*(getattr(edges, f).tolist() for f in FIELDS), strict=True)}
    assert forward
    for (i, j, a, b, c), distance in forward.items():
        assert forward[(j, i, -a, -b, -c)] == distance


def test_self_images_in_a_cell_smaller_than_the_cutoff():
    edges = neighbor_list([[0.3, 0, 0]], 2.0 * np.eye(3), [True] * 3, 2.1)
    assert edges.centre.tolist() == edges.neighbor.tolist() == [0] * 6
    assert edges.shift.tolist() == [[-1, 0, 0], [0, -1, 0], [0, 0, -1], [0, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_strictly_below_the_cutoff():
    assert len(neighbor_list([[0.0, 0, 0], [3.0, 0, 0]], np.zeros((3, 3)), [False] * 3, 3.0)) == 0
    assert len(neighbor_list([[0.0, 0, 0], [3.0, 0, 0]], np.zeros((3, 3)), [False] * 3, np.nextafter(3.0, 4))) == 2


@pytest.mark.parametrize("n_atoms", [0, 1])
def test_no_atoms_and_one_atom_have_no_edges(n_atoms):
    edges = neighbor_list(np.zeros((n_atoms, 3)), 9.0 * np.eye(3), [True] * 3, 5.0)
    assert len(edges) == 0
    assert edges.shift.shape == (0, 3)


def test_wrapping_an_atom_changes_shifts_only():
    atoms = fcc111("Cu", (2, 2, 3), vacuum=6.0)
    moved = atoms.positions.copy()
    moved[4] += np.array([3, -2, 0]) @ atoms.cell.array
    a, b = (neighbor_list(p, atoms.cell.array, atoms.pbc, 5.0) for p in (atoms.positions, moved))
    np.testing.assert_allclose(
        np.sort(vectors(a, atoms.positions, atoms.cell.array), 0),
        np.sort(vectors(b, moved, atoms.cell.array), 0),
        atol=1e-12,
    )
    assert abs(b.shift).max() >= 3


def test_every_atom_of_a_large_crystal_has_42_neighbors():
    atoms = bulk("Cu", cubic=True).repeat((17, 17, 17))
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, 5.0)
    assert (np.bincount(edges.centre, minlength=len(atoms)) == 42).all()


@pytest.mark.parametrize(
    ("cell", "pbc", "bad"),
    [
        (np.zeros((3, 3)), [True, True, True], [0, 1, 2]),
        (np.diag([3.0, 3.0, 0.0]), [True, True, True], [2]),
        (np.array([[3.0, 0, 0], [6.0, 0, 0], [0, 0, 3.0]]), [True, True, True], [0, 1]),
    ],
)
def test_a_cell_that_does_not_span_the_periodic_directions_is_refused(cell, pbc, bad):
    assert np.flatnonzero(axis_heights(cell, pbc) < 1e-9).tolist() == bad
    with pytest.raises(InputError, match="does not span"):
        neighbor_list(np.zeros((1, 3)), cell, pbc, 3.0)


@pytest.mark.parametrize("cutoff", [0.0, -1.0, np.nan, np.inf])
def test_a_cutoff_must_be_a_length(cutoff):
    for make in (lambda: neighbor_list(np.zeros((1, 3)), np.eye(3), [False] * 3, cutoff), lambda: VerletList(cutoff)):
        with pytest.raises(InputError, match="cutoff="):
            make()


# The cap


@pytest.mark.parametrize("pbc", PERIODICITIES)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), cap=st.integers(1, 20))
def test_the_cap_keeps_the_nearest_of_either_end(pbc, seed, cap):
    positions, cell, periodic, cutoff = random_structure(seed, pbc)
    full = neighbor_list(positions, cell, periodic, cutoff)
    capped = neighbor_list(positions, cell, periodic, cutoff, max_neighbors=cap)
    rank = np.zeros(len(full), dtype=int)
    for atom in range(len(positions)):
        mine = np.flatnonzero(full.centre == atom)
        rank[mine[np.argsort(full.distance[mine], kind="stable")]] = np.arange(len(mine))
    key = [tuple(row) for row in np.c_[full.centre, full.neighbor, full.shift].tolist()]
    rank_of = dict(zip(key, rank, strict=True))
    kept = {tuple(row) for row in np.c_[capped.centre, capped.neighbor, capped.shift].tolist()}
    for i, j, a, b, c in key:
        if rank_of[i, j, a, b, c] < cap:
            assert {(i, j, a, b, c), (j, i, -a, -b, -c)} <= kept
    assert capped.n_dropped == len(full) - len(capped)
    for i, j, a, b, c in kept:
        assert (j, i, -a, -b, -c) in kept


def test_the_cap_keeps_whole_shells_whatever_the_orientation_and_order():
    atoms = bulk("Cu", cubic=True).repeat((3, 3, 3))
    rng = np.random.default_rng(1)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    order = rng.permutation(len(atoms))
    given_ = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, 5.0, max_neighbors=5)
    turned = neighbor_list(
        (atoms.positions @ rotation)[order], atoms.cell.array @ rotation, atoms.pbc, 5.0, max_neighbors=5
    )
    assert len(given_) == len(turned) == 12 * len(atoms)
    assert given_.n_dropped == turned.n_dropped == 30 * len(atoms)


def test_a_cap_that_is_not_reached_drops_nothing_and_a_cap_of_zero_is_refused():
    atoms = bulk("Cu")
    full = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, 5.0)
    assert same(full, keep_nearest(full, 1, 42))
    with pytest.raises(InputError, match="max_neighbors=0"):
        keep_nearest(full, 1, 0)


# Reuse


@pytest.mark.parametrize("pbc", PERIODICITIES)
@pytest.mark.parametrize("cap", [None, 6])
def test_a_random_walk_gives_the_same_bits_with_and_without_skin(pbc, cap):
    positions, cell, periodic, _ = random_structure(13, pbc)
    rng = np.random.default_rng(0)
    verlet = VerletList(3.5, skin=0.6, max_neighbors=cap)
    for _ in range(150):
        positions = positions + rng.normal(size=positions.shape) * 0.02
        now = verlet.update(positions, cell, periodic, np.ones(len(positions)))
        assert same(now, neighbor_list(positions, cell, periodic, 3.5, max_neighbors=cap))
        assert len(now)
    assert verlet.n_calls == 150
    assert 2 <= verlet.n_rebuilds <= 75


def test_a_list_not_rebuilt_after_a_large_move_would_miss_edges():
    atoms = molecule("CH3CH2OH")
    verlet = VerletList(1.7, skin=0.4)
    verlet.update(atoms.positions, atoms.cell.array, atoms.pbc, atoms.numbers)
    moved = atoms.positions * 0.6
    stale = verlet._built.edges
    distance = np.linalg.norm(moved[stale.neighbor] - moved[stale.centre], axis=1)
    fresh = neighbor_list(moved, atoms.cell.array, atoms.pbc, 1.7)
    assert (distance < 1.7).sum() < len(fresh)
    assert same(fresh, verlet.update(moved, atoms.cell.array, atoms.pbc, atoms.numbers))
    assert verlet.n_rebuilds == 2


def test_what_makes_a_rebuild():
    atoms = bulk("Cu", cubic=True)
    verlet = VerletList(4.0, skin=0.5)
    rebuilds = []

    def update(positions=atoms.positions, cell=atoms.cell.array, pbc=atoms.pbc, numbers=atoms.numbers):
        fresh = neighbor_list(positions, cell, pbc, 4.0)
        assert same(fresh, verlet.update(positions, cell, pbc, numbers))
        rebuilds.append(verlet.n_rebuilds)

    small, large, jump = (np.zeros((4, 3)) for _ in range(3))
    small[1, 0], large[1, 0], jump[1] = 0.24, 0.26, atoms.cell.array[0]
    update()
    update(positions=atoms.positions + small)
    assert rebuilds == [1, 1]
    update(positions=atoms.positions + large)
    update(positions=atoms.positions + jump)
    update(cell=atoms.cell.array * 1.001)
    update(pbc=[True, True, False])
    update(numbers=[29, 29, 29, 28])
    update(positions=atoms.positions[:3], numbers=atoms.numbers[:3])
    assert rebuilds == [1, 1, 2, 3, 4, 5, 6, 7]


def test_changing_the_array_in_place_is_noticed():
    atoms = bulk("Cu", cubic=True)
    verlet = VerletList(4.0, skin=0.5)
    verlet.update(atoms.positions, atoms.cell.array, atoms.pbc, atoms.numbers)
    atoms.positions[2] += 0.7
    edges = verlet.update(atoms.positions, atoms.cell.array, atoms.pbc, atoms.numbers)
    assert same(edges, neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, 4.0))


def test_no_skin_rebuilds_at_every_step_and_a_negative_one_is_refused():
    atoms = bulk("Cu")
    verlet = VerletList(4.0, skin=0.0)
    for _ in range(3):
        verlet.update(atoms.positions, atoms.cell.array, atoms.pbc, atoms.numbers)
    assert verlet.n_rebuilds == 3
    with pytest.raises(InputError, match=r"skin=-0\.1"):
        VerletList(4.0, skin=-0.1)


def test_a_verlet_list_survives_copy_and_pickle():
    atoms = bulk("Cu")
    verlet = VerletList(4.0)
    first = verlet.update(atoms.positions, atoms.cell.array, atoms.pbc, atoms.numbers)
    for twin in (copy.deepcopy(verlet), pickle.loads(pickle.dumps(verlet))):
        assert same(first, twin.update(atoms.positions, atoms.cell.array, atoms.pbc, atoms.numbers))
        assert twin.n_rebuilds == 1


def _same_edges(found, expected):
    assert all(np.array_equal(getattr(found, name).numpy(), getattr(expected, name)) for name in FIELDS[:3])
    np.testing.assert_allclose(found.distance.numpy(), expected.distance, rtol=1e-14)


@pytest.mark.parametrize("pbc", PERIODICITIES)
def test_the_search_for_gpus_finds_the_same_edges_in_the_same_order(pbc):
    """On CPU tensors, which the backend takes as well."""
    pytest.importorskip("vesin_torch")
    for seed in range(40):
        positions, cell, periodic, cutoff = random_structure(seed, pbc)
        if near_cutoff(positions, cell, periodic, cutoff):
            continue
        tensors = torch.tensor(positions), torch.tensor(cell)
        found = neighbor_tensors(*tensors, periodic, cutoff, on_device=True)
        _same_edges(found, neighbor_list(positions, cell, periodic, cutoff))


@pytest.mark.parametrize("on_device", [None, False])
def test_tensors_on_the_cpu_are_searched_as_arrays_are(on_device):
    for seed, pbc in enumerate(PERIODICITIES):
        positions, cell, periodic, cutoff = random_structure(seed, pbc)
        found = neighbor_tensors(torch.tensor(positions), torch.tensor(cell), periodic, cutoff, on_device=on_device)
        _same_edges(found, neighbor_list(positions, cell, periodic, cutoff))


def test_what_the_search_for_gpus_leaves_to_the_cpu():
    """No import of the backend: the precautions and the limit on neighbors need the CPU."""
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    far = slab.positions + np.array([5000.0, 0, 0])
    cell = torch.tensor(slab.cell.array)
    _same_edges(
        neighbor_tensors(torch.tensor(far), cell, slab.pbc, 5.0, on_device=True),
        neighbor_list(far, slab.cell.array, slab.pbc, 5.0),
    )
    _same_edges(
        neighbor_tensors(torch.tensor(slab.positions), cell, slab.pbc, 5.0, max_neighbors=6, on_device=True),
        neighbor_list(slab.positions, slab.cell.array, slab.pbc, 5.0, max_neighbors=6),
    )
    with pytest.raises(InputError, match="finite coordinates"):
        neighbor_tensors(torch.tensor(far) * torch.nan, cell, slab.pbc, 5.0, on_device=True)
    with pytest.raises(InputError, match="positive length"):
        neighbor_tensors(torch.tensor(far), cell, slab.pbc, 0.0, on_device=True)


@pytest.mark.parametrize("on_device", [False, True])
def test_edges_of_a_graph_from_its_positions(on_device):
    if on_device:
        pytest.importorskip("vesin_torch")
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    slab.rattle(0.1, seed=0)
    expected = convert.to_graph(slab, cutoff=5.0)
    bare = expected.replace(centre=expected.centre[:0], neighbor=expected.neighbor[:0], shift=expected.shift[:0])
    found = convert.with_edges(bare, 5.0, on_device=on_device)
    assert all(torch.equal(getattr(found, name), getattr(expected, name)) for name in FIELDS[:3])
    overlapping = bare.replace(positions=bare.positions.index_copy(0, torch.tensor([1]), bare.positions[:1] + 0.1))
    with pytest.raises(InputError, match="overlapping atoms"):
        convert.with_edges(overlapping, 5.0, on_device=on_device)
