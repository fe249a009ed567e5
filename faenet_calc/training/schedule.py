"""Learning rate over a run, and averaged weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from faenet_calc.potential.potential import Potential
from faenet_calc.training.config import OptimConfig

TIME_SLACK = 0.02  # fraction of the time limit by which the clock may be ahead of the steps before it takes over
WARMUP_SHARE = 0.05  # fraction of the time limit after which warm-up ends even if its steps are not done


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate as a function of progress.

    Attributes:
        config: Settings of the optimizer.
        n_steps: Length of the run in steps; None if it ends by time only.
        time_limit_s: Length of the run (s), or None.
        warmup_steps: Steps of linear warm-up.
    """

    config: OptimConfig
    n_steps: int | None
    time_limit_s: float | None
    warmup_steps: int

    def progress(self, step: int, elapsed_s: float) -> float:
        """Progress of the run from 0 to 1, by steps or by time, whichever is further.

        Time counts only beyond a slack, so that a run that does not reach its time limit depends on steps alone and is
        reproducible.
        """
        by_step = step / self.n_steps if self.n_steps else 0.0
        return min(1.0, max(by_step, self._by_time(elapsed_s)))

    def _by_time(self, elapsed_s: float) -> float:
        if not self.time_limit_s:
            return 0.0
        return max(0.0, (elapsed_s / self.time_limit_s - TIME_SLACK) / (1 - TIME_SLACK))

    def rate(self, step: int, elapsed_s: float, plateau: float = 1.0) -> float:
        """Learning rate of a step (from 0); ``plateau`` is the factor of the plateau schedule."""
        config = self.config
        warm = 1.0
        if self.warmup_steps:
            warm = min(1.0, max((step + 1) / self.warmup_steps, self._by_time(elapsed_s) / WARMUP_SHARE))
        if config.schedule == "cosine":
            share = 0.5 * (1 + math.cos(math.pi * self.progress(step, elapsed_s)))
            return warm * (config.min_lr + (config.lr - config.min_lr) * share)
        return warm * max(config.min_lr, config.lr * (plateau if config.schedule == "plateau" else 1.0))


@dataclass(kw_only=True)
class Plateau:
    """Learning-rate factor that is reduced when a metric stops improving.

    Attributes:
        factor: Current factor.
        waited: Validations since the last improvement or reduction.
    """

    factor: float = 1.0
    waited: int = 0

    def update(self, improved: bool, config: OptimConfig) -> None:
        """Update the factor after a validation."""
        self.waited = 0 if improved else self.waited + 1
        if self.waited > config.plateau_patience:
            self.factor, self.waited = self.factor * config.plateau_factor, 0


def average_weights(potential: Potential, decay: float) -> AveragedModel:
    """A copy of a potential whose weights are a moving average a ← d a + (1 - d) w of the trained weights w.

    d = min(decay, (1 + n) / (10 + n)) after n steps, so that the random weights of the start are soon forgotten. Call
    ``update_parameters(potential)`` after every step; the copy is the attribute ``module``.
    """

    @torch.no_grad()
    def update(average: Sequence[Tensor], weights: Sequence[Tensor], n_averaged: Tensor | int) -> None:
        n = int(n_averaged)
        torch._foreach_lerp_(list(average), list(weights), 1 - min(decay, (1 + n) / (10 + n)))

    return AveragedModel(potential, multi_avg_fn=update)
