"""Symmetry metrics of the paper: changes of a prediction when a structure is rotated or reflected.

Defined per structure and absolute, unlike the paper's signed averages: Rot-I and Refl-I are mean |ΔE| (eV) over
structures, F-Rot-E and F-Refl-E the mean |ΔF| per component (eV/Å) after turning forces back, and %-diff is
100 · mean(|ΔE| / |E|) of rotations. With stochastic frames the two predictions draw different frames, as in use.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from faenet_calc.data.dataset import GraphDataset
from faenet_calc.frames.frames import out_of_frame
from faenet_calc.frames.lattice import random_rotation, random_turn_about_z
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.capabilities import FramesChoice
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.predictor import Predictor
from faenet_calc.training.batches import Indices


@dataclass(frozen=True, kw_only=True)
class SymmetryMetrics:
    """Symmetry errors over a data set.

    Attributes:
        rot_i, refl_i: (eV) per structure.
        percent_diff: (%) of the energy, rotations.
        f_rot_e, f_refl_e: (eV/Å) per component; None for a potential without forces.
        n_structures: Number of structures.
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
    """Rotate every structure once at random and reflect it once.

    Args:
        potential: The potential to test.
        dataset: The structures.
        indices: Indices of the structures to transform.
        frames: As in :meth:`Potential.evaluate`.
        seed: Random seed of the transformations and of stochastic frames.
        about_z: Rotations about z and reflections in planes that contain z only (the paper's OC20 tables).
    """
    turns: list[Tensor] = []

    def graphs() -> Iterator[AtomGraph]:
        generator = torch.Generator().manual_seed(seed)
        for index in indices.tolist():
            graph = dataset[index].graph.to(device=potential.device)
            yield graph
            for reflect in (False, True):
                turn = random_turn_about_z(generator) if about_z else random_rotation(generator)
                if reflect:
                    turn = turn @ torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=turn.dtype))
                turns.append(turn.to(graph.positions))
                yield graph.replace(positions=graph.positions @ turns[-1], cell=graph.cell @ turns[-1])

    predictor = Predictor(potential, frames=frames, seed=seed)
    wanted = [name for name in ("energy", "forces") if name in predictor.properties]
    predictions = predictor.predict(graphs(), wanted)
    sums: dict[str, list[float]] = {name: [] for name in ("rot", "refl", "percent", "f_rot", "f_refl")}
    for number, original in enumerate(predictions):
        energy = float(original.energy[0])
        for step, (name, changed) in enumerate(zip(("rot", "refl"), predictions, strict=False)):
            change = abs(float(changed.energy[0]) - energy)
            sums[name].append(change)
            if name == "rot":
                sums["percent"].append(100 * change / max(abs(energy), 1e-12))
            if original.forces is not None and changed.forces is not None:
                back = out_of_frame(changed.forces, turns[2 * number + step].expand(len(original.forces), 3, 3))
                sums[f"f_{name}"].append(float((back - original.forces).abs().mean()))
    means = {name: sum(values) / len(values) if values else None for name, values in sums.items()}
    return SymmetryMetrics(
        rot_i=means["rot"] or 0.0,
        refl_i=means["refl"] or 0.0,
        percent_diff=means["percent"] or 0.0,
        f_rot_e=means["f_rot"],
        f_refl_e=means["f_refl"],
        n_structures=len(indices),
    )
