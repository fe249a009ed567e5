"""Messages of an interaction block and the activation, with derivatives written by hand.

    m_i = Σ_j w_ij x_j ⊙ σ(z_ij),    σ(z) = z s,    s = 1 / (1 + e^-z)

Tensors with a row per edge are the largest of a step. Autograd would keep and read again each that a formula passes
through; here z and s are kept, and the first and second derivatives (gradient forces are trained through the second)
are computed from them by the functions of ``kernels``, whose symbols are used here.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from faenet_calc.network.config import Activation
from faenet_calc.network.kernels import fastest_for

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


def sum_of_rows(*looked_up: tuple[Tensor, Tensor]) -> Tensor:
    """Σ values[index] for pairs (values [n_k, F], index [n_edges]), [n_edges, F]."""
    values, indices = zip(*looked_up, strict=True)
    return cast(Tensor, _SumOfRows.apply(indices, *values))  # type: ignore[no-untyped-call]


class _SumOfRows(Function):
    @staticmethod
    def forward(ctx: Any, indices: tuple[Tensor, ...], *values: Tensor) -> Tensor:
        ctx.indices, ctx.sizes = indices, [len(value) for value in values]
        return cast(Tensor, fastest_for(*values).sum_of_rows(values, indices))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        sums = (_RowsSummedAt.apply(*slopes, index, size) for size, index in zip(ctx.sizes, ctx.indices, strict=True))  # type: ignore[no-untyped-call]
        return None, *sums


class _RowsSummedAt(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.index = index
        return cast(Tensor, fastest_for(rows).rows_summed_at(index, rows, size))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = slopes
        return slope.index_select(0, ctx.index), None, None


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
        return cast(Tensor, fastest_for(slope, z).swish_slope(slope, z, s))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *seconds: Tensor) -> tuple[Tensor, Tensor, None]:
        of_slope, of_z = fastest_for(*seconds, ctx.saved_tensors[1]).swish_slope_backward(*seconds, *ctx.saved_tensors)
        return of_slope, of_z, None


class _Messages(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
        s = torch.sigmoid(z)
        ctx.save_for_backward(z, s, x, weight, centre, neighbor)
        return cast(Tensor, fastest_for(z, x, weight).messages(z, s, x, weight, centre, neighbor))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        of_z, of_x, of_weight = _MessagesSlope.apply(*slopes, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return of_z, of_x, of_weight, None, None


class _MessagesSlope(Function):
    """Derivatives of messages with respect to z, x and weight, for a slope dL/dm."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, *others: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.save_for_backward(slope, *others)
        return cast(
            "tuple[Tensor, Tensor, Tensor | None]", fastest_for(slope, *others[:4]).messages_slope(slope, *others)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *seconds: Tensor) -> tuple[Tensor | None, ...]:
        """Of slope, z, s, x, weight, centre and neighbor; ``seconds`` are zeros where nothing depends on them."""
        slope, *others = ctx.saved_tensors
        kernel = fastest_for(*seconds, slope, *others[:4]).messages_slope_backward
        of_slope, of_z, of_x, of_weight = kernel(seconds, slope, *others)
        return of_slope, of_z, None, of_x, of_weight, None, None
