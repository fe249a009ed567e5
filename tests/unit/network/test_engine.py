"""The fused engine against the same network in PyTorch (float64): every shipped model, kind of structure and output."""

import copy

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, molecule
from torch._subclasses.fake_tensor import FakeTensorMode

from faenet_calc.frames.frames import build_frames, copy_into_frames, into_frame
from faenet_calc.network.engine import Engine, engine_for
from faenet_calc.network.native import INSTRUCTION_SETS, library, unavailable
from faenet_calc.network.packing import DirectionalBasis
from faenet_calc.potential import forward as forward_module
from faenet_calc.potential import shipped
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.potential.edge_lengths import EdgeLengths
from faenet_calc.potential.potential import Potential, build_potential
from faenet_calc.potential.repulsion import close_contacts

pytestmark = pytest.mark.skipif(library() is None, reason=f"no compiled library: {unavailable()}")

TOLERANCES = {"energy": 1e-5, "energies": 1e-5, "forces": 1e-4, "stress": 1e-5}  # eV, eV/Å, eV/Å³
SPREADS = {"energy": 1e-5, "energy_frame_std": 1e-5, "forces_frame_std": 1e-4}


def _structures(metal: str) -> dict[str, Atoms]:
    slab = fcc100(metal, (2, 2, 3), vacuum=8.0)
    add_adsorbate(slab, molecule("CO2"), 3.0, "ontop")
    slab.pbc = True
    slab.set_tags(np.minimum(slab.get_tags(), 2))
    crystal = bulk(metal, cubic=True)
    for number, atoms in enumerate((slab, crystal)):
        atoms.rattle(0.05, seed=number)
    return {
        "slab": slab,
        "bulk": crystal,
        "molecule": molecule("CO2"),
        "molecule in a box": Atoms("CO", [[0, 0, 0], [0, 0.1, 1.15]], cell=[9, 9, 9], pbc=True),
        "wire": Atoms(f"{metal}2", [[0, 0, 0], [2.5, 0.4, 0]], cell=[5.0, 0, 0], pbc=[True, False, False]),
        "isolated atom": Atoms(metal),
        "atoms without neighbors": Atoms(f"{metal}2", [[0, 0, 0], [0, 0, 9]]),
    }


def _models() -> list[str]:
    return [name for name in shipped.names() if load_potential(name, device="cpu").config.forces == "gradient"]


@pytest.fixture(scope="module")
def both() -> dict[str, tuple[Potential, Potential]]:
    """Every gradient-force model in float32, which the engine evaluates, and in float64."""
    return {
        name: (load_potential(name, device="cpu"), load_potential(name, device="cpu", dtype="float64"))
        for name in _models()
    }


def _metal(name: str) -> str:
    return "Ni" if name.startswith("co2") else "Cu"


def _check(found, expected, tolerances: dict[str, float]) -> None:
    for name, tolerance in tolerances.items():
        difference = (getattr(found, name) - getattr(expected, name)).abs().max()
        assert difference <= tolerance, f"{name} differs by {difference}"


@pytest.mark.parametrize("mode", ["one", "pair", "all"])
@pytest.mark.parametrize("kind", list(_structures("Cu")))
@pytest.mark.parametrize("name", _models())
def test_engine_gives_what_pytorch_gives(name, kind, mode, both):
    single, double = both[name]
    assert engine_for(single.model) is not None and engine_for(double.model) is None
    graph = single.graph(_structures(_metal(name))[kind])
    _check(*(p.evaluate(graph, properties=TOLERANCES, frames=mode) for p in (single, double)), TOLERANCES)
    if mode != "one":
        _check(*(p.evaluate(graph, properties=SPREADS, frames=mode) for p in (single, double)), SPREADS)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_batches_and_threads(n_threads, both):
    single, double = both["metals-s"]
    graph = single.graph([*_structures("Cu").values(), *_structures("Pd").values()])
    expected = double.evaluate(graph, properties=TOLERANCES)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(n_threads)
        _check(single.evaluate(graph, properties=TOLERANCES), expected, TOLERANCES)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
