"""The forward pass: a batch of graphs through frames and network, averaged, with its derivatives.

In training the pass is one autograd graph. Otherwise the copies of a structure in its frames are evaluated in parts
of limited size, so that memory does not grow with the number of frames. Each part is differentiated with respect to
edge vectors V and rotations U at once and released; positions and strain follow from

    d/dx Σ_f w_f E_f  =  Σ_f (dw_f/dx) E_f  +  <dE/dV, dV/dx>  +  <dE/dU, dU/dx>.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from faenet_calc.frames.frames import FramedGraph, Frames, build_frames, copy_into_frames, into_frame, out_of_frame
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.config import ModelConfig
from faenet_calc.network.engine import Engine, engine_for
from faenet_calc.network.faenet import FAENet, NetworkOutput
from faenet_calc.potential.capabilities import Request
from faenet_calc.potential.config import NormalizationConfig, PotentialConfig
from faenet_calc.potential.edge_lengths import EdgeLengths
from faenet_calc.potential.examination import Examiner, examiner_for
from faenet_calc.potential.prediction import Prediction
from faenet_calc.potential.repulsion import CloseContacts, close_contacts
from faenet_calc.potential.uncertainty import FORCE_DRAWS, LastLayerUncertainty

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
    kept = config.interactions if gradient else 1
    return kept * _TENSORS_PER_INTERACTION * config.filters * dtype.itemsize


@dataclass(frozen=True, kw_only=True, eq=False)
class _Geometry:
    """What derivatives are taken with respect to, and what follows from it.

    Attributes:
        graph: The structures, strained where ``strain`` is given.
        positions: [n_atoms, 3] (Å), before the strain.
        strain: [n_graphs, 3, 3] zeros, or None without stress.
        vectors: [n_edges, 3] (Å).
        frames: The frames of every structure.
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
        return copy_into_frames(self.graph, self.frames.graph, self.frames.per_graph)

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


@dataclass(frozen=True, kw_only=True, eq=False)
class _NetworkPass:
    """The network's output for all copies and, where they were computed in parts, derivatives of the weighted energy.

    Attributes:
        output: Of every copy.
        copies: [n_edge_copies, 3] (Å) edge vectors of the copies, in one autograd graph with ``output``; None in parts.
        grad_vectors: [n_edges, 3] (eV/Å) or None.
        grad_rotation: [n_frames, 3, 3] (eV) or None.
        grad_copies: [n_edge_copies, 3] (eV/Å), for the spread of gradient forces, or None.
    """

    output: NetworkOutput
    copies: Tensor | None = None
    grad_vectors: Tensor | None = None
    grad_rotation: Tensor | None = None
    grad_copies: Tensor | None = None


def forward(
    model: FAENet,
    config: PotentialConfig,
    graph: AtomGraph,
    request: Request,
    *,
    uncertainty: LastLayerUncertainty | None = None,
    generator: torch.Generator | None = None,
    create_graph: bool = False,
    memory_bytes: int | None = None,
) -> Prediction:
    """Predict a batch of graphs.

    Args:
        model: The network.
        config: Of the potential.
        graph: The structures, after any rewiring.
        request: What to predict.
        uncertainty: Of the potential, where it is requested.
        generator: For stochastic frames.
        create_graph: Keep gradient forces and stress differentiable, for training on them.
        memory_bytes: Budget of a part; None for the default of the device. Not used in training.
    """
    training = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in model.parameters())
    in_one_graph = training or create_graph
    with torch.set_grad_enabled(training or request.gradient):
        geometry = _geometry(config, graph, request, generator, in_one_graph)
        if in_one_graph:
            output, copies = _run(
                model, geometry, geometry.framed, geometry.vectors, geometry.frames.rotation, features=request.features
            )
            network = _NetworkPass(output=output, copies=copies)
        elif _fits_engine(config.model, geometry, request) and (engine := engine_for(model)) is not None:
            network = _run_engine(engine, model, config, geometry, request)
        else:
            network = _run_in_parts(model, config, geometry, request, memory_bytes)
        result = _averages(config.normalization, geometry, network.output, request)
        if request.gradient and in_one_graph:
            result |= _autograd_derivatives(
                geometry, network, result["energy"], request, create_graph=create_graph, retain_graph=training
            )
        elif request.gradient:
            result |= _derivatives(geometry, network, result["energy"], request)
    if request.features:
        result |= _uncertainties(uncertainty, config, geometry, network.output, request)
    if "forces_uncertainty" in request.properties:
        assert uncertainty is not None
        result["forces_uncertainty"] = _forces_uncertainty(model, config, graph, request, uncertainty, generator)
    if not in_one_graph:
        result = {name: value.detach() for name, value in result.items()}
    if "forces" in request.properties:
        return Prediction(**result, forces=result[f"{request.forces}_forces"])
    result.pop("gradient_forces", None)
    return Prediction(**result)


