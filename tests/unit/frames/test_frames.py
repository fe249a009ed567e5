import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.cluster import Icosahedron, Octahedron

from faenet_calc.errors import InputError
from faenet_calc.frames import lattice, open_directions, pair
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
@pytest.mark.parametrize("mode", ["one", "pair", "all", "exact", "stochastic"])
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
@pytest.mark.parametrize("mode", ["one", "pair", "all", "exact"])
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
    modes = ("one", "pair", "all", "exact")
    assert [frames_of([slab], mode).n_frames for mode in modes] == [1, 2, 8, 40]
    assert [frames_of([crystal], mode).n_frames for mode in modes] == [1, 6, 24, 120]


def test_a_batch_has_the_frames_of_its_structures():
    slab, crystal, molecule_ = MIXED[0], MIXED[2], MIXED[1]
    for structures in ([slab, crystal, slab], [crystal, molecule_, slab]):
        together = frames_of(structures, "pair")
        for index, structure in enumerate(structures):
            alone = frames_of([structure], "pair")
            assert torch.equal(together.rotation[together.graph == index], alone.rotation)
            assert torch.equal(together.weight[together.graph == index], alone.weight)


def test_frames_of_bulk_crystals_do_not_depend_on_the_cyclic_order_of_the_axes_of_a_cube():
    axes = frames_of([bulk("Cu", cubic=True)], "pair").rotation
    turned = lattice.cyclic_orders()[1] @ axes
    distance = torch.cdist(axes.reshape(-1, 9), turned.reshape(-1, 9))
    assert float(distance.min(dim=1).values.max()) < 1e-12


MIRROR, INVERSE = torch.tensor([1.0, 1.0, -1.0]), torch.tensor([-1.0, -1.0, -1.0])


@pytest.mark.parametrize(
    ("config", "third_vector", "signs"),
    [
        ({"kind": "lattice"}, True, INVERSE),
        ({"kind": "lattice"}, False, MIRROR),
        ({"kind": "lattice", "proper": True}, True, torch.tensor([1.0, -1.0, -1.0])),
        ({"kind": "pca3d"}, True, MIRROR),
    ],
)
def test_pair_is_a_frame_and_its_inverse_or_mirror_image(config, third_vector, signs):
    slab = MIXED[0].copy()
    if not third_vector:
        slab.pbc, slab.cell[2] = (True, True, False), 0.0
    first, second = frames_of([slab], "pair", **config).rotation
    assert torch.equal(first, second * signs)
    assert torch.equal(first, frames_of([slab], "one", **config).rotation[0])


def test_molecules_keep_all_their_frames_in_pair_mode():
    assert torch.equal(frames_of([MIXED[1]], "pair").rotation, frames_of([MIXED[1]], "all").rotation)


@pytest.mark.parametrize("proper", [False, True])
def test_groups_are_closed(proper):
    for group in (lattice.slab_group(proper), lattice.icosahedral_group(proper)):
        products = (group[:, None] @ group[None]).reshape(-1, 9)
        distance = (
            torch.cdist(products, group.reshape(-1, 9), compute_mode="donot_use_mm_for_euclid_dist").min(dim=1).values
        )
        assert float(distance.max()) < 1e-9


def test_lattice_axes_follow_the_special_vector_in_cyclic_order():
    cell = torch.tensor([[[3.0, 0, 0], [1.0, 4, 0], [0.5, 0.5, 9]]], dtype=torch.float64)
    axes = lattice.lattice_axes(cell, torch.tensor([2]))[0]
    assert torch.allclose(axes, torch.eye(3, dtype=torch.float64))
    other = lattice.lattice_axes(cell, torch.tensor([0]))[0]
    assert torch.allclose(other[:, 0], cell[0, 1] / cell[0, 1].norm())


def test_reflected_cells_have_reflected_axes():
    cell = torch.tensor([[[3.0, 0, 0], [1.0, 4, 0], [0.5, 0.5, 9]]], dtype=torch.float64)
    turn = -lattice.random_rotation(torch.Generator().manual_seed(0))
    for special in (0, 1, 2):
        axes, other = (lattice.lattice_axes(c, torch.tensor([special]))[0] for c in (cell, cell @ turn))
        assert torch.allclose(other, turn.T @ axes)
        proper = lattice.lattice_axes(cell @ turn, torch.tensor([special]), proper=True)[0]
        assert float(torch.linalg.det(proper)) > 0 > float(torch.linalg.det(other))


def open_along(atoms):
    """The open directions of a structure, and how open the least decided one is."""
    opened = open_directions.openness(graph_of([atoms]), 5.0)[0]
    assert open_directions.is_decided(opened).all()
    return tuple(np.flatnonzero(opened > 0.5).tolist())


