"""Relaxation of one structure with any ASE calculator and optimizer."""

import difflib
import logging
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

from faenet_calc.errors import InputError, message_of
from faenet_calc.graphs.tags import TagSource
from faenet_calc.progress import progress_bar
from faenet_calc.simulate.anomalies import OUTSIDE_DOMAIN, find_anomalies
from faenet_calc.simulate.cell_filter import cell_target
from faenet_calc.simulate.safeguards import SafeguardedOptimizer
from faenet_calc.simulate.structures import RUN_ERRORS, Moment, starting_atoms, why_outside, working_copy
from faenet_calc.simulate.trajectory import RunTrajectory

log = logging.getLogger(__name__)

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
    """Result of a relaxation.

    Attributes:
        atoms: The last valid structure, with its energy, forces and (if computed) stress as a SinglePointCalculator.
        energy: (eV).
        converged: Whether the largest force is below the limit.
        n_steps: Optimizer steps, including those before a resumption, without those of a prerelaxation.
        fmax: (eV/Å) largest force on an atom after constraints; with a free cell the stress counts as in ASE's filters.
        wall_s: Wall time of this call (s).
        anomalies: Flags of `faenet_calc.simulate.anomalies.FLAGS`: dissociated, desorbed, reconstructed, intercalated,
            overlap, outside-domain.
        error: What ended the run early; None if nothing did.
        why: Why the final structure is outside the domain of the model; None if it is not.
        n_prerelax_steps: Optimizer steps of the prerelaxation.
    """

    atoms: Atoms
    energy: float
    converged: bool
    n_steps: int
    fmax: float
    wall_s: float
    anomalies: tuple[str, ...]
    error: str | None = None
    why: str | None = None
    n_prerelax_steps: int = 0


def relax(
    atoms: Any,
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
    progress: bool | str = False,
    resume: bool = False,
    overwrite: bool = False,
    tags: TagSource = "auto",
    optimizer_options: Mapping[str, Any] | None = None,
) -> RelaxResult:
    """Relax a structure. The input is not modified; the result has its own atoms.

    Args:
        atoms: Starting structure with its constraints: ase.Atoms, or a pymatgen structure or molecule.
        calc: Any ASE calculator; None uses that of the atoms.
        prerelax: A faster calculator that relaxes the structure first, to the same ``fmax``, e.g. the same model with
            ``frames="one"``; ``calc`` then continues. ``steps`` holds for each of the two, and they are counted
            separately; only the steps of ``calc`` are recorded. If it fails or ends with an anomaly, ``calc`` starts
            from ``atoms``.
        optimizer: Name of an ASE optimizer, see `OPTIMIZERS`. It is restarted when it goes uphill or stalls, see
            `SafeguardedOptimizer`.
        fmax: (eV/Å) convergence criterion: largest force on an atom.
        steps: Maximum number of optimizer steps, including those before a resumption.
        relax_cell: True relaxes the cell in the periodic directions; or six flags (xx, yy, zz, yz, xz, xy). A
            FAENetCalculator with ``frames="auto"`` then uses the frames "exact", which keep the symmetry of crystals.
        pressure_GPa: External pressure, with ``relax_cell``.
        trajectory: A .traj file that receives every step and survives a kill.
        logfile: ASE's log; "-" for stdout.
        progress: Show a progress bar on stderr; a text is its title.
        resume: Continue from ``trajectory`` if it exists. Repeating the same call after a kill completes the run.
        overwrite: Replace an existing trajectory.
        tags: Which atoms are slab and adsorbate, for the anomalies.
        optimizer_options: Further arguments of the optimizer, e.g. ``{"maxstep": 0.1}``.

    Raises:
        InputError: An argument is invalid, or the first structure cannot be computed. Later failures end the run
            with ``error`` set.
    """
    engine = optimizer_factory(optimizer, optimizer_options or {})
    if not 0 < fmax < np.inf or steps < 0:
        raise InputError(f"{fmax=}, {steps=}; expected a finite fmax > 0 (eV/Å) and steps >= 0")
    if not np.isfinite(pressure_GPa):
        raise InputError(f"{pressure_GPa=}, expected a finite number")
    start = time.perf_counter()
    initial = starting_atoms(atoms)
    work = working_copy(initial, calc)
    if relax_cell is not False and hasattr(work.calc, "for_cell_relaxation"):
        work.calc = work.calc.for_cell_relaxation()
    method: dict[str, Any] = {"optimizer": optimizer, "optimizer_options": optimizer_options, "tags": tags}
    with RunTrajectory(trajectory, work, resume=resume, overwrite=overwrite) as record:
        record.restore(work)
        if prerelax is not None and record.last is None:
            cell: dict[str, Any] = {"relax_cell": relax_cell, "pressure_GPa": pressure_GPa}
            fast = relax(initial, prerelax, fmax=fmax, steps=steps, progress=progress, **cell, **method)
            record.n_prerelax = fast.n_steps
            if fast.error is None and not fast.anomalies:
                work.cell, work.positions = fast.atoms.cell, fast.atoms.positions
        target = cell_target(work, relax_cell, pressure_GPa)
        driver = SafeguardedOptimizer(partial(engine, target, logfile=logfile), target, n_done=record.n_done)
        task = _Task(initial, work, target, driver, record, tags)
        return _run(task, fmax=fmax, steps=steps, progress=progress, start=start)


