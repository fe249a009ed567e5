"""Safeguards around ASE's optimizers.

Quasi-Newton optimizers estimate the curvature from their own steps. Where it changes quickly, e.g. when an adsorbate
slides off its site, the estimate can be wrong: LBFGS then steps uphill, by electronvolts, and lifts adsorbates off the
surface; BFGS overestimates the curvature and stalls under large forces. Both are detected from energies, forces and
positions, and cured by restarting the optimizer without its history.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase.calculators.calculator import PropertyNotImplementedError
from ase.optimize import BFGS, LBFGS

UPHILL_LIMIT_EV = 0.1
"""(eV) a step that ends this far above the lowest energy is undone. Regular relaxations rarely rise by half of it."""

SMALLEST_STEP_LIMIT_A = 0.02
"""(Å) lower bound of the step limit, which becomes half the length of a step that was undone."""

STIFFNESS_LIMIT = 1000.0
"""(eV/Å²) ratio of force and step. The stiffest bonds, CO and N2, have less than 200."""

MAX_STIFF_STEPS = 10
"""Consecutive steps beyond `STIFFNESS_LIMIT` after which the optimizer counts as stalled."""


class SafeguardedOptimizer:
    """Runs an ASE optimizer and restarts it when it goes uphill or stalls.

    - A step far uphill is undone: the structure returns to its lowest energy so far and the step limit shrinks. Each
      return doubles the energy that triggers the next one, because forces that are not the gradient of the energy may
      lead uphill permanently. A new lowest energy relaxes both limits gradually.
    - LBFGS discards steps along which the energy has negative curvature. It is restarted with the sign of that
      curvature reversed, as BFGS does by itself.
    - LBFGS and BFGS are restarted in place after a series of tiny steps under large forces.

    Args:
        build_optimizer: Returns a new optimizer for the present structure.
        target: What the optimizer moves: atoms, or a filter around them.
        n_done: Steps taken in earlier calls.

    Attributes:
        nsteps: Steps so far, including those that were undone.
        n_undone: Steps that were undone.
    """

    def __init__(self, build_optimizer: Callable[[], Any], target: Any, *, n_done: int = 0) -> None:
        self.nsteps, self.n_undone = n_done, 0
        self._build_optimizer, self._target = build_optimizer, target
        self._lowest_energy, self._best_positions = np.inf, target.get_positions()
        self._uphill_limit, self._step_limit = UPHILL_LIMIT_EV, np.inf

    def irun(self, fmax: float, steps: int) -> Iterator[bool]:
        """Yield whether all forces are below ``fmax`` (eV/Å), at the start and after each step.

        Args:
            fmax: (eV/Å).
            steps: Maximum number of steps.
        """
        end, history = self.nsteps + steps, list[_Point]()
        while True:
            optimizer = self._build_optimizer()
            optimizer.nsteps = self.nsteps  # above 0, ASE does not log the structure it starts from
            if history:
                optimizer.replay_trajectory(history)
            own_step_limit = getattr(optimizer, "maxstep", None)
            here, n_stiff = _Point.of(self._target), 0
            for converged in optimizer.irun(fmax=fmax, steps=end - self.nsteps):
                self.nsteps = optimizer.nsteps
                before, here = here, _Point.of(self._target)
                step, force_change = here.positions - before.positions, here.forces - before.forces
                if self._is_uphill(step):
                    self._undo(optimizer)
                    history = []
                    break
                yield converged
                if own_step_limit is not None:
                    optimizer.maxstep = min(own_step_limit, self._step_limit)
                n_stiff = n_stiff + 1 if 0 < STIFFNESS_LIMIT * _max_norm(step) < _max_norm(here.forces) else 0
                if n_stiff > MAX_STIFF_STEPS and isinstance(optimizer, BFGS | LBFGS):
                    history = []
                    break
                if type(optimizer) is LBFGS and np.vdot(step, force_change) > 0:
                    history = [_Point(before.positions, here.forces + force_change), here]
                    break
            else:
                return

    def _is_uphill(self, step: np.ndarray) -> bool:
        """Whether the last step (Å) ended too high; updates the limits."""
        energy = _energy(self._target)
        if energy > self._lowest_energy + self._uphill_limit:
            self._uphill_limit *= 2
            self._step_limit = max(_max_norm(step) / 2, SMALLEST_STEP_LIMIT_A)
            return True
        if energy < self._lowest_energy:
            self._lowest_energy, self._best_positions = energy, self._target.get_positions()
            self._uphill_limit = max(self._uphill_limit / 2, UPHILL_LIMIT_EV)
            self._step_limit *= 2
        return False

    def _undo(self, optimizer: Any) -> None:
        self._target.set_positions(self._best_positions)
        self.n_undone += 1
        if optimizer.logfile is not None:
            optimizer.logfile.write(f"step {self.nsteps} undone, back to {self._lowest_energy:.6f} eV\n")


@dataclass(frozen=True, eq=False)
class _Point:
    """Positions (Å) and forces (eV/Å) [n, 3] at one step, with the methods that ASE's `replay_trajectory` calls."""

    positions: np.ndarray
    forces: np.ndarray

    @classmethod
    def of(cls, target: Any) -> "_Point":
        return cls(target.get_positions(), target.get_forces())

    def get_positions(self) -> np.ndarray:
        return self.positions

    def get_forces(self) -> np.ndarray:
        return self.forces


def _energy(target: Any) -> float:
    """(eV) the energy whose gradient the forces are, where the calculator has it."""
    try:
        return float(target.get_potential_energy(force_consistent=True))
    except PropertyNotImplementedError:
        return float(target.get_potential_energy(force_consistent=False))


def _max_norm(vectors: np.ndarray) -> float:
    """Length of the longest vector of [n, 3]."""
    return float(np.linalg.norm(vectors.reshape(-1, 3), axis=1).max())
