"""The training loop, which can be interrupted and resumed at any step with the same result.

config → Prepared → [batch → prediction → loss → gradient → optimizer → averaged weights]* → best.safetensors
"""

import functools
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faenet_calc.errors import InputError, counted
from faenet_calc.files import locked, remove_partial_files, write_atomically
from faenet_calc.memory import keep_freed_memory
from faenet_calc.potential.checkpoint import load_potential, save_potential
from faenet_calc.potential.potential import Potential
from faenet_calc.settings import checked
from faenet_calc.training import journal as journal_module
from faenet_calc.training.assessment import Assessment, assess
from faenet_calc.training.batches import BatchMaker, Indices, TrainBatch, epoch_batches, made_ahead, shares
from faenet_calc.training.config import TrainConfig
from faenet_calc.training.config_file import config_from_mapping, config_to_mapping, dump_config, resumed_config
from faenet_calc.training.determinism import deterministic
from faenet_calc.training.distributed import Ranks, joined_ranks, training_device
from faenet_calc.training.loss import TERMS, Loss
from faenet_calc.training.metrics import HIGHER_IS_BETTER
from faenet_calc.training.optimizer import build_optimizer
from faenet_calc.training.preparation import Part, Prepared, drawn_per_epoch, prepare
from faenet_calc.training.run_folder import BEST, CONFIG, LOCK, need_same_data, remove_results, stored_run
from faenet_calc.training.schedule import Plateau, Schedule, average_weights
from faenet_calc.training.state import FILE, TrainState, load_state, save_state
from faenet_calc.training.uncertainty import MIN_STRUCTURES, describe_domain, fit_uncertainty

