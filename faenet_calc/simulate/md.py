"""Molecular dynamics of one structure with any ASE calculator."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator
from numpy.typing import NDArray

from faenet_calc.errors import InputError, counted, message_of, warn_user
from faenet_calc.graphs.writing import write_structures
from faenet_calc.progress import progress_bar
from faenet_calc.simulate.ensembles import EnsembleSettings, Integrator, build_integrator, draw_momenta
from faenet_calc.simulate.md_log import Drift, MDLog, fit_drift
from faenet_calc.simulate.stop_conditions import StopConditions, StopLimits
from faenet_calc.simulate.structures import RUN_ERRORS, starting_atoms, why_outside, with_stored_results, working_copy
from faenet_calc.simulate.trajectory import RunTrajectory

Series = NDArray[np.float64]


class MDStoppedWarning(UserWarning):
    """A run was stopped early."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MDResult:
    """Result of molecular dynamics. Time series have one entry per ``interval`` steps of this call.

    Attributes:
        atoms: The last structure, with momenta, energy and forces.
        times_fs: [n_entries] (fs) since the start of the run, including the part before a resumption.
        energies: [n_entries] potential energy (eV).
        temperatures: [n_entries] (K).
        conserved: [n_entries] (eV) conserved quantity of the ensemble; None for nvt-langevin, which has none.
        drift: Of the conserved quantity; None without one or with fewer than three entries.
        n_steps: Steps since the start of the run, including those before a resumption.
        n_new_steps: Steps of this call.
        stopped_because: Why the run ended early; None if it did not.
        snapshot: File beside the trajectory with the structure at which the run was stopped; None without one.
        wall_s: Wall time of this call (s).
        why: Why the structure at which the run was stopped is outside the domain of the model; None if it is not.
    """

    atoms: Atoms
    times_fs: Series
    energies: Series
    temperatures: Series
    conserved: Series | None
    drift: Drift | None
    n_steps: int
    n_new_steps: int
    stopped_because: str | None
    snapshot: Path | None
    wall_s: float
    why: str | None = None


def run_md(
    atoms: Any,
    calc: Calculator | None = None,
    *,
    ensemble: str = "nvt-langevin",
    temperature_K: float = 300.0,
    timestep_fs: float = 1.0,
    steps: int = 1000,
    pressure_GPa: float = 0.0,
    thermostat_fs: float = 100.0,
    barostat_fs: float = 1000.0,
    trajectory: str | Path | None = None,
    interval: int = 10,
    logfile: str | Path | None = None,
    progress: bool = False,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    max_temperature_K: float | None = None,
    max_energy_change: float = 10.0,
    max_frame_std: float | None = None,
    max_committee_std: float | None = None,
    check_interval: int = 10,
) -> MDResult:
    """Run molecular dynamics. The input is not modified; the result has its own atoms.

    Momenta of the atoms are kept; if they have none, Maxwell–Boltzmann momenta are drawn.

    Args:
        atoms: Starting structure with its constraints: ase.Atoms, or a pymatgen structure or molecule.
        calc: Any ASE calculator; None uses that of the atoms.
        ensemble: nve, nvt-langevin, nvt-bussi, nvt-nose-hoover, npt (volume) or npt-flexible (volume and shape).
        steps: Total number of steps, including those before a resumption.
        thermostat_fs: Time constant of the thermostat (Langevin: inverse of the friction).
        trajectory: A .traj file with a snapshot every ``interval`` steps, in full precision; survives a kill.
        logfile: One line per ``interval`` steps; "-" for stdout.
        progress: Show a progress bar on stderr.
        seed: Random seed of initial momenta and stochastic thermostats.
        resume: Continue from ``trajectory`` if it exists; bit-identical in nve, nvt-langevin and nvt-bussi.
        overwrite: Replace an existing trajectory, once the first structure has been computed.
        max_temperature_K: Stop above this temperature; None is ten times ``temperature_K``, at least 3000 K. The
            other limits are described in `StopLimits`.
        check_interval: Steps between checks of the stop conditions.

    Raises:
        InputError: An argument is invalid, or the first structure cannot be computed or violates a limit. Later
            failures stop the run with an `MDStoppedWarning` and ``stopped_because``.
    """
    settings = EnsembleSettings(
        ensemble=ensemble,
        temperature_K=temperature_K,
        timestep_fs=timestep_fs,
        pressure_GPa=pressure_GPa,
        thermostat_fs=thermostat_fs,
        barostat_fs=barostat_fs,
        seed=seed,
    )
    hottest = max(10 * temperature_K, 3000.0) if max_temperature_K is None else max_temperature_K
    limits = StopLimits(hottest, max_energy_change, max_frame_std, max_committee_std)
    if steps < 0 or interval < 1 or check_interval < 1:
        raise InputError(f"{steps=}, {interval=}, {check_interval=}; expected steps >= 0 and intervals >= 1")
    work = working_copy(starting_atoms(atoms), calc)
    with RunTrajectory(trajectory, work, resume=resume, overwrite=overwrite) as snapshots:
        snapshots.restore(work)
        log = MDLog(interval=interval, check_interval=check_interval, logfile=logfile)
        return _Run(work, settings, limits, snapshots, log).go(steps, progress=progress)


