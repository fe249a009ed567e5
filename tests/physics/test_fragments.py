"""A molecule out of reach of everything else has the energy of the free one; on the way there the surface is smooth.

Random weights in float64: what the frames of a structure do to a molecule is far above every limit here.
"""

import dataclasses

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import fcc111, molecule
from ase.md.verlet import VelocityVerlet

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.frames.frames import build_frames
from faenet_calc.graphs.convert import to_graph
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.device_engine import DeviceEngine
from faenet_calc.potential import forward as forward_module
from faenet_calc.potential import fragments
from faenet_calc.potential.fragments import BONDED, SOLID, find_fragments
from faenet_calc.testing import laws

CUTOFF = 5.0
NAMES = ("C6H6", "C2H4", "CO2", "H2O", "CO", "CH4")


def slab() -> Atoms:
    """Rattled Cu(111), 10 Å wide, periodic in three directions."""
    atoms = fcc111("Cu", (4, 4, 2), a=3.6, vacuum=2.0)
    atoms.cell[2, 2] = 30.0
    atoms.pbc = True
    atoms.rattle(0.05, seed=0)
    return atoms


def rough(name: str, seed: int = 1) -> Atoms:
    """A molecule without symmetry in a random orientation."""
    atoms = molecule(name)
    atoms.rattle(0.03, seed=seed)
    turn = laws.random_rotation(np.random.default_rng(seed))
    atoms.positions = atoms.positions @ turn
    return atoms


def above(name: str, height: float, seed: int = 1) -> Atoms:
    """A molecule whose lowest atom is so far (Å) above the highest atom of the slab, on the border of the cell."""
    surface, guest = slab(), rough(name, seed)
    top = surface.positions[surface.positions[:, 2].argmax()]
    guest.positions += top + np.array([0, 0, height]) - guest.positions[guest.positions[:, 2].argmin()]
    both = surface + guest
    both.wrap()
    return both


def energy(potential, atoms: Atoms, **settings) -> float:
    return float(potential.predict(atoms, ("energy",), **settings).energy[0])


def shared_frames(potential, atoms: Atoms, mode="pair"):
    """Energy with the frames of the structure alone, for negative controls."""
    graph = potential.graph(atoms)
    frames = build_frames(graph, potential.config.frames, mode, vacuum=potential.cutoff)
    return float(potential.evaluate(graph, properties=("energy",), frames=frames).energy[0])


@pytest.mark.parametrize("mode", ["pair", "all", "exact"])
@pytest.mark.parametrize("name", NAMES)
def test_a_molecule_out_of_reach_has_the_energy_of_the_free_one(modern, name, mode):
    free, surface = modern.predict(rough(name), frames=mode), modern.predict(slab(), frames=mode)
    expected = float(free.energy + surface.energy)
    for height in (5.001, 8.0):
        found = modern.predict(above(name, height), frames=mode)
        assert float(found.energy) == pytest.approx(expected, rel=1e-12)
        assert float((found.forces - torch.cat([surface.forces, free.forces])).abs().max()) < 1e-10
    # What the frames of the slab make of it, as a negative control.
    assert abs(shared_frames(modern, above(name, 8.0), mode) - expected) > 1e-6


@pytest.mark.parametrize("cell", [None, 30.0])
def test_energies_of_separate_molecules_add_up(modern, cell):
    """Two and three of them, free or in a box, some across the border of the box; and an atom."""
    members = [rough("CH3OH", 1), rough("C6H6", 2), rough("CO2", 3), Atoms("O")]
    for atoms, place in zip(members, ([0, 0, 0], [11, 1, 0], [3, 12, 2], [12, 12, 12]), strict=True):
        atoms.positions += place
    alone = [modern.predict(atoms) for atoms in members]
    for count in (2, 3, 4):
        together = Atoms(cell=None if cell is None else [cell] * 3, pbc=cell is not None)
        for atoms in members[:count]:
            together += atoms
        if cell is not None:
            together.wrap()
        found, expected = modern.predict(together), sum(float(one.energy) for one in alone[:count])
        assert float(found.energy) == pytest.approx(expected, rel=1e-12)
        assert float((found.forces - torch.cat([one.forces for one in alone[:count]])).abs().max()) < 1e-10
        assert abs(shared_frames(modern, together) - expected) > 1e-3


