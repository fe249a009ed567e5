"""Symmetry metrics of the paper: how much a prediction changes when a structure is rotated or reflected.

Defined per structure and absolute, unlike the paper's signed averages: Rot-I and Refl-I are mean |ΔE| (eV) over
structures, F-Rot-E and F-Refl-E the mean |ΔF| per component (eV/Å) after turning forces back, and %-diff is
100 · mean(|ΔE| / |E|) of rotations. With stochastic frames the two predictions draw different frames, as in use.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from faenet_calc.data.dataset import GraphDataset
from faenet_calc.frames.frames import out_of_frame
from faenet_calc.frames.lattice import random_rotation, random_turn_about_z
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.potential import FramesChoice, Potential
from faenet_calc.training.batches import Indices


@dataclass(frozen=True, kw_only=True)
class SymmetryMetrics:
    """Symmetry errors over a data set.

    Attributes:
        rot_i, refl_i: (eV) per structure.
        percent_diff: (%) of the energy, rotations.
        f_rot_e, f_refl_e: (eV/Å) per component; None for a potential without forces.
        n_structures: How many were turned.
    """

    rot_i: float
    refl_i: float
    percent_diff: float
    f_rot_e: float | None
    f_refl_e: float | None
    n_structures: int


def symmetry_metrics(
    potential: Potential,
    dataset: GraphDataset,
    indices: Indices,
    *,
    frames: FramesChoice = "auto",
    seed: int = 0,
    about_z: bool = False,
) -> SymmetryMetrics:
    """Turn every structure once at random and reflect it once.

    Args:
        potential: To be tested.
        dataset: The structures.
        indices: Which of them.
        frames: As in :meth:`Potential.evaluate`.
        seed: Of the transformations and of stochastic frames.
        about_z: Rotations about z and reflections in planes that contain z only (the paper's OC20 tables).
    """
    generator = torch.Generator().manual_seed(seed)
    has_forces = potential.config.forces != "none"
    sums: dict[str, list[float]] = {name: [] for name in ("rot", "refl", "percent", "f_rot", "f_refl")}
    for index in indices.tolist():
        graph = dataset[index].graph.to(device=potential.device)
        energy, forces = _predict(potential, graph, frames, generator, has_forces)
        for name in ("rot", "refl"):
            turn = random_turn_about_z(generator) if about_z else random_rotation(generator)
            if name == "refl":
                turn = turn @ torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=turn.dtype))
            turn = turn.to(graph.positions)
            turned = graph.replace(positions=graph.positions @ turn, cell=graph.cell @ turn)
            new_energy, new_forces = _predict(potential, turned, frames, generator, has_forces)
            change = abs(new_energy - energy)
            sums[name].append(change)
            if name == "rot":
                sums["percent"].append(100 * change / max(abs(energy), 1e-12))
            if forces is not None and new_forces is not None:
                back = out_of_frame(new_forces, turn.expand(len(forces), 3, 3))
                sums[f"f_{name}"].append(float((back - forces).abs().mean()))
    means = {name: sum(values) / len(values) if values else None for name, values in sums.items()}
    return SymmetryMetrics(
        rot_i=means["rot"] or 0.0,
        refl_i=means["refl"] or 0.0,
        percent_diff=means["percent"] or 0.0,
        f_rot_e=means["f_rot"],
        f_refl_e=means["f_refl"],
        n_structures=len(indices),
    )


def _predict(
    potential: Potential, graph: AtomGraph, frames: FramesChoice, generator: torch.Generator, has_forces: bool
) -> tuple[float, Tensor | None]:
    properties = ("energy", "forces") if has_forces else ("energy",)
    with torch.no_grad():
        found = potential.evaluate(graph, properties=properties, frames=frames, generator=generator).detach()
    return float(found.energy[0]), found.forces
