"""Messages of an interaction block and the activation, with hand-written derivatives.

    m_i = Σ_j w_ij x_j ⊙ σ(z_ij),    σ(z) = z s,    s = 1 / (1 + e^-z)

Tensors with a row per edge are the largest of a training step. Autograd would save every intermediate one of them; the
functions here save z and s and compute first and second derivatives (training on gradient forces needs the second)
with the operators of ``kernels``. Other devices than the CPU, where the number of kernel launches matters, and
``torch.compile``, which fuses operations by itself, use PyTorch's own operations.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from faenet_calc.network.config import Activation
from faenet_calc.network.kernels import ops

Act = Callable[[Tensor], Tensor]


def activation(name: Activation) -> Act:
    """The activation function of a name; "swish" is silu with the derivatives of this file."""
    return swish if name == "swish" else cast(Act, getattr(functional, name))


def swish(z: Tensor) -> Tensor:
    """σ(z) = z / (1 + e^-z), twice differentiable."""
    if not _by_hand(z):
        return functional.silu(z)
    return cast(Tensor, _Swish.apply(z))  # type: ignore[no-untyped-call]


def swish_messages(z: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
    """Σ_j w_ij x_j ⊙ σ(z_ij) at every node, [n_nodes, F]."""
    if not _by_hand(z):
        rows = functional.silu(z) * x.index_select(0, neighbor)
        return torch.zeros_like(x).index_add(0, centre, rows if weight is None else rows * weight)
    return cast(Tensor, _Messages.apply(z, x, weight, centre, neighbor))  # type: ignore[no-untyped-call]


def gather_sum(*looked_up: tuple[Tensor, Tensor]) -> Tensor:
    """Σ values[index] for pairs (values [n_k, F], index [n_edges]), [n_edges, F]."""
    if not _by_hand(looked_up[0][0]):
        first, *others = (value.index_select(0, index) for value, index in looked_up)
        return sum(others, start=first)
    values, indices = zip(*looked_up, strict=True)
    return cast(Tensor, _GatherSum.apply(indices, *values))  # type: ignore[no-untyped-call]


def _by_hand(values: Tensor) -> bool:
    """Whether the functions of this file are used: on the CPU, unless ``torch.compile`` traces them."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


class _GatherSum(Function):
    @staticmethod
    def forward(ctx: Any, indices: tuple[Tensor, ...], *values: Tensor) -> Tensor:
        ctx.indices, ctx.sizes = indices, [len(value) for value in values]
        return cast(Tensor, ops.gather_sum(values, indices))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad_output,) = grad_outputs
        parts = zip(ctx.indices, ctx.sizes, strict=True)
        return None, *(_ScatterSum.apply(grad_output, index, size) for index, size in parts)  # type: ignore[no-untyped-call]


class _ScatterSum(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.index = index
        return cast(Tensor, ops.scatter_sum(rows, index, size))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad_output,) = grad_outputs
        return grad_output.index_select(0, ctx.index), None, None


class _Swish(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        s = torch.sigmoid(z)
        ctx.save_for_backward(z, s)
        return z * s

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        return cast(Tensor, _SwishBackward.apply(*grad_outputs, *ctx.saved_tensors))  # type: ignore[no-untyped-call]


class _SwishBackward(Function):
    """grad_output ⊙ σ'(z)."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, z: Tensor, s: Tensor) -> Tensor:
        ctx.save_for_backward(grad_output, z, s)
        return cast(Tensor, ops.swish_backward(grad_output, z, s))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_grads: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_grad_output, grad_z = ops.swish_double_backward(*grad_grads, *ctx.saved_tensors)
        return grad_grad_output, grad_z, None


class _Messages(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, x: Tensor, weight: Tensor | None, centre: Tensor, neighbor: Tensor) -> Tensor:
        s = torch.sigmoid(z)
        ctx.save_for_backward(z, s, x, weight, centre, neighbor)
        return cast(Tensor, ops.messages(z, s, x, weight, centre, neighbor))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_z, grad_x, grad_weight = _MessagesBackward.apply(*grad_outputs, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return grad_z, grad_x, grad_weight, None, None


class _MessagesBackward(Function):
    """Derivatives of messages with respect to z, x and weight."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, *inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.save_for_backward(grad_output, *inputs)
        grad_z, grad_x, grad_weight = ops.messages_backward(grad_output, *inputs)
        return grad_z, grad_x, None if inputs[3] is None else grad_weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Derivatives with respect to grad_output, z, s, x, weight, centre and neighbor."""
        results = ops.messages_double_backward(*grad_grads, *ctx.saved_tensors)
        grad_grad_output, grad_z, grad_x, grad_weight = results
        return grad_grad_output, grad_z, None, grad_x, None if grad_grads[2] is None else grad_weight, None, None
