"""Prediction: the results of a potential for a batch of structures."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_PER_GRAPH = frozenset(
    {
        "closest_contact",
        "energy",
        "energy_comm",
        "energy_frame_std",
        "energy_uncertainty",
        "energy_uncertainty_95",
        "energy_var",
        "repulsion_energy",
        "stress",
        "stress_var",
        "torque",
    }
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """Results for a batch of structures; None for what was not requested.

    The last five are those of a committee, under the names that MACE uses; the other values are then averages over its
    members.

    Attributes:
        graph_of_atom: [n_atoms] int64.
        energy: [n_graphs] (eV).
        energies: [n_atoms] (eV), sums to ``energy``.
        forces: [n_atoms, 3] (eV/Å), of the chosen kind.
        gradient_forces: [n_atoms, 3] (eV/Å), -dE/dx through the frames.
        direct_forces: [n_atoms, 3] (eV/Å), of the force decoder.
        stress: [n_graphs, 3, 3] (eV/Å³); zero for a structure without a volume.
        torque: [n_graphs, 3] (eV/rad), derivative of the energy with respect to a rotation of the structure in fixed
            frames; zero where the energy does not depend on the orientation.
        energy_frame_std: [n_graphs] (eV), spread of the energy over the frames of the whole structure.
        forces_frame_std: [n_atoms] (eV/Å), root mean square deviation of an atom's force vector over frames.
        energy_uncertainty: [n_graphs] (eV), calibrated standard deviation of the energy.
        energy_uncertainty_95: [n_graphs] (eV), half width of the interval that contains 95 % of the true energies.
        energies_uncertainty: [n_atoms] (eV), of per-atom energies; they are correlated and do not add up.
        forces_uncertainty: [n_atoms] (eV/Å), root mean square error expected of an atom's force vector.
        domain_distance: [n_atoms] distance from the training atoms of the element; 1 for the farthest of them.
        closest_contact: [n_graphs] shortest distance in units of the shortest plausible one of its two elements.
        repulsion_energy: [n_graphs] (eV), part of the energy that comes from the repulsion of overlapping atoms.
        atom_features: [n_atoms, D] last-layer features.
        energy_comm: [n_graphs, n_members] (eV).
        energy_var: [n_graphs] (eV²), population variance.
        forces_comm: [n_atoms, n_members, 3] (eV/Å).
        forces_var: [n_atoms, 3] (eV²/Å²).
        stress_var: [n_graphs, 3, 3] (eV²/Å⁶).
    """

    graph_of_atom: Tensor
    energy: Tensor
    energies: Tensor | None = None
    forces: Tensor | None = None
    gradient_forces: Tensor | None = None
    direct_forces: Tensor | None = None
    stress: Tensor | None = None
    torque: Tensor | None = None
    energy_frame_std: Tensor | None = None
    forces_frame_std: Tensor | None = None
    energy_uncertainty: Tensor | None = None
    energy_uncertainty_95: Tensor | None = None
    energies_uncertainty: Tensor | None = None
    forces_uncertainty: Tensor | None = None
    domain_distance: Tensor | None = None
    closest_contact: Tensor | None = None
    repulsion_energy: Tensor | None = None
    atom_features: Tensor | None = None
    energy_comm: Tensor | None = None
    energy_var: Tensor | None = None
    forces_comm: Tensor | None = None
    forces_var: Tensor | None = None
    stress_var: Tensor | None = None

    @property
    def n_graphs(self) -> int:
        """Number of structures."""
        return len(self.energy)

    def values(self) -> dict[str, Tensor]:
        """The results that were requested, by name."""
        return {name: value for name, value in vars(self).items() if value is not None and name != "graph_of_atom"}

    def _map(self, function: Callable[[str, Tensor], Tensor]) -> "Prediction":
        changed = {name: function(name, value) for name, value in self.values().items()}
        return dataclasses.replace(self, graph_of_atom=self.graph_of_atom, **changed)

    def detach(self) -> "Prediction":
        """The same values without their autograd history."""
        return self._map(lambda _, value: value.detach())

    def split(self) -> "list[Prediction]":
        """One prediction per structure."""
        if self.n_graphs == 1:
            return [self]
        ends = torch.cumsum(torch.bincount(self.graph_of_atom, minlength=self.n_graphs), 0).tolist()
        members = []
        for index, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            parts = {
                name: value[index : index + 1] if name in _PER_GRAPH else value[start:end]
                for name, value in self.values().items()
            }
            members.append(Prediction(graph_of_atom=torch.zeros_like(self.graph_of_atom[start:end]), **parts))
        return members


def committee_average(members: Sequence[Prediction]) -> Prediction:
    """Average predictions of the same structures; with several members, add their values and population variance.

    The distance from the training data is the largest and the closest contact the smallest of all members; the
    repulsion energy is the largest of the members that have a repulsion.
    """
    if len(members) == 1:
        return members[0]
    results: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for member in members for name in member.values()):
        own = [value for member in members if (value := getattr(member, name)) is not None]
        if len(own) < len(members) and name != "repulsion_energy":
            continue
        values = torch.stack(own, dim=1)
        if name in ("domain_distance", "repulsion_energy"):
            results[name] = values.amax(dim=1)
        else:
            results[name] = values.amin(dim=1) if name == "closest_contact" else values.mean(dim=1)
        if name in ("energy", "forces", "stress"):
            results[f"{name}_var"] = values.var(dim=1, correction=0)
        if name in ("energy", "forces"):
            results[f"{name}_comm"] = values
    return Prediction(graph_of_atom=members[0].graph_of_atom, **results)