def test_a_molecule_in_a_tight_box_has_the_energy_of_the_free_one(modern):
    """In two directions no empty layer is as wide as the cutoff, and yet the images do not reach each other."""
    rod = Atoms("CCCCCC", [[1.3 * k, 0, 0] for k in range(6)])
    rod.rattle(0.05, seed=0)
    boxed = rod.copy()
    boxed.set_cell([[6.0, 5.2, 0], [6.0, -5.2, 0], [0, 0, 12.0]])
    boxed.pbc = True
    graph = modern.graph(boxed)
    frames = build_frames(graph, modern.config.frames, "pair", vacuum=CUTOFF)
    (fragment,) = find_fragments(graph, CUTOFF)
    assert float(fragment.weight) == 1.0 and frames.lattice
    assert energy(modern, boxed) == pytest.approx(energy(modern, rod), rel=1e-12)
    assert abs(shared_frames(modern, boxed) - energy(modern, rod)) > 1e-4


def test_connected_structures_and_free_molecules_have_no_fragments(modern):
    for name, atoms in laws.structures().items():
        graph = modern.graph(atoms)
        assert find_fragments(graph, CUTOFF) == [], name
        assert modern.predict(atoms).energy == shared_frames(modern, atoms), name
    assert find_fragments(modern.graph(above("CO2", 3.9)), CUTOFF) == []
    assert len(find_fragments(modern.graph(above("CO2", 4.6)), CUTOFF)) == 1


@pytest.mark.parametrize("height", [3.5, 4.0, 4.3, 4.6, 4.8, 4.95, 5.0, 5.5])
@pytest.mark.parametrize("name", ["C2H4", "CO2"])
def test_forces_and_stress_are_derivatives_while_a_molecule_leaves(modern, name, height):
    atoms = above(name, height)
    moving = list(range(len(atoms) - len(molecule(name)), len(atoms)))
    near = int(slab().positions[:, 2].argmax())
    exact = modern.predict(atoms, ("forces",)).forces.numpy()[[*moving, near]]
    assert np.abs(exact - laws.central_difference_forces(modern, atoms, [*moving, near])).max() < 1e-6
    assert laws.stress_deviation(modern, atoms) < 1e-7


def dissociating(name: str, distance: float) -> Atoms:
    """H2, CO or H2O (without one H) in the vacuum above a slab, its last atom so far (Å) from the first."""
    atoms = above(name, 9.0)
    first = len(atoms) - len(molecule(name))
    axis = atoms.positions[-1] - atoms.positions[first]
    atoms.positions[-1] = atoms.positions[first] + distance * axis / np.linalg.norm(axis)
    return atoms


@pytest.mark.parametrize("distance", [1.0, 3.2, 3.3, 3.6, 3.9, 3.99, 4.0, 4.01, 4.5, 4.99, 5.2])
@pytest.mark.parametrize("name", ["H2", "CO", "H2O"])
def test_forces_are_derivatives_while_a_molecule_dissociates(modern, name, distance):
    atoms = dissociating(name, distance)
    moving = list(range(len(atoms) - len(molecule(name)), len(atoms)))
    exact = modern.predict(atoms, ("forces",)).forces.numpy()[moving]
    assert np.abs(exact - laws.central_difference_forces(modern, atoms, moving)).max() < 1e-6


@pytest.mark.parametrize(
    ("place", "border"),
    [
        (lambda x: above("C2H4", x), SOLID * CUTOFF),
        (lambda x: above("C2H4", x), CUTOFF),
        (lambda x: dissociating("CO", x), BONDED * CUTOFF),
        (lambda x: dissociating("CO", x), SOLID * CUTOFF),
        (lambda x: dissociating("H2O", x), SOLID * CUTOFF),
        (lambda x: dissociating("H2O", x), CUTOFF),
    ],
)
def test_energy_and_forces_are_continuous_where_fragments_change(modern, place, border):
    """On both sides of the border, closer and closer; at the solid distance other atoms are a fragment."""
    for step in (1e-4, 1e-7):
        before, after = modern.predict([place(border - step), place(border + step)], ("energy", "forces")).split()
        assert float((before.energy - after.energy).abs()) < 100 * step
        assert float((before.forces - after.forces).abs().max()) < 1000 * step