@pytest.mark.parametrize("widths", [{}, {"hidden_channels": 72, "filters": 40, "feed_forward": 24}], ids=str)
def test_instruction_sets_widths_and_parts_of_layers(instructions, widths, monkeypatch):
    if library(instructions) is None:
        pytest.skip(f"this processor has no {instructions}")
    single = build_potential("modern-s", **widths)
    chosen = Engine(single.model, instructions)
    monkeypatch.setattr(forward_module, "engine_for", lambda model: chosen)
    graph = single.graph(_structures("Cu")["slab"])
    found = single.evaluate(graph, properties=TOLERANCES)
    monkeypatch.undo()
    expected = copy.deepcopy(single).double().evaluate(graph, properties=TOLERANCES)
    _check(found, expected, TOLERANCES)


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_saturated_activations(instructions, monkeypatch):
    if library(instructions) is None:
        pytest.skip(f"this processor has no {instructions}")
    single = build_potential("modern-s")
    with torch.no_grad():
        for block in single.model.interaction_blocks:
            biases = block.lin_geom.bias
            biases[:8] = biases.new_tensor([-1e30, -3e4, -200.0, -90.0, -20.0, 90.0, 200.0, 3e4])
            block.lin_up.weight[:, 5:8] *= 1e-4  # of the large messages
    chosen = Engine(single.model, instructions)
    monkeypatch.setattr(forward_module, "engine_for", lambda model: chosen)
    graph = single.graph(_structures("Cu")["slab"])
    found = single.evaluate(graph, properties=TOLERANCES)
    monkeypatch.undo()
    expected = copy.deepcopy(single).double().evaluate(graph, properties=TOLERANCES)
    assert expected.forces.abs().max() > 0.01
    _check(found, expected, {name: 10 * tolerance for name, tolerance in TOLERANCES.items()})


def test_features_give_the_energy_and_hidden_states_those_of_the_network(both):
    single, _ = both["metals-s"]
    graph = single.graph(_structures("Cu")["slab"])
    frames = build_frames(graph, single.config.frames, "all", vacuum=single.cutoff)
    found = engine_for(single.model).evaluate(
        graph, frames, graph.edge_vectors(), frames.weight, share_inverse=True, outputs=["features", "hidden"]
    )
    head, mixing = single.model.output_block, single.model.mlp_skip_co.weight[0]
    of_states = found.features.unflatten(1, (len(mixing), -1)) @ head.lin2.weight[0] + head.lin2.bias
    assert torch.allclose((of_states @ mixing).double(), found.node_energy, atol=1e-5)
    framed = copy_into_frames(graph, frames.graph)
    copies = graph.edge_vectors()[framed.edge_of_copy]
    in_frame = into_frame(copies, frames.rotation[framed.frame_of_edge]).float()
    output = single.model(framed, in_frame, copies.norm(dim=1).float(), None, features=True)
    assert torch.allclose(found.features, output.features, atol=1e-4)
    assert torch.allclose(found.hidden, output.hidden, atol=1e-4)
    assert found.grad_vectors is None and found.grad_copies is None


@pytest.mark.parametrize("frames", ["one", "pair", "all"])
def test_messages_are_switched_off_where_atoms_crowd(frames, both):
    single, double = both["metals-s"]
    crystal = bulk("Cu", cubic=True)
    crystal.set_cell(0.877 * crystal.cell, scale_atoms=True)
    crystal.rattle(0.03, seed=0)
    graph = single.graph([crystal, _structures("Cu")["slab"]])
    contacts = close_contacts(
        single.config.repulsion, graph, EdgeLengths.of(graph, graph.edge_vectors()), single.cutoff
    )
    weights = contacts.message_weights(graph.edge_vectors(), graph)
    assert ((weights > 0.01) & (weights < 0.99)).any()
    expected = double.evaluate(graph, properties=TOLERANCES, frames=frames)
    _check(single.evaluate(graph, properties=TOLERANCES, frames=frames), expected, TOLERANCES | {"forces": 3e-4})


