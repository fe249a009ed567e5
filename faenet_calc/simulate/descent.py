"""An ASE optimiser that is watched on its way down.

Quasi-Newton optimisers learn the curvature from the steps they take, and where it changes quickly (an adsorbate slides
off its site) they can learn it wrong. ASE's LBFGS then walks uphill, by electronvolts, and takes adsorbates off their
surface; its BFGS comes to believe in a curvature that no bond has and hardly moves any more, however large the forces
are. Both are seen from energies, forces and positions, and cured by beginning anew without what was learnt.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase.calculators.calculator import PropertyNotImplementedError
from ase.optimize import BFGS, LBFGS

CLIMB_EV = 0.1
"""A step that ends so far (eV) above the lowest energy is taken back. Healthy descents rarely rise by half of it."""

SMALLEST_STEP_A = 0.02
"""(Å) least upper limit of steps; the limit becomes half of a step that was taken back, but no less than this."""

STIFFEST = 1000.0
"""(eV/Å²) force over step. The stiffest bonds, of CO and N2, have less than 200: more, for long, is no curvature."""

PATIENCE = 10
"""Steps running beyond `STIFFEST`."""


class Descent:
    """Steps of an optimiser, begun anew whenever it goes astray.

    - A step far uphill is taken back: the structure returns to where its energy was lowest, and steps become shorter.
      Each return doubles the height of the next one, since forces that are not the gradient of the energy may lead
      uphill for good. A new lowest energy undoes both, step by step.
    - LBFGS cannot make use of a step along which the surface curves downwards. It begins anew as if it curved upwards
      there by as much, which is what BFGS does by itself.
    - Tiny steps of either under large forces end its memory where it is.

    Args:
        begin: Makes an optimiser at the present structure.
        target: What it moves: atoms, or a filter around them.
        n_done: Steps taken before.

    Attributes:
        nsteps: Steps so far, those taken back among them.
        n_returns: How many were taken back.
    """

    def __init__(self, begin: Callable[[], Any], target: Any, *, n_done: int = 0) -> None:
        self.nsteps, self.n_returns = n_done, 0
        self._begin, self._target = begin, target
        self._lowest, self._best = np.inf, target.get_positions()
        self._climb_ev, self._longest_a = CLIMB_EV, np.inf

    def irun(self, fmax: float, steps: int) -> Iterator[bool]:
        """Whether all forces are below ``fmax`` (eV/Å): now, and after each of at most so many steps."""
        end, memory = self.nsteps + steps, list[_Place]()
        while True:
            optimizer = self._begin()
            optimizer.nsteps = self.nsteps  # above 0, ASE does not log the structure it begins with
            if memory:
                optimizer.replay_trajectory(memory)
            usual_a = getattr(optimizer, "maxstep", None)
            here, n_stiff = _Place.of(self._target), 0
            for at_rest in optimizer.irun(fmax=fmax, steps=end - self.nsteps):
                self.nsteps = optimizer.nsteps
                before, here = here, _Place.of(self._target)
                step, change = here.positions - before.positions, here.forces - before.forces
                if self._is_uphill(step):
                    self._return(optimizer)
                    memory = []
                    break
                yield at_rest
                if usual_a is not None:
                    optimizer.maxstep = min(usual_a, self._longest_a)
                n_stiff = n_stiff + 1 if 0 < STIFFEST * _largest(step) < _largest(here.forces) else 0
                if n_stiff > PATIENCE and isinstance(optimizer, BFGS | LBFGS):
                    memory = []
                    break
                if type(optimizer) is LBFGS and np.vdot(step, change) > 0:
                    memory = [_Place(before.positions, here.forces + change), here]
                    break
            else:
                return

    def _is_uphill(self, step: np.ndarray) -> bool:
        """Whether the last step (Å) led too high; if not, what it teaches."""
        energy = _energy(self._target)
        if energy > self._lowest + self._climb_ev:
            self._climb_ev, self._longest_a = 2 * self._climb_ev, max(_largest(step) / 2, SMALLEST_STEP_A)
            return True
        if energy < self._lowest:
            self._lowest, self._best = energy, self._target.get_positions()
            self._climb_ev, self._longest_a = max(self._climb_ev / 2, CLIMB_EV), 2 * self._longest_a
        return False

    def _return(self, optimizer: Any) -> None:
        self._target.set_positions(self._best)
        self.n_returns += 1
        if optimizer.logfile is not None:
            optimizer.logfile.write(f"step {self.nsteps} is taken back, to {self._lowest:.6f} eV\n")


@dataclass(frozen=True, eq=False)
class _Place:
    """Positions and forces [n, 3] of one moment, as `replay_trajectory` of ASE reads them."""

    positions: np.ndarray
    forces: np.ndarray

    @classmethod
    def of(cls, target: Any) -> "_Place":
        return cls(target.get_positions(), target.get_forces())

    def get_positions(self) -> np.ndarray:
        return self.positions

    def get_forces(self) -> np.ndarray:
        return self.forces


def _energy(target: Any) -> float:
    """(eV) what the forces are the gradient of, as far as the calculator knows it."""
    try:
        return float(target.get_potential_energy(force_consistent=True))
    except PropertyNotImplementedError:
        return float(target.get_potential_energy(force_consistent=False))


def _largest(vectors: np.ndarray) -> float:
    """Length of the longest of some vectors [n, 3]."""
    return float(np.linalg.norm(vectors.reshape(-1, 3), axis=1).max())