def test_a_weight_without_derivative_or_with_a_jump_is_found(modern, monkeypatch):
    """Negative controls of the two tests above."""
    atoms, smooth = above("C2H4", 4.7), fragments._isolation
    with monkeypatch.context() as patch:
        patch.setattr(fragments, "_isolation", lambda *arguments: smooth(*arguments).detach())
        assert laws.force_deviation(modern, atoms, n_atoms=len(atoms)) > 1e-3
    with monkeypatch.context() as patch:
        patch.setattr(fragments, "_isolation", lambda graph, *_: graph.positions.new_ones(()))
        inside, outside = (energy(modern, above("C2H4", SOLID * CUTOFF + step)) for step in (-1e-7, 1e-7))
        assert abs(inside - outside) > 1e-3


def path_energies(potential, heights, evaluate) -> np.ndarray:
    return np.array([evaluate(potential, above("C2H4", float(height))) for height in heights])


def test_the_energy_has_two_derivatives_where_a_molecule_gets_out_of_reach(modern):
    """Fourth differences of a twice differentiable function shrink at least with the square of the step."""
    for border in (SOLID * CUTOFF, CUTOFF):
        largest = []
        for step in (0.02, 0.01, 0.005):
            values = path_energies(modern, border + step * np.arange(-4, 5), energy)
            largest.append(np.abs(np.diff(values, 4)).max())
        assert largest[2] < largest[0] / 8


def test_batches_permutations_rotations_and_images(modern):
    many = [above("CO2", 4.6), above("C6H6", 9.0), slab(), rough("CH4"), dissociating("CO", 3.7)]
    assert laws.batch_deviation(modern, many).energy_per_atom < 1e-11
    assert laws.supercell_deviation(modern, above("C2H4", 4.7), (2, 1, 1)).energy_per_atom < 1e-11
    for atoms in (above("C2H4", 4.7), dissociating("H2O", 3.8)):
        for law in (
            laws.permutation_deviation,
            laws.rotation_deviation,
            laws.reflection_deviation,
            laws.translation_deviation,
            laws.wrapping_deviation,
        ):
            found = law(modern, atoms)
            assert found.energy_per_atom < 1e-11 and found.forces < 1e-9, law.__name__


def test_compiled_code_gives_what_torch_gives(modern_float32, monkeypatch):
    """Energies, forces, stress, per-atom energies and spreads of a batch with fragments, with repulsion in one."""
    squeezed = dissociating("CO", 0.6)
    many = [above("CO2", 4.6), above("C6H6", 9.0), slab(), dissociating("CO", 3.7), squeezed]
    properties = ("energy", "energies", "forces", "stress", "energy_frame_std", "forces_frame_std")
    for structures, wanted in ((many, properties[:5]), (many[:-1], properties)):
        compiled = modern_float32.predict(structures, wanted)
        with monkeypatch.context() as patch:
            patch.setattr(forward_module, "engine_for", lambda model: None)
            plain = modern_float32.predict(structures, wanted)
        for name in wanted:
            one, other = getattr(compiled, name), getattr(plain, name)
            assert float((one - other).abs().max()) < 1e-4 * max(1.0, float(other.abs().max())), name


def test_the_engine_of_gpus_gives_what_compiled_code_gives(modern_float32, monkeypatch):
    """On the CPU, with its plain kernels."""
    many = [above("CO2", 4.6), above("C6H6", 9.0), slab(), dissociating("CO", 0.6)]
    wanted = ("energy", "energies", "forces", "stress")
    compiled = modern_float32.predict(many, wanted)
    monkeypatch.setattr(forward_module, "engine_for", DeviceEngine)
    on_device = modern_float32.predict(many, wanted)
    for name in wanted:
        one, other = getattr(compiled, name), getattr(on_device, name)
        assert float((one - other).abs().max()) < 1e-4 * max(1.0, float(other.abs().max())), name