def relabelled(atoms, order, pbc=None):
    """The same structure with its cell vectors in another order."""
    changed = atoms.copy()
    changed.set_cell(atoms.cell[list(order)], scale_atoms=False)
    changed.pbc = atoms.pbc[list(order)] if pbc is None else pbc
    return changed


CYCLIC = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
LAYER = fcc111("Cu", (2, 2, 3), vacuum=8.0)
LAYER.pbc = True
CHAIN = Atoms("CuO", [[0, 0, 0], [0.3, 0.5, 1.8]], cell=[11, 12, 4], pbc=True)


@pytest.mark.parametrize("order", CYCLIC)
@pytest.mark.parametrize("shift", [0.0, 11.0])
def test_the_vacuum_of_a_slab_is_found_along_any_axis_and_in_any_image(order, shift):
    moved = LAYER.copy()
    moved.positions[:, 2] += shift
    moved.wrap()
    assert open_along(relabelled(moved, order)) == (order.index(2),)


@pytest.mark.parametrize("order", CYCLIC)
def test_a_wire_in_a_box_is_open_across_its_axis(order):
    assert open_along(relabelled(CHAIN, order)) == tuple(sorted({0, 1, 2} - {order.index(2)}))


@pytest.mark.parametrize("pbc", [(False, True, True), (True, False, True), (True, True, False)])
def test_a_non_periodic_direction_is_the_normal(pbc):
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.pbc = pbc
    assert open_along(atoms) == (pbc.index(False),)


def test_each_structure_of_a_batch_has_its_own_vacuum():
    structures = [relabelled(LAYER, order) for order in CYCLIC] + [bulk("Cu"), MIXED[0], Atoms("H")]
    opened = open_directions.openness(graph_of(structures), 5.0) > 0.5
    assert opened.tolist() == [[d in row for d in range(3)] for row in ((2,), (1,), (0,), (), (2,), (0, 1, 2))]
    gaps = open_directions.empty_layers(graph_of(structures))
    assert gaps[:3].max(axis=1).tolist() == pytest.approx([16.0] * 3)
    assert np.isinf(gaps[5]).all()


TILTED = [[13.0, 0, 0], [3, 14, 0], [-2, 1, 15]]


@pytest.mark.parametrize("pbc", [(True, True, True), (False, True, True), (True, False, False)])
@pytest.mark.parametrize("name", ["H2O", "CH3OH", "C6H6"])
def test_a_molecule_in_a_box_has_the_frames_of_the_free_one(name, pbc):
    free, boxed = molecule(name), molecule(name, cell=TILTED, pbc=pbc)
    boxed.positions += [11.0, -7.3, 4.4]  # across the borders of the cell
    boxed.wrap()
    there, here = frames_of([boxed]), frames_of([free])
    assert torch.allclose(there.weight, here.weight, atol=1e-12)
    assert torch.allclose(there.rotation, here.rotation, atol=1e-9)
    crowded = molecule(name, cell=[14, 14, 4 + np.ptp(free.positions[:, 2])], pbc=True)
    assert not torch.allclose(frames_of([crowded]).rotation[:2], here.rotation[:2], atol=1e-3)


def test_a_wire_in_a_box_has_the_frames_of_the_free_one():
    free = CHAIN.copy()
    free.pbc = (False, False, True)
    one, other = frames_of([free]), frames_of([CHAIN])
    for name in ("rotation", "graph", "weight"):
        assert np.allclose(getattr(one, name), getattr(other, name)), name


def test_frames_change_smoothly_when_a_gap_opens():
    """The derivative of the weights is that of finite differences; at both ends one description has all the weight."""
    body = molecule("CH3OH")
    thickness = np.ptp(body.positions[:, 2])

    def open_share(gap, shift=0.0):
        atoms = body.copy()
        atoms.set_cell([14, 14, thickness + gap])
        atoms.pbc = True
        atoms.positions[np.argmax(atoms.positions[:, 2]), 2] += shift
        graph = graph_of([atoms])
        leaf = graph.replace(positions=graph.positions.requires_grad_())
        return open_directions.differentiable_openness(leaf, 5.0)[2], leaf.positions

    assert open_share(3.99)[0].item() == 0.0 and open_share(5.01)[0].item() == 1.0
    for gap in (4.1, 4.5, 4.95):
        value, positions = open_share(gap)
        (gradient,) = torch.autograd.grad(value, positions)
        expected = (open_share(gap, 1e-5)[0].item() - open_share(gap, -1e-5)[0].item()) / 2e-5
        assert 0 < value.item() < 1
        assert float(gradient.sum(dim=0).abs().max()) < 1e-12
        assert float(gradient[int(np.argmax(body.positions[:, 2])), 2]) == pytest.approx(expected, abs=1e-6)
        closed, blended = (
            frames_of([Atoms(body.symbols, body.positions, cell=[14, 14, thickness + height], pbc=True)])
            for height in (3.9, gap)
        )
        assert float(blended.weight[: closed.n_frames].sum()) == pytest.approx(1 - value.item())
        assert float(blended.weight.sum()) == pytest.approx(1)


