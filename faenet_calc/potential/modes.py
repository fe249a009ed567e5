"""Torch's modes: predictions do not depend on the inference mode, gradient mode or autocast of the caller.

Forces and stress are gradients of the energy, which tensors made in inference mode cannot have, and autocast would
change the precision of the network behind the caller's back.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from faenet_calc.graphs.graph import AtomGraph


def prediction_mode(device: torch.device) -> AbstractContextManager[None]:
    """Gradients off until they are needed, no inference mode, no autocast."""
    if torch.is_inference_mode_enabled() or torch.is_autocast_enabled(device.type):
        return _default_mode(device)
    return torch.no_grad()  # entering the other modes takes longer than asking


@contextmanager
def _default_mode(device: torch.device) -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def differentiable(graph: AtomGraph) -> AtomGraph:
    """The same graph, copied if it was made in inference mode."""
    if not graph.positions.is_inference():
        return graph
    return graph.replace(**{field.name: getattr(graph, field.name).clone() for field in dataclasses.fields(graph)})