def test_direct_forces(both):
    single, double = (build_potential("modern-s", forces="direct", dtype=dtype) for dtype in ("float32", "float64"))
    double.load_state_dict(single.state_dict())
    graph = single.graph(_structures("Cu")["slab"])
    expected, found = (p.evaluate(graph, forces="both") for p in (double, single))
    assert torch.allclose(found.direct_forces, expected.direct_forces, atol=1e-5)
    assert torch.allclose(found.gradient_forces, expected.gradient_forces, atol=1e-5)


def test_edges_without_their_reverse_are_not_shared(both):
    single, double = both["metals-s"]
    graph = single.graph(_structures("Cu")["bulk"])
    kept = torch.arange(graph.n_edges) != 5
    one_way = graph.replace(centre=graph.centre[kept], neighbor=graph.neighbor[kept], shift=graph.shift[kept])
    expected = double.evaluate(one_way, properties=TOLERANCES, frames="all")
    _check(single.evaluate(one_way, properties=TOLERANCES, frames="all"), expected, TOLERANCES)
    assert not torch.allclose(expected.forces, double.evaluate(graph, frames="all").forces, atol=1e-3)


def test_changed_weights_and_wrong_signs_are_noticed(both, monkeypatch):
    single, double = copy.deepcopy(both["metals-s"])
    graph = single.graph(_structures("Cu")["slab"])
    expected = double.evaluate(graph, properties=TOLERANCES)
    before = engine_for(single.model)
    with torch.no_grad():
        single.model.interaction_blocks[1].lin_geom.weight[3, 5] += 0.1
    assert engine_for(single.model) is not before
    with pytest.raises(AssertionError, match="differs by"):
        _check(single.evaluate(graph, properties=TOLERANCES), expected, TOLERANCES)
    single.load_state_dict(both["metals-s"][0].state_dict())
    _check(single.evaluate(graph, properties=TOLERANCES), expected, TOLERANCES)

    right = Engine.evaluate

    def wrong_sign(self, *arguments, **keywords):
        found = right(self, *arguments, **keywords)
        found.grad_vectors.neg_()
        return found

    monkeypatch.setattr(Engine, "evaluate", wrong_sign)
    with pytest.raises(AssertionError, match="forces differs by"):
        _check(single.evaluate(graph, properties=TOLERANCES), expected, {"forces": 1e-4})


ARCHITECTURES = {
    "paper-s2ef": ("paper-s2ef", {"interactions": 4}),
    "paper-is2re": ("paper-is2re", {"interactions": 3}),
    "paper-qm7x": ("paper-qm7x", {"interactions": 3, "mean_neighbors": 40.0}),  # random weights grow without scaling
    "paper-qm9": ("paper-qm9", {"interactions": 3}),
    "edges filter": ("modern-s", {"message": "edge_filter", "jumping": "add"}),
    "updownscale, norm": ("modern-s", {"message": "updownscale", "graph_norm": True, "feed_forward": 32}),
    "base, extra layer": ("modern-s", {"message": "base", "extra_layer": True, "filters": 40}),
    "initial weights": ("modern-s", {"energy_weighting": "initial", "jumping": "concat_energies", "graph_norm": True}),
    "final weights": ("modern-s", {"energy_weighting": "final", "extra_layer": True, "graph_norm": True}),
}


