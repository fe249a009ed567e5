"""Averages over frames, and spreads.

The third part of the forward pass: output of the network in every frame → energies and direct forces in physical units.
"""

from functools import lru_cache

import torch
from torch import Tensor

from faenet_calc.frames.frames import Frames, out_of_frame
from faenet_calc.network.faenet import NetworkOutput
from faenet_calc.potential.capabilities import Request
from faenet_calc.potential.config import NormalizationConfig
from faenet_calc.potential.geometry import Geometry


def averages(
    normalization: NormalizationConfig, geometry: Geometry, output: NetworkOutput, request: Request
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
        own, of_whole = frames.of_structures, energy_of_copy[: frames.of_structures.n_frames]
        deviation = (of_whole - _average(own, of_whole, graph.n_graphs)[own.graph]).square()
        result["energy_frame_std"] = _average(own, deviation, graph.n_graphs).sqrt()
    if request.direct:
        assert output.node_force is not None
        framed, rotation = geometry.framed, frames.rotation.index_select(0, geometry.framed.frame_of_node)
        forces = out_of_frame(output.node_force.to(rotation.dtype) * normalization.force_scale, rotation)
        weighted = forces * frames.weight[framed.frame_of_node][:, None]
        result["direct_forces"] = forces.new_zeros(graph.n_atoms, 3).index_add(0, framed.atom_of_node, weighted)
        if "forces_frame_std" in wanted:
            result["forces_frame_std"] = spread(geometry, forces)
        if geometry.contacts is not None:
            result["direct_forces"] = result["direct_forces"] + geometry.contacts.forces(graph, geometry.vectors)
    return result


@lru_cache(maxsize=8)
def _table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def _average(frames: Frames, per_frame: Tensor, n_graphs: int) -> Tensor:
    """[n_graphs] weighted average of a per-frame quantity (paper Eq. 1)."""
    if n_graphs == 1:
        return per_frame.dot(frames.weight)[None]
    return per_frame.new_zeros(n_graphs).index_add(0, frames.graph, per_frame * frames.weight)


def spread(geometry: Geometry, node_force: Tensor) -> Tensor:
    """[n_atoms] root mean square deviation of per-node forces [n_nodes, 3] from their mean, over whole structures."""
    graph, frames = geometry.graph, geometry.frames.of_structures
    framed = geometry.framed if geometry.frames.parts is None else frames.framed(graph)
    node_force, weight = node_force[: framed.n_nodes], frames.weight.detach()[framed.frame_of_node]
    mean = node_force.new_zeros(graph.n_atoms, 3).index_add(0, framed.atom_of_node, node_force * weight[:, None])
    deviation = (node_force - mean[framed.atom_of_node]).square().sum(dim=1) * weight
    return deviation.new_zeros(graph.n_atoms).index_add(0, framed.atom_of_node, deviation).sqrt()
