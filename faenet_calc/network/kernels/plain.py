"""Sums over edges and derivatives of the activation in PyTorch operations.

    m_i = Σ_j w_ij x_j ⊙ σ(z_ij),    σ(z) = z s,    s = 1 / (1 + e^-z)
    σ'(z) = s + σ (1 - s)            σ''(z) = s (1 - s) (2 + z - 2σ)

Edges are processed in chunks, so that temporary tensors stay in the cache.

| symbol | here |
|---|---|
| z_ij, s_ij | ``z``, ``s`` [n_edges, F] |
| w_ij | ``weight`` [n_edges, 1] or None |
| x_j | ``x`` [n_nodes, F], looked up at ``neighbor`` |
| dL/dm_i | ``grad_output`` [n_nodes, F], looked up at ``centre`` |
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

CHUNK_NUMEL = 1 << 19
"""Numbers per chunk of a tensor with a row per edge; 2 MB in float32."""


def swish_backward(grad_output: Tensor, z: Tensor, s: Tensor) -> Tensor:
    """grad_output ⊙ σ'(z), of any shape."""
    return _first(z * s, s).mul_(grad_output)


def swish_double_backward(grad_grad: Tensor, grad_output: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of <grad_grad, grad_output ⊙ σ'(z)> with respect to grad_output and z."""
    value = z * s
    return _first(value, s).mul_(grad_grad), _second(z, value, s).mul_(grad_output).mul_(grad_grad)


def messages(z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
    """Messages m [n_nodes, F]."""
    total = torch.zeros_like(x)
    for part in _chunks(z):
        rows = x.index_select(0, neighbor[part]).mul_(z[part]).mul_(s[part])
        total.index_add_(0, centre[part], rows if weight is None else rows.mul_(weight[part]))
    return total


def messages_backward(
    grad_output: Tensor, z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of <grad_output, m> with respect to z, x and weight (empty without weights)."""
    grad_z, grad_x = torch.empty_like(z), torch.zeros_like(x)
    grad_weight = z.new_empty(0) if weight is None else torch.empty_like(weight)
    for part in _chunks(z):
        value, rows = z[part] * s[part], grad_output.index_select(0, centre[part])
        grad_edge = x.index_select(0, neighbor[part]).mul_(rows)
        if weight is not None:
            torch.sum(grad_edge * value, dim=1, keepdim=True, out=grad_weight[part])
            grad_edge.mul_(weight[part])
            rows.mul_(weight[part])
        torch.mul(_first(value, s[part]), grad_edge, out=grad_z[part])
        grad_x.index_add_(0, neighbor[part], rows.mul_(value))
    return grad_z, grad_x, grad_weight


def messages_double_backward(
    grad_grad_z: Tensor,
    grad_grad_x: Tensor,
    grad_grad_weight: Tensor | None,
    grad_output: Tensor,
    z: Tensor,
    s: Tensor,
    x: Tensor,
    weight: Tensor | None,
    centre: Tensor,
    neighbor: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Derivatives of <grad_grad, messages_backward> with respect to grad_output, z, x and weight."""
    grad_grad_output, grad_z, grad_x = torch.zeros_like(grad_output), torch.empty_like(z), torch.zeros_like(x)
    grad_weight = z.new_empty(0) if weight is None else torch.empty_like(weight)
    for part in _chunks(z):
        at, to = neighbor[part], centre[part]
        value = z[part] * s[part]
        first = _first(value, s[part])
        x_rows, grad_grad_x_rows = x.index_select(0, at), grad_grad_x.index_select(0, at)
        grad_rows = grad_output.index_select(0, to)
        along = first * grad_grad_z[part]  # change of σ(z) along grad_grad_z
        moved = torch.addcmul(x_rows * along, value, grad_grad_x_rows)  # change of the message along grad_grad
        torch.mul(_second(z[part], value, s[part]), grad_grad_z[part], out=grad_z[part])
        if weight is not None and grad_grad_weight is not None:
            w, grad_grad_w = weight[part], grad_grad_weight[part]
            torch.sum(moved * grad_rows, dim=1, keepdim=True, out=grad_weight[part])
            scaled = value.mul_(grad_grad_w)
            moved.mul_(w).addcmul_(x_rows, scaled)
            along.mul_(w).add_(scaled)
            grad_grad_x_rows.mul_(w).addcmul_(x_rows, grad_grad_w)
            x_rows.mul_(w)
        grad_grad_output.index_add_(0, to, moved)
        grad_x.index_add_(0, at, along.mul_(grad_rows))
        grad_z[part].mul_(x_rows).addcmul_(first, grad_grad_x_rows).mul_(grad_rows)
    return grad_grad_output, grad_z, grad_x, grad_weight


def gather_sum(values: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    """Σ_k values_k[index_k], [n_edges, F]."""
    total = values[0].index_select(0, indices[0])
    for part in _chunks(total):
        for value, index in zip(values[1:], indices[1:], strict=True):
            total[part] += value.index_select(0, index[part])
    return total


def scatter_sum(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """[size, F] sums of the rows [n_edges, F] with the same index."""
    return rows.new_zeros(size, rows.shape[1]).index_add(0, index, rows)


def _chunks(rows: Tensor) -> Iterator[slice]:
    """Slices of a tensor [n, F] that are processed together."""
    step = max(1, CHUNK_NUMEL // max(1, rows.shape[1]))
    return (slice(start, start + step) for start in range(0, len(rows), step))


def _first(value: Tensor, s: Tensor) -> Tensor:
    """σ' from σ and s."""
    return torch.lerp(value, value.new_ones(()), s)


def _second(z: Tensor, value: Tensor, s: Tensor) -> Tensor:
    """σ'' from z, σ and s."""
    return torch.add(z, value, alpha=-2).add_(2.0).mul_(torch.addcmul(s, s, s, value=-1))