def _geometry(
    config: PotentialConfig,
    graph: AtomGraph,
    request: Request,
    generator: torch.Generator | None,
    differentiable_vectors: bool,
) -> _Geometry:
    """Leaves for the derivatives, the edge vectors and the frames."""
    if request.gradient:
        graph = graph.with_leaves(positions=graph.positions.detach().requires_grad_())
    positions, strain = graph.positions, None
    if request.stress:
        strain = torch.zeros_like(graph.cell).requires_grad_()
        deformation = torch.eye(3).to(graph.cell) + 0.5 * (strain + strain.transpose(1, 2))
        graph = graph.with_leaves(
            positions=torch.einsum("ni,nij->nj", graph.positions, deformation[graph.graph_of_atom]),
            cell=graph.cell @ deformation,
        )
    frames = request.frames
    if not isinstance(frames, Frames):
        frames = build_frames(graph, config.frames, frames, vacuum=config.model.cutoff, generator=generator)
    with torch.set_grad_enabled(differentiable_vectors):
        vectors = graph.edge_vectors()
    lengths = EdgeLengths.of(graph, vectors)
    return _Geometry(
        graph=graph,
        positions=positions,
        strain=strain,
        vectors=vectors,
        frames=frames,
        separate_copies=request.gradient_spread,
        contacts=close_contacts(config.repulsion, graph, lengths, config.model.cutoff),
        lengths=lengths,
    )