def _in_both_precisions(preset, changes):
    """Random weights, biases and norms included, with smooth frames and without cutoffs that change the graph."""
    common = {"forces": "gradient", "frames": {"kind": "lattice"}, "graph": {"rewiring": "none"}, **changes}
    if preset.startswith("paper"):
        common["decoder"] = None
    single = build_potential(preset, **common)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in single.model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn(parameter.shape)
    double = copy.deepcopy(single).double()
    return single, double


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures_of_the_paper_and_their_parts(architecture, n_threads):
    single, double = _in_both_precisions(*ARCHITECTURES[architecture])
    used = engine_for(single.model)
    assert used is not None and engine_for(double.model) is None
    structures = _structures("Cu")
    graph = single.graph([structures[kind] for kind in ("slab", "molecule", "isolated atom")])
    tolerances = dict(TOLERANCES)
    if not single.model.has_atom_energies:
        del tolerances["energies"]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(n_threads)
        for frames in ("one", "all"):
            expected = double.evaluate(graph, properties=tolerances, frames=frames)
            assert expected.forces.abs().max() > 1e-2
            size = max(1.0, float(expected.energy.abs().max()), float(expected.forces.abs().max()))
            scaled = {name: size * tolerance for name, tolerance in tolerances.items()}
            _check(single.evaluate(graph, properties=tolerances, frames=frames), expected, scaled)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("architecture", ["paper-s2ef", "final weights", "edges filter"])
def test_features_and_hidden_states_of_other_architectures(architecture):
    single, _ = _in_both_precisions(*ARCHITECTURES[architecture])
    graph = single.graph(_structures("Cu")["slab"])
    frames = build_frames(graph, single.config.frames, "all", vacuum=single.cutoff)
    found = engine_for(single.model).evaluate(
        graph, frames, graph.edge_vectors(), frames.weight, share_inverse=True, outputs=["features", "hidden"]
    )
    framed = copy_into_frames(graph, frames.graph)
    copies = graph.edge_vectors()[framed.edge_of_copy]
    in_frame = into_frame(copies, frames.rotation[framed.frame_of_edge]).float()
    output = single.model(framed, in_frame, copies.norm(dim=1).float(), None, features=True)
    assert torch.allclose(found.features, output.features, atol=1e-4)
    assert torch.allclose(found.hidden, output.hidden, atol=1e-4)
    assert torch.allclose(found.energy, output.energy, atol=1e-4)


@torch.no_grad()
def test_directional_features_that_depend_on_others_are_left_out():
    """σ(W r + b) of small weights is almost a polynomial in r; that of large ones is not, and all features are kept."""
    model = build_potential("paper-s2ef").model
    linear = model.edge_embedding.lin_e1
    used = DirectionalBasis.of(model)
    assert len(used.features) < 120 and linear.out_features == 240
    points = torch.randn(500, 3, dtype=torch.float64)
    points *= model.config.cutoff / points.norm(dim=1).max()
    values = torch.nn.functional.silu(points @ linear.weight.double().t() + linear.bias.double())
    assert (values[:, used.features] @ used.combination - values).abs().max() < 1e-6
    weight = torch.randn(7, 240)
    found = values[:, used.features] @ used.weights(weight).double().t()
    assert torch.allclose(found, values @ weight.double().t(), atol=1e-5)
    linear.weight *= 30
    assert len(DirectionalBasis.of(model).features) > 200


def test_edges_beyond_a_hard_cutoff_are_left_to_pytorch(monkeypatch):
    single, double = _in_both_precisions("modern-s", {"envelope_power": 0})
    graph = single.graph(Atoms("CuCO", [[0, 0, 0], [0, 0, 1.9], [0.3, 0, 3.1]]))
    far = graph.replace(positions=1.8 * graph.positions)
    assert EdgeLengths.of(far, far.edge_vectors()).squared.max() > single.cutoff**2
    _check(single.evaluate(far), double.evaluate(far), {"energy": 1e-5, "forces": 1e-4})
    monkeypatch.setattr(Engine, "evaluate", None)  # an engine would raise a TypeError
    single.evaluate(far)
    with pytest.raises(TypeError):
        single.evaluate(graph)


def test_other_architectures_are_left_to_pytorch():
    for changes in ({"message": "simple"}, {"edge_features": "r"}, {"jumping": "concat_atom"}, {"activation": "gelu"}):
        assert engine_for(build_potential("modern-s", **changes).model) is None
    assert engine_for(build_potential("modern-s", split_filter=False).model) is None
    assert engine_for(build_potential("modern-s", interactions=0).model) is None
    assert engine_for(build_potential("modern-s").model) is not None
    assert engine_for(build_potential("modern-s", dtype="float64").model) is None


