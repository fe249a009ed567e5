"""How much faster are energy and forces of the paper's S2EF network than in the way of the original code?

    python benchmarks/paper_speed.py [--sizes 40 200] [--repeats 5] [--out rows.jsonl]

The preset ``paper-s2ef`` with random weights (direct forces, 30 neighbors at most, 3D frames of principal axes, no
rewiring) through ``FAENetCalculator``, beside ``upstream_style.py`` with the same weights. Both sides search their
neighbors with the same library, run in one process on one thread and take turns; medians of CPU times are compared.
Structures are those of ``speed.py``. The forces of both sides are compared.

The engine leaves out directional features of edges that are linear combinations of others, which depends on the
weights. With ``--independent`` the weights of these features are ten times as large and none is left out.

Rows are JSON: benchmark, case, atoms, metric, value, unit.
"""

import argparse
import copy
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import upstream_style
from ase import Atoms
from rows import Row, Rows, show
from speed import LAYERS, slab
from torch import Tensor
from torch_geometric.data import Data

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.graphs.neighbors import neighbor_list
from faenet_calc.potential.potential import Potential

FRAMES = {"one": 1, "all": 8}
LARGEST_FORCE_DIFFERENCE = 1e-4  # eV/Å


def tags(atoms: Atoms) -> np.ndarray:
    """Every metal atom at the surface, others in the adsorbate."""
    return np.where(atoms.numbers == 29, 1, 2)


def paper_potential(*, independent: bool = False) -> Potential:
    """The S2EF network with 3D frames and all atoms."""
    frames = {"kind": "pca3d", "differentiable": False}
    potential = build_potential("paper-s2ef", graph={"rewiring": "none"}, frames=frames)
    if independent:
        with torch.no_grad():
            potential.model.edge_embedding.lin_e1.weight *= 10
    return potential


def upstream_forces(model: upstream_style.UpstreamStyle, potential: Potential, atoms: Atoms, n_frames: int) -> Tensor:
    """Direct forces [n_atoms, 3] averaged over frames, one after the other."""
    settings = {"max_neighbors": potential.config.graph.max_neighbors}
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, potential.cutoff, **settings)
    data = Data(
        pos=torch.tensor(atoms.positions, dtype=torch.float32),
        cell=torch.tensor(atoms.cell.array, dtype=torch.float32)[None],
        atomic_numbers=torch.tensor(atoms.numbers),
        tags=torch.tensor(tags(atoms)),
        edge_index=torch.stack([torch.tensor(edges.neighbor), torch.tensor(edges.centre)]),
        cell_offsets=torch.tensor(edges.shift),
        neighbors=len(edges.centre),
        natoms=len(atoms),
    )
    centred = data.pos - data.pos.mean(dim=0)
    values, axes = torch.linalg.eigh(centred.T @ centred)
    axes = axes[:, values.argsort(descending=True)]
    flips = itertools.islice(itertools.product([1.0, -1.0], repeat=3), n_frames)
    rotations = [axes @ torch.diag(torch.tensor(flip)) for flip in flips]
    data.fa_pos, data.fa_cell = [centred @ u for u in rotations], [data.cell @ u for u in rotations]
    data.fa_rot = [u[None] for u in rotations]
    batch, forces = upstream_style.collate([data]), []
    with torch.no_grad():
        for pos, cell, rotation in zip(batch.fa_pos, batch.fa_cell, batch.fa_rot, strict=True):
            batch.pos, batch.cell = pos, cell
            _, force = model.energy_and_force(copy.deepcopy(batch))
            forces.append(torch.bmm(force[:, None], rotation[batch.batch].transpose(1, 2))[:, 0])
    return torch.stack(forces).mean(0)


def measure(n_atoms: int, frames: str, repeats: int, store: Callable[[Row], None], *, independent: bool) -> None:
    """Time both sides on structures whose atoms move a little before every call."""
    potential = paper_potential(independent=independent)
    model = upstream_style.UpstreamStyle(copy.deepcopy(potential.model)).eval()
    atoms, draw = slab(n_atoms), np.random.default_rng(0)
    atoms.calc = FAENetCalculator(potential, frames=frames, device="cpu", tags=tags, remove_net_force=False)
    start = atoms.positions.copy()
    times: dict[str, list[float]] = {"ours": [], "upstream's way": []}
    for repeat in range(-1, repeats):
        atoms.positions = start + draw.normal(scale=0.01, size=start.shape)
        begin = time.process_time()
        ours = atoms.get_forces()
        middle = time.process_time()
        theirs = upstream_forces(model, potential, atoms, FRAMES[frames])
        end = time.process_time()
        if repeat >= 0:  # the first call warms up
            times["ours"].append(1e3 * (middle - begin))
            times["upstream's way"].append(1e3 * (end - middle))
        difference = np.abs(ours - theirs.numpy()).max()
        if frames == "all" and difference > LARGEST_FORCE_DIFFERENCE:  # a single frame has a sign to choose
            raise SystemExit(f"forces differ by {difference:.1e} eV/Å; the two sides do not compute the same")
    found = {side: float(np.median(values)) for side, values in times.items()}
    case = f"paper-s2ef, {FRAMES[frames]} frame{'s' if FRAMES[frames] > 1 else ''}"
    if independent:
        case += ", independent features"
    common = {"benchmark": "paper_speed", "case": case, "atoms": n_atoms}
    for side, value in found.items():
        store(common | {"metric": f"energy and forces, {side}", "value": value, "unit": "ms"})
    store(common | {"metric": "upstream's way / ours", "value": found["upstream's way"] / found["ours"], "unit": "x"})


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[40, 200], choices=LAYERS)
    parser.add_argument("--frames", nargs="+", default=list(FRAMES), choices=list(FRAMES))
    parser.add_argument("--repeats", type=int, default=5, help="Timed calls of each side.")
    parser.add_argument("--independent", action="store_true", help="No directional feature can be left out.")
    parser.add_argument("--out", type=Path, help="File for the rows (JSON lines).")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = Rows(chosen.out)

    def store(row: Row) -> None:
        rows.append(row)
        show(row)

    for n_atoms in chosen.sizes:
        for frames in chosen.frames:
            measure(n_atoms, frames, chosen.repeats, store, independent=chosen.independent)


if __name__ == "__main__":
    main()
