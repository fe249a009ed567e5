"""The work of a screening: relax a chunk of configurations and record each as soon as it is finished.

A chunk is relaxed by :func:`relax_chunk` in the process of the user, in a Dask worker or in an array job alike.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from faenet_calc.calculator import FAENetCalculator
from faenet_calc.screening.gas import GasReference
from faenet_calc.screening.placement import Configuration
from faenet_calc.screening.results import Row, failed_row, row_of
from faenet_calc.screening.store import ScreenStore
from faenet_calc.screening.surfaces import Slab
from faenet_calc.screening.uncertainty import ReferenceVectors
from faenet_calc.simulate.batch import relax_batch
from faenet_calc.simulate.relax import RelaxResult


@dataclass(frozen=True, kw_only=True)
class RelaxSettings:
    """How configurations are relaxed.

    Attributes:
        optimizer: Name of an ASE optimizer.
        fmax: Convergence criterion (eV/Å).
        steps: Maximum number of optimizer steps.
        one_frame_first: Relax with a single frame first, then with the frames of the model.
    """

    optimizer: str = "LBFGS"
    fmax: float = 0.05
    steps: int = 300
    one_frame_first: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """Everything that a worker needs besides its chunk; small, picklable and the same for all chunks.

    Attributes:
        folder: Of the store.
        model: Checkpoint, shipped name, list of those (a committee), or a calculator.
        device: Torch device, or None for the best available.
        threads: Torch threads of the process; None leaves them as they are.
        settings: Of the relaxations.
        slabs: By name.
        slab_energies: Energies of the relaxed clean slabs (eV), by name; a string says why there is none.
        gas: Gas references.
        vectors: Error vectors of clean slabs and gas molecules, for the uncertainty of adsorption energies.
        binding: Index of the first binding atom within each adsorbate, by name.
    """

    folder: Path
    model: Any
    device: str | None
    threads: int | None
    settings: RelaxSettings
    slabs: dict[str, Slab]
    slab_energies: dict[str, float | str]
    gas: GasReference
    vectors: ReferenceVectors
    binding: dict[str, int]


def relax_chunk(context: Context, chunk: Sequence[Configuration]) -> list[str]:
    """Relax the configurations of a chunk that are not finished yet; returns the keys of the whole chunk."""
    if context.threads is not None:
        torch.set_num_threads(context.threads)
    store = _store(context.folder, os.getpid())
    finished = store.finished()
    waiting = [one for one in chunk if one.key not in finished]
    ready = []
    for one in waiting:
        energy = context.slab_energies[one.slab]
        if isinstance(energy, str):
            store.record(failed_row(one, f"the clean slab has no energy: {energy}"))
        else:
            ready.append(one)

    def record(index: int, result: RelaxResult) -> None:
        store.record(_row(context, ready[index], result))

    if ready:
        relax_batch(
            [one.atoms for one in ready],
            calculator_of(context.model, context.device),
            optimizer=context.settings.optimizer,
            fmax=context.settings.fmax,
            steps=context.settings.steps,
            one_frame_first=context.settings.one_frame_first,
            trajectories=[store.trajectory(one.key) for one in ready],
            overwrite=True,  # not resumed in the middle: an optimizer without its history may end elsewhere
            tags="atoms",
            on_result=record,
        )
    return [one.key for one in chunk]


@lru_cache(maxsize=1)
def _store(folder: Path, process: int) -> ScreenStore:
    """The store of a screening; one per process, which has one journal and reads those of others once."""
    return ScreenStore(folder)


def _row(context: Context, one: Configuration, result: RelaxResult) -> Row:
    energy = context.slab_energies[one.slab]
    assert not isinstance(energy, str)
    slab, uncertainty = context.slabs[one.slab], None
    if math.isfinite(result.energy):
        molecules = context.gas.molecules_of(one.atoms.get_chemical_symbols()[len(slab.atoms) :])
        calc = calculator_of(context.model, context.device)
        uncertainty = context.vectors.uncertainty(calc, result.atoms, one.slab, molecules, one.coverage)
    return row_of(one, slab, context.binding[one.adsorbate], result, energy, context.gas, uncertainty)


def calculator_of(model: Any, device: str | None = None) -> FAENetCalculator:
    """The calculator of a screening; one per process, so that weights are loaded once."""
    if isinstance(model, FAENetCalculator):
        return model
    return _loaded(tuple(map(str, model)) if isinstance(model, list | tuple) else model, device)


@lru_cache(maxsize=2)
def _loaded(model: Any, device: str | None) -> FAENetCalculator:
    return FAENetCalculator(list(model) if isinstance(model, tuple) else model, device=device)
