"""Devices and floating-point types: chosen in one place for inference and training."""

import torch

from faenet_calc.errors import InputError

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype for "float32" or "float64"."""
    found = _DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise InputError(f"dtype={dtype!r}, expected 'float32' or 'float64'")
    return found


def pick_device(device: str | torch.device | None = None, *, local_rank: int | None = None) -> torch.device:
    """Return the requested device, or the best available one: cuda, then mps, then cpu.

    Args:
        device: Name of a torch device; None picks.
        local_rank: Index of this process on its machine; with None for ``device`` it selects the CUDA device.

    Raises:
        InputError: For an unknown device or one that is not available.
    """
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda") if local_rank is None else torch.device("cuda", local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device={device!r} is not a torch device; use 'cpu', 'cuda', 'cuda:1' or 'mps'") from error
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if chosen.type not in available:
        raise InputError(f"device={str(device)!r} is not supported; use 'cpu', 'cuda', 'cuda:1' or 'mps'")
    if not available[chosen.type]:
        raise InputError(f"device={str(device)!r}, but this machine or this torch has no {chosen.type}; use 'cpu'")
    return chosen