TABLE_METRICS = (
    "train_loss", "loss", "energy_mae", "energy_mae_per_atom", "energy_within", "forces_mae", "forces_rmse",
    "forces_cosine", "energy_forces_within", "stress_mae", "is_best",
)  # fmt: skip
RESERVE = 0.03  # fraction of the time limit reserved for the last validation
MAX_SKIPPED_IN_A_ROW = 10  # steps without a finite gradient before a run is given up


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Result of a run.

    Attributes:
        folder: Output folder.
        checkpoint: The best weights, or None if the run stopped before its first validation.
        state: Progress, with the history of validations.
        config: Settings with every default resolved.
        parts: Name of a set (train, val and, if there is one, test) → its structures.
        writes: Whether this process writes files.
        finished: "epochs", "time limit", "early stopping", or "interrupted" (to be resumed).
    """

    folder: Path
    checkpoint: Path | None
    state: TrainState
    config: TrainConfig
    parts: dict[str, Part]
    writes: bool
    finished: str


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    job_limit_s: float | None = None,
    trust_pickle: bool = False,
    progress: bool = False,
) -> TrainResult:
    """Train a potential and write ``best.safetensors`` to ``run.out_dir``.

    Args:
        config: Settings.
        resume: Continue the run in ``run.out_dir`` if there is one.
        overwrite: Replace an existing run.
        job_limit_s: Stop after this time (s) so that the run can be resumed; the learning rate does not depend on it.
        trust_pickle: Read LMDB files of pickled objects, whose reading runs code that they contain. Not a setting of
            the configuration, because a file cannot vouch for itself.
        progress: Report progress on stderr.
    """
    started = Run.clock()
    config = checked(config)
    if job_limit_s is not None and not 0 < job_limit_s < math.inf:
        raise InputError(f"the time limit of this job is {job_limit_s} s, expected a number above 0")
    keep_freed_memory()
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    with joined_ranks() as ranks:
        device = training_device(config.run.device, ranks)
        folder = Path(config.run.out_dir)
        if ranks.writes:
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK, wait=False) if ranks.writes else nullcontext():
            found = stored_run(folder, resume=resume, overwrite=overwrite)
            ranks.barrier()
            # A caller's inference mode or autocast must not reach the gradients.
            with (
                torch.inference_mode(False),
                torch.enable_grad(),
                torch.autocast(device.type, enabled=False),
                deterministic(device),
            ):
                run = Run(config, device, ranks, resume=resume and found, trust_pickle=trust_pickle, progress=progress)
                return run.loop(started, job_limit_s)


class Run:
    """A run in progress.

    Args:
        config: Settings. A resumed run uses the resolved settings of the stored run.
        device: Device of this process.
        ranks: All processes of the run.
        resume: Continue from the state in the output folder.
        trust_pickle: As in :func:`train`.
        progress: Report progress.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)
    """Time (s) that time limits count."""

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device,
        ranks: Ranks,
        *,
        resume: bool = False,
        trust_pickle: bool = False,
        progress: bool = False,
    ) -> None:
        self.ranks, self.device, self.folder = ranks, device, Path(config.run.out_dir)
        self.state, tensors, stored = TrainState(), None, None
        self.asked = config_to_mapping(config)
        if resume:
            self.state, tensors, stored = load_state(self.folder, device)
            self.asked = stored["asked"]
            config = resumed_config(config, stored, source=self.folder / FILE)
            if config.run != config_from_mapping(stored["resolved"]).run and self.state.finished != "early stopping":
                self.state.finished = ""  # a longer run than before
        if not ranks.writes:
            ranks.barrier()  # the first process builds the graph cache, the others find it
        prepared = self.prepare(config, trust_pickle=trust_pickle, progress=progress and ranks.writes)
        if ranks.writes:
            ranks.barrier()
        if stored is not None:
            need_same_data(stored["data"], prepared.data_hashes, self.folder / FILE)
        self.prepared, self.config = prepared, prepared.config
        self.potential, self.model = prepared.potential, prepared.potential.model
        self.loss = Loss(self.config.loss, self.potential.config.forces)
        optim = self.config.optim
        self.optimizer = build_optimizer(self.model, optim)
        self.average = average_weights(self.potential, optim.ema_decay) if optim.ema_decay else None
        self.plateau = Plateau(factor=self.state.plateau_factor, waited=self.state.plateau_waited)
        if tensors is not None:
            self.model.load_state_dict(tensors["model"])
            self.optimizer.load_state_dict(tensors["optimizer"])
            if self.average is not None:
                self.average.load_state_dict(tensors["average"])
        self._plan()
        frames, seed = self.config.frames.training, self.config.run.seed
        self.maker = BatchMaker(prepared.train.dataset, self.potential.config, frames, seed, prepared.replay)
        if ranks.writes:
            self._claim_folder(resume=resume)
        self.journal = self._journal(progress) if ranks.writes else None
        for note in prepared.notes:
            self._say(note)
        if resume:
            self._say(f"resumed at step {self.state.step} (epoch {self.state.epoch})")

    def prepare(self, config: TrainConfig, **reading: Any) -> Prepared:
        """Open the data and build the potential; ``reading`` as in :func:`preparation.prepare`."""
        return prepare(config, self.device, **reading)

    def _claim_folder(self, *, resume: bool) -> None:
        """Make the folder that of this run; results of a run that it replaces are removed."""
        remove_partial_files(self.folder)
        if not resume:
            write_atomically(self.folder / CONFIG, dump_config(self.config).encode())
            self.save()
            remove_results(self.folder)
        elif self.state.best is None:  # weights of a replaced run, if this one was killed right after its start
            (self.folder / BEST).unlink(missing_ok=True)

    def _plan(self) -> None:
        """Determine the structures per step, the number of steps and the learning-rate schedule."""
        optim, run = self.config.optim, self.config.run
        assert optim.batch_size is not None and optim.warmup_steps is not None
        train = self.prepared.train
        self.drawn, self.copies = drawn_per_epoch(train, self.config.data)
        self.costs = train.dataset.n_edges[self.drawn].astype(float) + 1.0
        self.global_batch = optim.batch_size * optim.accumulate * self.ranks.world
        self.per_epoch = len(epoch_batches(self.costs, self.global_batch, seed=0, epoch=0))
        self.n_steps = None if run.max_epochs is None else run.max_epochs * self.per_epoch
        self.schedule = Schedule(
            config=optim, n_steps=self.n_steps, time_limit_s=run.time_limit_s, warmup_steps=optim.warmup_steps
        )

    def _journal(self, progress: bool) -> journal_module.Journal:
        return journal_module.Journal(
            self.folder,
            terms=[name for name in TERMS if self.loss.weights[name] > 0],
            metrics=list(TABLE_METRICS),
            until_step=self.state.step,
            progress=progress,
            tensorboard=self.config.run.tensorboard,
            total_steps=self.n_steps,
        )

    def loop(self, started: float, job_limit_s: float | None) -> TrainResult:
        """Take all remaining steps.

        Args:
            started: Time of the clock at the start of this job (s).
            job_limit_s: Time limit of this job (s).
        """
        state, run = self.state, self.config.run
        trained_from = self.clock() - state.elapsed_s  # without the preparation of the data
        saved_at, validation_s = time.monotonic(), 0.0
        self.model.train()
        if run.max_epochs is not None and state.epoch >= run.max_epochs:
            state.finished = state.finished or "epochs"
        while not state.finished:
            batches = epoch_batches(self.costs, self.global_batch, seed=run.seed, epoch=state.epoch)
            for made in made_ahead(functools.partial(self.make, epoch=state.epoch), batches[state.position :]):
                self.step(made)
                now = self.clock()
                state.elapsed_s = now - trained_from
                reason = self._out_of_time(now - started, job_limit_s, validation_s)
                if reason or self._wants_saving(saved_at):
                    self.save()
                    saved_at = time.monotonic()
                if reason:
                    break
            else:
                state.epoch, state.position = state.epoch + 1, 0
                reason = "epochs" if state.epoch == run.max_epochs else ""
            last = bool(reason)
            assert run.validate_every is not None
            if reason != "interrupted" and (last or state.epoch % run.validate_every == 0):
                began = self.clock()
                stop_early = self._validate()
                validation_s = self.clock() - began
                state.finished = reason or ("early stopping" if stop_early else "")
                state.elapsed_s = self.clock() - trained_from
                self.save()
                saved_at = time.monotonic()
            if reason == "interrupted":
                break
        if self.journal is not None:
            self.journal.close()
        finished = state.finished or "interrupted"
        if self.ranks.writes and state.finished and state.best is not None:
            self.add_uncertainty()
        done = f"after {counted(state.step, 'step')}, {state.elapsed_s:.0f} s; best at step {state.best_step}"
        self._say(f"finished ({finished}) {done}" if state.finished else f"interrupted {done}; --resume auto continues")
        parts = {"train": self.prepared.train, "val": self.prepared.val}
        if self.prepared.test is not None:
            parts["test"] = self.prepared.test
        return TrainResult(
            folder=self.folder,
            checkpoint=self.folder / BEST if state.best is not None else None,
            state=state,
            config=self.config,
            parts=parts,
            writes=self.ranks.writes,
            finished=finished,
        )

    def make(self, batch: Indices, epoch: int) -> list[TrainBatch]:
        """The parts of a batch, which all processes share, that this process evaluates."""
        parts = shares(batch, self.costs, self.config.optim.accumulate * self.ranks.world)
        own = parts[self.ranks.rank :: self.ranks.world]
        return [self.maker.make(self.drawn[part], epoch, self.copies[part]) for part in own if len(part)]

    def step(self, parts: list[TrainBatch]) -> None:
        """Take one optimizer step on the parts of a batch (:meth:`make`)."""
        state, optim, ranks = self.state, self.config.optim, self.ranks
        rate = self.schedule.rate(state.step, state.elapsed_s, self.plateau.factor)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        made = [part.to(self.device) for part in parts]
        counts = self._global_counts([self.loss.counts(item.labelled) for item in made])
        totals = dict.fromkeys(counts, 0.0)
        self.optimizer.zero_grad(set_to_none=True)
        for item in made:
            with self._autocast():
                prediction = self.loss.predict(self.potential, item.labelled, item.frames)
                terms = self.loss.terms(prediction, item.labelled, counts)
                total = self.loss.total(terms)
            total.backward()
            for name, value in terms.items():
                totals[name] += float(value.detach())
        totals = dict(zip(totals, ranks.sum(list(totals.values()), self.device), strict=True))
        ranks.sum_gradients(list(self.model.parameters()))
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(parameters, optim.grad_clip or math.inf)
        if math.isfinite(float(norm)):
            self.optimizer.step()
            if self.average is not None:
                self.average.update_parameters(self.potential)
            state.skipped_in_a_row = 0
        else:
            self._skip(totals, float(norm))
        state.step, state.position = state.step + 1, state.position + 1
        if not state.skipped_in_a_row:
            self._record(totals, rate, float(norm))

    def _skip(self, totals: dict[str, float], norm: float) -> None:
        """Leave out a step whose gradient is not finite, which would make every weight NaN."""
        state = self.state
        state.skipped, state.skipped_in_a_row = state.skipped + 1, state.skipped_in_a_row + 1
        found = f"the gradient of step {state.step + 1} is {norm} (loss terms {totals})"
        if state.skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise RuntimeError(
                f"{found}, and so were those of the {MAX_SKIPPED_IN_A_ROW - 1} steps before it; lower optim.lr, or "
                "look for wrong labels with `faenet-calc data check`"
            )
        self._say(f"{found}; this step is skipped")

    def _global_counts(self, parts: list[dict[str, float]]) -> dict[str, float]:
        """Count the labels of the whole batch, over its parts and all processes."""
        names = [name for name in TERMS if self.loss.weights[name] > 0]
        local = [sum(part[name] for part in parts) for name in names]
        return dict(zip(names, self.ranks.sum(local, self.device), strict=True))

    def _autocast(self) -> AbstractContextManager[object]:
        if self.device.type == "cuda" and self.config.run.precision == "bf16":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()

    def _record(self, totals: dict[str, float], rate: float, norm: float) -> None:
        state = self.state
        loss = sum(self.loss.weights[name] * value for name, value in totals.items())
        for name, value in {**totals, "loss": loss, "steps": 1.0}.items():
            state.sums[name] = state.sums.get(name, 0.0) + value
        if self.journal is not None:
            self.journal.advance(f"loss {loss:.4f}{self._time_left()}")
            if state.step % self.config.run.log_every == 0:
                row = {"step": state.step, "epoch": state.epoch, "elapsed_s": round(state.elapsed_s, 2), "lr": rate}
                self.journal.step({**row, "grad_norm": norm, "loss": loss, **totals})

    def _out_of_time(self, job_s: float, job_limit_s: float | None, validation_s: float) -> str:
        """Return the reason to stop now, or ""; process 0 decides for all."""
        limit, reason = self.config.run.time_limit_s, ""
        if job_limit_s is not None and job_s > job_limit_s * (1 - RESERVE) - validation_s:
            reason = "interrupted"
        if limit is not None and self.state.elapsed_s > limit * (1 - RESERVE) - validation_s:
            reason = "time limit"
        if limit is None and job_limit_s is None:
            return ""
        decision: str = self.ranks.gather(reason)[0]
        return decision

    def _time_left(self) -> str:
        """The remaining time of a run that ends after a time, which the progress bar cannot tell from its steps."""
        limit = self.config.run.time_limit_s
        if limit is None or self.n_steps is not None:
            return ""
        return f", {max(limit - self.state.elapsed_s, 0.0) / 60:.0f} min left"

    def _wants_saving(self, saved_at: float) -> bool:
        run = self.config.run
        by_steps = run.save_every_steps is not None and self.state.step % run.save_every_steps == 0
        return by_steps or time.monotonic() - saved_at > run.save_every_s

    def _validate(self) -> bool:
        """Validate the averaged weights and save them if they are the best; return whether to stop early."""
        state, stop = self.state, self.config.stop
        evaluated = self.evaluated
        for potential in (self.potential, evaluated):
            self.ranks.copy_from_first([b for b in potential.buffers() if b.is_floating_point()])
        frames = self.config.run.validation_frames
        val = self.prepared.val
        evaluated.eval()
        found: Assessment = assess(
            evaluated,
            val.dataset,
            val.indices,
            frames=frames,
            loss=self.loss,
            free_atoms_only=self.config.loss.free_atoms_only,
            ranks=self.ranks,
            seed=self.config.run.seed,
        )
        value = found.metrics.get(stop.metric)
        if value is None:
            raise InputError(f"stop.metric = {stop.metric!r}, expected one of {', '.join(found.metrics)}")
        sign = -1.0 if stop.metric in HIGHER_IS_BETTER else 1.0
        improved = state.best is None or sign * value < sign * state.best
        if improved:
            state.best, state.best_step, state.waited = value, state.step, 0
            self.save_best(evaluated, found)
        else:
            state.waited += 1
        evaluated.train()
        self.plateau.update(improved, self.config.optim)
        state.plateau_factor, state.plateau_waited = self.plateau.factor, self.plateau.waited
        self._remember(found, improved)
        rate = self.schedule.rate(state.step, state.elapsed_s, self.plateau.factor)
        exhausted = self.config.optim.schedule == "plateau" and rate < stop.min_lr
        return exhausted or (stop.patience is not None and state.waited > stop.patience)

    def _remember(self, found: Assessment, improved: bool) -> None:
        state = self.state
        steps = max(state.sums.get("steps", 0.0), 1.0)
        row = {
            "step": float(state.step),
            "epoch": float(state.epoch),
            "elapsed_s": round(state.elapsed_s, 2),
            "lr": self.schedule.rate(state.step, state.elapsed_s, self.plateau.factor),
            "train_loss": state.sums.get("loss", math.nan) / steps,
            "is_best": float(improved),
            **{name: value for name, value in found.metrics.items() if name in TABLE_METRICS},
        }
        state.sums = {}
        state.history.append(row)
        if self.journal is not None:
            self.journal.validation(row)

    @property
    def evaluated(self) -> Potential:
        """The potential that is validated and saved: with averaged weights, or the trained ones without averaging."""
        evaluated = self.potential if self.average is None else self.average.module
        assert isinstance(evaluated, Potential)
        return evaluated

    def save_best(self, evaluated: Potential, found: Assessment) -> None:
        """Write the checkpoint of the best weights."""
        if not self.ranks.writes:
            return
        extra: dict[str, Any] = {
            "training": {
                "config": config_to_mapping(self.config),
                "step": self.state.step,
                "epoch": self.state.epoch,
                "elapsed_s": self.state.elapsed_s,
                "n_train": len(self.prepared.train),
                "n_val": len(self.prepared.val),
                "data": self.prepared.data_hashes["data.train"],
                "validation": found.metrics,
            }
        }
        if self.config.finetune.checkpoint is not None:
            start = {"checkpoint": self.config.finetune.checkpoint}
            extra["finetuned_from"] = {**start, "sha256": self.prepared.data_hashes["finetune.checkpoint"]}
        save_potential(evaluated, self.folder / BEST, extra=extra)

    def add_uncertainty(self) -> None:
        """Fit the uncertainty and the domain of the best weights and add them to the checkpoint."""
        path, train, val = self.folder / BEST, self.prepared.train, self.prepared.val
        best = load_potential(path, device=self.device)
        if best.config.domain is not None:
            return
        replayed = self.prepared.replay if self.config.finetune.replay_energies else None
        replay = None if replayed is None else replayed.dataset
        energies = val.dataset.energy[val.indices]
        if not np.isfinite(energies).any() or not np.isfinite(train.dataset.energy[train.indices]).any():
            return
        if len(train.indices) < MIN_STRUCTURES:
            self._say(
                f"{len(train.indices)} training structures are too few to fit an uncertainty (at least "
                f"{MIN_STRUCTURES}); the domain guard compares energies, forces, distances and kinds of structures only"
            )
            save_potential(describe_domain(best, (train.dataset, train.indices), replay=replay), path)
            return
        fitted = fit_uncertainty(
            best,
            (train.dataset, train.indices),
            (val.dataset, val.indices),
            replay=replay,
            seed=self.config.run.seed,
        )
        save_potential(fitted, path)

    def save(self) -> None:
        """Write the resume file."""
        if self.ranks.writes:
            tensors = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "average": {} if self.average is None else self.average.state_dict(),
            }
            origin = {
                "asked": self.asked,
                "resolved": config_to_mapping(self.config),
                "data": self.prepared.data_hashes,
            }
            save_state(self.folder, self.state, tensors, origin)

    def _say(self, text: str) -> None:
        if self.journal is not None:
            self.journal.say(text)
