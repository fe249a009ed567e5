import itertools
import typing

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule

from faenet_calc.errors import InputError
from faenet_calc.network.config import ModelConfig
from faenet_calc.network.embeddings import EdgeStates, envelope, real_harmonics
from faenet_calc.network.layers import EdgeNodeLinear
from faenet_calc.potential.network_pass import bytes_per_edge_copy, frame_parts
from faenet_calc.potential.potential import build_potential
from faenet_calc.testing import laws

SMALL = {"hidden_channels": 64, "filters": 32, "interactions": 2, "gaussians": 12, "mean_neighbors": 20.0}
CHOICES = {name: typing.get_args(hint) for name, hint in typing.get_type_hints(ModelConfig).items()}


def crystal():
    atoms = bulk("Cu", cubic=True)
    atoms.symbols[1] = "Pd"
    atoms.rattle(0.1, seed=0)
    return atoms


@pytest.mark.parametrize("option", ["message", "edge_features", "jumping", "energy_weighting", "activation"])
def test_every_option_is_an_exact_smooth_surface(option):
    """Each part alone: the energy is rotation-invariant and the forces are its gradient."""
    for choice in CHOICES[option]:
        potential = build_potential("modern-s", dtype="float64", **(SMALL | {option: choice}))
        assert laws.rotation_deviation(potential, crystal()).energy_per_atom < 1e-12, choice
        smooth = choice not in ("relu", "leaky_relu")
        assert not smooth or laws.force_deviation(potential, crystal(), n_atoms=1) < 1e-8, choice


def test_a_negative_width_is_refused():
    with pytest.raises(ValueError, match=r"feed_forward = -3, expected at least 0"):
        build_potential("modern-s", feed_forward=-3)


def test_networks_of_single_atoms_keep_the_surface_exact():
    """They start at zero, so they are given weights first; then they must change the energy and nothing else."""
    potential = build_potential("modern-s", dtype="float64", feed_forward=24, **SMALL)
    without = build_potential("modern-s", dtype="float64", **SMALL)
    without.model.load_state_dict(
        {key: value for key, value in potential.model.state_dict().items() if "feed_forward" not in key}
    )
    energies = [model.predict(crystal(), ("energy",)).energy for model in (potential, without)]
    assert torch.equal(*energies)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in potential.model.feed_forward_blocks:
            block.lin_out.weight.normal_(0, 0.1, generator=generator)
    assert (potential.predict(crystal(), ("energy",)).energy - energies[0]).abs() > 1e-4
    assert laws.rotation_deviation(potential, crystal()).energy_per_atom < 1e-12
    assert laws.force_deviation(potential, crystal(), n_atoms=1) < 1e-8


@pytest.mark.parametrize("kind", ["simple", "mlp", "res", "res_updown"])
@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_direct_forces_are_equivariant(kind, norm):
    decoder = {"kind": kind, "channels": 16, "norm": norm}
    potential = build_potential("modern-s", dtype="float64", forces="direct", decoder=decoder, **SMALL)
    assert laws.rotation_deviation(potential, crystal()).forces < 1e-12
    both = potential.evaluate(potential.graph(crystal()), forces="both")
    assert torch.equal(both.forces, both.direct_forces)
    assert not torch.allclose(both.direct_forces, both.gradient_forces, atol=1e-6)


@pytest.mark.parametrize("properties", ["none", "modern", "upstream"])
@pytest.mark.parametrize("channels", [0, 6])
def test_embeddings_reach_element_118(properties, channels):
    atoms = {"properties": properties, "properties_channels": channels, "tag_channels": 4}
    potential = build_potential("modern-s", dtype="float64", atoms=atoms, **SMALL)
    heavy = bulk("Cu", cubic=True)
    heavy.numbers[:] = [57, 71, 103, 118]
    heavy.set_tags([0, 1, 2, 0])
    assert np.isfinite(float(potential.predict(heavy, ("energy",)).energy[0]))


def test_split_filter_is_the_same_function():
    generator = torch.Generator().manual_seed(0)
    layer = EdgeNodeLinear(5, 7, 4, split=True)
    e = EdgeStates(own=torch.randn(20, 5, generator=generator))
    h = torch.randn(6, 7, generator=generator)
    neighbor, centre = torch.randint(0, 6, (2, 20), generator=generator)
    split = layer.on_edges(e, h, neighbor, centre)
    layer.split = False
    assert torch.allclose(split, layer.on_edges(e, h, neighbor, centre), atol=1e-6)
    assert not torch.allclose(split, layer.on_edges(e, h, centre, neighbor), atol=1e-2)


def test_envelope_ends_smoothly():
    x = torch.tensor([0.0, 5.0], dtype=torch.float64, requires_grad=True)
    value = envelope(x, 5.0, 6)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert value.tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    assert slope.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)
    assert curvature.tolist() == pytest.approx([0.0, 0.0], abs=1e-10)


