"""Hand-written derivatives against autograd's own, and what edges share against what they have alone."""

import pytest
import torch
from ase.build import bulk, fcc111, molecule
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from faenet_calc.network import kernels
from faenet_calc.network.embeddings import EdgeStates
from faenet_calc.network.kernels import native
from faenet_calc.network.layers import EdgeNodeLinear
from faenet_calc.network.messages import gather_sum, swish, swish_messages
from faenet_calc.network.native import unavailable
from faenet_calc.potential.potential import build_potential


@pytest.fixture(autouse=True, params=["in torch", "in torch, two edges at a time", "compiled"])
def _way(request, monkeypatch):
    """The ways in which the same sums are computed."""
    if request.param != "compiled":
        monkeypatch.setattr("faenet_calc.network.kernels.native.serves", lambda *values: False)
    elif not native.serves(torch.zeros(1)):
        pytest.skip(f"no compiled library: {unavailable()}")
    if "two edges" in request.param:
        monkeypatch.setattr("faenet_calc.network.kernels.plain.CHUNK_NUMEL", 6)


CENTRE, NEIGHBOR = torch.tensor([0, 0, 1, 2, 2, 2, 3]), torch.tensor([1, 2, 0, 1, 3, 0, 2])


def _inputs(weighted: bool) -> list[torch.Tensor]:
    """z, x and, if asked for, weights, all differentiable."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 3), (4, 3), *([(7, 1)] if weighted else [])]
    return [(2 * torch.randn(*shape, generator=generator, dtype=torch.float64)).requires_grad_() for shape in shapes]


def _written(z: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    return swish_messages(z, x, weight, CENTRE, NEIGHBOR)


def _plain(z: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    rows = x[NEIGHBOR] * functional.silu(z)
    return torch.zeros_like(x).index_add(0, CENTRE, rows if weight is None else rows * weight)


@pytest.mark.parametrize("weighted", [False, True])
def test_messages_are_the_plain_formula(weighted):
    inputs = _inputs(weighted)
    assert torch.allclose(_written(*inputs), _plain(*inputs), atol=1e-14)
    assert gradcheck(_written, inputs)
    assert gradgradcheck(_written, inputs)


def _trained_on_gradients(messages, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Gradients of a loss that holds values and gradients, as in training on gradient forces."""
    value = messages(*inputs)
    gradients = torch.autograd.grad(value.square().sum(), inputs, create_graph=True)
    loss = value.sin().sum() + sum((k + 1) * gradient.square().sum() for k, gradient in enumerate(gradients))
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("weighted", [False, True])
def test_second_derivatives_are_those_of_autograd(weighted):
    inputs = _inputs(weighted)
    expected = _trained_on_gradients(_plain, inputs)
    for found, right in zip(_trained_on_gradients(_written, inputs), expected, strict=True):
        assert torch.allclose(found, right, rtol=1e-10, atol=1e-10)

    def reversed_ends(z, x, weight=None):
        return swish_messages(z, x, weight, NEIGHBOR, CENTRE)

    assert not torch.allclose(_trained_on_gradients(reversed_ends, inputs)[0], expected[0], rtol=1e-2)


