"""One pass of a batch through frames and network, with its derivatives (L2, called by ``potential.py``)."""

from typing import Literal

import torch
from torch import Tensor

from faenet_calc import elements
from faenet_calc.config import FrameMode, PotentialConfig
from faenet_calc.faenet import FAENet, NetworkOutput
from faenet_calc.frames import Frames, build_frames, copy_into_frames, into_frame, out_of_frame
from faenet_calc.graph import AtomGraph

ForcesChoice = Literal["auto", "gradient", "direct", "both"]


class Evaluation:
    """One forward pass and its derivatives.

    Args:
        model: The network.
        config: Of the potential.
        graph: The structures, after any rewiring.
        frames: Which frames, or the frames themselves.
        generator: For stochastic frames.
        leaf: Prepare for derivatives with respect to positions.
        strained: Prepare for derivatives with respect to strain.
        per_copy: Keep the edges of different frames apart, for the spread of gradient forces.
    """

    def __init__(
        self,
        model: FAENet,
        config: PotentialConfig,
        graph: AtomGraph,
        frames: FrameMode | Frames,
        generator: torch.Generator | None,
        *,
        leaf: bool,
        strained: bool,
        per_copy: bool,
    ) -> None:
        self.normalization = config.normalization
        # A structure without a volume has no stress: zero, with a zero gradient, harmless beside others in a batch.
        self.volume = torch.where(graph.volume > 0, graph.volume, torch.inf)
        if leaf:
            graph = graph.replace(positions=graph.positions.detach().requires_grad_())
        self.positions = graph.positions
        self.strain: Tensor | None = None
        if strained:
            self.strain = torch.zeros_like(graph.cell).requires_grad_()
            deformation = torch.eye(3).to(graph.cell) + 0.5 * (self.strain + self.strain.transpose(1, 2))
            graph = graph.replace(
                positions=torch.einsum("ni,nij->nj", graph.positions, deformation[graph.graph_of_atom]),
                cell=graph.cell @ deformation,
            )
        self.graph = graph
        if not isinstance(frames, Frames):
            frames = build_frames(graph, config.frames, frames, vacuum=config.model.cutoff, generator=generator)
        self.frames = frames
        self.framed = copy_into_frames(graph, self.frames.graph)
        self.lab_copies: Tensor | None = None
        self.output = self._run(model, per_copy)

    def _run(self, model: FAENet, per_copy: bool) -> NetworkOutput:
        """The network on all copies of all structures."""
        framed, dtype = self.framed, next(model.parameters()).dtype
        vectors = self.graph.edge_vectors()
        copies = vectors.index_select(0, framed.edge_of_copy)
        if per_copy:
            self.lab_copies = vectors = copies
        distances = torch.linalg.vector_norm(vectors, dim=1).to(dtype)
        in_frame = into_frame(copies, self.frames.rotation.index_select(0, framed.frame_of_edge)).to(dtype)
        output: NetworkOutput = model(framed, in_frame, distances, None if per_copy else framed.edge_of_copy)
        return output

    def averages(self, wanted: set[str], kind: ForcesChoice) -> dict[str, Tensor]:
        """Averages over frames in physical units, by the names of :class:`Prediction`."""
        graph, frames, framed, output = self.graph, self.frames, self.framed, self.output
        normalization = self.normalization
        energy_of_copy = output.energy.to(graph.positions.dtype) * normalization.scale
        averaged = _average(frames, energy_of_copy, graph.n_graphs)
        references = self._references()
        energy = averaged + normalization.shift + graph.sum_over_atoms(references)
        result: dict[str, Tensor] = {"graph_of_atom": graph.graph_of_atom, "energy": energy}
        if "energies" in wanted and output.node_energy is not None:
            weight = frames.weight[framed.frame_of_node] * normalization.scale
            weighted = output.node_energy.to(energy.dtype) * weight
            share = (normalization.shift / graph.atoms_per_graph.to(energy.dtype))[graph.graph_of_atom]
            result["energies"] = (references + share).index_add(0, framed.atom_of_node, weighted)
        if "energy_frame_std" in wanted:
            deviation = (energy_of_copy - averaged[frames.graph]).square()
            result["energy_frame_std"] = _average(frames, deviation, graph.n_graphs).sqrt()
        if kind in ("direct", "both") and wanted & {"forces", "forces_frame_std"}:
            result |= self._direct(wanted)
        return result

    def _references(self) -> Tensor:
        """[n_atoms] (eV) reference energy of each atom."""
        table = self.graph.cell.new_zeros(elements.MAX_Z + 1)
        for symbol, value in self.normalization.references.items():
            table[elements.atomic_number(symbol)] = value
        return table[self.graph.atomic_numbers]

    def derivatives(self, energy: Tensor, *, create_graph: bool, retain_graph: bool) -> dict[str, Tensor]:
        """Forces, stress and force spread from energies [n_graphs]."""
        inputs = [x for x in (self.positions, self.strain, self.lab_copies) if x is not None]
        # An isolated atom's energy does not depend on its position; the zero term ties the two together.
        total = energy.sum() + 0.0 * self.positions.sum()
        grads = list(
            torch.autograd.grad(
                total,
                inputs,
                create_graph=create_graph,
                retain_graph=create_graph or retain_graph,
                allow_unused=True,
                materialize_grads=True,
            )
        )
        result = {"gradient_forces": -grads.pop(0)}
        if self.strain is not None:
            result["stress"] = grads.pop(0) / self.volume[:, None, None]
        if self.lab_copies is not None:
            result["forces_frame_std"] = self._gradient_spread(grads.pop(0))
        return result

    def _gradient_spread(self, gradient: Tensor) -> Tensor:
        """[n_atoms] spread over frames of forces at fixed frames, from dE/d(edge copies) [n_edge_copies, 3]."""
        framed = self.framed
        per_frame = gradient / self.frames.weight.detach()[framed.frame_of_edge][:, None]
        force = per_frame.new_zeros(framed.n_nodes, 3).index_add(0, framed.centre, per_frame)
        return self._spread(force.index_add(0, framed.neighbor, -per_frame))

    def _direct(self, wanted: set[str]) -> dict[str, Tensor]:
        assert self.output.node_force is not None
        framed = self.framed
        rotation = self.frames.rotation.index_select(0, framed.frame_of_node)
        in_frame = self.output.node_force.to(rotation.dtype) * self.normalization.force_scale
        lab = out_of_frame(in_frame, rotation)
        weighted = lab * self.frames.weight[framed.frame_of_node][:, None]
        result = {"direct_forces": lab.new_zeros(self.graph.n_atoms, 3).index_add(0, framed.atom_of_node, weighted)}
        if "forces_frame_std" in wanted:
            result["forces_frame_std"] = self._spread(lab)
        return result

    def _spread(self, node_force: Tensor) -> Tensor:
        """[n_atoms] weighted root mean square deviation of per-node forces [n_nodes, 3] from their mean."""
        framed = self.framed
        weight = self.frames.weight.detach()[framed.frame_of_node]
        mean = node_force.new_zeros(self.graph.n_atoms, 3).index_add(
            0, framed.atom_of_node, node_force * weight[:, None]
        )
        deviation = (node_force - mean[framed.atom_of_node]).square().sum(dim=1) * weight
        return deviation.new_zeros(self.graph.n_atoms).index_add(0, framed.atom_of_node, deviation).sqrt()


def _average(frames: Frames, per_frame: Tensor, n_graphs: int) -> Tensor:
    """[n_graphs] weighted average of a per-frame quantity (paper Eq. 1)."""
    return per_frame.new_zeros(n_graphs).index_add(0, frames.graph, per_frame * frames.weight)
