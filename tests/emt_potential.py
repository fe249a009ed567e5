"""A tiny potential for tests that need a sensible energy surface: EMT copper, trained in a few minutes.

Random weights are enough for identities; optimisers and molecular dynamics need minima. The result is stored beside the
tests; `python tests/emt_potential.py` makes it again. The loop is plain torch on purpose: tests of the calculator do
not depend on the training package.
"""

from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT
from numpy.random import Generator, default_rng

from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.checkpoint import save_potential
from faenet_calc.potential.potential import Potential, build_potential

FILE = Path(__file__).parent / "data" / "emt-copper.safetensors"
N_STEPS = 2500
SETTINGS = {
    "hidden_channels": 64,
    "filters": 48,
    "interactions": 2,
    "gaussians": 20,
    "cutoff": 4.5,
    "mean_neighbors": 18.0,
    "trained_elements": (29,),
    "energy": {"kind": "total", "reference": "EMT atoms", "level_of_theory": "EMT"},
    "name": "emt-copper-for-tests",
}


def cluster() -> Atoms:
    """Cu4, a tetrahedron: the smallest molecule with a shape of its own."""
    return Atoms("Cu4", positions=0.87 * np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]))


def slab() -> Atoms:
    return fcc111("Cu", (2, 2, 3), a=3.61, vacuum=6.0, periodic=True)


def crystal() -> Atoms:
    return bulk("Cu", cubic=True, a=3.61)


def structures(rng: Generator, n_each: int) -> list[Atoms]:
    """Rattled and strained clusters, slabs and crystals."""
    found = []
    for make in (cluster, slab, crystal):
        for _ in range(n_each):
            atoms = make()
            strain = np.eye(3) + rng.uniform(-0.04, 0.04, (3, 3)) * (1.0 if atoms.pbc.any() else 0.0)
            scale = 1.0 if atoms.pbc.any() else rng.uniform(0.9, 1.15)
            if atoms.pbc.any():
                atoms.set_cell(atoms.cell.array @ (0.5 * (strain + strain.T)), scale_atoms=True)
            atoms.positions *= scale
            atoms.positions += rng.normal(scale=rng.choice([0.02, 0.06, 0.12]), size=atoms.positions.shape)
            found.append(atoms)
    return found


def train(seed: int = 0, n_steps: int = N_STEPS, forces_kind: str = "gradient") -> Potential:
    """A potential fitted to EMT energies and forces, with gradient or direct forces."""
    rng = default_rng(seed)
    atoms = structures(rng, 40)
    for one in atoms:
        one.calc = EMT()
    energy = np.array([one.get_potential_energy() for one in atoms])
    sizes = np.array([len(one) for one in atoms])
    reference = float((energy / sizes).mean())
    references = {"references": {"Cu": reference}}
    potential = build_potential("modern-s", seed=seed, forces=forces_kind, normalization=references, **SETTINGS)
    graphs = [potential.graph(one) for one in atoms]
    forces = [torch.tensor(one.get_forces()) for one in atoms]
    targets = torch.tensor(energy)
    potential.requires_grad_(True)
    optimizer = torch.optim.Adam(potential.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=n_steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_steps):
        picked = rng.choice(len(graphs), 6, replace=False)
        batch = AtomGraph.batch([graphs[i] for i in picked])
        out = potential.evaluate(batch, frames="stochastic", generator=generator, create_graph=True)
        per_atom = (out.energy - targets[picked]) / torch.tensor(sizes[picked])
        error = out.forces - torch.cat([forces[i] for i in picked])
        loss = 20.0 * per_atom.square().mean() + error.square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(potential.parameters(), 10.0)
        optimizer.step()
        schedule.step()
    return potential.eval().requires_grad_(False)


if __name__ == "__main__":
    save_potential(train(), FILE, extra={"made_by": "python tests/emt_potential.py"})
