"""Geometry: leaves for the derivatives, edge vectors, frames and contacts of a batch.

The first part of the forward pass: AtomGraph → Geometry. The network, the averages and the derivatives read it.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from faenet_calc.frames.frames import FramedGraph, Frames
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.capabilities import Request
from faenet_calc.potential.config import PotentialConfig
from faenet_calc.potential.edge_lengths import EdgeLengths
from faenet_calc.potential.fragments import frames_with_fragments
from faenet_calc.potential.repulsion import CloseContacts, close_contacts


@dataclass(frozen=True, kw_only=True, eq=False)
class Geometry:
    """What derivatives are taken with respect to, and what follows from it.

    Attributes:
        graph: The structures, strained where ``strain`` is given.
        positions: [n_atoms, 3] (Å), before the strain.
        strain: [n_graphs, 3, 3] zeros, or None without stress.
        vectors: [n_edges, 3] (Å).
        frames: The frames of every structure and of its fragments.
        separate_copies: Whether the edges of different frames are kept apart.
        contacts: Edges where the repulsion acts; None if there are none.
        lengths: Of the edges.
    """

    graph: AtomGraph
    positions: Tensor
    strain: Tensor | None
    vectors: Tensor
    frames: Frames
    separate_copies: bool
    contacts: CloseContacts | None
    lengths: EdgeLengths

    @cached_property
    def framed(self) -> FramedGraph:
        """The structures copied into their frames."""
        return self.frames.framed(self.graph)

    @cached_property
    def repulsion(self) -> Tensor | None:
        """[n_atoms] (eV) repulsion energy of every atom; None if no atoms are in its range."""
        return None if self.contacts is None else self.contacts.energies(self.graph, self.vectors)

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor] | None:
        """From :meth:`AtomGraph.pairs`, or None where the two directions of an edge are kept apart.

        They have one length: what depends on it is computed once for both. Finding them waits for a device, where it
        costs more than it saves.
        """
        return None if self.separate_copies or self.vectors.device.type != "cpu" else self.graph.pairs()


def build_geometry(
    config: PotentialConfig,
    graph: AtomGraph,
    request: Request,
    generator: torch.Generator | None,
    differentiable_vectors: bool,
) -> Geometry:
    """Leaves for the derivatives, the edge vectors and the frames."""
    if request.gradient:
        graph = graph.with_leaves(positions=graph.positions.detach().requires_grad_())
    positions, strain = graph.positions, None
    if request.stress:
        strain = torch.zeros_like(graph.cell).requires_grad_()
        deformation = torch.eye(3, dtype=graph.cell.dtype, device=graph.cell.device) + 0.5 * (
            strain + strain.transpose(1, 2)
        )
        graph = graph.with_leaves(
            positions=torch.einsum("ni,nij->nj", graph.positions, deformation[graph.graph_of_atom]),
            cell=graph.cell @ deformation,
        )
    with torch.set_grad_enabled(differentiable_vectors):
        vectors = graph.edge_vectors()
    lengths = EdgeLengths.of(graph, vectors)
    frames = request.frames
    if not isinstance(frames, Frames):
        frames = frames_with_fragments(config, graph, frames, squared=lengths.squared, generator=generator)
    if request.torque and differentiable_vectors and not frames.rotation.requires_grad:
        frames = dataclasses.replace(frames, rotation=frames.rotation.detach().requires_grad_())
    return Geometry(
        graph=graph,
        positions=positions,
        strain=strain,
        vectors=vectors,
        frames=frames,
        separate_copies=request.gradient_spread,
        contacts=close_contacts(config.repulsion, graph, lengths, config.model.cutoff),
        lengths=lengths,
    )