@pytest.mark.parametrize("signs", [(1, 1, -1), (-1, 1, 1), (1, -1, -1), (-1, -1, -1)])
@pytest.mark.parametrize("order", CYCLIC)
def test_signs_and_cyclic_order_of_cell_vectors_do_not_change_the_frames_of_a_slab(order, signs):
    changed = relabelled(LAYER, order)
    changed.set_cell(changed.cell.array * np.array(signs)[:, None], scale_atoms=False)
    for pbc in (changed.pbc, [index != order.index(2) for index in range(3)]):
        changed.pbc = pbc
        frames = [frames_of([atoms]).rotation.reshape(-1, 9) for atoms in (LAYER, changed)]
        distance = torch.cdist(*frames, compute_mode="donot_use_mm_for_euclid_dist")
        assert float(distance.min(dim=1).values.max()) < 1e-12


@pytest.mark.parametrize(("name", "at_most"), [("CH4", 24), ("C6H6", 48), ("H2O", 8), ("CO2", 16), ("NH3", 12)])
def test_molecules_have_few_frames(name, at_most):
    assert frames_of([molecule(name)]).n_frames <= at_most


CLUSTERS = {
    "Ih55": (Icosahedron("Cu", 3), 120),
    "Ih147": (Icosahedron("Cu", 4), 120),
    "Oh38": (Octahedron("Cu", 4, 1), 144),
    "Oh147": (Octahedron("Cu", 7, 3), 96),
    "C60": (molecule("C60"), 360),
}


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("rattle", [0.0, 0.02, 0.15])
def test_large_molecules_have_few_frames(name, rattle):
    """Few times the order of the point group, which is the least that is exact, and fewer for distorted ones."""
    cluster, at_most = CLUSTERS[name]
    displaced = cluster.positions + np.random.default_rng(0).normal(scale=rattle, size=(len(cluster), 3))
    _, weights = pair.molecule_frames(torch.as_tensor(displaced))
    assert len(weights) <= at_most


@pytest.mark.parametrize("name", CLUSTERS)
def test_frames_of_large_molecules_are_smooth(name):
    """Third moments of the frames along a path: second differences shrink fourfold when the step is halved."""
    positions = torch.as_tensor(CLUSTERS[name][0].positions)
    direction = torch.randn(positions.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def moment(step):
        rotations, weights = pair.molecule_frames(positions + step * direction)
        return torch.einsum("f,fij,fkl,fmn->ijklmn", weights, rotations, rotations, rotations)

    def second_difference(step):
        return float((moment(step) - 2 * moment(0.0) + moment(-step)).abs().max())

    assert second_difference(1e-3) / second_difference(5e-4) == pytest.approx(4.0, rel=0.05)


def test_stochastic_frames_come_from_the_generator_alone():
    with pytest.raises(InputError, match=r"without a torch\.Generator"):
        frames_of(MIXED, "stochastic")
    torch.manual_seed(5)
    first = frames_of(MIXED, "stochastic", torch.Generator().manual_seed(1)).rotation
    torch.manual_seed(6)
    np.random.seed(0)
    assert torch.equal(first, frames_of(MIXED, "stochastic", torch.Generator().manual_seed(1)).rotation)
    assert not torch.allclose(first, frames_of(MIXED, "stochastic", torch.Generator().manual_seed(2)).rotation)


@pytest.mark.parametrize(
    ("structure", "kept", "setting"), [(0, 2, "free_orientation_slabs"), (1, None, "free_orientation")]
)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_stochastic_frames_are_free_with_the_given_probability(structure, kept, setting, share):
    """A slab keeps its normal (up to its sign) unless the orientation is free, a molecule one of its pair frames."""
    generator, own = torch.Generator().manual_seed(0), frames_of([MIXED[structure]]).rotation
    n_own = 0
    for _ in range(60):
        drawn = frames_of([MIXED[structure]], "stochastic", generator, **{setting: share}).rotation
        difference = (own - drawn).abs() if kept is None else (own - drawn)[:, :, kept].abs()
        n_own += bool((difference.flatten(1).amax(dim=1) < 1e-9).any())
    assert abs(60 - n_own - 60 * share) <= (15 if share == 0.5 else 0)


@pytest.mark.parametrize("setting", ["free_orientation", "free_orientation_slabs"])
def test_a_probability_above_one_is_refused(setting):
    with pytest.raises(InputError, match=f"{setting}=1.5, expected a probability from 0 to 1"):
        FramesConfig(**{setting: 1.5})


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
