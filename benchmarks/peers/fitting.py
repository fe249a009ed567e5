"""Training loop for a peer model with the loss, batches, optimizer and schedule of faenet-calc, on a time budget.

    batch → prediction → loss → gradient → optimizer → averaged weights → validation; the best weights are kept

The learning rate is annealed over the budget. The budget is CPU time of all threads on a CPU and wall time on a GPU;
it includes validation but not reading the data.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from faenet_calc.data.dataset import collate
from faenet_calc.potential.potential import Potential
from faenet_calc.training.assessment import assess
from faenet_calc.training.batches import Indices, epoch_batches
from faenet_calc.training.loss import Loss
from faenet_calc.training.optimizer import build_optimizer
from faenet_calc.training.preparation import Prepared
from faenet_calc.training.schedule import Schedule, average_weights

RESERVE = 0.03  # share of the budget reserved for the last validation, as in faenet_calc.training


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Summary of a finished fit.

    Attributes:
        steps: Number of optimizer steps.
        epochs: Number of passes over the training set.
        spent_s: Time spent (s).
        best_step: Step of the weights that were kept.
        history: One row per validation.
    """

    steps: int
    epochs: float
    spent_s: float
    best_step: int
    history: tuple[dict[str, float], ...]


def _say(line: str) -> None:
    print(line, flush=True)


class Fit:
    """A fit in progress.

    Args:
        potential: Potential with trainable weights; holds the best averaged weights after the fit.
        prepared: Data and settings, with all settings resolved.
        budget_s: Time budget (s), see the module docstring.
        say: Called with one line of text per validation.
    """

    def __init__(
        self, potential: Potential, prepared: Prepared, *, budget_s: float, say: Callable[[str], Any] = _say
    ) -> None:
        self.potential, self.prepared, self.config = potential, prepared, prepared.config
        self.budget_s, self.say = budget_s, say
        self.clock = time.process_time if potential.device.type == "cpu" else time.monotonic
        self.loss = Loss(self.config.loss, "gradient")
        optim = self.config.optim
        assert optim.batch_size is not None and optim.warmup_steps is not None
        self.batch_size = optim.batch_size * optim.accumulate
        self.optimizer = build_optimizer(potential.model, optim)
        self.average = average_weights(potential, optim.ema_decay)
        self.schedule = Schedule(config=optim, n_steps=None, time_limit_s=budget_s, warmup_steps=optim.warmup_steps)
        self.step_number = self.best_step = 0
        self.best: tuple[float, dict[str, torch.Tensor]] | None = None
        self.history: list[dict[str, float]] = []

    def run(self) -> Fitted:
        """Train until the budget is spent."""
        train = self.prepared.train
        costs = train.dataset.n_edges[train.indices].astype(float) + 1.0
        start, epoch, validation_s, over = self.clock(), 0, 0.0, False
        every = self.config.run.validate_every
        assert every is not None
        self.potential.model.train()
        while not over:
            batches = epoch_batches(costs, self.batch_size, seed=self.config.run.seed, epoch=epoch)
            for members in batches:
                spent = self.clock() - start
                over = spent > self.budget_s * (1 - RESERVE) - validation_s
                if over:
                    break
                self.step(train.indices[members], spent)
            epoch += not over
            if over or epoch % every == 0:
                began = self.clock()
                self._validate(epoch, began - start)
                validation_s = self.clock() - began
        assert self.best is not None
        self.potential.model.load_state_dict(self.best[1])
        self.potential.eval()
        return Fitted(
            steps=self.step_number,
            epochs=round(self.step_number / len(batches), 2),
            spent_s=round(self.clock() - start, 1),
            best_step=self.best_step,
            history=tuple(self.history),
        )

    def step(self, indices: Indices, spent_s: float) -> None:
        """Run one optimizer step."""
        rate = self.schedule.rate(self.step_number, spent_s)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        dataset = self.prepared.train.dataset
        batch = collate([dataset[int(index)] for index in indices]).to(self.potential.device)
        self.optimizer.zero_grad(set_to_none=True)
        prediction = self.loss.predict(self.potential, batch, "one")
        total = self.loss.total(self.loss.terms(prediction, batch, self.loss.counts(batch)))
        total.backward()
        clip = self.config.optim.grad_clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.potential.model.parameters(), clip)
        if not math.isfinite(float(norm)):
            raise RuntimeError(f"the gradient of step {self.step_number} is {float(norm)}; lower --lr")
        self.optimizer.step()
        self.average.update_parameters(self.potential)
        self.step_number += 1

    def _validate(self, epoch: int, spent_s: float) -> None:
        """Validate the averaged weights and keep them if they are the best."""
        val = self.prepared.val
        averaged = self.average.module
        assert isinstance(averaged, Potential)
        found = assess(averaged.eval(), val.dataset, val.indices, loss=self.loss).metrics
        best = self.best is None or found["loss"] < self.best[0]
        if best:
            self.best = found["loss"], copy.deepcopy(averaged.model.state_dict())
            self.best_step = self.step_number
        names = ("loss", "energy_mae_per_atom", "forces_mae")
        row = {"step": float(self.step_number), "epoch": float(epoch), "spent_s": round(spent_s, 1)}
        self.history.append({**row, **{name: found[name] for name in names if name in found}})
        energy, forces = 1e3 * found["energy_mae_per_atom"], 1e3 * found.get("forces_mae", math.nan)
        self.say(
            f"epoch {epoch}  step {self.step_number}  {spent_s:.0f} s  val {found['loss']:.4f}  "
            f"E {energy:.2f} meV/atom  F {forces:.2f} meV/Å{'  *' if best else ''}"
        )
