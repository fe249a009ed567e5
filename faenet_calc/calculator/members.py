"""Members: the potentials that a user's ``checkpoint=`` stands for."""

import copy
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from faenet_calc.errors import InputError
from faenet_calc.memory import keep_freed_memory
from faenet_calc.potential import shipped
from faenet_calc.potential.checkpoint import load_potential, pick_device
from faenet_calc.potential.potential import Potential, as_dtype


def load_members(checkpoint: Any, device: str | torch.device | None, dtype: str) -> tuple[tuple[Potential, ...], str]:
    """The potentials that ``checkpoint`` stands for, and a description of it.

    Args:
        checkpoint: None (default shipped model), shipped name, path, list of those, glob, or Potential(s).
        device: None picks cuda, mps or cpu, but leaves a Potential where it is.
        dtype: "float32" or "float64"; a float64 Potential stays float64.
    """
    as_dtype(dtype)
    keep_freed_memory()
    sources = _sources(checkpoint)
    members = tuple(_load(source, device, dtype) for source in sources)
    words = [source.config.name or "Potential" if isinstance(source, Potential) else str(source) for source in sources]
    return members, ", ".join(words)


def _sources(checkpoint: Any) -> list[Any]:
    if checkpoint is None:
        return [shipped.default_name()]
    if isinstance(checkpoint, Potential):
        return [checkpoint]
    if isinstance(checkpoint, str | Path):
        pattern = str(checkpoint)
        if glob.has_magic(pattern) and not Path(pattern).exists():
            found = sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
            if not found:
                raise InputError(f"no file matches the pattern {pattern!r} (looked from {Path.cwd()})")
            return list(found)
        return [checkpoint]
    if isinstance(checkpoint, Sequence) and len(checkpoint):
        return [source for item in checkpoint for source in _sources(item)]
    raise InputError(
        f"checkpoint={checkpoint!r} ({type(checkpoint).__name__}); expected None (the default model), a name or path, "
        "a list or glob of paths (a committee), or a Potential"
    )


def _load(source: Any, device: str | torch.device | None, dtype: str) -> Potential:
    if not isinstance(source, Potential):
        return load_potential(source, device=pick_device(device), dtype=as_dtype(dtype))
    target = source.device if device is None else pick_device(device)
    wider = as_dtype(dtype) if source.dtype == torch.float32 else source.dtype
    if target == source.device and wider == source.dtype:
        return source
    return copy.deepcopy(source).to(device=target, dtype=wider)
