"""The paper's frames: principal axes of the atoms.

They jump where eigenvalues cross and depend on the periodic image of every atom; ``lattice.py`` and ``pair.py`` have
the frames that replace them.
"""

import torch
from torch import Tensor

from faenet_calc.graphs.graph import AtomGraph


def principal_axes(graph: AtomGraph, *, planar: bool) -> Tensor:
    """Principal axes of the unwrapped positions, by descending variance.

    Args:
        graph: The structures.
        planar: Axes of the xy coordinates only; z stays as it is (2D frame averaging).

    Returns:
        [n_graphs, 3, 3], axes as columns, signs as the eigen-solver gave them; differentiable where eigenvalues differ.
    """
    count = graph.atoms_per_graph.clamp(min=1).to(graph.positions.dtype)[:, None]
    mean = graph.sum_over_atoms(graph.positions) / count
    centred = graph.positions - mean[graph.graph_of_atom]
    if planar:
        centred = centred[:, :2]
    covariance = graph.sum_over_atoms(centred[:, :, None] * centred[:, None, :])
    vectors = torch.linalg.eigh(covariance).eigenvectors.flip(-1)
    if not planar:
        return vectors
    axes = torch.zeros(graph.n_graphs, 3, 3, dtype=vectors.dtype, device=vectors.device)
    axes[:, :2, :2] = vectors
    axes[:, 2, 2] = 1.0
    return axes


def flips_of(axes: Tensor, *, planar: bool, proper: bool) -> Tensor:
    """[n_graphs, k, 3, 3] all sign choices of principal axes: k = 8 (3D) or 4 (2D), half of it if ``proper``."""
    signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * 3).to(axes)
    if planar:
        signs = signs[signs[:, 2] > 0]
    flipped = axes[:, None] * signs[None, :, None, :]
    if not proper:
        return flipped
    right_handed = torch.linalg.det(flipped.detach()) > 0
    return flipped[right_handed].reshape(len(axes), -1, 3, 3)


def lab_signs(axes: Tensor, *, planar: bool) -> Tensor:
    """Upstream's deterministic choice: every axis has a non-negative sum of lab-frame components (not invariant).

    The planar sum runs over x and y only, which the zero z components of the axes make the same thing.
    """
    signs = torch.where(axes.detach().sum(dim=1) >= 0, 1.0, -1.0).to(axes.dtype)
    if planar:
        signs[:, 2] = 1.0
    return axes * signs[:, None, :]