def test_small_parts_are_the_whole(modern):
    graph = modern.graph([above("CO2", 4.6), above("C6H6", 9.0)])
    wanted = ("energy", "energies", "forces", "energy_frame_std", "forces_frame_std")
    one, other = (modern.evaluate(graph, properties=wanted, memory_bytes=budget).detach() for budget in (None, 1 << 21))
    for name in wanted:
        assert torch.allclose(getattr(one, name), getattr(other, name), atol=1e-10), name


def test_per_atom_energies_are_those_of_the_free_molecule(modern):
    free = modern.predict(rough("C2H4"), ("energies",))
    both = modern.predict(above("C2H4", 8.0), ("energy", "energies"))
    assert float((both.energies[-6:] - free.energies).abs().max()) < 1e-11
    partly = modern.predict(above("C2H4", 4.7), ("energy", "energies"))
    assert float(partly.energies.sum()) == pytest.approx(float(partly.energy), abs=1e-9)


def test_direct_forces_are_those_of_the_free_molecule():
    potential = build_potential(
        "modern-s", seed=1, dtype="float64", forces="direct", hidden_channels=64, filters=32, interactions=2
    )
    free = potential.predict(rough("C2H4"), ("forces",))
    both = potential.predict(above("C2H4", 8.0), ("forces",))
    assert float((both.forces[-6:] - free.forces).abs().max()) < 1e-11
    graph = potential.graph(above("C2H4", 8.0))
    frames = build_frames(graph, potential.config.frames, "all", vacuum=CUTOFF)
    shared = potential.evaluate(graph, properties=("forces",), frames=frames).forces
    assert float((shared[-6:] - free.forces).abs().max()) > 1e-5


def test_last_layer_features_are_those_of_the_free_molecule(modern):
    free = modern.predict(rough("C2H4"), ("atom_features",))
    both = modern.predict(above("C2H4", 8.0), ("atom_features",))
    assert torch.allclose(both.atom_features[-6:], free.atom_features, atol=1e-11)


def test_training_differentiates_through_the_weights_of_fragments(modern):
    """Forces with a graph for second derivatives are those without, and their derivative is that of differences."""
    atoms = above("C2H4", 4.7)
    graph = modern.graph(atoms)
    plain = modern.evaluate(graph, properties=("forces",), frames="pair").forces
    training = modern.evaluate(graph, properties=("forces",), frames="pair", create_graph=True).forces
    assert training.requires_grad
    assert torch.allclose(plain, training.detach(), atol=1e-10)


def test_one_frame_is_one_frame(modern):
    """Modes ``one`` and ``stochastic`` see the whole structure in one frame."""
    graph = modern.graph(above("CO2", 9.0))
    found = fragments.frames_with_fragments(modern.config, graph, "one")
    assert found.parts is None and found.n_frames == 1
    generator = torch.Generator().manual_seed(0)
    assert fragments.frames_with_fragments(modern.config, graph, "stochastic", generator=generator).n_frames == 1


def test_frames_of_other_kinds_have_no_fragments(paper_frames):
    """Imported models keep their numbers."""
    assert energy(paper_frames, above("CO2", 8.0)) == shared_frames(paper_frames, above("CO2", 8.0), "all")


def test_models_of_rotations_only(modern):
    proper = laws.scaled(modern, 1.0)
    proper.config = dataclasses.replace(modern.config, frames=dataclasses.replace(modern.config.frames, proper=True))
    expected = energy(proper, slab()) + energy(proper, rough("C2H4"))
    assert energy(proper, above("C2H4", 8.0)) == pytest.approx(expected, rel=1e-12)


