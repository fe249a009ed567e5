"""Atoms repel: the wall is smooth, exact, monotone, and absent where it is switched off or atoms are apart."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule

from faenet_calc import build_potential, load_potential
from faenet_calc.potential.checkpoint import save_potential
from faenet_calc.potential.config import RepulsionConfig
from faenet_calc.potential.edge_lengths import EdgeLengths
from faenet_calc.potential.repulsion import close_contacts, switching_ranges, zbl_energy
from faenet_calc.testing import laws
from faenet_calc.testing.repulsion import approach_curve, compression_curve, dimer_curve

SMALL = {"hidden_channels": 64, "filters": 32, "interactions": 2, "gaussians": 12, "mean_neighbors": 20.0}


def build(**settings):
    return laws.scaled(build_potential("modern-s", dtype="float64", **(SMALL | settings)), 30.0)


def without(potential):
    bare = laws.in_float64(potential)
    bare.config = dataclasses.replace(potential.config, repulsion=RepulsionConfig(kind="none"))
    return bare


def squeezed(scale):
    """A slab with an adsorbate and two rows of atoms that overlap by different amounts."""
    atoms = fcc111("Cu", (2, 2, 2), vacuum=6.0, periodic=True)
    atoms.rattle(0.1, seed=0)
    atoms += Atoms("O", [atoms.positions[-1] + [0.2, 0.1, 1.0]])
    atoms.positions[5] = atoms.positions[4] + scale * np.array([2.0, 0.5, 0.3])
    return atoms


def test_zbl_against_a_tabulated_value():
    """Cu–Cu at 1 Å: a = 0.8854 · 0.529177 / (2 · 29^0.23) Å; the sum by hand."""
    a = 0.8854 * 0.529177 / (2 * 29**0.23)
    x = 1.0 / a
    phi = 0.18175 * np.exp(-3.1998 * x) + 0.50986 * np.exp(-0.94229 * x)
    phi += 0.28022 * np.exp(-0.4029 * x) + 0.02817 * np.exp(-0.20162 * x)
    found = zbl_energy(torch.tensor([1.0], dtype=torch.float64), torch.tensor([[29.0, 29.0]], dtype=torch.float64))
    assert float(found) == pytest.approx(14.399645 * 29**2 * phi, rel=1e-5)


@pytest.mark.parametrize(
    ("pair", "length"),
    [((1, 1), 0.74), ((8, 1), 0.96), ((7, 7), 1.10), ((6, 8), 1.13), ((6, 1), 1.09), ((28, 6), 1.74), ((29, 29), 2.55),
     ((29, 1), 1.50), ((45, 45), 2.69), ((44, 8), 1.70), ((6, 6), 1.20)],
)  # fmt: skip
def test_bonds_and_their_vibrations_are_outside(pair, length):
    """Equilibrium bonds shortened by 7 % (and 0.07 Å) are still those of the bare network."""
    reach = float(switching_ranges(RepulsionConfig(), torch.tensor([pair])).zbl[0, 1])
    assert reach < 0.93 * length and reach < length - 0.07
    assert reach > 0.5 * length


@pytest.mark.parametrize("scale", [0.55, 0.7, 0.8, 0.9])
def test_forces_and_stress_are_derivatives_across_the_switch(scale):
    potential, atoms = build(), squeezed(scale)
    graph = potential.graph(atoms)
    assert (
        close_contacts(potential.config.repulsion, graph, EdgeLengths.of(graph, graph.edge_vectors()), potential.cutoff)
        is not None
    )
    assert abs(float(potential.predict(atoms).energy - without(potential).predict(atoms).energy)) > 1e-3
    exact = potential.predict(atoms, ("forces", "stress"))
    size = float(exact.forces.abs().max())
    assert laws.force_deviation(potential, atoms, n_atoms=len(atoms)) < 1e-7 * size
    numeric = laws.central_difference_stress(potential, atoms)
    assert np.abs(exact.stress[0].numpy() - numeric).max() < 1e-7 * max(1.0, float(exact.stress.abs().max()))


def test_symmetry_supercells_and_batches():
    potential, atoms = build(), squeezed(0.7)
    scale = float(potential.predict(atoms).forces.abs().max())
    laws.assert_symmetric(potential, atoms, energy=1e-9 * scale, forces=1e-9 * scale)
    assert laws.supercell_deviation(potential, atoms, (2, 1, 1)).energy_per_atom < 1e-9 * scale
    assert laws.batch_deviation(potential, [atoms, bulk("Cu"), molecule("CH4")]).forces < 1e-9 * scale
    prediction = potential.predict(atoms, ("energy", "energies"))
    assert float(prediction.energies.sum()) == pytest.approx(float(prediction.energy), rel=1e-12)


def test_parts_spread_and_training_agree():
    decoder = {"kind": "mlp", "channels": 8, "norm": "layer"}
    potential = build(decoder=decoder)
    graph = potential.graph([squeezed(0.75), molecule("H2O")])
    names = ("energy", "energies", "forces", "stress", "forces_frame_std")
    whole = potential.evaluate(graph, properties=names, forces="both", create_graph=True).detach()
    plain = potential.evaluate(graph, properties=names[:4], forces="both")
    parts = potential.evaluate(graph, properties=names, forces="both", memory_bytes=1)
    for name in (*names, "direct_forces"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-9, atol=1e-9)
    for name in names[:4]:
        torch.testing.assert_close(getattr(plain, name), getattr(whole, name), rtol=1e-9, atol=1e-9)


def test_second_derivatives_are_finite_and_exact():
    """Training on forces across the switch: d(loss)/d(weights) against a finite difference."""
    potential = build().requires_grad_(True)
    graph = potential.graph(squeezed(0.8))
    weight = potential.model.output_block.lin2.weight

    def loss():
        return potential.evaluate(graph, properties=("forces",), create_graph=True).forces.square().sum()

    (gradient,) = torch.autograd.grad(loss(), weight)
    step = 1e-5
    with torch.no_grad():
        weight[0, 0] += step
        up = float(loss())
        weight[0, 0] -= 2 * step
        down = float(loss())
    assert float(gradient[0, 0]) == pytest.approx((up - down) / (2 * step), rel=1e-4)


def test_direct_forces_repel_too():
    potential = build(forces="direct")
    atoms = Atoms("Cu2", [[0, 0, 0], [0, 0, 0.8]])
    found = potential.predict(atoms, forces="auto").forces
    bare = without(potential).predict(atoms).forces
    assert float(found[1, 2] - bare[1, 2]) > 100.0 and float(found[0, 2] - bare[0, 2]) < -100.0
    apart = Atoms("Cu2", [[0, 0, 0], [0, 0, 2.4]])
    assert torch.equal(potential.predict(apart).forces, without(potential).predict(apart).forces)


def test_sensible_structures_are_those_of_the_bare_network():
    potential = build()
    for name, atoms in laws.structures().items():
        found = potential.predict(atoms, ("energy", "forces"))
        bare = without(potential).predict(atoms, ("energy", "forces"))
        assert torch.equal(found.energy, bare.energy) and torch.equal(found.forces, bare.forces), name


def test_presets_and_checkpoints(tmp_path):
    assert build_potential("modern-s").config.repulsion.kind == "zbl"
    assert build_potential("paper-qm9").config.repulsion.kind == "none"
    assert build_potential("modern-s", repulsion={"kind": "none"}).config.repulsion.kind == "none"
    path = save_potential(build(repulsion={"outer": 0.8}), tmp_path / "a.safetensors")
    assert load_potential(path).config.repulsion == RepulsionConfig(kind="zbl", outer=0.8)
    assert load_potential(path, repulsion=False).config.repulsion.kind == "none"
    assert load_potential("metals-s").config.repulsion.kind == "zbl", "checkpoints without the key get it"
    assert load_potential("metals-direct").config.repulsion.kind == "none"
    with pytest.raises(ValueError, match="0 < inner < outer < 1"):
        RepulsionConfig(inner=0.9, outer=0.8)


@pytest.fixture(scope="module")
def shipped():
    return load_potential("metals-m", device="cpu")


PAIRS = (("Cu", "Cu"), ("Rh", "Rh"), ("O", "Cu"), ("C", "Co"), ("H", "Ni"), ("N", "N"), ("O", "O"), ("H", "C"))


@pytest.mark.parametrize("pair", PAIRS)
def test_shipped_pairs_have_a_wall(shipped, pair):
    assert dimer_curve(shipped, *pair).rise < 0.01


def test_bare_networks_have_holes(shipped):
    bare = load_potential("metals-m", device="cpu", repulsion=False)
    assert sum(dimer_curve(bare, *pair).rise > 0.05 for pair in PAIRS) >= 6


@pytest.mark.slow
def test_every_shipped_pair_has_a_wall(shipped):
    symbols = ("H", "C", "N", "O", "Co", "Ni", "Cu", "Ru", "Rh", "Pd", "Ag", "Ir", "Pt", "Au")
    for pair in itertools.combinations_with_replacement(symbols, 2):
        assert dimer_curve(shipped, *pair).rise < 0.01, pair


def test_adsorbates_do_not_fuse_with_the_surface(shipped):
    bare = load_potential("metals-m", device="cpu", repulsion=False)
    slab = fcc111("Cu", (2, 2, 2), vacuum=8.0)
    for symbol in ("O", "N", "C"):
        assert approach_curve(shipped, slab, symbol).rise < 0.01
    assert max(approach_curve(bare, slab, symbol).rise for symbol in ("O", "N", "C")) > 0.1


def test_metals_compressed_by_ten_percent_are_those_of_the_bare_network(shipped):
    bare = load_potential("metals-m", device="cpu", repulsion=False)
    for symbol in ("Cu", "Rh", "Ag", "Pt"):
        crystal = bulk(symbol)
        crystal.set_cell(0.9 * crystal.cell, scale_atoms=True)
        energies = [float(potential.predict(crystal, ("energy",)).energy) for potential in (shipped, bare)]
        assert energies[0] == pytest.approx(energies[1], abs=1e-5), symbol


def test_rattled_slabs_are_those_of_the_bare_network(shipped):
    """As in the training data, with single bonds far below equilibrium (here down to 0.7 of it)."""
    bare = load_potential("metals-m", device="cpu", repulsion=False)
    for seed in range(5):
        slab = fcc111("Pd", (2, 2, 4), vacuum=8.0)
        slab.rattle(0.2, seed=seed)
        energies = [float(potential.predict(slab, ("energy",)).energy) for potential in (shipped, bare)]
        assert energies[0] == pytest.approx(energies[1], abs=1e-6)


def test_compressed_cells_cost_energy(shipped):
    bare = load_potential("metals-m", device="cpu", repulsion=False)
    assert compression_curve(shipped, bulk("Cu")).rise < 0.01
    assert compression_curve(bare, bulk("Cu")).rise > 100.0
    tiny = Atoms("Cu", cell=np.eye(3), pbc=True)
    assert abs(float(bare.predict(tiny, ("energy",)).energy)) > 1e6
    assert 1e2 < float(shipped.predict(tiny, ("energy",)).energy) < 1e5
