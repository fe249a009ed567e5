"""Sums over edges and derivatives of the activation, in torch operations.

    m_i = Σ_j w_ij x_j ⊙ σ(z_ij),    σ(z) = z s,    s = 1 / (1 + e^-z)
    σ'(z) = s + σ (1 - s)            σ''(z) = s (1 - s) (2 + z - 2σ)

Some edges are worked on at a time, so that what is in between stays in the cache.

| symbol | here |
|---|---|
| z_ij, s_ij | ``z``, ``s`` [n_edges, F] |
| w_ij | ``weight`` [n_edges, 1] or None |
| x_j | ``x`` [n_nodes, F], looked up at ``neighbor`` |
| dL/dm_i | ``slope`` [n_nodes, F], looked up at ``centre`` |
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

NUMBERS_AT_ONCE = 1 << 19
"""Of a tensor with a row per edge; 2 MB in float32."""


def swish_slope(slope: Tensor, z: Tensor, s: Tensor) -> Tensor:
    """The product slope ⊙ σ'(z), of any shape."""
    return _first(z * s, s).mul_(slope)


def swish_slope_backward(second: Tensor, slope: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of <second, slope ⊙ σ'(z)> by slope and z."""
    value = z * s
    return _first(value, s).mul_(second), _second(z, value, s).mul_(slope).mul_(second)


def messages(z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
    """Messages m [n_nodes, F]."""
    total = torch.zeros_like(x)
    for part in _parts(z):
        rows = x.index_select(0, neighbor[part]).mul_(z[part]).mul_(s[part])
        total.index_add_(0, centre[part], rows if weight is None else rows.mul_(weight[part]))
    return total


def messages_slope(
    slope: Tensor, z: Tensor, s: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Derivatives of <slope, m> by z, x and weight."""
    of_z, of_x = torch.empty_like(z), torch.zeros_like(x)
    of_weight = None if weight is None else torch.empty_like(weight)
    for part in _parts(z):
        value, rows = z[part] * s[part], slope.index_select(0, centre[part])
        of_edge = x.index_select(0, neighbor[part]).mul_(rows)
        if weight is not None and of_weight is not None:
            torch.sum(of_edge * value, dim=1, keepdim=True, out=of_weight[part])
            of_edge.mul_(weight[part])
            rows.mul_(weight[part])
        torch.mul(_first(value, s[part]), of_edge, out=of_z[part])
        of_x.index_add_(0, neighbor[part], rows.mul_(value))
    return of_z, of_x, of_weight


def messages_slope_backward(
    seconds: tuple[Tensor, Tensor, Tensor | None],
    slope: Tensor,
    z: Tensor,
    s: Tensor,
    x: Tensor,
    weight: Tensor | None,
    centre: Tensor,
    neighbor: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """With D = <seconds, derivatives of messages_slope>: dD by slope, z, x and weight."""
    by_z, by_x, by_weight = seconds
    of_slope, of_z, of_x = torch.zeros_like(slope), torch.empty_like(z), torch.zeros_like(x)
    of_weight = None if weight is None else torch.empty_like(weight)
    for part in _parts(z):
        at, to = neighbor[part], centre[part]
        value = z[part] * s[part]
        first = _first(value, s[part])
        x_rows, by_x_rows, slope_rows = x.index_select(0, at), by_x.index_select(0, at), slope.index_select(0, to)
        along = first * by_z[part]  # of σ, where z moves along by_z
        moved = torch.addcmul(x_rows * along, value, by_x_rows)  # of the message, where x moves too
        torch.mul(_second(z[part], value, s[part]), by_z[part], out=of_z[part])
        if weight is not None and by_weight is not None and of_weight is not None:
            w, by_w = weight[part], by_weight[part]
            torch.sum(moved * slope_rows, dim=1, keepdim=True, out=of_weight[part])
            turned = value.mul_(by_w)
            moved.mul_(w).addcmul_(x_rows, turned)
            along.mul_(w).add_(turned)
            by_x_rows.mul_(w).addcmul_(x_rows, by_w)
            x_rows.mul_(w)
        of_slope.index_add_(0, to, moved)
        of_x.index_add_(0, at, along.mul_(slope_rows))
        of_z[part].mul_(x_rows).addcmul_(first, by_x_rows).mul_(slope_rows)
    return of_slope, of_z, of_x, of_weight


def sum_of_rows(values: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    """Σ_k values_k[index_k], [n_edges, F]."""
    total = values[0].index_select(0, indices[0])
    for part in _parts(total):
        for value, index in zip(values[1:], indices[1:], strict=True):
            total[part] += value.index_select(0, index[part])
    return total


def rows_summed_at(index: Tensor, rows: Tensor, size: int) -> Tensor:
    """[size, F] sums of the rows [n_edges, F] with the same index."""
    return rows.new_zeros(size, rows.shape[1]).index_add(0, index, rows)


def _parts(rows: Tensor) -> Iterator[slice]:
    """Slices of a tensor [n, F] that are worked on together."""
    step = max(1, NUMBERS_AT_ONCE // max(1, rows.shape[1]))
    return (slice(start, start + step) for start in range(0, len(rows), step))


def _first(value: Tensor, s: Tensor) -> Tensor:
    """σ' from σ and s."""
    return torch.lerp(value, value.new_ones(()), s)


def _second(z: Tensor, value: Tensor, s: Tensor) -> Tensor:
    """σ'' from z, σ and s."""
    return torch.add(z, value, alpha=-2).add_(2.0).mul_(torch.addcmul(s, s, s, value=-1))
