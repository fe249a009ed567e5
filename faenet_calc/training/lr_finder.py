"""Learning-rate range test: the loss while the learning rate grows exponentially."""

import dataclasses
import math
import tempfile
from dataclasses import dataclass

from faenet_calc.training.batches import epoch_batches
from faenet_calc.training.config import TrainConfig
from faenet_calc.training.distributed import Ranks, training_device
from faenet_calc.training.loop import Run
from faenet_calc.training.schedule import Schedule

LOWEST, HIGHEST, STEPS = 1e-5, 1e-1, 100
SMOOTHING = 0.8  # decay rate of the smoothed loss
DIVERGED = 2.0  # times the lowest smoothed loss: the sweep stops there


@dataclass(frozen=True, kw_only=True)
class RateSweep:
    """Losses [n] at learning rates [n], and the suggested rate: a third of that with the lowest smoothed loss."""

    rates: list[float]
    losses: list[float]
    suggested: float


class _Exponential(Schedule):
    def rate(self, step: int, elapsed_s: float, plateau: float = 1.0) -> float:
        """From LOWEST to HIGHEST in STEPS."""
        return LOWEST * math.exp(math.log(HIGHEST / LOWEST) * step / (STEPS - 1))


def find_rate(config: TrainConfig) -> RateSweep:
    """Train for up to 100 steps at learning rates from 1e-5 to 0.1 and discard the weights."""
    with tempfile.TemporaryDirectory() as folder:
        settings = dataclasses.replace(config.run, out_dir=folder, tensorboard=False, max_epochs=1, time_limit_s=None)
        ranks = Ranks()
        run = Run(
            dataclasses.replace(config, run=settings), training_device(settings.device, ranks), ranks,
            resume=False, progress=False,
        )  # fmt: skip
        plan = run.schedule
        run.schedule = _Exponential(
            config=plan.config, n_steps=plan.n_steps, time_limit_s=None, warmup_steps=plan.warmup_steps
        )
        return _sweep(run)


def _sweep(run: Run) -> RateSweep:
    rates: list[float] = []
    losses: list[float] = []
    smooth, best, best_rate = math.nan, math.inf, LOWEST
    while len(rates) < STEPS:
        batches = epoch_batches(run.costs, run.global_batch, seed=run.config.run.seed, epoch=run.state.epoch)
        for batch in batches[: STEPS - len(rates)]:
            rate = run.schedule.rate(run.state.step, 0.0)
            before = run.state.sums.get("loss", 0.0)
            run.step(run.make(batch, run.state.epoch))
            if run.state.skipped_in_a_row:  # diverged: the gradient is not finite
                return RateSweep(rates=rates, losses=losses, suggested=best_rate / 3)
            loss = run.state.sums["loss"] - before
            rates.append(rate)
            losses.append(loss)
            smooth = loss if math.isnan(smooth) else SMOOTHING * smooth + (1 - SMOOTHING) * loss
            if smooth < best:
                best, best_rate = smooth, rate
            if not math.isfinite(smooth) or smooth > DIVERGED * best:
                return RateSweep(rates=rates, losses=losses, suggested=best_rate / 3)
        run.state.epoch += 1
    return RateSweep(rates=rates, losses=losses, suggested=best_rate / 3)
