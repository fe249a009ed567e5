"""The innermost operations of the network as ``torch.library`` operators, e.g. ``torch.ops.faenet_calc.messages``.

On the CPU they run the compiled functions of ``native`` where these are available, elsewhere the PyTorch functions of
``plain``. ``torch.compile`` and fake tensors see them as single operators whose outputs have known shapes. They have no
autograd rules of their own: ``messages.py`` defines the derivatives.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from faenet_calc.network.kernels import native, plain

_EDGES = "Tensor z, Tensor s, Tensor x, Tensor? weight, Tensor centre, Tensor neighbor"
_SCHEMAS = {
    "swish_backward": "(Tensor grad_output, Tensor z, Tensor s) -> Tensor",
    "swish_double_backward": "(Tensor grad_grad, Tensor grad_output, Tensor z, Tensor s) -> (Tensor, Tensor)",
    "messages": f"({_EDGES}) -> Tensor",
    "messages_backward": f"(Tensor grad_output, {_EDGES}) -> (Tensor, Tensor, Tensor)",
    "messages_double_backward": (
        "(Tensor grad_grad_z, Tensor grad_grad_x, Tensor? grad_grad_weight, Tensor grad_output, "
        f"{_EDGES}) -> (Tensor, Tensor, Tensor, Tensor)"
    ),
    "gather_sum": "(Tensor[] values, Tensor[] indices) -> Tensor",
    "scatter_sum": "(Tensor rows, Tensor index, SymInt size) -> Tensor",
}


def _like(weight: Tensor | None, z: Tensor) -> Tensor:
    return z.new_empty(0) if weight is None else torch.empty_like(weight)


_FAKES: dict[str, Callable[..., Any]] = {
    "swish_backward": lambda grad_output, z, s: torch.empty_like(z),
    "swish_double_backward": lambda grad_grad, grad_output, z, s: (torch.empty_like(z), torch.empty_like(z)),
    "messages": lambda z, s, x, weight, centre, neighbor: torch.empty_like(x),
    "messages_backward": lambda grad_output, z, s, x, weight, centre, neighbor: (
        torch.empty_like(z), torch.empty_like(x), _like(weight, z),
    ),
    "messages_double_backward": lambda gg_z, gg_x, gg_weight, grad_output, z, s, x, weight, centre, neighbor: (
        torch.empty_like(x), torch.empty_like(z), torch.empty_like(x), _like(weight, z),
    ),
    "gather_sum": lambda values, indices: values[0].new_empty(indices[0].shape[0], values[0].shape[1]),
    "scatter_sum": lambda rows, index, size: rows.new_empty(size, rows.shape[1]),
}  # fmt: skip


def _floats(arguments: tuple[Any, ...]) -> list[Tensor]:
    """The floating-point tensors among arguments and lists of them."""
    flat = [item for value in arguments for item in (value if isinstance(value, list | tuple) else (value,))]
    return [item for item in flat if isinstance(item, Tensor) and item.is_floating_point()]


def _on_cpu(name: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        module = native if native.serves(*_floats(arguments)) else plain
        return getattr(module, name)(*arguments)

    return call


for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"faenet_calc::{_name}", _schema)
    torch.library.impl(f"faenet_calc::{_name}", "cpu", _on_cpu(_name))
    torch.library.impl(f"faenet_calc::{_name}", "default", getattr(plain, _name))
    torch.library.register_fake(f"faenet_calc::{_name}", _FAKES[_name])

ops = torch.ops.faenet_calc
"""The operators."""
