"""Relaxation of one structure with any ASE calculator and optimiser."""

import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ase.optimize
import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, CalculatorError
from ase.filters import FrechetCellFilter

from faenet_calc.errors import InputError
from faenet_calc.graphs.tags import TagSource
from faenet_calc.progress import progress_bar
from faenet_calc.simulate.anomalies import find_anomalies
from faenet_calc.simulate.descent import Descent
from faenet_calc.simulate.trajectory import RunTrajectory
from faenet_calc.simulate.workpiece import RUN_ERRORS, freeze, working_copy
from faenet_calc.units import GPA

OPTIMIZERS = tuple(
    name
    for name in (
        "BFGS",
        "BFGSLineSearch",
        "FIRE",
        "FIRE2",
        "GoodOldQuasiNewton",
        "LBFGS",
        "LBFGSLineSearch",
        "MDMin",
        "RFO",
    )
    if hasattr(ase.optimize, name)
)


@dataclass(frozen=True, kw_only=True, eq=False)
class RelaxResult:
    """Where a relaxation ended.

    Attributes:
        atoms: The last good structure, with its energy, forces and (if computed) stress as a SinglePointCalculator.
        energy: (eV).
        converged: Whether the largest force is below the limit.
        n_steps: Optimiser steps, including those before a resumption.
        fmax: (eV/Å) largest force on an atom after constraints; with a free cell the stress counts as in ASE's filters.
        wall_s: Wall time of this call (s).
        anomalies: Flags for adsorbates on slabs: dissociated, desorbed, reconstructed, intercalated.
        error: What ended the run before its time; None if nothing did.
    """

    atoms: Atoms
    energy: float
    converged: bool
    n_steps: int
    fmax: float
    wall_s: float
    anomalies: tuple[str, ...]
    error: str | None = None


def relax(
    atoms: Atoms,
    calc: Calculator | None = None,
    *,
    prerelax: Calculator | None = None,
    optimizer: str = "LBFGS",
    fmax: float = 0.05,
    steps: int = 500,
    relax_cell: bool | Sequence[bool] = False,
    pressure_GPa: float = 0.0,
    trajectory: str | Path | None = None,
    logfile: str | Path | None = None,
    progress: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    tags: TagSource = "auto",
    optimizer_options: Mapping[str, Any] | None = None,
) -> RelaxResult:
    """Relax a structure. The atoms given are left as they are; the result has its own.

    Args:
        atoms: Start, with its constraints.
        calc: Any ASE calculator; None for that of the atoms.
        prerelax: A faster calculator that relaxes first, to the same ``fmax``, e.g. the same model with
            ``frames="one"``; ``calc`` goes on from there. ``steps`` holds for each of the two; only those of ``calc``
            are recorded and counted. If it fails or ends with an anomaly, ``calc`` begins at ``atoms``.
        optimizer: Name of an ASE optimiser, see `OPTIMIZERS`. If it goes astray it begins anew (`Descent`).
        fmax: (eV/Å) converged when no force is larger.
        steps: At most so many, counted from the first start of the run.
        relax_cell: True frees the cell along the periodic directions; or six flags (xx, yy, zz, yz, xz, xy).
        pressure_GPa: Outer pressure, with ``relax_cell``.
        trajectory: A .traj file that gets every step and survives a kill.
        logfile: ASE's log; "-" for the terminal.
        progress: Show a progress bar on stderr.
        resume: Go on from ``trajectory`` if it exists. Running the same call again after a kill finishes it.
        overwrite: Replace an existing trajectory instead of refusing.
        tags: What is slab and adsorbate, for the anomalies.
        optimizer_options: Further arguments of the optimiser, e.g. ``{"maxstep": 0.1}``.

    Raises:
        InputError: The arguments are wrong or the first structure cannot be computed. Later failures end the run
            with ``error`` set.
    """
    engine = _engine(optimizer, optimizer_options or {})
    if not fmax > 0 or steps < 0:
        raise InputError(f"{fmax=}, {steps=}; expected fmax > 0 (eV/Å) and steps >= 0")
    start = time.perf_counter()
    work = working_copy(atoms, calc)
    method: dict[str, Any] = {"optimizer": optimizer, "optimizer_options": optimizer_options, "tags": tags}
    with RunTrajectory(trajectory, work, resume=resume, overwrite=overwrite) as record:
        record.restore(work)
        if prerelax is not None and record.last is None:
            cell: dict[str, Any] = {"relax_cell": relax_cell, "pressure_GPa": pressure_GPa}
            fast = relax(atoms, prerelax, fmax=fmax, steps=steps, progress=progress, **cell, **method)
            if fast.error is None and not fast.anomalies:
                work.cell, work.positions = fast.atoms.cell, fast.atoms.positions
        target = _with_cell(work, relax_cell, pressure_GPa)
        begin = partial(engine, target, logfile=logfile)
        task = _Task(atoms, work, target, Descent(begin, target, n_done=record.n_done), record, tags)
        return _run(task, fmax=fmax, steps=steps, progress=progress, start=start)


