"""An ASE optimiser that is watched on its way down (L3).

Quasi-Newton optimisers learn the curvature from the steps they take, and where it changes quickly (an adsorbate slides
off its site) they can learn it wrong. ASE's LBFGS then walks uphill, by electronvolts, and takes adsorbates off their
surface; its BFGS comes to believe in a curvature that no bond has and hardly moves any more, however large the forces
are. Both are seen from energies, forces and positions, and cured by an optimiser that begins anew, its memory empty.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from ase.optimize import LBFGS

CLIMB_EV = 0.1
"""A step that ends so far (eV) above the lowest energy is taken back. Healthy descents rarely rise by half of it."""

SMALLEST_STEP_A = 0.02
"""(Å) least upper limit of steps; the limit becomes half of a step that was taken back, but no less than this."""

STIFFEST = 1000.0
"""(eV/Å²) force over step. The stiffest bonds, of CO and N2, have less than 200: more, for long, is no curvature."""

PATIENCE = 10
"""Steps running beyond `STIFFEST`. FIRE, which slows down by itself at every turn, has at most five or so."""


class Descent:
    """Steps of an optimiser, begun anew whenever it goes astray.

    - A step far uphill is taken back: the structure returns to where its energy was lowest. Each return doubles the
      height of the next one, since forces that are not the gradient of the energy may lead uphill for good.
    - Tiny steps under large forces end the memory of the optimiser where it is.
    - So does a step along which the surface curves downwards, if the optimiser is an LBFGS: it cannot make use of it.

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

    def irun(self, fmax: float, steps: int) -> Iterator[bool]:
        """Whether all forces are below ``fmax`` (eV/Å): now, and after each of at most so many steps."""
        target, end, lowest, best = self._target, self.nsteps + steps, np.inf, self._target.get_positions()
        climb_ev, longest_a = CLIMB_EV, np.inf
        while True:
            optimizer = self._begin()
            optimizer.nsteps = self.nsteps  # above 0, ASE does not log the structure it begins with
            if hasattr(optimizer, "maxstep"):
                optimizer.maxstep = min(optimizer.maxstep, longest_a)
            here, forces, n_stiff = target.get_positions(), target.get_forces(), 0
            for at_rest in optimizer.irun(fmax=fmax, steps=end - self.nsteps):
                self.nsteps = optimizer.nsteps
                step, change = target.get_positions() - here, target.get_forces() - forces
                here, forces = here + step, forces + change
                energy = target.get_potential_energy()
                if energy > lowest + climb_ev:
                    climb_ev, longest_a = 2 * climb_ev, max(_largest(step) / 2, SMALLEST_STEP_A)
                    target.set_positions(best)
                    self.n_returns += 1
                    break
                if energy < lowest:
                    lowest, best = energy, target.get_positions()
                yield at_rest
                n_stiff = n_stiff + 1 if 0 < STIFFEST * _largest(step) < _largest(forces) else 0
                if n_stiff > PATIENCE or (type(optimizer) is LBFGS and np.vdot(step, change) > 0):
                    break
            else:
                return


def _largest(vectors: np.ndarray) -> float:
    """Length of the longest of some vectors (n, 3)."""
    return float(np.linalg.norm(vectors.reshape(-1, 3), axis=1).max())