class _Run:
    """One call of `run_md`."""

    def __init__(
        self, work: Atoms, settings: EnsembleSettings, limits: StopLimits, snapshots: RunTrajectory, log: MDLog
    ) -> None:
        self.work, self.settings, self.snapshots, self.log = work, settings, snapshots, log
        if not work.has("momenta") or not work.get_momenta().any():
            draw_momenta(work, settings.temperature_K, settings.seed)
        self.stop_conditions = StopConditions(work, limits)  # raises if the first structure cannot be computed
        reason = self.stop_conditions.reason(work)
        if reason is not None and reason != self.stop_conditions.outside_domain(work):
            raise InputError(f"molecular dynamics cannot start: {reason}")
        self.integrator: Integrator = build_integrator(work, settings)
        self.integrator.dynamics.nsteps = snapshots.n_done
        self.failed = False

    @property
    def n_steps(self) -> int:
        return int(self.integrator.dynamics.nsteps)

    def go(self, steps: int, *, progress: bool) -> MDResult:
        """Take the remaining steps, or stop early."""
        start, n_before = time.perf_counter(), self.n_steps
        self._add_entry()
        if self.snapshots.last is None:
            self.snapshots.write(with_stored_results(self.work), 0)
        reason = self.stop_conditions.outside_domain(self.work)
        with progress_bar(shown=progress, desc="md", total=steps, initial=n_before) as bar:
            while reason is None and self.n_steps < steps:
                reason = self._step(steps)
                bar.set_postfix(
                    T=f"{self.log.last('temperature'):.0f} K", E=f"{self.log.last('potential'):.4f} eV", refresh=False
                )
                bar.update()
        snapshot = None if reason is None else self._stop(reason)
        return MDResult(
            atoms=self._final(),
            times_fs=self.log.series("time_fs"),
            energies=self.log.series("potential"),
            temperatures=self.log.series("temperature"),
            conserved=None if self.integrator.conserved is None else self.log.series("conserved"),
            drift=fit_drift(self.log, len(self.work)),
            n_steps=self.n_steps,
            n_new_steps=self.n_steps - n_before,
            stopped_because=reason,
            snapshot=snapshot,
            wall_s=time.perf_counter() - start,
            why=None if reason is None or self.failed else why_outside(self.work),
        )

    def _step(self, steps: int) -> str | None:
        """Take one step; return why the run must stop, or None."""
        self.integrator.noise.at(self.n_steps)
        try:
            self.integrator.dynamics.run(1)
            last = self.n_steps == steps
            due = last or self.n_steps % self.log.interval == 0
            if due or self.n_steps % self.log.check_interval == 0:
                reason = self.stop_conditions.reason(self.work)
                if reason is not None:
                    return reason
        except RUN_ERRORS as failure:
            self.failed = True
            return f"the calculator failed: {message_of(failure)}"
        if due:
            self._add_entry()
            self.snapshots.write(with_stored_results(self.work), self.n_steps)
        return None

    def _add_entry(self) -> None:
        conserved = self.integrator.conserved
        self.log.add(
            step=self.n_steps,
            time_fs=self.n_steps * self.settings.timestep_fs,
            potential=float(self.work.get_potential_energy()),
            temperature=float(self.work.get_temperature()),
            conserved=np.nan if conserved is None else float(conserved()),
        )

    def _final(self) -> Atoms:
        # After a failure the calculator holds results of an earlier structure.
        return self.work.copy() if self.failed else with_stored_results(self.work)

    def _stop(self, reason: str) -> Path | None:
        """Save the structure and warn."""
        path = None
        if self.snapshots.path is not None:
            path = self.snapshots.path.with_suffix(f".stopped-at-{self.n_steps}.extxyz")
            snapshot = self.work.copy()
            snapshot.info["stopped_because"] = reason
            write_structures(path, [snapshot], overwrite=True)
        where = "" if path is None else f"; snapshot in {path}"
        warn_user(f"stopped after {counted(self.n_steps, 'step')}: {reason}{where}", MDStoppedWarning)
        return path