@dataclass(frozen=True, eq=False)
class _Task:
    initial: Atoms
    work: Atoms
    target: Any
    descent: Descent
    record: RunTrajectory
    tags: TagSource


def _run(task: _Task, *, fmax: float, steps: int, progress: bool, start: float) -> RelaxResult:
    n_done = task.record.n_done
    good = _measured(task)  # raises if the first structure cannot be computed
    error, converged = None, False
    if n_done == 0 and task.record.last is None:
        task.record.write(good[0], 0)
    with progress_bar(shown=progress, desc="relax", unit=" steps", initial=n_done) as bar:
        try:
            for at_rest in task.descent.irun(fmax=fmax, steps=max(steps - n_done, 0)):
                converged = bool(at_rest)
                taken = task.descent.nsteps
                if taken > n_done:
                    good = _measured(task)
                    task.record.write(good[0], taken)
                    bar.update(taken - n_done)
                    n_done = taken
                    bar.set_postfix(E=f"{good[1]:.4f} eV", fmax=f"{good[2]:.3f} eV/Å", refresh=False)
        except RUN_ERRORS as failure:
            converged, error = False, f"step {n_done + 1} failed: {type(failure).__name__}: {failure}"
    final, energy, force = good
    return RelaxResult(
        atoms=final,
        energy=energy,
        converged=converged,
        n_steps=n_done,
        fmax=force,
        wall_s=time.perf_counter() - start,
        anomalies=find_anomalies(task.initial, final, tags=task.tags, unwrap=False),
        error=error,
    )


def _measured(task: _Task) -> tuple[Atoms, float, float]:
    """The structure as it is now, its energy (eV) and its largest force (eV/Å)."""
    energy, forces = float(task.work.get_potential_energy()), task.target.get_forces()
    if not (np.isfinite(energy) and np.isfinite(forces).all()):
        raise CalculatorError(f"the calculator returned energy {energy} and forces that are not all finite")
    return freeze(task.work), energy, float(np.linalg.norm(forces.reshape(-1, 3), axis=1).max())


def _engine(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Makes optimisers of a name."""
    known = {candidate.lower(): candidate for candidate in OPTIMIZERS}
    if str(name).lower() not in known:
        close = difflib.get_close_matches(str(name).lower(), known, n=1)
        hint = f" (did you mean {known[close[0]]}?)" if close else ""
        raise InputError(f"optimizer={name!r} is unknown{hint}; choose from {', '.join(OPTIMIZERS)}")
    if own := sorted({"restart", "trajectory", "append_trajectory", "logfile"} & set(options)):
        raise InputError(
            f"optimizer_options has {', '.join(own)}, which relax() sees to itself; use its trajectory=, resume= and "
            "logfile= instead"
        )
    return partial(getattr(ase.optimize, known[name.lower()]), **options)


def _with_cell(work: Atoms, relax_cell: bool | Sequence[bool], pressure_gpa: float) -> Any:
    """The atoms, or a filter that frees their cell too."""
    if isinstance(relax_cell, bool | np.bool_):
        if not relax_cell:
            if pressure_gpa:
                raise InputError(f"pressure_GPa={pressure_gpa} without relax_cell=True has no effect")
            return work
        mask = _periodic_components(work)
    else:
        mask = [bool(flag) for flag in relax_cell]
        if len(mask) != 6:
            raise InputError(f"relax_cell has {len(mask)} flags, expected True, False or six (xx, yy, zz, yz, xz, xy)")
    if not work.pbc.any() or work.cell.rank < 3:
        raise InputError("relax_cell needs a periodic structure with three cell vectors")
    return FrechetCellFilter(work, mask=mask, scalar_pressure=pressure_gpa * GPA)


def _periodic_components(atoms: Atoms) -> list[bool]:
    """Six flags that free the cell along the periodic directions only."""
    if atoms.pbc.all():
        return [True] * 6
    # Cartesian axes that the periodic cell vectors reach, and those that the others do.
    periodic = np.abs(atoms.cell.array[atoms.pbc]).max(axis=0, initial=0.0) > 1e-6
    others = np.abs(atoms.cell.array[~atoms.pbc]).max(axis=0, initial=0.0) > 1e-6
    if (periodic & others).any():
        raise InputError(
            f"relax_cell=True with pbc {atoms.pbc.tolist()} needs the other cell vectors along Cartesian axes of their "
            "own; give six flags (xx, yy, zz, yz, xz, xy) instead"
        )
    x, y, z = (bool(flag) for flag in periodic)
    return [x, y, z, y and z, x and z, x and y]
