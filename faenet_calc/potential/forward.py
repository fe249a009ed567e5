"""One pass of a batch through frames and network, with its derivatives.

In training the pass is one piece of autograd history. Otherwise the copies of a structure in its frames are evaluated
in parts of limited size, so that memory does not grow with the number of frames. Each part is differentiated with
respect to edge vectors V and rotations U at once and forgotten; positions and strain follow from

    d/dx Σ_f w_f E_f  =  Σ_f (dw_f/dx) E_f  +  <dE/dV, dV/dx>  +  <dE/dU, dU/dx>.
"""

from typing import Literal

import torch
from torch import Tensor

from faenet_calc import elements
from faenet_calc.frames.config import FrameMode
from faenet_calc.frames.frames import FramedGraph, Frames, build_frames, copy_into_frames, into_frame, out_of_frame
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.faenet import FAENet, NetworkOutput
from faenet_calc.potential.config import PotentialConfig

ForcesChoice = Literal["auto", "gradient", "direct", "both"]

EDGES_AT_ONCE = {"cpu": 40_000, "cuda": 2_000_000, "mps": 500_000}
"""Edge copies evaluated together by device; on a CPU small parts also stay in the cache."""


def frame_parts(edges_per_frame: Tensor, at_most: int) -> list[slice | None]:
    """Consecutive frames that have at most so many edges together; a single None where all fit at once."""
    counts = edges_per_frame.tolist()
    if sum(counts) <= at_most:
        return [None]
    parts: list[slice | None] = []
    start, filled = 0, 0
    for index, count in enumerate(counts):
        if index > start and filled + count > at_most:
            parts.append(slice(start, index))
            start, filled = index, 0
        filled += count
    return [*parts, slice(start, len(counts))]


class _Slopes:
    """Derivatives of the weighted energy with respect to edge vectors, rotations and copies, added part by part."""

    def __init__(self, vectors: Tensor, rotation: Tensor) -> None:
        self._vectors, self._rotation = vectors, rotation
        self.vectors, self.rotation = torch.zeros_like(vectors), torch.zeros_like(rotation)
        self.copies: list[Tensor] = []

    def leaves(self, part: slice | None, differentiate: bool) -> tuple[Tensor, Tensor]:
        """Fresh leaves for a part."""
        rotation = self._rotation if part is None else self._rotation[part]
        return (
            self._vectors.detach().requires_grad_(differentiate),
            rotation.detach().requires_grad_(differentiate),
        )

    def add(
        self,
        total: Tensor,
        part: slice | None,
        vectors: Tensor,
        rotation: Tensor,
        copies: Tensor | None,
        edge_of_copy: Tensor,
    ) -> None:
        """Differentiate ``total`` and add; ``copies`` where the edges of different frames are kept apart."""
        inputs = [vectors if copies is None else copies, rotation]
        of_edges, of_rotation = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        self.rotation[slice(None) if part is None else part] += of_rotation
        if copies is None:
            self.vectors += of_edges
        else:
            self.copies.append(of_edges)
            self.vectors.index_add_(0, edge_of_copy, of_edges)


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
        in_parts: Evaluate in parts of limited size; not for training.
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
        in_parts: bool,
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
        self.per_copy, self.vectors = per_copy, graph.edge_vectors()
        self.pair_of_edge, self.edge_of_pair = graph.pairs()
        self.copies: Tensor | None = None
        self.slopes: _Slopes | None = None
        if in_parts:
            self.output = self._run_in_parts(model, leaf)
        else:
            self.output, self.copies = self._run(model, self.framed, self.vectors, self.frames.rotation)

    def _run(
        self, model: FAENet, framed: FramedGraph, vectors: Tensor, rotation: Tensor
    ) -> tuple[NetworkOutput, Tensor]:
        """The network on copies in frames ``rotation`` [n_frames, 3, 3], and the edge vectors of the copies."""
        dtype = next(model.parameters()).dtype
        copies = vectors.index_select(0, framed.edge_of_copy)
        in_frame = into_frame(copies, rotation.index_select(0, framed.frame_of_edge)).to(dtype)
        # The two directions of an edge have one length: what depends on it is computed once for both and all frames.
        different = copies if self.per_copy else vectors.index_select(0, self.edge_of_pair)
        distances = torch.linalg.vector_norm(different, dim=1).to(dtype)
        row = None if self.per_copy else self.pair_of_edge.index_select(0, framed.edge_of_copy)
        output: NetworkOutput = model(framed, in_frame, distances, row)
        return output, copies

    def _run_in_parts(self, model: FAENet, differentiate: bool) -> NetworkOutput:
        """The network on all copies, a part of the frames at a time, with slopes if ``differentiate``."""
        slopes = _Slopes(self.vectors.detach(), self.frames.rotation.detach())
        outputs = []
        for part in frame_parts(self.graph.edges_per_graph[self.frames.graph], EDGES_AT_ONCE[self.vectors.device.type]):
            framed = self.framed if part is None else copy_into_frames(self.graph, self.frames.graph[part])
            vectors, rotation = slopes.leaves(part, differentiate)
            output, copies = self._run(model, framed, vectors, rotation)
            if differentiate:
                weight = self.frames.weight.detach() if part is None else self.frames.weight.detach()[part]
                total = (output.energy.to(weight.dtype) * weight).sum() * self.normalization.scale
                slopes.add(total, part, vectors, rotation, copies if self.per_copy else None, framed.edge_of_copy)
            outputs.append(output.detach())
        if differentiate:
            self.slopes = slopes
        return outputs[0] if len(outputs) == 1 else NetworkOutput.join(outputs)

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
        spread_inside = self.per_copy and self.slopes is None
        inputs = [x for x in (self.positions, self.strain, self.copies if spread_inside else None) if x is not None]
        # An isolated atom's energy does not depend on its position; the zero term ties the two together.
        total = energy.sum() + 0.0 * self.positions.sum()
        if self.slopes is not None:
            total = total + (self.slopes.vectors * self.vectors).sum()
            total = total + (self.slopes.rotation * self.frames.rotation).sum()
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
        if self.per_copy:
            of_copies = grads.pop(0) if self.slopes is None else torch.cat(self.slopes.copies)
            result["forces_frame_std"] = self._gradient_spread(of_copies)
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
