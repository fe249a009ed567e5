"""TrainState: where a run is; the object that the loop changes and the file that resume reads.

``state.pt`` holds tensors and plain values only and is read without unpickling code. It is written beside its place,
flushed to disk and renamed, so there is always a whole one.
"""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from faenet_calc.errors import InputError
from faenet_calc.files import write_atomically

VERSION = 1
FILE = "state.pt"


@dataclass(kw_only=True)
class TrainState:
    """Progress of a run, besides weights.

    Attributes:
        step: Optimiser steps done.
        epoch: Number of the current pass.
        position: Batches of this pass that are done.
        elapsed_s: Training time so far (s), interrupted parts included.
        best: Best validation metric so far, or None.
        best_step: Step of it.
        waited: Validations since.
        plateau_factor, plateau_waited: Of the plateau schedule.
        sums: Loss term → sum over the steps of this pass.
        history: One row per validation.
        finished: Why the run ended, or "".
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    elapsed_s: float = 0.0
    best: float | None = None
    best_step: int = 0
    waited: int = 0
    plateau_factor: float = 1.0
    plateau_waited: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    finished: str = ""


def save_state(folder: Path, state: TrainState, tensors: dict[str, Any], config: dict[str, Any]) -> None:
    """Write the resume file of a run.

    Args:
        folder: Of the run.
        state: Progress.
        tensors: Weights, optimiser, average: nested plain values and tensors.
        config: The run's settings, as asked for and as resolved.
    """
    buffer = io.BytesIO()
    content = {"version": VERSION, "state": vars(state), "tensors": tensors, "config": config}
    torch.save({**content, "random": torch.get_rng_state()}, buffer)
    write_atomically(folder / FILE, buffer.getvalue())


def load_state(folder: Path, device: torch.device) -> tuple[TrainState, dict[str, Any], dict[str, Any]]:
    """The state, tensors and settings in a run's resume file; torch's random state is restored."""
    path = folder / FILE
    content = torch.load(path, map_location=device, weights_only=True)
    if content.get("version") != VERSION:
        raise InputError(f"{path} has version {content.get('version')}, expected {VERSION}; start a new run")
    torch.set_rng_state(content["random"].cpu())
    return TrainState(**content["state"]), content["tensors"], content["config"]
