"""Derivatives of the averaged energy with respect to positions and strain.

The fourth part of the forward pass: Geometry, NetworkPass and energy → gradient forces, stress and the spread of
forces. Where the network was not evaluated in one autograd graph, the pass holds derivatives with respect to edge
vectors V and rotations U; positions and strain follow from

    d/dx Σ_f w_f E_f  =  Σ_f (dw_f/dx) E_f  +  <dE/dV, dV/dx>  +  <dE/dU, dU/dx>.

The torque is the derivative with respect to a rotation of a structure in fixed frames, a rotation of its frames
U → exp(-[ω]) U: the antisymmetric part of -Σ_f (dE/dU_f) U_fᵀ.
"""

import torch
from torch import Tensor

from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.averages import spread
from faenet_calc.potential.capabilities import Request
from faenet_calc.potential.geometry import Geometry
from faenet_calc.potential.network_pass import NetworkPass


def derivatives(geometry: Geometry, network: NetworkPass, energy: Tensor, request: Request) -> dict[str, Tensor]:
    """Gradient forces, stress, torque and the spread of gradient forces from derivatives by edges and frames."""
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
    if request.torque:
        result["torque"] = _torque(geometry, network.grad_rotation)
    if grad_strain is not None:
        result["stress"] = grad_strain / _finite_volume(graph)
    if network.grad_copies is not None:
        result["forces_frame_std"] = _gradient_spread(geometry, network.grad_copies)
    return result


def autograd_derivatives(
    geometry: Geometry,
    network: NetworkPass,
    energy: Tensor,
    request: Request,
    *,
    create_graph: bool,
    retain_graph: bool,
) -> dict[str, Tensor]:
    """The same by differentiating energies [n_graphs] that are in one autograd graph with the positions."""
    copies = network.copies if request.gradient_spread else None
    rotation = geometry.frames.rotation if request.torque else None
    inputs = [x for x in (geometry.positions, geometry.strain, copies, rotation) if x is not None]
    # The energy of an isolated atom does not depend on its position; the zero term connects the two.
    total = energy.sum() + 0.0 * geometry.positions.sum()
    known = [(value, grad) for value, grad in network.known if value.requires_grad]
    grads = list(
        torch.autograd.grad(
            [total, *(value for value, _ in known)],
            inputs,
            [torch.ones_like(total), *(grad for _, grad in known)],
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
    if request.torque:
        result["torque"] = _torque(geometry, grads.pop(0))
    return result


def _finite_volume(graph: AtomGraph) -> Tensor:
    """[n_graphs, 1, 1] (Å³), infinite for structures without a volume: their stress is zero, also inside a batch."""
    volume = graph.volume.detach()
    return torch.where(volume > 0, volume, torch.inf)[:, None, None]


def _torque(geometry: Geometry, grad_rotation: Tensor) -> Tensor:
    """[n_graphs, 3] (eV/rad) from derivatives with respect to rotations of the frames [n_frames, 3, 3] (eV)."""
    frames = geometry.frames
    product = frames.rotation @ grad_rotation.transpose(1, 2)
    total = product.new_zeros(geometry.graph.n_graphs, 3, 3).index_add(0, frames.graph, product)
    z, y, x = total[:, 1, 0] - total[:, 0, 1], total[:, 0, 2] - total[:, 2, 0], total[:, 2, 1] - total[:, 1, 2]
    return torch.stack([x, y, z], dim=1)


def _gradient_spread(geometry: Geometry, grad_copies: Tensor) -> Tensor:
    """[n_atoms] spread over frames of forces at fixed frames, from dE/d(edge copies) [n_edge_copies, 3]."""
    framed = geometry.framed
    per_frame = grad_copies / geometry.frames.weight.detach()[framed.frame_of_edge][:, None]
    force = per_frame.new_zeros(framed.n_nodes, 3).index_add(0, framed.centre, per_frame)
    return spread(geometry, force.index_add(0, framed.neighbor, -per_frame))
