"""Prediction: what a potential says about a batch."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """What a potential says about a batch; None where it was not asked for.

    Attributes:
        graph_of_atom: [n_atoms] int64.
        energy: [n_graphs] (eV).
        energies: [n_atoms] (eV), sums to ``energy``.
        forces: [n_atoms, 3] (eV/Å), of the kind that was chosen.
        gradient_forces: [n_atoms, 3] (eV/Å), -dE/dx through the frames.
        direct_forces: [n_atoms, 3] (eV/Å), of the force decoder.
        stress: [n_graphs, 3, 3] (eV/Å³); zero for a structure without a volume.
        energy_frame_std: [n_graphs] (eV), spread of the energy over frames.
        forces_frame_std: [n_atoms] (eV/Å), root mean square deviation of an atom's force vector over frames.
    """

    graph_of_atom: Tensor
    energy: Tensor
    energies: Tensor | None = None
    forces: Tensor | None = None
    gradient_forces: Tensor | None = None
    direct_forces: Tensor | None = None
    stress: Tensor | None = None
    energy_frame_std: Tensor | None = None
    forces_frame_std: Tensor | None = None

    def _map(self, function: Callable[[str, Tensor], Tensor]) -> "Prediction":
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dataclasses.replace(self, **{k: function(k, v) for k, v in values.items() if v is not None})

    def detach(self) -> "Prediction":
        """The same numbers without their history."""
        return self._map(lambda _, value: value.detach())

    def split(self) -> "list[Prediction]":
        """One prediction per structure."""
        n_graphs = len(self.energy)
        ends = torch.cumsum(torch.bincount(self.graph_of_atom, minlength=n_graphs), 0).tolist()
        per_graph = {"energy", "stress", "energy_frame_std"}
        members = []
        for index, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            atoms, graphs = slice(start, end), slice(index, index + 1)

            def cut(name: str, value: Tensor, atoms: slice = atoms, graphs: slice = graphs) -> Tensor:
                part = value[graphs if name in per_graph else atoms]
                return torch.zeros_like(part) if name == "graph_of_atom" else part

            members.append(self._map(cut))
        return members
