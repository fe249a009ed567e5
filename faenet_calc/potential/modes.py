"""Torch's modes: predictions do not depend on the inference mode, gradient mode or autocast of the caller.

Forces and stress are gradients of the energy, which tensors made in inference mode cannot have, and autocast would
change the precision of the network behind the caller's back.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from faenet_calc.graphs.graph import AtomGraph


@contextmanager
def prediction_mode(device: torch.device) -> Iterator[None]:
    """Gradients off until they are needed, no inference mode, no autocast."""
    with ExitStack() as modes:
        if torch.is_inference_mode_enabled():  # entering a mode takes longer than asking
            modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.no_grad())
        if torch.is_autocast_enabled(device.type):
            modes.enter_context(torch.autocast(device.type, enabled=False))
        yield


def differentiable(graph: AtomGraph) -> AtomGraph:
    """The same graph, copied if it was made in inference mode."""
    if not graph.positions.is_inference():
        return graph
    return graph.replace(**{field.name: getattr(graph, field.name).clone() for field in dataclasses.fields(graph)})
