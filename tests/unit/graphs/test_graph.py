"""AtomGraph: conventions, batching, splitting, derivatives of edge vectors, interchange with PyG."""

import doctest

import numpy as np
import pytest
import torch
from ase.build import bulk, fcc111, molecule

import faenet_calc.graphs.graph
from faenet_calc.errors import InputError
from faenet_calc.graphs.convert import to_batch, to_graph
from faenet_calc.graphs.graph import AtomGraph

FIELDS = ("positions", "atomic_numbers", "tags", "cell", "pbc", "graph_of_atom", "centre", "neighbor", "shift")


def structures():
    return [fcc111("Cu", (2, 2, 3), vacuum=6.0), molecule("CH4"), molecule("H"), bulk("Cu")]


def batch() -> AtomGraph:
    return to_batch(structures(), cutoff=4.0)


def same(a: AtomGraph, b: AtomGraph) -> bool:
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in FIELDS)


def test_the_conventions_in_the_docstring_hold():
    assert doctest.testmod(faenet_calc.graphs.graph).failed == 0


def test_edge_vectors_point_from_the_centre_to_the_image_of_the_neighbor():
    atoms = bulk("Cu")
    atoms.positions += 0.3
    graph = to_graph(atoms, cutoff=4.0)
    for edge, vector in enumerate(graph.edge_vectors().numpy()):
        i, j, shift = int(graph.centre[edge]), int(graph.neighbor[edge]), graph.shift[edge].numpy()
        np.testing.assert_allclose(
            vector, atoms.positions[j] + shift @ atoms.cell.array - atoms.positions[i], atol=1e-12
        )


def test_edge_vectors_are_differentiable_in_positions_and_cell():
    graph = to_graph(fcc111("Cu", (1, 1, 2), vacuum=3.0), cutoff=3.0)
    positions, cell = graph.positions.clone().requires_grad_(), graph.cell.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p, c: graph.replace(positions=p, cell=c).edge_vectors(), (positions, cell))


def test_batch_and_split_are_inverse():
    members = [to_graph(atoms, cutoff=4.0) for atoms in structures()]
    joined = AtomGraph.batch(members)
    assert joined.n_graphs == 4
    assert joined.n_atoms == sum(g.n_atoms for g in members)
    assert joined.atoms_per_graph.tolist() == [12, 5, 1, 1]
    assert joined.edges_per_graph.tolist() == [g.n_edges for g in members]
    assert all(same(a, b) for a, b in zip(joined.split(), members, strict=True))
    assert same(AtomGraph.batch([AtomGraph.batch(members[:2]), AtomGraph.batch(members[2:])]), joined)


def test_edges_of_a_batch_are_sorted_by_centre_and_stay_within_their_graph():
    graph = batch()
    assert bool((graph.centre.diff() >= 0).all())
    assert torch.equal(graph.graph_of_edge, graph.graph_of_atom[graph.neighbor])


def test_sums_over_atoms_are_per_graph():
    graph = batch()
    assert graph.sum_over_atoms(torch.ones(graph.n_atoms)).tolist() == [12.0, 5.0, 1.0, 1.0]
    assert graph.sum_over_atoms(graph.positions).shape == (4, 3)


def test_volume_is_positive_for_left_handed_cells():
    atoms = bulk("Cu")
    flipped = atoms.copy()
    flipped.set_cell(atoms.cell.array[[1, 0, 2]])
    assert to_graph(atoms, cutoff=3.0).volume.item() == pytest.approx(atoms.get_volume())
    assert to_graph(flipped, cutoff=3.0).volume.item() == pytest.approx(atoms.get_volume())


def test_dtype_moves_positions_and_cell_only():
    graph = batch().to(dtype=torch.float32)
    assert {name: getattr(graph, name).dtype for name in FIELDS} == {
        "positions": torch.float32,
        "cell": torch.float32,
        "pbc": torch.bool,
        **dict.fromkeys(("atomic_numbers", "tags", "graph_of_atom", "centre", "neighbor", "shift"), torch.int64),
    }


def test_keeping_some_atoms_keeps_the_edges_among_them():
    graph = batch()
    kept = torch.ones(graph.n_atoms, dtype=torch.bool)
    kept[[0, 5, 13]] = False
    smaller = graph.keep_atoms(kept)
    inside = kept[graph.centre] & kept[graph.neighbor]
    assert smaller.n_atoms == graph.n_atoms - 3
    assert smaller.n_graphs == graph.n_graphs
    assert torch.equal(smaller.edge_vectors(), graph.edge_vectors()[inside])
    assert torch.equal(smaller.atomic_numbers[smaller.neighbor], graph.atomic_numbers[graph.neighbor[inside]])


def test_a_graph_cannot_be_edited_or_built_with_wrong_shapes():
    graph = batch()
    with pytest.raises(AttributeError):
        graph.positions = torch.zeros(1)
    with pytest.raises(ValueError, match=r"AtomGraph.cell has shape \(3, 3\), expected \(3, 3, 3\)"):
        graph.replace(cell=torch.eye(3))
    with pytest.raises(InputError, match="batch of 0"):
        AtomGraph.batch([])


def test_pyg_has_upstreams_sign_and_fields_and_comes_back():
    graph = batch()
    data = graph.to_pyg()
    source, target = data.edge_index
    cell = data.cell[data.batch[target]]
    theirs = data.pos[source] - data.pos[target] + torch.einsum("ek,ekx->ex", data.cell_offsets.double(), cell)
    torch.testing.assert_close(theirs, graph.edge_vectors())
    assert data.natoms.tolist() == [12, 5, 1, 1]
    assert data.neighbors.tolist() == graph.edges_per_graph.tolist()
    assert same(AtomGraph.from_pyg(data), graph)


def test_pyg_edges_in_another_order_come_back_sorted():
    graph = to_graph(structures()[0], cutoff=4.0)
    data = graph.to_pyg()
    order = torch.randperm(graph.n_edges)
    data.edge_index, data.cell_offsets = data.edge_index[:, order], data.cell_offsets[order]
    back = AtomGraph.from_pyg(data)
    assert torch.equal(back.centre, graph.centre)
    expected, found = ({tuple(v) for v in g.edge_vectors().numpy().round(9).tolist()} for g in (graph, back))
    assert found == expected


def test_pyg_without_pbc_is_periodic_exactly_if_it_has_a_cell_and_offsets():
    data = to_graph(bulk("Cu"), cutoff=4.0).to_pyg()[0]
    del data.pbc
    assert AtomGraph.from_pyg(data).pbc.tolist() == [[True] * 3]
    del data.cell, data.cell_offsets
    assert AtomGraph.from_pyg(data).pbc.tolist() == [[False] * 3]


def test_a_moved_graph_remembers_the_one_on_the_host():
    graph = batch()
    moved = graph.to(device="meta")
    assert moved.on_host is graph and graph.on_host is graph
    assert moved.with_leaves(positions=torch.empty_like(moved.positions)).on_host is graph
    with pytest.raises(NotImplementedError, match="meta"):  # other values: they have to come from the device
        _ = moved.replace(positions=torch.empty_like(moved.positions)).on_host


def test_a_graph_that_need_not_move_is_returned():
    graph = batch()
    assert graph.to(device="cpu", dtype=torch.float64) is graph
    assert graph.to(dtype=torch.float32).positions.dtype == torch.float32


def test_counts_include_empty_structures():
    assert faenet_calc.graphs.graph.counts(torch.tensor([0, 0, 2]), 4).tolist() == [2, 0, 1, 0]