def test_harmonics_are_orthonormal_on_the_sphere():
    """Closed form: a Gauss-Legendre × uniform rule is exact for products of degree 6."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    angles = np.arange(16) * 2 * np.pi / 16
    points, measure = [], []
    for (z, w), angle in itertools.product(zip(nodes, weights, strict=True), angles):
        radius = np.sqrt(1 - z * z)
        points.append([radius * np.cos(angle), radius * np.sin(angle), z])
        measure.append(w / 2 / 16)
    y = real_harmonics(torch.tensor(np.array(points)), torch.ones(len(points), dtype=torch.float64))
    gram = torch.einsum("n,ni,nj->ij", torch.tensor(measure), y, y)
    assert torch.allclose(gram, torch.eye(15, dtype=torch.float64), atol=1e-10)


@pytest.mark.parametrize(
    ("preset", "millions"), [("paper-is2re", 4.15), ("paper-s2ef", 5.74), ("paper-qm9", 6.49), ("paper-qm7x", 7.1)]
)
def test_paper_networks_have_the_published_size(preset, millions):
    """Upstream's own counts; ours differ by the rows of heavier elements and the width of QM7-X's force head."""
    potential = build_potential(preset)
    count = sum(parameter.numel() for parameter in potential.model.parameters()) / 1e6
    assert count == pytest.approx(millions, rel=0.05)


def test_energy_only_evaluation_does_not_differentiate():
    potential = build_potential("modern-s", **SMALL)
    result = potential.evaluate(potential.graph(crystal()), properties=("energy",))
    assert not result.energy.requires_grad
    assert result.forces is None


@pytest.mark.parametrize("at_most", [1, 500])
def test_evaluation_in_parts_is_the_same(at_most):
    """Crystal and molecule, whose frames move with the atoms, against one pass with its whole history."""
    decoder = {"kind": "mlp", "channels": 8, "norm": "layer"}
    potential = build_potential("modern-s", dtype="float64", decoder=decoder, **SMALL)
    properties = ("energy", "energies", "forces", "stress", "energy_frame_std", "forces_frame_std")
    graph = potential.graph([crystal(), molecule("CH3OH"), molecule("CO2")])
    whole = potential.evaluate(graph, properties=properties, forces="both", create_graph=True).detach()
    n_frames = [*[0] * 8, *[1] * 10]
    assert len(frame_parts(graph.edges_per_graph[n_frames], at_most)) > 1
    budget = at_most * bytes_per_edge_copy(potential.config.model, potential.dtype, gradient=True)
    parts = potential.evaluate(graph, properties=properties, forces="both", memory_bytes=budget)
    for name in (*properties, "direct_forces", "gradient_forces"):
        assert torch.allclose(getattr(whole, name), getattr(parts, name), atol=1e-11), name


def test_training_reaches_every_parameter():
    potential = build_potential("modern-s", dtype="float64", **SMALL).requires_grad_(True)
    graph = potential.graph([crystal(), molecule("CH3OH")])
    result = potential.evaluate(graph, frames="stochastic", generator=torch.Generator(), create_graph=True)
    (result.forces.square().sum() + result.energy.square().sum()).backward()
    idle = [name for name, parameter in potential.named_parameters() if parameter.grad is None]
    assert idle == []


def test_unknown_property_and_missing_parts_are_explained():
    potential = build_potential("modern-s", **SMALL)
    with pytest.raises(InputError, match=r"unknown properties \['dipole'\]"):
        potential.predict(crystal(), ("dipole",))
    with pytest.raises(InputError, match="no force decoder"):
        potential.predict(crystal(), forces="direct")
    mixing = build_potential("modern-s", jumping="concat_energies", **SMALL)
    with pytest.raises(InputError, match="no per-atom energies"):
        mixing.predict(crystal(), ("energies",))
    energy_only = build_potential("modern-s", forces="none", **SMALL)
    assert energy_only.predict(crystal()).forces is None
    with pytest.raises(InputError, match="energies only"):
        energy_only.predict(crystal(), ("forces",))


def test_unknown_element_names_symbol_index_and_what_is_supported():
    potential = build_potential("modern-s", supported_elements=[29, 46], **SMALL)
    with pytest.raises(InputError, match=r"unknown elements H, O at atom indices \[0, 1, 2\]; supported are Cu, Pd"):
        potential.predict(molecule("H2O"))


def test_rewired_potential_leaves_sub_surface_atoms_without_forces():
    potential = build_potential("modern-s", graph={"rewiring": "remove-tag-0"}, **SMALL)
    atoms = crystal()
    atoms.set_tags([0, 1, 1, 2])
    forces = potential.predict(atoms).forces
    assert bool((forces[0] == 0).all())
    assert bool((forces[1:] != 0).any())
    atoms.set_tags(0)
    with pytest.raises(InputError, match="only tag-0"):
        potential.predict(atoms)
    atoms.set_tags([1, 2, 3, 4])
    with pytest.raises(InputError, match=r"tags \[1, 2, 3, 4\] came"):
        potential.predict(atoms)


@pytest.mark.parametrize(
    ("preset", "settings", "mode"),
    [
        ("modern-s", {}, "pair"),
        ("modern-s", {"forces": "direct"}, "all"),
        ("modern-s", {"frames": {"mode": "exact"}}, "exact"),
        ("paper-s2ef", {}, "all"),
    ],
)
def test_default_frame_mode(preset, settings, mode):
    config = build_potential(preset, **(SMALL | {"hidden_channels": 192}), **settings).config
    assert config.frame_mode == mode
    symmetries = config.frames.exact_symmetries(config.frame_mode)
    assert (symmetries is None) == (preset == "paper-s2ef")
    assert symmetries is None or ("inversion" in symmetries and ("signs" in symmetries) == (mode != "pair"))
