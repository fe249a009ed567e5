"""Physics asserts for any Potential, and the structures to run them on.

Every ``*_deviation`` measures how far a potential is from a law of physics; every ``assert_*`` compares that with a
limit and says what it found. :func:`check_potential` runs them all and returns a table.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, fcc211, molecule
from numpy.typing import NDArray

from faenet_calc.potential.capabilities import FramesChoice
from faenet_calc.potential.potential import Potential

Matrix = NDArray[np.float64]


def structures() -> dict[str, Atoms]:
    """Named structures: slabs with adsorbates, crystals, molecules of every symmetry, a dimer and an atom.

    Slabs and crystals are slightly displaced, so that their forces do not vanish by symmetry; molecules are exactly
    symmetric, where frames are hardest.
    """
    copper = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(copper, molecule("CO"), 1.9, "ontop", mol_index=1)
    platinum = fcc211("Pt", (3, 2, 2), vacuum=8.0)
    add_adsorbate(platinum, molecule("OH"), 2.0, position=(1.0, 1.2))
    crystals = {
        "Cu(111)+CO": copper,
        "Pt(211)+OH": platinum,
        "fcc Cu primitive": bulk("Cu"),
        "fcc Cu cubic": bulk("Cu", cubic=True),
        "hcp Ru": bulk("Ru"),
    }
    for index, atoms in enumerate(crystals.values()):
        atoms.rattle(0.05, seed=index)
    molecules = {name: molecule(name) for name in ("CH4", "C6H6", "CO2", "NH3", "H2")}
    return crystals | molecules | {"Cu atom": Atoms("Cu")}


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Largest differences between what a potential gave and what it should have given.

    Attributes:
        energy_per_atom: (eV).
        forces: (eV/Å); 0 where forces were not compared.
    """

    energy_per_atom: float
    forces: float = 0.0

    def __or__(self, other: "Deviation") -> "Deviation":
        """The larger of both."""
        return Deviation(
            energy_per_atom=max(self.energy_per_atom, other.energy_per_atom), forces=max(self.forces, other.forces)
        )


def energy_and_forces(potential: Potential, atoms: Atoms, frames: FramesChoice = "auto") -> tuple[float, Matrix]:
    """Energy (eV) and forces [n_atoms, 3] (eV/Å) of one structure."""
    prediction = potential.predict(atoms, ("energy", "forces"), frames=frames, forces=own_forces(potential))
    assert prediction.forces is not None
    return float(prediction.energy[0]), prediction.forces.cpu().double().numpy()


def own_forces(potential: Potential) -> Literal["gradient", "auto"]:
    """The kind of forces to ask for: the potential's own, or the gradient where it was trained on energies only."""
    return "gradient" if potential.config.forces == "none" else "auto"


def _compare(
    potential: Potential,
    atoms: Atoms,
    changed: Atoms,
    turn: Matrix,
    frames: FramesChoice,
    order: Sequence[int] | None = None,
) -> Deviation:
    """Deviation of ``changed`` from ``atoms`` whose forces should be turned by ``turn`` and reordered by ``order``."""
    energy, forces = energy_and_forces(potential, atoms, frames)
    new_energy, new_forces = energy_and_forces(potential, changed, frames)
    expected = forces @ turn if order is None else (forces @ turn)[list(order)]
    return Deviation(
        energy_per_atom=abs(new_energy - energy) / len(atoms), forces=float(np.abs(new_forces - expected).max())
    )


