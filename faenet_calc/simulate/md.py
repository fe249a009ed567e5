"""Molecular dynamics of one structure with any ASE calculator."""

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator
from numpy.typing import NDArray

from faenet_calc.errors import InputError
from faenet_calc.graphs.writing import write_structures
from faenet_calc.progress import progress_bar
from faenet_calc.simulate.ensembles import EnsembleSettings, Integrator, build_integrator, draw_momenta
from faenet_calc.simulate.md_record import Drift, Record, fit_drift
from faenet_calc.simulate.trajectory import RunTrajectory
from faenet_calc.simulate.watch import Limits, Watch
from faenet_calc.simulate.workpiece import RUN_ERRORS, freeze, working_copy

Series = NDArray[np.float64]


class MDStoppedWarning(UserWarning):
    """A run was stopped before its time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MDResult:
    """What a run of molecular dynamics went through. Series have one value per ``interval`` steps of this call.

    Attributes:
        atoms: The last structure, with momenta, energy and forces.
        times_fs: [n_records] since the very start.
        energies: [n_records] potential energy (eV).
        temperatures: [n_records] (K).
        conserved: [n_records] (eV) the conserved quantity of the ensemble; None for nvt-langevin, which has none.
        drift: Of the conserved quantity; None without one or with less than three records.
        n_steps: Taken since the very start, including those before a resumption.
        stopped_because: Why the run ended early; None if it did not.
        snapshot: File with the structure that made it stop; None without a trajectory to put it beside.
        wall_s: Wall time of this call (s).
    """

    atoms: Atoms
    times_fs: Series
    energies: Series
    temperatures: Series
    conserved: Series | None
    drift: Drift | None
    n_steps: int
    stopped_because: str | None
    snapshot: Path | None
    wall_s: float


def run_md(
    atoms: Atoms,
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
    """Run molecular dynamics. The atoms given are left as they are; the result has its own.

    Momenta of the atoms are kept; if they have none, Maxwell–Boltzmann momenta are drawn.

    Args:
        atoms: Start, with its constraints.
        calc: Any ASE calculator; None for that of the atoms.
        ensemble: nve, nvt-langevin, nvt-bussi, nvt-nose-hoover, npt (volume) or npt-flexible (volume and shape).
        steps: To take in all, counted from the first start of the run.
        thermostat_fs: Time constant of the thermostat (Langevin: one over the friction).
        trajectory: A .traj file with a snapshot every ``interval`` steps, in full precision; survives a kill.
        logfile: One line per ``interval``; "-" for the terminal.
        seed: Of momenta and stochastic thermostats.
        resume: Go on from ``trajectory`` if it exists: to the bit in nve, nvt-langevin and nvt-bussi.
        max_temperature_K: Stop beyond; None for ten times the temperature, at least 3000 K; see `Limits` for the rest.
        check_interval: Steps between two looks at the limits.
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
    limits = Limits(hottest, max_energy_change, max_frame_std, max_committee_std)
    if steps < 0 or interval < 1 or check_interval < 1:
        raise InputError(f"{steps=}, {interval=}, {check_interval=}; expected steps >= 0 and intervals >= 1")
    work = working_copy(atoms, calc)
    with RunTrajectory(trajectory, work, resume=resume, overwrite=overwrite) as snapshots:
        snapshots.restore(work)
        record = Record(interval=interval, check_interval=check_interval, logfile=logfile)
        return _Run(work, settings, limits, snapshots, record).go(steps, progress=progress)


class _Run:
    """One call of `run_md`."""

    def __init__(
        self, work: Atoms, settings: EnsembleSettings, limits: Limits, snapshots: RunTrajectory, record: Record
    ) -> None:
        self.work, self.settings, self.snapshots, self.record = work, settings, snapshots, record
        if not work.has("momenta") or not work.get_momenta().any():
            draw_momenta(work, settings.temperature_K, settings.seed)
        self.watch = Watch(work, limits)  # the first calculation: raises if the structure cannot be computed
        reason = self.watch.reason(work)
        if reason is not None:
            raise InputError(f"molecular dynamics cannot start: {reason}")
        self.integrator: Integrator = build_integrator(work, settings)
        self.integrator.dynamics.nsteps = snapshots.n_done
        self.failed = False

    @property
    def n_steps(self) -> int:
        return int(self.integrator.dynamics.nsteps)

    def go(self, steps: int, *, progress: bool) -> MDResult:
        """Take the steps that are missing, or stop before."""
        start = time.perf_counter()
        self._note()
        if self.snapshots.last is None:
            self.snapshots.write(freeze(self.work), 0)
        reason = None
        with progress_bar(shown=progress, desc="md", unit=" steps", total=steps, initial=self.n_steps) as bar:
            while reason is None and self.n_steps < steps:
                reason = self._step(steps)
                bar.update()
        snapshot = None if reason is None else self._stop(reason)
        return MDResult(
            atoms=self._final(),
            times_fs=self.record.series("time_fs"),
            energies=self.record.series("potential"),
            temperatures=self.record.series("temperature"),
            conserved=None if self.integrator.conserved is None else self.record.series("conserved"),
            drift=fit_drift(self.record, len(self.work)),
            n_steps=self.n_steps,
            stopped_because=reason,
            snapshot=snapshot,
            wall_s=time.perf_counter() - start,
        )

    def _step(self, steps: int) -> str | None:
        """One step; why to stop after it, if so."""
        self.integrator.noise.at(self.n_steps)
        try:
            self.integrator.dynamics.run(1)
            last = self.n_steps == steps
            due = last or self.n_steps % self.record.interval == 0
            if due or self.n_steps % self.record.check_interval == 0:
                reason = self.watch.reason(self.work)
                if reason is not None:
                    return reason
        except RUN_ERRORS as failure:
            self.failed = True
            return f"the calculator failed: {type(failure).__name__}: {failure}"
        if due:
            self._note()
            self.snapshots.write(freeze(self.work), self.n_steps)
        return None

    def _note(self) -> None:
        conserved = self.integrator.conserved
        self.record.add(
            step=self.n_steps,
            time_fs=self.n_steps * self.settings.timestep_fs,
            potential=float(self.work.get_potential_energy()),
            temperature=float(self.work.get_temperature()),
            conserved=np.nan if conserved is None else float(conserved()),
        )

    def _final(self) -> Atoms:
        # After a failure the calculator's results are of an earlier structure.
        return self.work.copy() if self.failed else freeze(self.work)

    def _stop(self, reason: str) -> Path | None:
        """Save the structure and say why."""
        path = None
        if self.snapshots.path is not None:
            path = self.snapshots.path.with_suffix(f".stopped-at-{self.n_steps}.extxyz")
            snapshot = self.work.copy()
            snapshot.info["stopped_because"] = reason
            write_structures(path, [snapshot], overwrite=True)
        where = "" if path is None else f"; snapshot in {path}"
        warnings.warn(f"stopped after {self.n_steps} steps: {reason}{where}", MDStoppedWarning, stacklevel=4)
        return path
