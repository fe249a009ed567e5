"""Relaxation and molecular dynamics of many structures at once: one model call per step for all of them.

Every structure runs through the code of :func:`~faenet_calc.simulate.relax.relax` or
:func:`~faenet_calc.simulate.md.run_md`, with all optimizers, safeguards, constraints, trajectories and stop conditions.
Only the predictions are shared: they are computed in batches for all structures (see ``lockstep``). With several torch
threads on a CPU, structures form one group per thread: the predictions of one group are computed while the optimizers
of another one run, which uses the threads better than one large batch divided among them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from ase import Atoms

from faenet_calc.calculator import FAENetCalculator, Predictor
from faenet_calc.errors import InputError, message_of
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.capabilities import FramesChoice
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.prediction import Prediction
from faenet_calc.progress import progress_bar
from faenet_calc.simulate.lockstep import Lockstep
from faenet_calc.simulate.md import MDResult, run_md
from faenet_calc.simulate.relax import RelaxResult, relax

BatchSize = int | Literal["auto"]
_Request = tuple[Predictor, tuple[AtomGraph, ...], frozenset[str], int]
_LEAST_IN_GROUP = 4  # structures: smaller groups have more overhead per structure than they gain


def relax_batch(
    structures: Iterable[Atoms],
    calculator: FAENetCalculator | Potential,
    *,
    optimizer: str = "FIRE",
    fmax: float = 0.05,
    steps: int = 500,
    batch_size: BatchSize = "auto",
    one_frame_first: bool = False,
    trajectories: str | Path | Sequence[str | Path | None] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | str = False,
    on_result: Callable[[int, RelaxResult], None] | None = None,
    **options: Any,
) -> list[RelaxResult]:
    """Relax many structures together. Each result equals that of :func:`relax` with the same optimizer.

    Args:
        structures: Initial structures, with their constraints; any ASE constraint is supported.
        calculator: A FAENetCalculator, or a Potential.
        optimizer: Name of an ASE optimizer, as in :func:`relax`.
        fmax: Convergence criterion: largest force (eV/Å).
        steps: Maximum number of optimizer steps of each structure.
        batch_size: Maximum number of structures that are relaxed at the same time; "auto" fills the memory budget of
            the calculator. As soon as a structure is finished, the next one takes its place.
        one_frame_first: Relax with a single frame first and finish with the calculator's own frames.
        trajectories: Folder for ``0.traj``, ``1.traj``, …, or one file per structure.
        resume: Continue from the trajectories that exist.
        overwrite: Replace existing trajectories.
        progress: Show a progress bar of the structures, or of the steps of a single structure; a text is its title.
        on_result: Called with index and result as soon as a structure is finished.
        **options: Further arguments of :func:`relax`: relax_cell, pressure_GPa, tags, optimizer_options, logfile.

    Returns:
        list: One result per structure, in order. A structure that cannot be computed has ``error`` set and affects no
        other.
    """
    atoms = _checked(structures)
    shared = _Shared(calculator, batch_size)
    files = _files(trajectories, len(atoms))

    def function(index: int) -> RelaxResult:
        start = time.perf_counter()
        try:
            return relax(
                atoms[index],
                shared.calculator(),
                prerelax=shared.calculator(frames="one") if one_frame_first else None,
                optimizer=optimizer,
                fmax=fmax,
                steps=steps,
                trajectory=files[index],
                resume=resume and files[index] is not None,
                overwrite=overwrite,
                progress=progress if len(atoms) == 1 else False,
                **options,
            )
        except Exception as error:  # one structure must not end the others
            return _failed(atoms[index], error, time.perf_counter() - start)

    shown = progress if len(atoms) > 1 else False
    return shared.run(function, len(atoms), on_result, progress=shown, description="relax")


def run_md_batch(
    structures: Iterable[Atoms],
    calculator: FAENetCalculator | Potential,
    *,
    batch_size: BatchSize = "auto",
    seed: int = 0,
    trajectories: str | Path | Sequence[str | Path | None] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    on_result: Callable[[int, MDResult | Exception], None] | None = None,
    **options: Any,
) -> list[MDResult | Exception]:
    """Run molecular dynamics of many replicas together, with the rules and stop conditions of :func:`run_md`.

    Args:
        structures: Initial structures, with their constraints and, if any, momenta.
        calculator: A FAENetCalculator, or a Potential.
        batch_size: Maximum number of replicas that run at the same time; "auto" fills the memory budget.
        seed: Random seed of the first replica; replica i uses ``seed + i``.
        trajectories: Folder for ``0.traj``, ``1.traj``, …, or one file per structure.
        resume: Continue from the trajectories that exist.
        overwrite: Replace existing trajectories.
        progress: Show a progress bar.
        on_result: Called with index and result as soon as a replica is finished.
        **options: Further arguments of :func:`run_md`: ensemble, temperature_K, timestep_fs, steps, interval, …

    Returns:
        list: One result per structure, in order; the exception for a structure that cannot be computed.
    """
    atoms = _checked(structures)
    shared = _Shared(calculator, batch_size)
    files = _files(trajectories, len(atoms))

    def function(index: int) -> MDResult | Exception:
        try:
            return run_md(
                atoms[index],
                shared.calculator(),
                seed=seed + index,
                trajectory=files[index],
                resume=resume and files[index] is not None,
                overwrite=overwrite,
                **options,
            )
        except Exception as error:  # one replica must not end the others
            return error

    return shared.run(function, len(atoms), on_result, progress=progress, description="md")


class _Shared:
    """Calculators that ask one predictor together.

    Args:
        calculator: Its settings hold for all.
        batch_size: Maximum number of active simulations, or "auto".
    """

    def __init__(self, calculator: FAENetCalculator | Potential, batch_size: BatchSize) -> None:
        if isinstance(calculator, Potential):
            calculator = FAENetCalculator(calculator)
        if not isinstance(calculator, FAENetCalculator):
            raise InputError(
                f"calculator is a {type(calculator).__name__}, expected a FAENetCalculator or a Potential; "
                "use relax() or run_md() with other ASE calculators"
            )
        if batch_size != "auto" and (not isinstance(batch_size, int) or batch_size < 1):
            raise InputError(f"{batch_size=}, expected 'auto' or a number of structures of at least 1")
        self._template = calculator
        self._predictors: dict[str, Predictor] = {"auto": calculator.predictor}
        self._batch_size = batch_size
        self._lockstep: Lockstep[_Request, Prediction] | None = None

    def calculator(self, frames: Literal["auto", "one"] = "auto") -> FAENetCalculator:
        """A calculator for one simulation: the settings of the given one, its own neighbor lists and results."""
        return self._template.sharing(self.asking(frames))

    def asking(self, frames: FramesChoice) -> "_Asking":
        """The predictor of one simulation, with these frames."""
        if frames not in self._predictors:
            self._predictors[frames] = self._template.predictor.with_frames(frames)
        return _Asking(self._predictors[frames], self)

    def ask(self, request: _Request) -> Prediction:
        """Suspend the calling simulation until its request is answered."""
        assert self._lockstep is not None, "asked outside run"
        return self._lockstep.ask(request)

    def run(
        self,
        function: Callable[[int], Any],
        n_structures: int,
        on_result: Callable[[int, Any], None] | None,
        *,
        progress: bool | str,
        description: str,
    ) -> list[Any]:
        """Run ``function(index)`` for every structure in lockstep."""
        results: list[Any] = [None] * n_structures
        with (
            self._lockstep_of(n_structures),
            progress_bar(shown=progress, total=n_structures, unit="structures", desc=description) as bar,
        ):
            assert self._lockstep is not None
            for index, result in self._lockstep.run(partial(function, index) for index in range(n_structures)):
                results[index] = result
                if on_result is not None:
                    on_result(index, result)
                bar.update()
        return results

    @contextmanager
    def _lockstep_of(self, n_structures: int) -> Iterator[None]:
        """The lockstep of a run, with a group of simulations for every thread that torch may use."""
        predictor, auto, threads = self._template.predictor, self._batch_size == "auto", torch.get_num_threads()
        most = n_structures if self._batch_size == "auto" else min(n_structures, self._batch_size)
        n_groups = max(1, min(threads, most // _LEAST_IN_GROUP))
        if predictor.committee.members[0].device.type != "cpu" or "stochastic" in predictor.modes:
            n_groups = 1  # a device computes one batch at a time; random frames are drawn in a fixed order
        # The pool divides the threads of torch. The number is set per thread, but new threads inherit the last one set.
        pool = ThreadPoolExecutor(n_groups, initializer=torch.set_num_threads, initargs=(max(1, threads // n_groups),))
        with pool:  # its end waits for predictions that are still computed after an interruption
            self._lockstep = Lockstep(
                _answer,
                kind=lambda request: (id(request[0]), request[2]),
                cost=lambda request: float(request[3]),
                capacity=float(predictor.memory_bytes) if auto else float("inf"),
                max_active=None if self._batch_size == "auto" else self._batch_size,
                n_groups=n_groups,
                executor=pool if n_groups > 1 else None,
            )
            try:
                yield
            finally:
                if n_groups > 1:
                    torch.set_num_threads(threads)


class _Asking(Predictor):
    """A predictor whose predictions of single structures are computed together with those of other simulations."""

    def __init__(self, predictor: Predictor, shared: _Shared) -> None:
        self.__dict__.update(predictor.__dict__)
        self._predictor, self._shared = predictor, shared
        self._memory: int | None = None  # (bytes) hardly changes while atoms move

    def with_frames(self, frames: FramesChoice) -> Predictor:
        """The predictor of this simulation with other frames."""
        return self._shared.asking(frames)

    def predict_one(self, structure: Any, properties: Any) -> Prediction:
        """Suspend the simulation until the prediction is there."""
        if self._memory is None:
            self._memory = self._predictor.memory_of(structure, properties)
        return self._shared.ask((self._predictor, structure, frozenset(properties), self._memory))


def _answer(requests: Sequence[_Request]) -> list[Prediction | Exception]:
    """Predict a batch; if it fails, one by one, so that only the structure at fault gets the exception."""
    predictor, _, properties, _ = requests[0]
    try:
        return list(predictor.predict([graphs for _, graphs, *_ in requests], properties, batch_size=len(requests)))
    except Exception as error:
        if len(requests) == 1:
            return [error]
    return [answer for request in requests for answer in _answer([request])]


def _checked(structures: Iterable[Atoms]) -> list[Atoms]:
    if isinstance(structures, Atoms):
        raise InputError(
            "structures is one ase.Atoms, expected a list of them; use relax() or run_md() for one structure"
        )
    return list(structures)


def _files(trajectories: str | Path | Sequence[str | Path | None] | None, count: int) -> Sequence[str | Path | None]:
    """One trajectory file per structure, or None."""
    if trajectories is None:
        return [None] * count
    if isinstance(trajectories, str | Path):
        folder = Path(trajectories)
        folder.mkdir(parents=True, exist_ok=True)
        return [folder / f"{index}.traj" for index in range(count)]
    if len(trajectories) != count:
        raise InputError(f"{len(trajectories)} trajectories for {count} structures; expected a folder or one file each")
    return trajectories


def _failed(atoms: Any, error: Exception, wall_s: float) -> RelaxResult:
    return RelaxResult(
        atoms=atoms.copy() if isinstance(atoms, Atoms) else atoms,
        energy=np.nan,
        converged=False,
        n_steps=0,
        fmax=np.nan,
        wall_s=wall_s,
        anomalies=(),
        error=message_of(error),
    )
