"""NetworkPass: the network evaluated in every frame.

The second part of the forward pass: Geometry → NetworkPass. In training it is one autograd graph (:func:`run_network`),
in which compiled code may be one operation (:func:`run_training_engine`). Otherwise compiled code evaluates all frames
where it can (:func:`run_engine`), or the network is run on parts of limited size (:func:`run_in_parts`), so that memory
does not grow with the number of frames. Each part is differentiated with respect to edge vectors and rotations at once
and released.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from faenet_calc.frames.frames import FramedGraph, Frames, into_frame
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network import training_engine
from faenet_calc.network.config import ModelConfig
from faenet_calc.network.device_engine import DeviceEngine
from faenet_calc.network.engine import Engine
from faenet_calc.network.faenet import FAENet, NetworkOutput
from faenet_calc.potential.capabilities import Request
from faenet_calc.potential.config import PotentialConfig
from faenet_calc.potential.geometry import Geometry

DEFAULT_BYTES = {"cpu": 384 << 20, "cuda": 4 << 30, "mps": 2 << 30}
"""Budget (bytes) by device type. Larger batches are no faster on a CPU, because they leave its caches."""

ENGINE_BYTES = 512
"""Memory (bytes) of an edge in one frame with compiled code, which keeps intermediate results of a few frames only."""

_TENSORS_PER_INTERACTION = 8  # of shape [n_edge_copies, filters], kept for the derivative


def bytes_per_edge_copy(config: ModelConfig, dtype: torch.dtype, *, gradient: bool) -> int:
    """Estimate the memory (bytes) that one edge in one frame takes during a forward pass.

    Args:
        config: Of the network.
        dtype: Of the network.
        gradient: Whether the pass is differentiated, so that every interaction keeps its intermediate tensors.
    """
    kept = max(1, config.interactions) if gradient else 1
    return kept * _TENSORS_PER_INTERACTION * config.filters * dtype.itemsize


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkPass:
    """The network's output for all copies and, where they were computed in parts, derivatives of the weighted energy.

    Attributes:
        output: Of every copy.
        copies: [n_edge_copies, 3] (Å) edge vectors of the copies, in one autograd graph with ``output``; None in parts.
        grad_vectors: [n_edges, 3] (eV/Å) or None.
        grad_rotation: [n_frames, 3, 3] (eV) or None.
        grad_copies: [n_edge_copies, 3] (eV/Å), for the spread of gradient forces, or None.
        known: Functions of the geometry on which ``output`` depends, each with the derivative of the weighted energy
            with respect to it; empty where ``output`` itself is in one autograd graph with the geometry.
    """

    output: NetworkOutput
    copies: Tensor | None = None
    grad_vectors: Tensor | None = None
    grad_rotation: Tensor | None = None
    grad_copies: Tensor | None = None
    known: tuple[tuple[Tensor, Tensor], ...] = ()


def run_network(
    model: FAENet,
    geometry: Geometry,
    framed: FramedGraph,
    vectors: Tensor,
    rotation: Tensor,
    *,
    features: bool,
) -> tuple[NetworkOutput, Tensor]:
    """Run the network on copies in frames.

    Args:
        model: The network.
        geometry: The structures.
        framed: The structures copied into the frames.
        vectors: [n_edges, 3] (Å), those of the geometry or leaves in their place.
        rotation: [n_frames, 3, 3].
        features: Whether the output has last-layer features.

    Returns:
        tuple: The output and the edge vectors of the copies [n_edge_copies, 3] (Å), not yet rotated.
    """
    dtype = next(model.parameters()).dtype
    edges = _edges_in_frames(geometry, framed, vectors, rotation, dtype)
    output: NetworkOutput = model(
        framed, edges.vectors, edges.distances, edges.row, weights=edges.weights, features=features
    )
    return output, edges.copies


class _EdgesInFrames(NamedTuple):
    """What the network sees of the edges.

    Attributes:
        copies: [n_edge_copies, 3] (Å) edge vectors, not rotated.
        vectors: [n_edge_copies, 3] (Å) in their frames.
        distances: [n_distances] (Å), each once for all copies that share it.
        row: [n_edge_copies] row of ``distances`` for each copy; None where they are per copy.
        weights: [n_distances] factors of the messages; None for 1.
    """

    copies: Tensor
    vectors: Tensor
    distances: Tensor
    row: Tensor | None
    weights: Tensor | None


def _edges_in_frames(
    geometry: Geometry, framed: FramedGraph, vectors: Tensor, rotation: Tensor, dtype: torch.dtype
) -> _EdgesInFrames:
    contacts = geometry.contacts
    copies = vectors.index_select(0, framed.edge_of_copy)
    in_frame = into_frame(copies, rotation.index_select(0, framed.frame_of_edge)).to(dtype)
    if geometry.separate_copies:
        distinct, row = copies, None
        weights = None if contacts is None else contacts.message_weights(copies, framed)
    elif geometry.pairs is None:
        distinct, row = vectors, framed.edge_of_copy
        weights = None if contacts is None else contacts.message_weights(vectors, geometry.graph)
    else:
        pair_of_edge, edge_of_pair = geometry.pairs
        distinct, row = vectors.index_select(0, edge_of_pair), pair_of_edge.index_select(0, framed.edge_of_copy)
        weights = None if contacts is None else contacts.message_weights(vectors, geometry.graph)[edge_of_pair]
    distances = torch.linalg.vector_norm(distinct, dim=1).to(dtype)
    return _EdgesInFrames(copies, in_frame, distances, row, None if weights is None else weights.to(dtype))


def fits_training_engine(model: FAENet, graph: AtomGraph, request: Request) -> bool:
    """Whether compiled code can compute what training on a request takes.

    Its results have derivatives with respect to the weights only: not to a cell or frames of the caller.
    """
    constant = not graph.cell.requires_grad
    if isinstance(request.frames, Frames):
        constant = constant and not (request.frames.rotation.requires_grad or request.frames.weight.requires_grad)
    outputs = request.direct or request.features or request.gradient_spread
    return request.gradient and constant and not outputs and bool(graph.n_edges) and training_engine.supports(model)


def run_training_engine(model: FAENet, config: PotentialConfig, geometry: Geometry) -> NetworkPass:
    """Evaluate all frames and their derivatives in compiled code, differentiable with respect to the weights."""
    framed, frames = geometry.framed, geometry.frames
    edges = _edges_in_frames(geometry, framed, geometry.vectors, frames.rotation, torch.float32)
    factors, distances = model.message_factors(edges.distances, edges.weights), edges.distances
    if edges.row is not None:
        distances = distances.index_select(0, edges.row)
        factors = None if factors is None else factors.index_select(0, edges.row)
    if factors is None:
        factors = torch.ones_like(distances)
    seed = (frames.weight.detach() * config.normalization.scale).index_select(0, framed.frame_of_node)
    found = training_engine.energies_and_gradients(model, framed, edges.vectors, distances, factors, seed)
    output = NetworkOutput(
        energy=framed.sum_over_nodes(found.node_energy),
        node_energy=found.node_energy,
        node_force=None,
        hidden=None,
    )
    known = (edges.vectors, found.grad_vectors), (distances, found.grad_distances), (factors, found.grad_weights)
    return NetworkPass(output=output, copies=edges.copies, known=known)


def fits_engine(config: ModelConfig, geometry: Geometry, request: Request) -> bool:
    """Whether the engine can compute a request: without spreads at contacts, and with edges inside its tables."""
    if geometry.contacts and request.gradient_spread:
        return False
    squared = geometry.lengths.squared
    return bool(config.envelope_power) or squared.device.type != "cpu" or not (squared > config.cutoff**2).any()


def run_engine(
    engine: Engine | DeviceEngine,
    model: FAENet,
    config: PotentialConfig,
    geometry: Geometry,
    request: Request,
    memory_bytes: int | None = None,
) -> NetworkPass:
    """Evaluate all frames, and their derivatives where gradients are requested, in compiled code or on a GPU."""
    graph, frames = geometry.graph, geometry.frames.detach()
    outputs = {
        "gradients": request.gradient,
        "grad_copies": request.gradient_spread,
        "hidden": request.direct,
        "features": request.features,
    }
    # Frames U and -U of a lattice move together; those of a molecule may belong to different pairs of atoms.
    on_lattice = not geometry.frames.rotation.requires_grad or geometry.frames.lattice
    vectors, weights = geometry.vectors.detach(), None
    if geometry.contacts is not None:
        vectors.requires_grad_(request.gradient)
        weights = geometry.contacts.message_weights(vectors, graph)
    copied = vectors.detach(), None if weights is None else weights.detach()
    parts = frames.parts
    if parts is not None:
        graph, frames = parts.graph, dataclasses.replace(frames, graph=parts.of_frame, parts=None)
        copied = copied[0][parts.edge], None if copied[1] is None else copied[1][parts.edge]
    found = engine.evaluate(
        graph,
        frames,
        copied[0],
        frames.weight * config.normalization.scale,
        factor=copied[1],
        share_inverse=on_lattice and not request.gradient_spread,
        outputs=[name for name, wanted in outputs.items() if wanted],
        memory_bytes=memory_bytes,
    )
    force = model.decoder(found.hidden) if request.direct and model.decoder is not None else None
    grad_vectors, grad_factor = found.grad_vectors, found.grad_factor
    if grad_vectors is not None and parts is not None:
        grad_vectors = torch.zeros_like(vectors).index_add_(0, parts.edge, grad_vectors)
        if grad_factor is not None:
            grad_factor = grad_factor.new_zeros(len(vectors)).index_add_(0, parts.edge, grad_factor)
    if grad_vectors is not None and weights is not None:
        grad_vectors = grad_vectors + torch.autograd.grad(weights, vectors, grad_factor)[0]
    return NetworkPass(
        output=NetworkOutput(
            energy=found.energy,
            node_energy=found.node_energy,
            node_force=force,
            hidden=found.hidden,
            features=found.features,
        ),
        grad_vectors=grad_vectors,
        grad_rotation=found.grad_rotation,
        grad_copies=found.grad_copies,
    )


def run_in_parts(
    model: FAENet, config: PotentialConfig, geometry: Geometry, request: Request, memory_bytes: int | None
) -> NetworkPass:
    """Run the network on a part of the frames at a time and differentiate each part where gradients are requested."""
    graph, frames, differentiate = geometry.graph, geometry.frames, request.gradient
    vectors, rotation, weight = geometry.vectors.detach(), frames.rotation.detach(), frames.weight.detach()
    per_copy = bytes_per_edge_copy(config.model, next(model.parameters()).dtype, gradient=differentiate)
    at_most = (memory_bytes or DEFAULT_BYTES[vectors.device.type]) // per_copy
    outputs, grad_copies = [], []
    grad_vectors, grad_rotation = torch.zeros_like(vectors), torch.zeros_like(rotation)
    if frames.per_graph is not None and frames.per_graph * graph.n_edges <= at_most:
        parts = [slice(0, frames.n_frames)]
    else:
        parts = frame_parts(frames.edges_per_frame(graph), at_most)
    for part in parts:
        framed = geometry.framed if len(parts) == 1 else frames.framed(graph, part)
        part_vectors = vectors.detach().requires_grad_(differentiate)
        part_rotation = rotation[part].detach().requires_grad_(differentiate)
        output, copies = run_network(model, geometry, framed, part_vectors, part_rotation, features=request.features)
        outputs.append(output.detach())
        if not differentiate:
            continue
        total = (output.energy.to(weight.dtype) * weight[part]).sum() * config.normalization.scale
        edges = copies if request.gradient_spread else part_vectors
        of_edges, of_rotation = torch.autograd.grad(
            total, [edges, part_rotation], allow_unused=True, materialize_grads=True
        )
        grad_rotation[part] += of_rotation
        if request.gradient_spread:
            grad_copies.append(of_edges)
            grad_vectors.index_add_(0, framed.edge_of_copy, of_edges)
        else:
            grad_vectors += of_edges
    joined = outputs[0] if len(outputs) == 1 else NetworkOutput.join(outputs)
    if not differentiate:
        return NetworkPass(output=joined)
    return NetworkPass(
        output=joined,
        grad_vectors=grad_vectors,
        grad_rotation=grad_rotation,
        grad_copies=torch.cat(grad_copies) if grad_copies else None,
    )


def frame_parts(edges_per_frame: Tensor, at_most: int) -> list[slice]:
    """Split frames into consecutive parts of at most so many edges, or of one frame where it has more."""
    counts = edges_per_frame.tolist()
    parts, start, filled = [], 0, 0
    for index, count in enumerate(counts):
        if index > start and filled + count > at_most:
            parts.append(slice(start, index))
            start, filled = index, 0
        filled += count
    return [*parts, slice(start, len(counts))]