def random_graph(seed: int) -> AtomGraph:
    """Atoms in a small periodic cell, dilute or dense."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(4, 14, size=3)
    atoms = Atoms("H" * int(rng.integers(1, 14)), cell=np.diag(size) + rng.uniform(-2, 2, (3, 3)))
    atoms.set_scaled_positions(rng.uniform(-1, 2, (len(atoms), 3)))
    atoms.pbc = rng.integers(0, 2, 3).astype(bool)
    close = atoms.get_all_distances(mic=True) + 9 * np.eye(len(atoms))
    if close.min() < 0.3:
        return random_graph(seed + 1000)
    return to_graph(atoms, cutoff=CUTOFF)


def test_components_are_connected_pieces():
    """Against walking along the edges: the same sets, and every short edge inside one spans consistent images."""
    kinds = set()
    for seed in range(60):
        graph = random_graph(seed)
        squared = graph.edge_vectors().square().sum(dim=1)
        count, component, image = fragments.components(graph, squared, 4.0**2)
        expected, slow, _ = fragments.components_in_python(graph, squared, 4.0**2)
        assert count == expected
        assert torch.equal(component < 0, slow < 0)
        assert torch.equal(component[:, None] == component, slow[:, None] == slow)
        short = (squared < 16.0) & (component[graph.centre] >= 0)
        assert torch.equal((image[graph.neighbor] - image[graph.centre])[short], graph.shift[short])
        kinds |= {"periodic"} if bool((component < 0).any()) else set()
        kinds |= {"in one piece across the border"} if bool(image.any()) else set()
        kinds |= {"several"} if len(component[component >= 0].unique()) > 1 and count else set()
    assert len(kinds) == 3


def test_without_compiled_code_energies_are_the_same(modern, monkeypatch):
    atoms = above("C2H4", 4.7)
    expected = energy(modern, atoms)
    monkeypatch.setattr(fragments, "library", lambda: None)
    assert energy(modern, atoms) == pytest.approx(expected, rel=1e-13)


def test_the_connection_is_the_formula():
    """Elimination against determinants, and against the closed form for two groups."""
    generator = torch.Generator().manual_seed(0)
    for k in (2, 3, 6):
        conductance = torch.rand(k, k, generator=generator, dtype=torch.float64)
        conductance = conductance + conductance.T
        conductance.fill_diagonal_(0.0)
        mass = torch.arange(1.0, k + 1, dtype=torch.float64)
        laplacian = conductance.sum(dim=1).diag() - conductance
        trees = torch.linalg.det(laplacian[1:, 1:])
        expected = mass.sum() * trees / torch.linalg.det(laplacian + mass.diag())
        assert float(fragments.connection(conductance, mass)) == pytest.approx(float(expected), rel=1e-12)
    for strength in (1e-12, 1.0, 1e12, 1e30):
        pair = torch.tensor([[0.0, strength], [strength, 0.0]], dtype=torch.float64)
        found = fragments.connection(pair, torch.tensor([3.0, 5.0], dtype=torch.float64))
        assert float(found) == pytest.approx(1 / (1 + 1 / (strength * (1 / 3 + 1 / 5))), rel=1e-12)


@pytest.mark.slow
def test_energy_is_conserved_while_a_molecule_leaves():
    """CO moves from the reach of Cu(111) into the vacuum, with the weights of a shipped model in float64."""
    surface = fcc111("Cu", (3, 3, 2), vacuum=2.0)
    surface.cell[2, 2], surface.pbc = 30.0, True
    surface.rattle(0.03, seed=0)
    guest = molecule("CO")
    guest.rotate(40, "x")
    guest.positions += surface.positions[:, 2].max() * np.array([0, 0, 1]) + [
        3.0,
        2.0,
        3.6 - guest.positions[:, 2].min(),
    ]
    atoms = surface + guest
    atoms.calc = FAENetCalculator("copper-s", dtype="float64", device="cpu", on_outside_domain="ignore")
    velocities = np.zeros((len(atoms), 3))
    velocities[-2:, 2] = 0.02 / units.fs  # Å/fs: 1.6 Å in the run
    atoms.set_velocities(velocities)
    weights, total = [], []
    dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
    for _ in range(40):
        dynamics.run(5)
        found = find_fragments(to_graph(atoms, cutoff=CUTOFF), CUTOFF)
        weights.append(float(found[0].weight) if found else 0.0)
        total.append(atoms.get_total_energy())
    assert weights[0] == 0.0 and weights[-1] == 1.0 and sum(0 < weight < 1 for weight in weights) >= 5
    assert np.ptp(total) / len(atoms) < 1e-4
