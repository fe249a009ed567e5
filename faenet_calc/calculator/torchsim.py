"""FAENet potentials as models of torch-sim.

``FAENetModel`` implements torch-sim's ``ModelInterface``; import it where torch-sim is installed. Periodicity is taken
from the simulation state. States of torch-sim 0.3 hold one flag for all structures and drop partial periodicity, so
slabs are computed as periodic in three directions there; their vacuum keeps the images apart.
"""

from typing import Any

import numpy as np
import torch
from ase import Atoms
from torch import Tensor
from torch_sim.models.interface import ModelInterface

from faenet_calc.errors import InputError
from faenet_calc.potential.capabilities import FramesChoice
from faenet_calc.potential.committee import load_committee
from faenet_calc.potential.predictor import Predictor


class FAENetModel(ModelInterface):
    """A FAENet potential, or a committee, for the integrators and optimizers of torch-sim.

    Args:
        checkpoint: None for the default shipped model, a shipped name, a path, a list or glob of paths, or a Potential.
        device: Torch device; None for the best available.
        dtype: "float32" or "float64" for the network.
        frames: Frame mode, as in :class:`~faenet_calc.calculator.FAENetCalculator`.
        compute_stress: Whether to compute stress (eV/Å³).
    """

    def __init__(
        self,
        checkpoint: Any = None,
        *,
        device: str | torch.device | None = None,
        dtype: str = "float32",
        frames: FramesChoice = "auto",
        compute_stress: bool = True,
    ) -> None:
        super().__init__()
        committee = load_committee(checkpoint, device, dtype)
        first = committee.members[0]
        if first.needs_tags:
            raise InputError("this model needs tags (sub-surface, surface, adsorbate), which torch-sim does not carry")
        self.predictor = Predictor(committee, frames=frames, remove_net_force="auto", seed=0)
        self._device, self._dtype = first.device, first.geometry_dtype
        self._compute_forces, self._compute_stress = True, compute_stress

    def forward(self, state: Any, **_: Any) -> dict[str, Tensor]:
        """Energies [n_systems] (eV), forces [n_atoms, 3] (eV/Å) and stress [n_systems, 3, 3] (eV/Å³) of a state."""
        first = self.predictor.committee.members[0]
        properties = ("energy", "forces", "stress") if self._compute_stress else ("energy", "forces")
        graphs = [first.graph(atoms) for atoms in _structures(state)]
        batches = list(self.predictor.predict_batches(graphs, properties))
        return {name: torch.cat([_tensor(batch, name) for batch in batches]).to(self._dtype) for name in properties}


def _tensor(prediction: Any, name: str) -> Tensor:
    value: Tensor = getattr(prediction, name)
    return value


def _structures(state: Any) -> list[Atoms]:
    """The structures of a simulation state; torch-sim stores cell vectors as columns."""
    values = state if isinstance(state, dict) else vars(state)
    positions, numbers, system, cell, pbc = (
        np.asarray(torch.as_tensor(values[name]).detach().cpu())
        for name in ("positions", "atomic_numbers", "system_idx", "cell", "pbc")
    )
    return [
        Atoms(numbers[system == index], positions=positions[system == index], cell=vectors.T, pbc=pbc)
        for index, vectors in enumerate(cell)
    ]
