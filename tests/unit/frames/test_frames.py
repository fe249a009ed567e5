import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule

from faenet_calc.errors import InputError
from faenet_calc.frames import lattice, pair
from faenet_calc.frames.config import FramesConfig
from faenet_calc.frames.frames import build_frames, copy_into_frames, into_frame, out_of_frame
from faenet_calc.graphs.convert import to_batch

WIRE = Atoms("CuO", [[0, 0, 0], [1.8, 0.5, 0]], cell=[4, 9, 9], pbc=[True, False, False])
MIXED = [fcc111("Cu", (2, 2, 3), vacuum=8.0), molecule("CH3CH2OH"), bulk("Cu"), WIRE, Atoms("H"), molecule("CO2")]


def graph_of(structures, dtype=torch.float64):
    return to_batch(structures, cutoff=5.0, dtype=dtype, device="cpu")


def frames_of(structures, mode="all", generator=None, **config):
    return build_frames(graph_of(structures), FramesConfig(**config), mode, vacuum=5.0, generator=generator)


@pytest.mark.parametrize("kind", ["lattice", "pca3d", "pca2d", "none", "augment3d", "augment2d"])
@pytest.mark.parametrize("mode", ["one", "all", "exact", "stochastic"])
@pytest.mark.parametrize("proper", [False, True])
def test_frames_are_orthogonal_and_weights_sum_to_one(kind, mode, proper):
    frames = frames_of(MIXED, mode, torch.Generator().manual_seed(0), kind=kind, proper=proper)
    identity = frames.rotation @ frames.rotation.transpose(1, 2)
    assert torch.allclose(identity, torch.eye(3, dtype=torch.float64).expand_as(identity), atol=1e-10)
    sums = torch.zeros(len(MIXED), dtype=torch.float64).index_add(0, frames.graph, frames.weight)
    assert torch.allclose(sums, torch.ones_like(sums))
    if proper and mode in ("all", "stochastic"):
        assert bool((torch.linalg.det(frames.rotation) > 0).all())


@pytest.mark.parametrize("kind", ["lattice", "pca3d", "pca2d"])
@pytest.mark.parametrize("mode", ["one", "all", "exact"])
def test_frames_in_float32_are_those_of_float64(kind, mode):
    config = FramesConfig(kind=kind)
    # Principal axes of symmetric structures are not defined; those of the lattice and of pairs of atoms are.
    asymmetric = [MIXED[0], MIXED[1], MIXED[2], WIRE] if kind == "lattice" else [MIXED[1]]
    narrow, wide = (
        build_frames(graph_of(asymmetric, dtype), config, mode, vacuum=5.0) for dtype in (torch.float32, torch.float64)
    )
    assert narrow.rotation.dtype == torch.float32
    for member in range(len(asymmetric)):
        frames = [one.rotation[one.graph == member].double() for one in (narrow, wide)]
        weights = [one.weight[one.graph == member].double() for one in (narrow, wide)]
        # Eigenvectors come with arbitrary signs; squares do not see them.
        squares = [torch.einsum("f,fij->ij", w, r.square()) for r, w in zip(frames, weights, strict=True)]
        assert torch.allclose(squares[0], squares[1], atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "proper", "expected"), [("pca3d", False, 8), ("pca3d", True, 4), ("pca2d", False, 4), ("pca2d", True, 2)]
)
def test_number_of_paper_frames(kind, proper, expected):
    assert frames_of([MIXED[1]], kind=kind, proper=proper).n_frames == expected


def test_number_of_lattice_frames():
    slab, crystal = MIXED[0], MIXED[2]
    assert [frames_of([slab], mode).n_frames for mode in ("one", "all", "exact")] == [1, 8, 40]
    assert [frames_of([crystal], mode).n_frames for mode in ("one", "all", "exact")] == [1, 8, 120]


@pytest.mark.parametrize("proper", [False, True])
def test_groups_are_closed(proper):
    for group in (lattice.slab_group(proper), lattice.icosahedral_group(proper)):
        products = (group[:, None] @ group[None]).reshape(-1, 9)
        distance = (
            torch.cdist(products, group.reshape(-1, 9), compute_mode="donot_use_mm_for_euclid_dist").min(dim=1).values
        )
        assert float(distance.max()) < 1e-9


