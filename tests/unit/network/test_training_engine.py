"""Compiled gradients of losses on energies, forces and stress against autograd in float64."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, molecule

from faenet_calc.frames.frames import copy_into_frames
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network import training_engine
from faenet_calc.network.native import INSTRUCTION_SETS, library, unavailable
from faenet_calc.potential import forward as forward_module
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.potential.potential import build_potential

pytestmark = pytest.mark.skipif(library() is None, reason=f"no compiled library: {unavailable()}")

WIDTHS = {"hidden_channels": 56, "filters": 40, "interactions": 2, "gaussians": 17}
VARIANTS = {
    "modern-s": {},
    "one interaction, widths that are not those of panels": {**WIDTHS, "interactions": 1},
    "feed-forward layer": {**WIDTHS, "feed_forward": 72},
    "narrow edge embedding": {**WIDTHS, "edge_channels": 24},
    "filters of edges alone": {**WIDTHS, "message": "updownscale"},
    "energy of the last states": {**WIDTHS, "jumping": "none"},
    "sum over states": {**WIDTHS, "jumping": "add"},
    "hard cutoff": {**WIDTHS, "envelope_power": 0},
}
TOLERANCE = 2e-5  # of the largest derivative with respect to a tensor of weights


def structures():
    slab = fcc100("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(slab, molecule("CO2"), 3.0, "ontop")
    slab.pbc = True
    slab.set_tags(np.minimum(slab.get_tags(), 2))
    crystal = bulk("Pd", cubic=True)
    crowded = molecule("H2O")
    crowded.positions[1] += 0.35 * (crowded.positions[0] - crowded.positions[1])  # inside the repulsion
    found = [slab, crystal, crowded, molecule("CH3OH"), Atoms("Cu"), Atoms("Pt2", [[0, 0, 0], [0, 0, 9]])]
    for number, atoms in enumerate(found):
        atoms.rattle(0.05, seed=number)
    return found


def potential(variant, dtype="float32"):
    """A potential with random weights, those that are zero at the start included."""
    made = build_potential("modern-s", dtype="float64", **VARIANTS[variant])
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return made.to(getattr(torch, dtype)).train().requires_grad_(True)


def gradients(potential, graph, frames="stochastic", properties=("energy", "forces", "stress"), factor=1.0):
    """Results, and derivatives of a random linear function of them with respect to all weights."""
    potential.zero_grad(set_to_none=True)
    generator, draws = torch.Generator().manual_seed(3), torch.Generator().manual_seed(5)
    found = potential.evaluate(graph, properties=properties, frames=frames, create_graph=True, generator=draws)
    results = {name: getattr(found, name) for name in properties}
    draw = {name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in results.items()}
    sum(
        (draw[name] * value * (factor if name == "forces" else 1.0)).sum() for name, value in results.items()
    ).backward()
    weights = {name: parameter.grad for name, parameter in potential.named_parameters()}
    return {name: value.detach() for name, value in results.items()}, weights


def difference(found, expected):
    """Largest difference of the derivatives in units of the largest of each tensor."""
    assert found.keys() == expected.keys()
    worst, largest = 0.0, max(float(value.abs().max()) for value in expected.values() if value is not None)
    for name, wanted in expected.items():
        if wanted is None:  # the energy of an atom alone, in a loss of forces
            assert found[name] is None or not found[name].any(), name
            continue
        scale = float(wanted.abs().max()) + 1e-3 * largest
        worst = max(worst, float((found[name] - wanted).abs().max()) / scale)
    return worst


@pytest.fixture
def calls(monkeypatch):
    """Which calls ran compiled code."""
    made = []
    original = training_engine._Call.run

    def run(self, second, *arguments):
        made.append(second)
        return original(self, second, *arguments)

    monkeypatch.setattr(training_engine._Call, "run", run)
    return made


def compare(single, graph, calls, **options):
    found, gradients_found = gradients(single, graph, **options)
    assert calls == [0, 1]
    expected, gradients_expected = gradients(copy.deepcopy(single).double(), graph, **options)
    assert calls == [0, 1]  # float64 has no compiled code
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) < 1e-5 * max(1.0, float(value.abs().max())), name
    assert difference(gradients_found, gradients_expected) < TOLERANCE
    return gradients_found, gradients_expected


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_gradients_are_those_of_autograd(variant, calls):
    single = potential(variant)
    graph = AtomGraph.batch([single.graph(atoms) for atoms in structures()])
    found, expected = compare(single, graph, calls)
    assert all(value is not None for value in found.values())
    forces_too_large = gradients(copy.deepcopy(single).double(), graph, factor=1.001)[1]
    assert difference(forces_too_large, expected) > TOLERANCE


@pytest.mark.parametrize("frames", ["one", "pair", "all"])
@pytest.mark.parametrize("number", range(4))
def test_gradients_through_several_frames_and_their_own_derivatives(number, frames, calls):
    single = potential("feed-forward layer")
    compare(single, single.graph(structures()[number]), calls, frames=frames)


@pytest.mark.parametrize("properties", [("energy", "forces"), ("energies", "stress"), ("forces",)])
def test_gradients_of_some_properties(properties, calls):
    single = potential("modern-s")
    graph = AtomGraph.batch([single.graph(atoms) for atoms in structures()])
    compare(single, graph, calls, properties=properties)


@pytest.mark.parametrize("name", ["metals-m", "catalysis-m"])
def test_gradients_of_trained_weights_are_as_exact_as_those_of_autograd(name, calls, monkeypatch):
    single = load_potential(name, device="cpu").train().requires_grad_(True)
    graph = AtomGraph.batch([single.graph(atoms) for atoms in structures()[:4]])
    compiled = gradients(single, graph)[1]
    assert calls == [0, 1]
    monkeypatch.setattr(forward_module, "fits_training_engine", lambda *arguments: False)
    plain = gradients(single, graph)[1]
    assert calls == [0, 1]
    exact = gradients(copy.deepcopy(single).double(), graph)[1]
    assert difference(compiled, exact) < 1.3 * difference(plain, exact) < 1e-3


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_every_instruction_set(instructions, calls, monkeypatch):
    if library(instructions) is None:
        pytest.skip("no compiled library for these instructions")
    monkeypatch.setattr(training_engine, "library", lambda: library(instructions))
    single = potential("feed-forward layer")
    compare(single, single.graph(structures()[0]), calls)


def test_results_are_the_same_every_time_and_with_two_threads_to_rounding(calls, monkeypatch):
    single = potential("feed-forward layer")
    graph = AtomGraph.batch([single.graph(atoms) for atoms in 3 * structures()])
    one, again = gradients(single, graph)[1], None
    one = {name: value.clone() for name, value in one.items()}
    again = gradients(single, graph)[1]
    assert all(torch.equal(one[name], again[name]) for name in one)
    monkeypatch.setattr(training_engine, "n_threads", lambda found: 2)
    two = {name: value.clone() for name, value in gradients(single, graph)[1].items()}
    again = gradients(single, graph)[1]
    assert all(torch.equal(two[name], again[name]) for name in two)
    assert not all(torch.equal(one[name], two[name]) for name in one)  # sums in another order
    assert difference(two, one) < TOLERANCE


def test_two_batches_at_the_same_time_do_not_share_memory():
    single = potential("feed-forward layer")
    graphs = [single.graph(atoms) for atoms in structures()[:2]]
    expected = [gradients(single, graph)[1] for graph in graphs]
    single.zero_grad(set_to_none=True)
    losses = []
    for graph in graphs:
        found = single.evaluate(graph, properties=("forces",), frames="one", create_graph=True)
        losses.append((found.forces**2).sum())
    both = sum(losses)
    both.backward()
    together = {name: parameter.grad.clone() for name, parameter in single.named_parameters()}
    single.zero_grad(set_to_none=True)
    for graph in graphs:
        (single.evaluate(graph, properties=("forces",), frames="one", create_graph=True).forces ** 2).sum().backward()
    assert difference(together, {name: parameter.grad for name, parameter in single.named_parameters()}) < 1e-6
    assert expected[0].keys() == together.keys()


def test_second_backward_pass_gives_the_same():
    single = potential("modern-s")
    found = single.evaluate(single.graph(structures()[0]), properties=("forces",), frames="one", create_graph=True)
    weights = list(single.model.parameters())
    loss = (found.forces**2).sum()
    first = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    second = torch.autograd.grad(loss, weights, allow_unused=True)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [
        ("modern-s", {"message": "base"}),
        ("modern-s", {"graph_norm": True}),
        ("modern-s", {"extra_layer": True}),
        ("modern-s", {"energy_weighting": "final"}),
        ("modern-s", {"activation": "gelu"}),
        ("modern-s", {"edge_features": "all"}),
        ("modern-s", {"split_filter": False}),
        ("paper-s2ef", {}),
    ],
)
def test_other_models_use_autograd(preset, overrides, calls):
    made = build_potential(preset, **overrides).train().requires_grad_(True)
    assert not training_engine.supports(made.model)
    found = made.evaluate(
        made.graph(structures()[0]), properties=("energy", "forces"), forces="gradient", frames="one", create_graph=True
    )
    (found.forces**2).sum().backward()
    assert not calls


def test_a_cell_of_the_caller_keeps_its_derivatives(calls):
    single = potential("modern-s")
    graph = single.graph(structures()[1])
    cell = graph.cell.clone().requires_grad_()
    found = single.evaluate(graph.with_leaves(cell=cell), properties=("forces",), frames="one", create_graph=True)
    (found.forces**2).sum().backward()
    assert not calls and float(cell.grad.abs().max()) > 0


def test_wrong_indices_are_refused():
    single = potential("modern-s")
    graph = AtomGraph.batch([single.graph(atoms) for atoms in structures()[:2]])
    framed = copy_into_frames(graph, torch.arange(2))
    n_edges = len(framed.centre)
    numbers = [torch.ones(n_edges, 3), torch.ones(n_edges), torch.ones(n_edges), torch.ones(framed.n_nodes)]
    training_engine.energies_and_gradients(single.model, framed, *numbers)
    for name, change in (("neighbor", 12), ("centre", -1)):  # atoms of another copy, or none
        broken = dataclasses.replace(framed, **{name: getattr(framed, name) + change})
        with pytest.raises(IndexError, match=name):
            training_engine.energies_and_gradients(single.model, broken, *numbers)
    with pytest.raises(ValueError, match="vectors"):
        training_engine.energies_and_gradients(single.model, framed, numbers[0][1:], *numbers[1:])
