"""Messages of an interaction block and the activation, with derivatives written by hand (L2, used by ``layers.py``).

    m_i = Σ_j w_ij x_j ⊙ σ(z_ij),    σ(z) = z s,    s = 1 / (1 + e^-z)

Tensors with a row per edge are the largest of a step. Autograd would keep and read again each that a formula passes
through; here z and s are kept, and the first and second derivatives (gradient forces are trained through the second)
take one pass each:

    σ'(z) = s + σ (1 - s)             σ''(z) = s (1 - s) (2 + z - 2σ)

| symbol | here |
|---|---|
| z_ij, s_ij | ``z``, ``s`` [n_edges, F] |
| w_ij | ``weight`` [n_edges, 1] or None |
| x_j | ``x`` [n_nodes, F], looked up at ``neighbor`` |
| dL/dm_i | ``slope`` [n_nodes, F], looked up at ``centre`` |
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from faenet_calc.config import Activation

Act = Callable[[Tensor], Tensor]


def activation(name: Activation) -> Act:
    """The activation function of a name; "swish" is silu with the derivatives of this file."""
    return swish if name == "swish" else cast(Act, getattr(functional, name))


def swish(z: Tensor) -> Tensor:
    """σ(z) = z / (1 + e^-z), twice differentiable at the cost of few operations."""
    return cast(Tensor, _Swish.apply(z))  # type: ignore[no-untyped-call]


def swish_messages(z: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
    """Σ_j w_ij x_j ⊙ σ(z_ij) at every node, [n_nodes, F]."""
    return cast(Tensor, _Messages.apply(z, x, weight, centre, neighbor))  # type: ignore[no-untyped-call]


def _first(value: Tensor, s: Tensor) -> Tensor:
    """σ' from σ and s."""
    return torch.lerp(value, value.new_ones(()), s)


def _second(z: Tensor, value: Tensor, s: Tensor) -> Tensor:
    """σ'' from z, σ and s."""
    return torch.add(z, value, alpha=-2).add_(2.0).mul_(torch.addcmul(s, s, s, value=-1))


def _sum_at(index: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """Rows [n_edges, F] summed at nodes, in the shape of ``like``."""
    return torch.zeros_like(like).index_add_(0, index, rows)


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
        s = torch.sigmoid(z)
        ctx.save_for_backward(z, s, x, weight, centre, neighbor)
        rows = x.index_select(0, neighbor).mul_(z).mul_(s)
        return _sum_at(centre, rows if weight is None else rows.mul_(weight), x)

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
        value, rows = z * s, slope.index_select(0, centre)
        of_edge, of_weight = x.index_select(0, neighbor).mul_(rows), None
        if weight is not None:
            of_weight = (of_edge * value).sum(dim=1, keepdim=True)
            of_edge.mul_(weight)
            rows.mul_(weight)
        return _first(value, s).mul_(of_edge), _sum_at(neighbor, rows.mul_(value), x), of_weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *seconds: Tensor | None) -> tuple[Tensor | None, ...]:
        """With D = <second, derivatives>, dD/d(slope, z, x, weight)."""
        slope, z, s, x, weight, centre, neighbor = ctx.saved_tensors
        by_z, by_x, by_weight = seconds
        assert by_z is not None and by_x is not None  # autograd fills in zeros
        value = z * s
        first = _first(value, s)
        x_rows, by_x_rows = x.index_select(0, neighbor), by_x.index_select(0, neighbor)
        slope_rows = slope.index_select(0, centre)
        along = first * by_z  # of σ, where z moves along by_z
        # Rows of dD/dslope before the weight: x σ' by_z + σ by_x, and below what they are times the slope.
        moved = torch.addcmul(x_rows * along, value, by_x_rows)
        of_weight, weighted = None, slope_rows
        if weight is not None:
            assert by_weight is not None
            of_weight = (moved * slope_rows).sum(dim=1, keepdim=True)
            moved.mul_(weight).add_(x_rows * value * by_weight)
            weighted = slope_rows * weight
            along.mul_(weight).add_(value * by_weight)
            by_x_rows = torch.addcmul(by_x_rows * weight, x_rows, by_weight)
        of_z = _second(z, value, s).mul_(by_z).mul_(x_rows).mul_(weighted)
        of_z.addcmul_(first.mul_(by_x_rows), slope_rows)
        of_x = _sum_at(neighbor, along.mul_(slope_rows), x)
        return _sum_at(centre, moved, slope), of_z, None, of_x, of_weight, None, None