def test_lattice_axes_belong_to_the_first_periodic_vectors():
    cell = torch.tensor([[[3.0, 0, 0], [1.0, 4, 0], [0.5, 0.5, 9]]], dtype=torch.float64)
    axes = lattice.lattice_axes(cell, torch.tensor([[True, True, False]]))[0]
    assert torch.allclose(axes, torch.eye(3, dtype=torch.float64))
    other = lattice.lattice_axes(cell, torch.tensor([[False, True, True]]))[0]
    assert torch.allclose(other[:, 0], cell[0, 1] / cell[0, 1].norm())


def test_a_slab_is_one_in_any_image():
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    slab.pbc = True
    for shift in (0.0, 11.0):
        moved = slab.copy()
        moved.positions[:, 2] += shift
        moved.wrap()
        graph = graph_of([moved])
        assert lattice.is_slab(graph.positions, graph.cell[0], graph.pbc[0], 5.0)
    crystal = graph_of([bulk("Cu", cubic=True)])
    assert not lattice.is_slab(crystal.positions, crystal.cell[0], crystal.pbc[0], 5.0)


@pytest.mark.parametrize(("name", "at_most"), [("CH4", 24), ("C6H6", 48), ("H2O", 8), ("CO2", 8), ("NH3", 12)])
def test_molecules_have_few_frames(name, at_most):
    assert frames_of([molecule(name)]).n_frames <= at_most


def test_frames_of_large_clusters_are_capped_and_weights_stay_continuous():
    from ase.cluster import Icosahedron

    cluster = Icosahedron("Cu", 4)
    positions = torch.as_tensor(cluster.positions)
    rotations, weights = pair.molecule_frames(positions)
    assert len(weights) <= 4 * pair.MAX_AXES * pair.MAX_PARTNERS
    moved = positions + 1e-9 * torch.randn(positions.shape, generator=torch.Generator().manual_seed(0)).double()
    nearby, new_weights = pair.molecule_frames(moved)
    moments = [torch.einsum("f,fij->ij", w, r) for r, w in ((rotations, weights), (nearby, new_weights))]
    assert torch.allclose(moments[0], moments[1], atol=1e-6)


def test_stochastic_frames_come_from_the_generator_alone():
    with pytest.raises(InputError, match=r"without a torch\.Generator"):
        frames_of(MIXED, "stochastic")
    torch.manual_seed(5)
    first = frames_of(MIXED, "stochastic", torch.Generator().manual_seed(1)).rotation
    torch.manual_seed(6)
    np.random.seed(0)
    assert torch.equal(first, frames_of(MIXED, "stochastic", torch.Generator().manual_seed(1)).rotation)
    assert not torch.allclose(first, frames_of(MIXED, "stochastic", torch.Generator().manual_seed(2)).rotation)


def test_molecules_are_seen_in_pair_frames_and_in_any_orientation():
    generator, drawn = torch.Generator().manual_seed(0), []
    own = frames_of([MIXED[1]]).rotation
    for _ in range(60):
        rotation = frames_of([MIXED[1]], "stochastic", generator).rotation
        drawn.append(bool(torch.isclose(own, rotation, atol=1e-9).all(dim=2).all(dim=1).any()))
    assert 15 < sum(drawn) < 45


def test_copies_carry_the_edges_of_their_structure():
    graph = graph_of(MIXED)
    frames = frames_of(MIXED)
    framed = copy_into_frames(graph, frames.graph)
    assert framed.n_nodes == int(graph.atoms_per_graph[frames.graph].sum())
    assert torch.equal(framed.atom_of_node[framed.centre], graph.centre[framed.edge_of_copy])
    assert torch.equal(framed.atom_of_node[framed.neighbor], graph.neighbor[framed.edge_of_copy])
    assert torch.equal(framed.frame_of_node[framed.centre], framed.frame_of_edge)
    assert torch.equal(framed.frame_of_node[framed.neighbor], framed.frame_of_edge)
    assert bool((framed.centre.diff() >= 0).all())


def test_out_of_frame_undoes_into_frame():
    rotation = frames_of([MIXED[1]]).rotation
    vectors = torch.randn(len(rotation), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(out_of_frame(into_frame(vectors, rotation), rotation), vectors)
