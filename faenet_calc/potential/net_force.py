"""Removal of the net force and torque of directly predicted forces.

A force decoder does not obey Newton's third law; the remaining net force accelerates the whole structure and heats it.
"""

import torch
from torch import Tensor

from faenet_calc.graphs.graph import AtomGraph


def balanced_forces(forces: Tensor, graph: AtomGraph) -> Tensor:
    """Remove the net force of every structure and, of structures without periodic directions, the torque.

    With d_i = r_i − centroid, the correction for the torque is −α × d_i where (Σ |d|² 1 − d dᵀ) α = Σ d × f. The
    pseudo-inverse serves linear molecules, which have no torque along their axis. No smaller correction does the same.

    Args:
        forces: [n_atoms, 3] (eV/Å).
        graph: The structures.
    """
    balanced = forces - _mean_over_atoms(forces, graph)
    free = ~graph.pbc.any(dim=1)
    if not bool(free.any()):
        return balanced
    arm = graph.positions.detach() - _mean_over_atoms(graph.positions.detach(), graph)
    torque = graph.sum_over_atoms(torch.linalg.cross(arm, balanced))
    moments = graph.sum_over_atoms(arm[:, :, None] * arm[:, None, :])
    trace = moments.diagonal(dim1=1, dim2=2).sum(dim=1)
    inertia = trace[:, None, None] * torch.eye(3).to(moments) - moments
    inverse = torch.linalg.pinv(inertia, rtol=1e-10, hermitian=True)
    turn = torch.einsum("gij,gj->gi", inverse, torque) * free[:, None]
    return balanced - torch.linalg.cross(turn[graph.graph_of_atom], arm)


def _mean_over_atoms(per_atom: Tensor, graph: AtomGraph) -> Tensor:
    """[n_atoms, 3] the mean over the structure of each atom."""
    mean = graph.sum_over_atoms(per_atom) / graph.atoms_per_graph[:, None]
    return mean[graph.graph_of_atom]
