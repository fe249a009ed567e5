"""The training loop of a peer: our loss, batches, optimiser, schedule and averaged weights, for a budget of CPU time.

    batch → prediction → loss → gradient → optimiser → averaged weights, validated like our own; the best are kept

The schedule anneals the learning rate over the budget. Time is CPU time of all threads on a CPU (the machine may be
busy) and wall time on a GPU; validations count, reading the data does not.
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
from faenet_calc.training.schedule import Schedule, WeightAverage

RESERVE = 0.03  # share of the budget that is kept for the last validation, as in our own loop


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """How a fit went.

    Attributes:
        steps: Steps of the optimiser.
        epochs: Passes over the training set.
        spent_s: Of the budget (s).
        best_step: Of the weights that were kept.
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
        potential: With trainable weights; its best averaged weights are in it at the end.
        prepared: Data and settings, every open setting decided.
        budget_s: See above.
        say: Gets a line per validation.
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
        self.average = WeightAverage(potential.model, optim.ema_decay)
        self.schedule = Schedule(config=optim, n_steps=None, time_limit_s=budget_s, warmup_steps=optim.warmup_steps)
        self.step_number = self.best_step = 0
        self.best: tuple[float, dict[str, torch.Tensor]] | None = None
        self.history: list[dict[str, float]] = []

    def run(self) -> Fitted:
        """All steps that the budget allows."""
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
        """One step of the optimiser."""
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
        self.average.update()
        self.step_number += 1

    def _validate(self, epoch: int, spent_s: float) -> None:
        """Compare the averaged weights with the validation set and keep them if they are the best."""
        val = self.prepared.val
        self.potential.model.eval()
        with self.average.applied():
            found = assess(self.potential, val.dataset, val.indices, loss=self.loss).metrics
            best = self.best is None or found["loss"] < self.best[0]
            if best:
                self.best = found["loss"], copy.deepcopy(self.potential.model.state_dict())
                self.best_step = self.step_number
        self.potential.model.train()
        names = ("loss", "energy_mae_per_atom", "forces_mae")
        row = {"step": float(self.step_number), "epoch": float(epoch), "spent_s": round(spent_s, 1)}
        self.history.append({**row, **{name: found[name] for name in names if name in found}})
        energy, forces = 1e3 * found["energy_mae_per_atom"], 1e3 * found.get("forces_mae", math.nan)
        self.say(
            f"epoch {epoch}  step {self.step_number}  {spent_s:.0f} s  val {found['loss']:.4f}  "
            f"E {energy:.2f} meV/atom  F {forces:.2f} meV/Å{'  *' if best else ''}"
        )
