"""Bitwise reproducible runs on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic as settings


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Use deterministic algorithms on a CPU. Uninitialized memory is not filled: no tensor is read before written."""
    previous = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = settings.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(device.type == "cpu", warn_only=True)
    settings.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(previous, warn_only=warns)
        settings.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