@dataclass(frozen=True, eq=False)
class _Task:
    initial: Atoms
    work: Atoms
    target: Any
    driver: SafeguardedOptimizer
    record: RunTrajectory
    tags: TagSource


def _run(task: _Task, *, fmax: float, steps: int, progress: bool | str, start: float) -> RelaxResult:
    n_done = task.record.n_done
    valid = _measure(task)  # raises if the first structure cannot be computed
    error, converged = None, False
    if task.record.last is None and task.record.path is not None:
        task.record.write(valid[0].on(task.work), 0)
    with progress_bar(shown=progress, desc="relax", total=steps, initial=n_done, leave=False) as bar:
        try:
            for forces_are_small in task.driver.irun(fmax=fmax, steps=max(steps - n_done, 0)):
                converged = bool(forces_are_small)
                taken = task.driver.nsteps
                if taken > n_done:
                    valid = _measure(task)
                    if task.record.path is not None:
                        task.record.write(valid[0].on(task.work), taken)
                    bar.update(taken - n_done)
                    n_done = taken
                    bar.set_postfix(E=f"{valid[1]:.4f} eV", fmax=f"{valid[2]:.3f} eV/Å", refresh=False)
                    log.debug("%s: step %d, %.6f eV, fmax %.4f eV/Å", task.work.symbols, taken, *valid[1:3])
        except RUN_ERRORS as failure:
            converged, error = False, f"step {n_done + 1} failed: {message_of(failure)}"
    last, energy, force, why = valid
    final = last.on(task.work)
    anomalies = find_anomalies(task.initial, final, tags=task.tags, unwrap=False)
    return RelaxResult(
        atoms=final,
        energy=energy,
        converged=converged,
        n_steps=n_done,
        fmax=force,
        wall_s=time.perf_counter() - start,
        anomalies=anomalies if why is None else (*anomalies, OUTSIDE_DOMAIN),
        error=error,
        why=why,
        n_prerelax_steps=task.record.n_prerelax,
    )


def _measure(task: _Task) -> tuple[Moment, float, float, str | None]:
    """The present structure and results, its energy (eV), its largest force (eV/Å) and why it is outside the domain."""
    energy, forces = float(task.work.get_potential_energy()), task.target.get_forces()
    if not (np.isfinite(energy) and np.isfinite(forces).all()):
        raise CalculatorError(f"the calculator returned energy {energy} and forces that are not all finite")
    fmax = float(np.linalg.norm(forces.reshape(-1, 3), axis=1).max())
    return Moment.of(task.work), energy, fmax, why_outside(task.work)


def optimizer_factory(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """The class of an ASE optimizer with its options.

    Raises:
        InputError: There is no such optimizer, or an option is set by `relax` itself.
    """
    known = {candidate.lower(): candidate for candidate in OPTIMIZERS}
    if str(name).lower() not in known:
        close = difflib.get_close_matches(str(name).lower(), known, n=1)
        hint = f" (did you mean {known[close[0]]}?)" if close else ""
        if isinstance(name, type):
            hint = f"; give the name of an optimizer, not its class: optimizer={name.__name__!r}"
        raise InputError(f"optimizer={name!r} is unknown{hint}; choose from {', '.join(OPTIMIZERS)}")
    if own := sorted({"restart", "trajectory", "append_trajectory", "logfile"} & set(options)):
        raise InputError(
            f"optimizer_options has {', '.join(own)}, which relax() sets itself; use its trajectory=, resume= and "
            "logfile= instead"
        )
    return partial(getattr(ase.optimize, known[name.lower()]), **options)
