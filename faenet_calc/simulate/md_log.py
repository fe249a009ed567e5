"""Time series of molecular dynamics, their log file, and the drift of the conserved quantity."""

import logging
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

_COLUMNS = ("time_fs", "potential", "temperature", "conserved")
_HEADER = f"{'step':>10} {'time/ps':>12} {'E_pot/eV':>16} {'T/K':>10} {'conserved/eV':>18}\n"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Linear fit to the conserved quantity of an ensemble.

    Attributes:
        meV_per_atom_ps: Slope.
        std_meV_per_atom: Standard deviation of the residuals.
    """

    meV_per_atom_ps: float
    std_meV_per_atom: float


@dataclass(kw_only=True, eq=False)
class MDLog:
    """Time series of a run, with one entry every ``interval`` steps, and their log file.

    Attributes:
        interval: Steps between entries, and between snapshots of the trajectory.
        check_interval: Steps between checks of the stop conditions.
        logfile: Receives one line per entry; "-" is stdout, None writes nothing.
        values: All entries in one flat array, which keeps long runs small.
    """

    interval: int
    check_interval: int
    logfile: str | Path | None = None
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, *, step: int, time_fs: float, potential: float, temperature: float, conserved: float) -> None:
        """Append one entry."""
        if not self.values:
            self._log(_HEADER)
        self.values.extend((time_fs, potential, temperature, conserved))
        kept = "-" if np.isnan(conserved) else f"{conserved:.8f}"
        self._log(f"{step:10d} {time_fs / 1000:12.4f} {potential:16.8f} {temperature:10.2f} {kept:>18}\n")

    def series(self, name: str) -> NDArray[np.float64]:
        """[n_entries] time_fs, potential, temperature or conserved."""
        return np.array(self.values).reshape(-1, len(_COLUMNS))[:, _COLUMNS.index(name)]

    def last(self, name: str) -> float:
        """The latest value of a series."""
        return self.values[_COLUMNS.index(name) - len(_COLUMNS)]

    def _log(self, line: str) -> None:
        log.info("%s", line.rstrip("\n"))
        if self.logfile is None:
            return
        if str(self.logfile) == "-":
            print(line, end="", flush=True)
            return
        with open(self.logfile, "a") as file:
            file.write(line)


def fit_drift(log: MDLog, n_atoms: int) -> Drift | None:
    """The drift of the conserved quantity; None without one, or with fewer than three entries."""
    times, values = log.series("time_fs") / 1000, log.series("conserved") * 1000 / n_atoms
    if len(times) < 3 or not np.isfinite(values).all():
        return None
    times, values = times - times.mean(), values - values.mean()
    slope = float(times @ values / (times @ times))
    return Drift(meV_per_atom_ps=slope, std_meV_per_atom=float(np.std(values - slope * times)))