def test_training_and_second_derivatives_are_left_to_pytorch(monkeypatch):
    potential = build_potential("modern-s")
    graph = potential.graph(_structures("Cu")["bulk"])
    monkeypatch.setattr(Engine, "evaluate", None)  # an engine would raise a TypeError
    forces = potential.evaluate(graph, create_graph=True).forces
    assert forces.requires_grad
    potential.requires_grad_(True)
    assert potential.evaluate(graph).energy.requires_grad
    potential.requires_grad_(False)
    with pytest.raises(TypeError):
        potential.evaluate(graph)


def test_arrays_that_do_not_belong_together_are_an_error(both):
    single, _ = both["metals-s"]
    graph = single.graph(_structures("Cu")["slab"])
    frames = build_frames(graph, single.config.frames, "one", vacuum=single.cutoff)
    used = engine_for(single.model)

    def run(graph=graph, vectors=None, seed=frames.weight):
        vectors = graph.edge_vectors() if vectors is None else vectors
        return used.evaluate(graph, frames, vectors, seed, share_inverse=True, outputs=["gradients"])

    vectors = graph.edge_vectors()
    with pytest.raises(IndexError, match=r"neighbor .* expected atoms of the same structure"):
        run(graph.replace(neighbor=graph.neighbor + graph.n_atoms), vectors)
    with pytest.raises(IndexError, match=r"centre .* ascending"):
        run(graph.replace(centre=graph.centre.flip(0)), vectors)
    with pytest.raises(IndexError, match=r"kind .* atom embedding"):
        run(graph.replace(atomic_numbers=graph.atomic_numbers + 200))
    with pytest.raises(ValueError, match="vectors has shape"):
        run(vectors=vectors[1:])
    with pytest.raises(TypeError, match="vectors has dtype"):
        run(vectors=vectors.float())
    with pytest.raises(ValueError, match="grad_copies with share_inverse"):
        used.evaluate(graph, frames, vectors, frames.weight, share_inverse=True, outputs=["grad_copies"])


def test_the_operator_knows_the_shapes_of_its_outputs(both):
    single, _ = both["metals-s"]
    graph = single.graph(_structures("Cu")["slab"])
    frames = build_frames(graph, single.config.frames, "all", vacuum=single.cutoff)
    used = engine_for(single.model)

    def run(graph, frames, vectors):
        wanted = ["hidden", "features", "gradients", "grad_copies"]
        factor = torch.ones_like(vectors[:, 0])
        return used.evaluate(graph, frames, vectors, frames.weight, factor=factor, share_inverse=False, outputs=wanted)

    real = run(graph, frames, graph.edge_vectors())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = run(graph, frames, mode.from_tensor(graph.edge_vectors()))
    for name, value in vars(real).items():
        assert value.shape == getattr(fake, name).shape and value.dtype == getattr(fake, name).dtype


def test_spline_of_the_radial_part_is_conservative():
    """Forces are derivatives of the engine's own energy, also between the knots of the spline."""
    single, double = (load_potential("metals-s", dtype=dtype, repulsion=False) for dtype in ("float32", "float64"))
    step = 2e-3
    distances = np.arange(1.0, 1.6, step)
    dimers = [Atoms("CO", [[0, 0, 0], [0, 0, d]], cell=[9, 9, 9], pbc=True) for d in distances]
    found = single.predict(dimers, frames="one")
    forces = found.forces.reshape(-1, 2, 3)[:, 1, 2].numpy()
    work = np.sum(0.5 * step * (forces[1:] + forces[:-1]))
    assert work == pytest.approx(-float(found.energy[-1] - found.energy[0]), abs=1e-4)
    assert (found.energy - double.predict(dimers, frames="one").energy).abs().max() < 1e-5
