"""TrainState: the progress of a run, changed by the training loop and stored in the file that a resumed run reads.

``state.pt`` holds tensors and plain values only, is loaded without unpickling code, and starts with the sha256 of the
rest, because a changed byte inside a tensor would otherwise go unnoticed.
"""

import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from faenet_calc.errors import InputError
from faenet_calc.files import write_atomically

VERSION = 2
FILE = "state.pt"
_DIGEST_BYTES = 32


@dataclass(kw_only=True)
class TrainState:
    """Progress of a run, besides weights.

    Attributes:
        step: Optimizer steps taken.
        epoch: Index of the current epoch.
        position: Batches of this epoch that are done.
        elapsed_s: Training time so far (s), including earlier parts of a resumed run.
        best: Best value of the validation metric so far, or None before the first validation.
        best_step: Step at which it was reached.
        waited: Validations since then.
        plateau_factor, plateau_waited: State of the plateau schedule.
        sums: Loss term → sum over the steps of this epoch.
        history: One row per validation.
        skipped, skipped_in_a_row: Steps without an update because their gradient was not finite: in all, and those
            just before ``step``.
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
    skipped: int = 0
    skipped_in_a_row: int = 0
    finished: str = ""


def save_state(folder: Path, state: TrainState, tensors: dict[str, Any], origin: dict[str, Any]) -> None:
    """Write the resume file of a run.

    Args:
        folder: Folder of the run.
        state: Progress.
        tensors: State dictionaries of the weights, the optimizer and the averaged weights.
        origin: What the run was started with: its settings and the hashes of its data.
    """
    buffer = io.BytesIO()
    content = {"version": VERSION, "state": vars(state), "tensors": tensors, "origin": origin}
    torch.save({**content, "random": torch.get_rng_state()}, buffer)
    stored = buffer.getvalue()
    write_atomically(folder / FILE, hashlib.sha256(stored).digest() + stored)


def load_state(folder: Path, device: torch.device) -> tuple[TrainState, dict[str, Any], dict[str, Any]]:
    """Read the state, tensors and origin from a run's resume file, and restore torch's random state.

    Raises:
        InputError: The file is damaged or was written by another version.
    """
    path = folder / FILE
    stored = path.read_bytes()
    digest, content_bytes = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    if hashlib.sha256(content_bytes).digest() != digest:
        raise InputError(
            f"{path} is damaged or was written by another version of faenet-calc, so the run cannot be resumed; start "
            "it again with --overwrite"
        )
    content = torch.load(io.BytesIO(content_bytes), map_location=device, weights_only=True)
    if content.get("version") != VERSION:
        raise InputError(
            f"{path} has format version {content.get('version')}, expected {VERSION}; start the run again with "
            "--overwrite"
        )
    torch.set_rng_state(content["random"].cpu())
    return TrainState(**content["state"]), content["tensors"], content["origin"]
