"""Messages of an interaction block and the activation, with derivatives written by hand (L2, used by ``layers.py``).

    m_i = Σ_j w_ij x_j ⊙ σ(z_ij),    σ(z) = z s,    s = 1 / (1 + e^-z)

Tensors with a row per edge are the largest of a step. Autograd would keep and read again each that a formula passes
through; here z and s are kept, and the first and second derivatives (gradient forces are trained through the second)
are computed from them, some edges at a time, so that what is in between stays in the cache:

    σ'(z) = s + σ (1 - s)             σ''(z) = s (1 - s) (2 + z - 2σ)

| symbol | here |
|---|---|
| z_ij, s_ij | ``z``, ``s`` [n_edges, F] |
| w_ij | ``weight`` [n_edges, 1] or None |
| x_j | ``x`` [n_nodes, F], looked up at ``neighbor`` |
| dL/dm_i | ``slope`` [n_nodes, F], looked up at ``centre`` |
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from faenet_calc.config import Activation

Act = Callable[[Tensor], Tensor]

NUMBERS_AT_ONCE = 1 << 19
"""Of a tensor with a row per edge; 2 MB in float32."""


def activation(name: Activation) -> Act:
    """The activation function of a name; "swish" is silu with the derivatives of this file."""
    return swish if name == "swish" else cast(Act, getattr(functional, name))


def swish(z: Tensor) -> Tensor:
    """σ(z) = z / (1 + e^-z), twice differentiable at the cost of few operations."""
    return cast(Tensor, _Swish.apply(z))  # type: ignore[no-untyped-call]


def swish_messages(z: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
    """Σ_j w_ij x_j ⊙ σ(z_ij) at every node, [n_nodes, F]."""
    return cast(Tensor, _Messages.apply(z, x, weight, centre, neighbor))  # type: ignore[no-untyped-call]


def sum_of_rows(*looked_up: tuple[Tensor, Tensor]) -> Tensor:
    """Σ values[index] for pairs (values [n_k, F], index [n_edges]), [n_edges, F]."""
    values, indices = zip(*looked_up, strict=True)
    return cast(Tensor, _SumOfRows.apply(indices, *values))  # type: ignore[no-untyped-call]


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


class _SumOfRows(Function):
    @staticmethod
    def forward(ctx: Any, indices: tuple[Tensor, ...], *values: Tensor) -> Tensor:
        ctx.indices, ctx.sizes = indices, [len(value) for value in values]
        total = values[0].index_select(0, indices[0])
        for part in _parts(total):
            for value, index in zip(values[1:], indices[1:], strict=True):
                total[part] += value.index_select(0, index[part])
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = slopes
        sums = (
            slope.new_zeros(size, slope.shape[1]).index_add(0, index, slope)
            for size, index in zip(ctx.sizes, ctx.indices, strict=True)
        )
        return None, *sums


class _Swish(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        s = torch.sigmoid(z)
        ctx.save_for_backward(z, s)
        return z * s

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        return cast(Tensor, _SwishSlope.apply(*slopes, *ctx.saved_tensors))  # type: ignore[no-untyped-call]


class _SwishSlope(Function):
    """slope ⊙ σ'(z)."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, z: Tensor, s: Tensor) -> Tensor:
        ctx.save_for_backward(slope, z, s)
        return _first(z * s, s).mul_(slope)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *seconds: Tensor) -> tuple[Tensor, Tensor, None]:
        (second,), (slope, z, s) = seconds, ctx.saved_tensors
        value = z * s
        return _first(value, s).mul_(second), _second(z, value, s).mul_(slope).mul_(second), None


class _Messages(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
        s, total = torch.empty_like(z), torch.zeros_like(x)
        for part in _parts(z):
            torch.sigmoid(z[part], out=s[part])
            rows = x.index_select(0, neighbor[part]).mul_(z[part]).mul_(s[part])
            total.index_add_(0, centre[part], rows if weight is None else rows.mul_(weight[part]))
        ctx.save_for_backward(z, s, x, weight, centre, neighbor)
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        of_z, of_x, of_weight = _MessagesSlope.apply(*slopes, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return of_z, of_x, of_weight, None, None


class _MessagesSlope(Function):
    """Derivatives of messages with respect to z, x and weight, for a slope dL/dm."""

    @staticmethod
    def forward(
        ctx: Any,
        slope: Tensor,
        z: Tensor,
        s: Tensor,
        x: Tensor,
        weight: Tensor | None,
        centre: Tensor,
        neighbor: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.save_for_backward(slope, z, s, x, weight, centre, neighbor)
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

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *seconds: Tensor) -> tuple[Tensor | None, ...]:
        """With D = <second, derivatives>, dD/d(slope, z, x, weight)."""
        slope, z, s, x, weight, centre, neighbor = ctx.saved_tensors
        by_z, by_x, by_weight = seconds  # zeros where nothing depends on them
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
            if of_weight is not None:
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
        return of_slope, of_z, None, of_x, of_weight, None, None
