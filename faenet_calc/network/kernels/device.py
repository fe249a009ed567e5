"""Operators of the evaluation on a GPU (``network/device_engine.py``), e.g. ``torch.ops.faenet_calc.node_messages``.

For tensors on a CUDA device they run the Triton kernels of ``device_triton``, one launch each. Where Triton, which
comes with the CUDA builds of torch for Linux, is missing, and on every other device, they run the PyTorch functions of
``device_plain``, which describe arguments and results. They have no autograd rules.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from faenet_calc.network.kernels import device_plain

_FEATURES = (
    "Tensor vectors, Tensor rotation, Tensor? group, Tensor? factor, Tensor offset, Tensor weight, Tensor bias, "
    "float cutoff, int power"
)
_MESSAGES = (
    "Tensor edges, Tensor nodes, Tensor weight, Tensor start, Tensor centre, Tensor neighbor, int layer, float scale"
)
SCHEMAS = {
    "edge_features": f"({_FEATURES}) -> (Tensor, Tensor, Tensor)",
    "edge_features_backward": (
        f"(Tensor grad_basis, Tensor grad_weight, Tensor grad_own, {_FEATURES}) -> (Tensor, Tensor, Tensor)"
    ),
    "add_swish": "(Tensor own, Tensor shared) -> (Tensor, Tensor)",
    "add_swish_backward": "(Tensor grad_output, Tensor q) -> (Tensor, Tensor)",
    "node_messages": f"({_MESSAGES}) -> Tensor",
    "node_messages_backward": (
        f"(Tensor grad_output, {_MESSAGES}, Tensor(a!) grad_edges, Tensor(b!) grad_weight, "
        "Tensor(c!)? grad_nodes) -> ()"
    ),
    "residual": "(Tensor h, Tensor u, Tensor? bias, Tensor(a!) following) -> Tensor",
    "residual_backward": "(Tensor grad, Tensor u, Tensor other) -> (Tensor, Tensor)",
    "readout": (
        "(Tensor argument, Tensor weight, Tensor bias, Tensor mixing, Tensor seed, Tensor? group) -> (Tensor, Tensor)"
    ),
}
"""By name; each operator is one kernel of ``device_triton``."""


def _features_fake(vectors: Tensor, rotation: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, offset, weight, _, _, _ = rest
    n_edges, new = vectors.shape[0], weight.new_empty
    return new(n_edges, offset.shape[0]), new(n_edges), new(rotation.shape[1], n_edges, weight.shape[0])


def _features_backward_fake(
    grad_basis: Tensor, grad_weight: Tensor, grad_own: Tensor, vectors: Tensor, rotation: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    n_edges, new = vectors.shape[0], vectors.new_empty
    return torch.empty_like(vectors), new(rotation.shape[1], n_edges, 3), new(n_edges)


_FAKES: dict[str, Callable[..., Any]] = {
    "edge_features": _features_fake,
    "edge_features_backward": _features_backward_fake,
    "add_swish": lambda own, shared: (torch.empty_like(own), torch.empty_like(own)),
    "add_swish_backward": lambda grad_output, q: (torch.empty_like(q), torch.empty_like(q[0])),
    "node_messages": lambda edges, nodes, *rest: nodes.new_empty(nodes.shape[0], nodes.shape[1] // 3),
    "node_messages_backward": lambda *arguments: None,
    "residual": lambda h, u, bias, following: h.new_empty(0) if bias is None else torch.empty_like(h),
    "residual_backward": lambda grad, u, other: (torch.empty_like(u), torch.empty_like(u)),
    "readout": lambda argument, weight, bias, mixing, seed, group: (
        mixing.new_empty(argument.shape[1]), torch.empty_like(argument),
    ),
}  # fmt: skip


@cache
def triton_kernels() -> ModuleType | None:
    """The module with the Triton kernels, or None without Triton."""
    if find_spec("triton") is None:
        return None
    from faenet_calc.network.kernels import device_triton

    return device_triton


def _on_cuda(name: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return getattr(triton_kernels() or device_plain, name)(*arguments)

    return call


for _name, _schema in SCHEMAS.items():
    torch.library.define(f"faenet_calc::{_name}", _schema)
    torch.library.impl(f"faenet_calc::{_name}", "cuda", _on_cuda(_name))
    torch.library.impl(f"faenet_calc::{_name}", "default", getattr(device_plain, _name))
    torch.library.register_fake(f"faenet_calc::{_name}", _FAKES[_name])

ops = torch.ops.faenet_calc
"""The operators."""
