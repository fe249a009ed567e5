"""Integrators of the ensembles.

ensemble           integrator (ASE)       conserved quantity              restart is exact
nve                VelocityVerlet         total energy                    yes
nvt-langevin       Langevin               none                            yes
nvt-bussi          Bussi                  total energy − heat absorbed    yes
nvt-nose-hoover    NoseHooverChainNVT     that of the extended system     no, the thermostat is reset
npt                IsotropicMTKNPT        that of the extended system     no, thermostat and barostat are reset
npt-flexible       MTKNPT                 that of the extended system     no, thermostat and barostat are reset
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.constraints import FixAtoms, FixCartesian, FixCom

from faenet_calc.errors import InputError
from faenet_calc.units import FS, GPA, K

ENSEMBLES = ("nve", "nvt-langevin", "nvt-bussi", "nvt-nose-hoover", "npt", "npt-flexible")


@dataclass(frozen=True, kw_only=True)
class EnsembleSettings:
    """Ensemble, its thermodynamic variables, and the time constants of thermostat and barostat.

    Attributes:
        ensemble: One of `ENSEMBLES`.
        temperature_K: Of the thermostat and of the initial velocities.
        timestep_fs: Of the integrator.
        pressure_GPa: Of the barostat.
        thermostat_fs: Time constant of the thermostat (Langevin: inverse of the friction).
        barostat_fs: Time constant of the barostat.
        seed: Random seed of the initial velocities and of stochastic thermostats.
    """

    ensemble: str
    temperature_K: float
    timestep_fs: float
    pressure_GPa: float
    thermostat_fs: float
    barostat_fs: float
    seed: int

    def __post_init__(self) -> None:
        if self.ensemble not in ENSEMBLES:
            raise InputError(f"ensemble={self.ensemble!r}, expected one of {', '.join(ENSEMBLES)}")
        for name in ("timestep_fs", "thermostat_fs", "barostat_fs"):
            if not 0 < getattr(self, name) < np.inf:
                raise InputError(f"{name}={getattr(self, name)}, expected a finite positive number")
        coldest_allowed = self.temperature_K == 0 and self.ensemble == "nve"
        if not (0 < self.temperature_K < np.inf or coldest_allowed):
            raise InputError(f"temperature_K={self.temperature_K}, expected a finite positive number")
        if not np.isfinite(self.pressure_GPa):
            raise InputError(f"pressure_GPa={self.pressure_GPa}, expected a finite number")
        if self.pressure_GPa and not self.ensemble.startswith("npt"):
            raise InputError(f"pressure_GPa={self.pressure_GPa} has no effect with ensemble={self.ensemble!r}; use npt")


class StepNoise:
    """Random numbers determined by the seed and the step number, so that a resumed run draws the same ones."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.at(0)

    def at(self, step: int) -> None:
        """Start the random numbers of a step."""
        self._generator = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, step]))

    def standard_normal(self, size: Any = None) -> Any:
        """See `numpy.random.Generator`."""
        return self._generator.standard_normal(size)

    def standard_gamma(self, shape: float) -> Any:
        """See `numpy.random.Generator`."""
        return self._generator.standard_gamma(shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Integrator:
    """An ASE integrator, its random numbers, and its conserved quantity (eV), if it has one."""

    dynamics: Any
    noise: StepNoise
    conserved: Callable[[], float] | None


def build_integrator(atoms: Atoms, settings: EnsembleSettings) -> Integrator:
    """Build the integrator of an ensemble for atoms with a calculator and momenta."""
    from ase.md.bussi import Bussi
    from ase.md.langevin import Langevin
    from ase.md.verlet import VelocityVerlet

    step, damping = settings.timestep_fs * FS, settings.thermostat_fs * FS
    temperature, noise = settings.temperature_K, StepNoise(settings.seed)
    dynamics: Any
    if settings.ensemble == "nve":
        dynamics = VelocityVerlet(atoms, step)
        return Integrator(dynamics=dynamics, noise=noise, conserved=atoms.get_total_energy)
    if settings.ensemble == "nvt-langevin":
        # fixcm=True would not sample the canonical distribution; use the constraint FixCom to fix the center of mass.
        dynamics = Langevin(atoms, step, temperature_K=temperature, friction=1 / damping, fixcm=False, rng=noise)
        return Integrator(dynamics=dynamics, noise=noise, conserved=None)
    if settings.ensemble == "nvt-bussi":
        dynamics = Bussi(atoms, step, temperature_K=temperature, taut=damping, rng=noise)
        return Integrator(
            dynamics=dynamics,
            noise=noise,
            conserved=lambda: float(atoms.get_total_energy() - dynamics.transferred_energy),
        )
    dynamics = _extended(atoms, settings)
    return Integrator(dynamics=dynamics, noise=noise, conserved=dynamics.get_conserved_energy)


def _extended(atoms: Atoms, settings: EnsembleSettings) -> Any:
    """Nosé–Hoover chains, with or without a Martyna–Tobias–Klein barostat."""
    from ase.md import nose_hoover_chain as chains

    from faenet_calc.simulate.nose_hoover import NoseHooverWithFixedAtoms

    step, damping = settings.timestep_fs * FS, settings.thermostat_fs * FS
    temperature = settings.temperature_K
    if settings.ensemble == "nvt-nose-hoover":
        if not all(isinstance(constraint, FixAtoms | FixCartesian) for constraint in atoms.constraints):
            raise InputError(
                "nvt-nose-hoover supports fixed atoms (FixAtoms, FixCartesian) but no other constraint; use "
                "nvt-langevin or nvt-bussi"
            )
        return NoseHooverWithFixedAtoms(atoms, step, temperature_K=temperature, tdamp=damping)
    if atoms.constraints:
        raise InputError("npt scales all atoms with the cell and does not support constraints; use an nvt ensemble")
    if not atoms.pbc.all():
        raise InputError(f"npt needs periodic boundaries in three directions, got pbc {atoms.pbc.tolist()}")
    engine = chains.IsotropicMTKNPT if settings.ensemble == "npt" else chains.MTKNPT
    return engine(
        atoms,
        step,
        temperature_K=temperature,
        pressure_au=settings.pressure_GPa * GPA,
        tdamp=damping,
        pdamp=settings.barostat_fs * FS,
    )


def draw_momenta(atoms: Atoms, temperature_kelvin: float, seed: int) -> None:
    """Set Maxwell–Boltzmann momenta, p = √(m k_B T) ξ with standard normal ξ.

    The center of mass is at rest unless atoms are fixed. The momenta are not rescaled to the exact temperature.
    """
    masses = atoms.get_masses()
    noise = np.random.default_rng(seed).standard_normal((len(atoms), 3))
    momenta = noise * np.sqrt(masses * K * temperature_kelvin)[:, None]
    if len(atoms) > 1 and all(isinstance(constraint, FixCom) for constraint in atoms.constraints):
        momenta -= masses[:, None] * momenta.sum(axis=0) / masses.sum()
    atoms.set_momenta(momenta)