def random_rotation(rng: np.random.Generator) -> Matrix:
    """[3, 3] a random rotation."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q if np.linalg.det(q) > 0 else -q


def turned(atoms: Atoms, turn: Matrix) -> Atoms:
    """The structure with its cell multiplied by an orthogonal matrix from the right."""
    copy = atoms.copy()
    copy.set_cell(atoms.cell.array @ turn, scale_atoms=False)
    copy.positions = atoms.positions @ turn
    return copy


def rotation_deviation(
    potential: Potential, atoms: Atoms, *, frames: FramesChoice = "auto", seed: int = 0
) -> Deviation:
    """Energy invariance and force equivariance under random rotations."""
    rng = np.random.default_rng(seed)
    worst = Deviation(energy_per_atom=0.0)
    for _ in range(3):
        turn = random_rotation(rng)
        worst = worst | _compare(potential, atoms, turned(atoms, turn), turn, frames)
    return worst


def reflection_deviation(
    potential: Potential, atoms: Atoms, *, frames: FramesChoice = "auto", seed: int = 0
) -> Deviation:
    """The same under a random improper rotation."""
    turn = -random_rotation(np.random.default_rng(seed))
    return _compare(potential, atoms, turned(atoms, turn), turn, frames)


def translation_deviation(
    potential: Potential, atoms: Atoms, *, frames: FramesChoice = "auto", seed: int = 0
) -> Deviation:
    """The same under a rigid shift, without wrapping."""
    moved = atoms.copy()
    moved.positions += np.random.default_rng(seed).normal(scale=3.0, size=3)
    return _compare(potential, atoms, moved, np.eye(3), frames)


def wrapping_deviation(
    potential: Potential, atoms: Atoms, *, frames: FramesChoice = "auto", seed: int = 0
) -> Deviation:
    """The same crystal with single atoms moved by lattice vectors, and with a rigid shift followed by wrapping."""
    rng = np.random.default_rng(seed)
    images = atoms.copy()
    jumps = rng.integers(-2, 3, size=(len(atoms), 3)) * atoms.pbc
    images.positions += jumps @ atoms.cell.array
    shifted = atoms.copy()
    shifted.positions += (rng.random(3) * atoms.pbc) @ atoms.cell.array
    shifted.wrap()
    return _compare(potential, atoms, images, np.eye(3), frames) | _compare(
        potential, atoms, shifted, np.eye(3), frames
    )


def permutation_deviation(
    potential: Potential, atoms: Atoms, *, frames: FramesChoice = "auto", seed: int = 0
) -> Deviation:
    """The same with the atoms in another order."""
    order = np.random.default_rng(seed).permutation(len(atoms))
    return _compare(potential, atoms, atoms[order], np.eye(3), frames, order.tolist())


def supercell_deviation(
    potential: Potential, atoms: Atoms, repeat: tuple[int, int, int], *, frames: FramesChoice = "auto"
) -> Deviation:
    """E(supercell) against n times E(cell), and the forces of every replica."""
    energy, forces = energy_and_forces(potential, atoms, frames)
    large_energy, large_forces = energy_and_forces(potential, atoms.repeat(repeat), frames)
    copies = int(np.prod(repeat))
    return Deviation(
        energy_per_atom=abs(large_energy / copies - energy) / len(atoms),
        forces=float(np.abs(large_forces - np.tile(forces, (copies, 1))).max()),
    )


def batch_deviation(potential: Potential, many: Sequence[Atoms], *, frames: FramesChoice = "auto") -> Deviation:
    """A batch of structures against each of them alone."""
    together = potential.predict(list(many), ("energy", "forces"), frames=frames, forces=own_forces(potential)).split()
    worst = Deviation(energy_per_atom=0.0)
    for atoms, member in zip(many, together, strict=True):
        energy, forces = energy_and_forces(potential, atoms, frames)
        assert member.forces is not None
        difference = np.abs(member.forces.cpu().double().numpy() - forces).max()
        per_atom = abs(float(member.energy[0]) - energy) / len(atoms)
        worst = worst | Deviation(energy_per_atom=per_atom, forces=float(difference))
    return worst


def separation_deviation(
    potential: Potential, first: Atoms, second: Atoms, *, cell: float = 3.8, box: float = 40.0, distance: float = 15.0
) -> Deviation:
    """Two layers of molecules far apart in one cell against the sum of each alone in that cell.

    The molecules of a layer are close enough to their images for the structure to be periodic in the plane: all three
    structures have the frames of the same lattice. Isolated molecules have frames of their own.
    """
    alone = []
    for atoms, shift in ((first, 0.0), (second, distance)):
        placed = atoms.copy()
        placed.set_cell([cell, cell, box])
        placed.pbc = True
        placed.positions += np.array([0.0, 0.0, 10.0 + shift]) - placed.positions.mean(axis=0)
        alone.append(placed)
    energies, forces = zip(*(energy_and_forces(potential, atoms, "auto") for atoms in alone), strict=True)
    energy, both = energy_and_forces(potential, alone[0] + alone[1], "auto")
    return Deviation(
        energy_per_atom=abs(energy - sum(energies)) / len(both),
        forces=float(np.abs(both - np.concatenate(forces)).max()),
    )


def central_difference_forces(
    potential: Potential, atoms: Atoms, indices: Sequence[int], *, step: float = 1e-5, frames: FramesChoice = "auto"
) -> Matrix:
    """[len(indices), 3] (eV/Å) minus the central difference of the energy; the truth for gradient forces."""
    moved = []
    for index in indices:
        for axis in range(3):
            for sign in (1, -1):
                copy = atoms.copy()
                copy.positions[index, axis] += sign * step
                moved.append(copy)
    energy = _energies(potential, moved, frames).reshape(len(indices), 3, 2)
    return -(energy[..., 0] - energy[..., 1]) / (2 * step)


def central_difference_stress(
    potential: Potential, atoms: Atoms, *, step: float = 1e-5, frames: FramesChoice = "auto"
) -> Matrix:
    """[3, 3] (eV/Å³) central difference of the energy under symmetric strain; the truth for the stress."""
    strained = []
    for i in range(3):
        for j in range(3):
            for sign in (1, -1):
                strain = np.zeros((3, 3))
                strain[i, j] += 0.5 * sign * step
                strain[j, i] += 0.5 * sign * step
                copy = atoms.copy()
                copy.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=False)
                copy.positions = atoms.positions @ (np.eye(3) + strain)
                strained.append(copy)
    energy = _energies(potential, strained, frames).reshape(3, 3, 2)
    return (energy[..., 0] - energy[..., 1]) / (2 * step * atoms.get_volume())


def _energies(potential: Potential, many: list[Atoms], frames: FramesChoice) -> Matrix:
    energy = potential.predict(many, ("energy",), frames=frames).energy
    return energy.cpu().double().numpy()


def force_deviation(
    potential: Potential, atoms: Atoms, *, n_atoms: int = 4, frames: FramesChoice = "auto", seed: int = 0
) -> float:
    """(eV/Å) gradient forces against central differences on randomly chosen atoms."""
    count = min(n_atoms, len(atoms))
    indices = np.random.default_rng(seed).choice(len(atoms), size=count, replace=False).tolist()
    exact = potential.predict(atoms, ("forces",), frames=frames, forces="gradient").forces
    assert exact is not None
    numeric = central_difference_forces(potential, atoms, indices, frames=frames)
    return float(np.abs(exact.cpu().double().numpy()[indices] - numeric).max())


def stress_deviation(potential: Potential, atoms: Atoms, *, frames: FramesChoice = "auto") -> float:
    """(eV/Å³) stress against central differences."""
    exact = potential.predict(atoms, ("stress",), frames=frames, forces="gradient").stress
    assert exact is not None
    return float(
        np.abs(exact[0].cpu().double().numpy() - central_difference_stress(potential, atoms, frames=frames)).max()
    )


def assert_symmetric(potential: Potential, atoms: Atoms, *, energy: float = 1e-9, forces: float = 1e-8) -> None:
    """Raise unless rotation, reflection, translation, wrapping and permutation leave the physics alone.

    Args:
        potential: In float64, or limits to match.
        atoms: The structure.
        energy: Limit (eV/atom).
        forces: Limit (eV/Å).
    """
    laws: dict[str, Callable[..., Deviation]] = {
        "rotation": rotation_deviation,
        "reflection": reflection_deviation,
        "translation": translation_deviation,
        "wrapping": wrapping_deviation,
        "permutation": permutation_deviation,
    }
    for name, law in laws.items():
        found = law(potential, atoms)
        if found.energy_per_atom > energy or found.forces > forces:
            raise AssertionError(
                f"{atoms.get_chemical_formula()} under {name}: energy changes by {found.energy_per_atom:.2e} eV/atom "
                f"(limit {energy:.0e}), forces by {found.forces:.2e} eV/Å (limit {forces:.0e})"
            )


def assert_conservative(potential: Potential, atoms: Atoms, *, forces: float = 1e-6, stress: float = 1e-7) -> None:
    """Raise unless gradient forces (eV/Å) and, for a crystal, stress (eV/Å³) are the derivatives of the energy."""
    found = force_deviation(potential, atoms)
    if found > forces:
        raise AssertionError(f"{atoms.get_chemical_formula()}: forces differ from -dE/dx by {found:.2e} eV/Å")
    if atoms.pbc.any() and atoms.cell.rank == 3:
        found = stress_deviation(potential, atoms)
        if found > stress:
            raise AssertionError(f"{atoms.get_chemical_formula()}: stress differs from dE/dε/V by {found:.2e} eV/Å³")


def in_float64(potential: Potential) -> Potential:
    """A copy whose network runs in float64, so that a check sees the physics and not the round-off."""
    copy = Potential(potential.config).to(potential.device)
    copy.model.to(torch.float64)
    copy.model.load_state_dict(potential.model.state_dict())
    copy.metadata = dict(potential.metadata)
    return copy.eval().requires_grad_(False)


def scaled(potential: Potential, factor: float) -> Potential:
    """The same potential with all energies and forces multiplied; random weights give small ones."""
    normalization = potential.config.normalization
    stretched = dataclasses.replace(
        normalization, scale=factor * normalization.scale, force_scale=factor * normalization.force_scale
    )
    copy = in_float64(potential)
    copy.model.to(potential.dtype)
    copy.config = dataclasses.replace(potential.config, normalization=stretched)
    return copy