def _run(
    model: FAENet,
    geometry: _Geometry,
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
    dtype, contacts = next(model.parameters()).dtype, geometry.contacts
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
    weights = None if weights is None else weights.to(dtype)
    output: NetworkOutput = model(framed, in_frame, distances, row, weights=weights, features=features)
    return output, copies


def _fits_engine(config: ModelConfig, geometry: _Geometry, request: Request) -> bool:
    """Whether the engine can compute a request: without spreads at contacts, and with edges inside its tables."""
    if geometry.contacts and request.gradient_spread:
        return False
    squared = geometry.lengths.squared
    return bool(config.envelope_power) or squared.device.type != "cpu" or not (squared > config.cutoff**2).any()


def _run_engine(
    engine: Engine, model: FAENet, config: PotentialConfig, geometry: _Geometry, request: Request
) -> _NetworkPass:
    """Evaluate all frames, and their derivatives where gradients are requested, in compiled code."""
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
    found = engine.evaluate(
        graph,
        frames,
        vectors.detach(),
        frames.weight * config.normalization.scale,
        factor=None if weights is None else weights.detach(),
        share_inverse=on_lattice and not request.gradient_spread,
        outputs=[name for name, wanted in outputs.items() if wanted],
    )
    force = model.decoder(found.hidden) if request.direct and model.decoder is not None else None
    grad_vectors = found.grad_vectors
    if grad_vectors is not None and weights is not None:
        grad_vectors = grad_vectors + torch.autograd.grad(weights, vectors, found.grad_factor)[0]
    return _NetworkPass(
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


def _run_in_parts(
    model: FAENet, config: PotentialConfig, geometry: _Geometry, request: Request, memory_bytes: int | None
) -> _NetworkPass:
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
        parts = frame_parts(graph.edges_per_graph[frames.graph], at_most)
    for part in parts:
        framed = geometry.framed if len(parts) == 1 else copy_into_frames(graph, frames.graph[part])
        part_vectors = vectors.detach().requires_grad_(differentiate)
        part_rotation = rotation[part].detach().requires_grad_(differentiate)
        output, copies = _run(model, geometry, framed, part_vectors, part_rotation, features=request.features)
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
        return _NetworkPass(output=joined)
    return _NetworkPass(
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


def _averages(
    normalization: NormalizationConfig, geometry: _Geometry, output: NetworkOutput, request: Request
) -> dict[str, Tensor]:
    """Averages over frames in physical units, by the names of :class:`Prediction`."""
    graph, frames, wanted = geometry.graph, geometry.frames, request.properties
    energy_of_copy = output.energy.to(graph.positions.dtype) * normalization.scale
    averaged = _average(frames, energy_of_copy, graph.n_graphs)
    table = _table(normalization.reference_table, graph.cell.dtype, graph.cell.device)
    references = table.index_select(0, graph.atomic_numbers)
    fixed = references  # energies of atoms that do not depend on the frame
    if geometry.repulsion is not None:
        fixed = references + geometry.repulsion
    energy = averaged + normalization.shift + graph.sum_over_atoms(fixed)
    result: dict[str, Tensor] = {"graph_of_atom": graph.graph_of_atom, "energy": energy}
    if "energies" in wanted and output.node_energy is not None:
        framed = geometry.framed
        weight = frames.weight[framed.frame_of_node] * normalization.scale
        weighted = output.node_energy.to(energy.dtype) * weight
        share = (normalization.shift / graph.atoms_per_graph.to(energy.dtype))[graph.graph_of_atom]
        result["energies"] = (fixed + share).index_add(0, framed.atom_of_node, weighted)
    if "energy_frame_std" in wanted:
        deviation = (energy_of_copy - averaged[frames.graph]).square()
        result["energy_frame_std"] = _average(frames, deviation, graph.n_graphs).sqrt()
    if request.direct:
        assert output.node_force is not None
        framed, rotation = geometry.framed, frames.rotation.index_select(0, geometry.framed.frame_of_node)
        forces = out_of_frame(output.node_force.to(rotation.dtype) * normalization.force_scale, rotation)
        weighted = forces * frames.weight[framed.frame_of_node][:, None]
        result["direct_forces"] = forces.new_zeros(graph.n_atoms, 3).index_add(0, framed.atom_of_node, weighted)
        if "forces_frame_std" in wanted:
            result["forces_frame_std"] = _spread(geometry, forces)
        if geometry.contacts is not None:
            result["direct_forces"] = result["direct_forces"] + geometry.contacts.forces(graph, geometry.vectors)
    return result


@lru_cache(maxsize=8)
def _table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def _atom_features(geometry: _Geometry, output: NetworkOutput) -> Tensor:
    """[n_atoms, D] last-layer features of every atom, averaged over frames."""
    assert output.features is not None
    weight = geometry.frames.weight.to(output.features.dtype)
    if geometry.graph.n_graphs == 1:
        return (weight @ output.features.view(len(weight), -1)).view(geometry.graph.n_atoms, -1)
    weighted = output.features * weight[geometry.framed.frame_of_node][:, None]
    empty = weighted.new_zeros(geometry.graph.n_atoms, weighted.shape[1])
    return empty.index_add(0, geometry.framed.atom_of_node, weighted)


def _uncertainties(
    uncertainty: LastLayerUncertainty | None,
    config: PotentialConfig,
    geometry: _Geometry,
    output: NetworkOutput,
    request: Request,
) -> dict[str, Tensor]:
    """What follows from the last-layer features, by the names of :class:`Prediction`."""
    graph, wanted = geometry.graph, request.properties
    examiner = _examiner(uncertainty, config, geometry, request)
    if examiner is not None:
        assert output.features is not None
        result = examiner.examine(output.features, geometry.frames.weight, graph.atomic_numbers, geometry.lengths)
    else:
        result = _from_features(uncertainty, config, geometry, _atom_features(geometry, output).detach(), wanted)
    if "energy_uncertainty_95" in wanted and uncertainty is not None:
        result["energy_uncertainty_95"] = result["energy_uncertainty"] * uncertainty.half_width
    if "closest_contact" in result and geometry.repulsion is not None:
        result["repulsion_energy"] = graph.sum_over_atoms(geometry.repulsion.detach())
    if "energy_uncertainty" not in wanted:
        result.pop("energy_uncertainty", None)
    return result


def _examiner(
    uncertainty: LastLayerUncertainty | None, config: PotentialConfig, geometry: _Geometry, request: Request
) -> Examiner | None:
    """Compiled code for what the guard asks of one structure; None if more is wanted, or if there is none."""
    if uncertainty is None or config.domain is None or not request.examined or geometry.graph.n_graphs > 1:
        return None
    return examiner_for(uncertainty, config.domain)


def _from_features(
    uncertainty: LastLayerUncertainty | None,
    config: PotentialConfig,
    geometry: _Geometry,
    features: Tensor,
    wanted: frozenset[str],
) -> dict[str, Tensor]:
    """Uncertainties and distances from the features [n_atoms, D] of a batch."""
    graph, result = geometry.graph, dict[str, Tensor]()
    if "atom_features" in wanted:
        result["atom_features"] = features
    if uncertainty is None:
        return result
    if not wanted.isdisjoint(("energy_uncertainty", "energy_uncertainty_95")):
        result["energy_uncertainty"] = uncertainty.deviation(graph.sum_over_atoms(features))
    if "energies_uncertainty" in wanted:
        result["energies_uncertainty"] = uncertainty.deviation(features)
    if "domain_distance" in wanted:
        result["domain_distance"] = uncertainty.distance(features, graph.atomic_numbers)
        if config.domain is not None:
            result["closest_contact"] = config.domain.closest_contact(graph, geometry.lengths)
    return result


def _forces_uncertainty(
    model: FAENet,
    config: PotentialConfig,
    graph: AtomGraph,
    request: Request,
    uncertainty: LastLayerUncertainty,
    generator: torch.Generator | None,
) -> Tensor:
    """[n_atoms] (eV/Å) root mean square length of force errors over drawn last layers."""
    draws = uncertainty.draws(FORCE_DRAWS, torch.Generator().manual_seed(0)).to(graph.positions.device)
    with torch.enable_grad():
        energy_only = dataclasses.replace(request, gradient=True, stress=False, gradient_spread=False)
        geometry = _geometry(config, graph, energy_only, generator, True)
        output, _ = _run(model, geometry, geometry.framed, geometry.vectors, geometry.frames.rotation, features=True)
        features = _atom_features(geometry, output).sum(dim=0)
        squares = graph.positions.new_zeros(graph.n_atoms)
        for error in draws.to(features.dtype) @ features:
            (force,) = torch.autograd.grad(error, geometry.positions, retain_graph=True)
            squares += force.square().sum(dim=1)
    return (squares / len(draws)).sqrt()


def _derivatives(geometry: _Geometry, network: _NetworkPass, energy: Tensor, request: Request) -> dict[str, Tensor]:
    """Gradient forces, stress and the spread of gradient forces from derivatives with respect to edges and frames."""
    graph, frames, grad_vectors = geometry.graph, geometry.frames, network.grad_vectors
    assert grad_vectors is not None and network.grad_rotation is not None
    if geometry.contacts is not None:
        grad_vectors = grad_vectors + geometry.contacts.gradient(graph, geometry.vectors)
    grad_positions = grad_vectors.new_zeros(graph.n_atoms, 3).index_add_(0, graph.neighbor, grad_vectors)
    grad_positions.index_add_(0, graph.centre, grad_vectors, alpha=-1)
    grad_strain: Tensor | None = None
    if geometry.strain is not None:
        products = torch.einsum("ei,ej->eij", geometry.vectors, grad_vectors)
        virial = grad_vectors.new_zeros(graph.n_graphs, 3, 3).index_add_(0, graph.graph_of_edge, products)
        grad_strain = 0.5 * (virial + virial.transpose(1, 2))
    if frames.rotation.requires_grad or frames.weight.requires_grad:
        total = energy.sum() + (network.grad_rotation * frames.rotation).sum()
        inputs = [geometry.positions] if geometry.strain is None else [geometry.positions, geometry.strain]
        found = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        grad_positions += found[0]
        if grad_strain is not None:
            grad_strain += found[1]
    result = {"gradient_forces": -grad_positions}
    if grad_strain is not None:
        result["stress"] = grad_strain / _finite_volume(graph)
    if network.grad_copies is not None:
        result["forces_frame_std"] = _gradient_spread(geometry, network.grad_copies)
    return result


def _autograd_derivatives(
    geometry: _Geometry,
    network: _NetworkPass,
    energy: Tensor,
    request: Request,
    *,
    create_graph: bool,
    retain_graph: bool,
) -> dict[str, Tensor]:
    """The same by differentiating energies [n_graphs] that are in one autograd graph with the positions."""
    copies = network.copies if request.gradient_spread else None
    inputs = [x for x in (geometry.positions, geometry.strain, copies) if x is not None]
    # The energy of an isolated atom does not depend on its position; the zero term connects the two.
    total = energy.sum() + 0.0 * geometry.positions.sum()
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
    if geometry.strain is not None:
        result["stress"] = grads.pop(0) / _finite_volume(geometry.graph)
    if request.gradient_spread:
        result["forces_frame_std"] = _gradient_spread(geometry, grads.pop(0))
    return result


def _finite_volume(graph: AtomGraph) -> Tensor:
    """[n_graphs, 1, 1] (Å³), infinite for structures without a volume: their stress is zero, also inside a batch."""
    volume = graph.volume.detach()
    return torch.where(volume > 0, volume, torch.inf)[:, None, None]


def _gradient_spread(geometry: _Geometry, grad_copies: Tensor) -> Tensor:
    """[n_atoms] spread over frames of forces at fixed frames, from dE/d(edge copies) [n_edge_copies, 3]."""
    framed = geometry.framed
    per_frame = grad_copies / geometry.frames.weight.detach()[framed.frame_of_edge][:, None]
    force = per_frame.new_zeros(framed.n_nodes, 3).index_add(0, framed.centre, per_frame)
    return _spread(geometry, force.index_add(0, framed.neighbor, -per_frame))


def _spread(geometry: _Geometry, node_force: Tensor) -> Tensor:
    """[n_atoms] weighted root mean square deviation of per-node forces [n_nodes, 3] from their mean."""
    framed, n_atoms = geometry.framed, geometry.graph.n_atoms
    weight = geometry.frames.weight.detach()[framed.frame_of_node]
    mean = node_force.new_zeros(n_atoms, 3).index_add(0, framed.atom_of_node, node_force * weight[:, None])
    deviation = (node_force - mean[framed.atom_of_node]).square().sum(dim=1) * weight
    return deviation.new_zeros(n_atoms).index_add(0, framed.atom_of_node, deviation).sqrt()


def _average(frames: Frames, per_frame: Tensor, n_graphs: int) -> Tensor:
    """[n_graphs] weighted average of a per-frame quantity (paper Eq. 1)."""
    return per_frame.new_zeros(n_graphs).index_add(0, frames.graph, per_frame * frames.weight)