def test_a_third_derivative_is_refused_not_wrong():
    (z,) = _inputs(False)[:1]
    (first,) = torch.autograd.grad(swish(z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second.sum().backward()


def test_sums_of_rows_are_sums_of_looked_up_rows():
    (z, x), picked = _inputs(False), torch.tensor([3, 0, 0, 6, 1, 2, 5])

    def plain(x, z):
        return x[CENTRE] + x[NEIGHBOR] + z[picked]

    def written(x, z):
        return gather_sum((x, CENTRE), (x, NEIGHBOR), (z, picked))

    assert torch.equal(written(x, z), plain(x, z))
    assert gradcheck(written, [x, z])
    assert gradgradcheck(lambda x, z: written(x, z).square(), [x, z])
    assert not torch.equal(written(x, z), plain(x.flip(0), z))


def test_swish_is_silu():
    z = torch.linspace(-60, 60, 41, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(swish(z), functional.silu(z), atol=1e-15)
    assert gradcheck(swish, [z])
    assert gradgradcheck(swish, [z])
    assert torch.isfinite(swish(torch.tensor([-1e4, 1e4]))).all()


def test_states_with_shared_columns_are_the_whole_states():
    generator = torch.Generator().manual_seed(0)
    row = torch.tensor([0, 1, 0, 2, 2, 1, 0])
    own, shared, h = (torch.randn(*shape, generator=generator) for shape in ((7, 2), (3, 3), (4, 6)))
    layer = EdgeNodeLinear(5, 6, 4, split=True)
    e = EdgeStates(own=own, shared=shared, row=row)
    found = layer.on_edges(e, h, NEIGHBOR, CENTRE)
    layer.split = False
    assert torch.allclose(found, layer.on_edges(EdgeStates(own=e.whole()), h, NEIGHBOR, CENTRE), atol=1e-5)
    other = EdgeStates(own=own, shared=shared, row=row.flip(0))
    assert not torch.allclose(found, layer.on_edges(other, h, NEIGHBOR, CENTRE), atol=1e-2)


@pytest.mark.parametrize("atoms", [bulk("Cu"), fcc111("Cu", (1, 2, 3), vacuum=6.0), molecule("CH3OH")], ids=str)
def test_pairs_are_edges_without_direction(atoms):
    graph = build_potential("modern-s").graph(atoms)
    pair_of_edge, edge_of_pair = graph.pairs()
    assert torch.equal(torch.bincount(pair_of_edge), torch.full_like(edge_of_pair, 2))
    assert torch.equal(pair_of_edge[edge_of_pair], torch.arange(len(edge_of_pair)))
    vectors = graph.edge_vectors()
    partner = vectors[edge_of_pair[pair_of_edge]]
    same = torch.minimum((vectors - partner).norm(dim=1), (vectors + partner).norm(dim=1))
    assert same.max() < 1e-12


def test_an_edge_without_its_reverse_is_a_pair_by_itself():
    graph = build_potential("modern-s").graph(bulk("Cu"))
    kept = torch.arange(graph.n_edges) != 3
    one_way = graph.replace(centre=graph.centre[kept], neighbor=graph.neighbor[kept], shift=graph.shift[kept])
    assert torch.bincount(one_way.pairs()[0]).tolist().count(1) == 1


SMALL = {"hidden_channels": 24, "filters": 20, "interactions": 2, "gaussians": 8, "cutoff": 4.0}


@pytest.mark.parametrize("second_layer", [True, False])
@pytest.mark.parametrize("message", ["base", "updownscale", "updownscale_base", "edge_filter"])
def test_network_and_its_training_gradient_do_not_depend_on_the_path(message, second_layer, monkeypatch):
    """The network with everything shared and written by hand, against concatenated states and autograd's silu."""
    changes = {"message": message, "atoms": {"second_layer": second_layer, "group_period_channels": 4}}
    quick = build_potential("modern-s", dtype="float64", **SMALL, **changes).requires_grad_(True)
    plain = build_potential("modern-s", dtype="float64", activation="silu", split_filter=False, **SMALL, **changes)
    plain.requires_grad_(True)
    slab = fcc111("Cu", (1, 2, 3), vacuum=6.0)
    slab.rattle(0.1, seed=0)

    def gradients(potential):
        found = potential.evaluate(potential.graph(slab), frames="all", create_graph=True)
        loss = found.energy.sum() + found.forces.square().sum()
        return [found.energy, found.forces, *torch.autograd.grad(loss, list(potential.model.parameters()))]

    expected = gradients(plain)
    for found, right in zip(gradients(quick), expected, strict=True):
        assert torch.allclose(found, right, rtol=1e-9, atol=1e-10)
    chosen = native if native.serves(expected[0]) else kernels.plain

    def without_curvature(grad_grad, grad_output, z, s):
        return chosen.swish_backward(grad_grad, z, s), 0 * z

    monkeypatch.setattr(chosen, "swish_double_backward", without_curvature)
    wrong = gradients(quick)
    assert torch.allclose(wrong[1], expected[1], atol=1e-10)  # forces need no second derivative, their training does
    assert not all(torch.allclose(a, b, rtol=1e-6, atol=1e-8) for a, b in zip(wrong, expected, strict=True))
