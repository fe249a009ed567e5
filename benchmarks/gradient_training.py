"""Training on energies, gradient forces and stress: compiled derivatives against autograd.

    python benchmarks/gradient_training.py [--models catalysis-m modern-s] [--structures 7 96] [--repeats 9] [-o FILE]

Both sides take the step of ``training/loop.py`` (random frames, loss, gradient, Muon, averaged weights) from the same
weights on the same structures of metals-v1, with one CPU thread each. One side computes derivatives and Muon's
iterations in compiled code, which is what a run does; the other one in PyTorch. They run in two processes and take
steps in turns; the ratio is that of the medians of CPU times. Before timing, the gradients of both sides are compared,
and the benchmark stops if they differ. Rows are JSON with the keys benchmark, case, metric, value and unit.
"""

import argparse
import itertools
import json
import lzma
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.io import iread

from faenet_calc.data.dataset import LabelledGraph
from faenet_calc.memory import keep_freed_memory
from faenet_calc.potential import forward, shipped
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.potential.potential import Potential, build_potential
from faenet_calc.training import orthogonal
from faenet_calc.training.batches import BatchMaker
from faenet_calc.training.config import LossConfig, OptimConfig
from faenet_calc.training.loss import Loss
from faenet_calc.training.optimizer import build_optimizer
from faenet_calc.training.schedule import average_weights

DATA = Path(__file__).parents[1] / "datasets/metals-v1/mixed.extxyz.xz"
SIDES = ("compiled", "autograd")
BATCHES = 4
LOSS = LossConfig(energy=4.0, forces=1.0, stress=5.0, adsorbate_weight=5.0)  # of pretrained/catalysis-m/train.yaml


def labelled(potential: Potential, structures: list[Atoms]) -> list[LabelledGraph]:
    """Graphs with labels as stored in the cache of a run."""
    return [
        LabelledGraph(
            graph=potential.graph(atoms),
            energy=atoms.get_potential_energy(),
            forces=torch.tensor(atoms.get_forces()),
            stress=torch.tensor(atoms.get_stress(voigt=False)) if "stress" in atoms.calc.results else None,
            free=torch.ones(len(atoms), dtype=torch.bool),
            index=index,
        )
        for index, atoms in enumerate(structures)
    ]


class Side:
    """A training run on one of the two sides.

    Args:
        side: One of ``SIDES``.
        model: Name of a shipped model or of a preset.
        n: Structures per step.
    """

    def __init__(self, side: str, model: str, n: int) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        if side == "autograd":
            forward.fits_training_engine = lambda *arguments: False
            orthogonal.library = lambda: None
        self.potential = load_potential(model) if model in shipped.names() else build_potential(model)
        self.potential.train().requires_grad_(True)
        with lzma.open(DATA, "rt") as file:
            structures = list(iread(file, f":{BATCHES * n}", format="extxyz"))
        chosen = np.random.default_rng(0).permutation(len(structures))
        items = labelled(self.potential, [structures[index] for index in chosen])
        self.n_edges = sum(item.graph.n_edges for item in items) / BATCHES
        self.n_atoms = sum(item.graph.n_atoms for item in items) / BATCHES
        self.batches = np.array_split(np.arange(len(items)), BATCHES)
        self.maker = BatchMaker(items, self.potential.config, "stochastic", seed=0)
        self.loss = Loss(LOSS, "gradient")
        self.optimizer = build_optimizer(self.potential.model, OptimConfig(lr=1e-5))
        self.average = average_weights(self.potential, 0.999)
        self.count = 0

    def gradient(self) -> torch.Tensor:
        """The gradient of the next batch with respect to all weights."""
        batch = self.maker.make(self.batches[self.count % BATCHES], self.count)
        self.optimizer.zero_grad(set_to_none=True)
        prediction = self.loss.predict(self.potential, batch.labelled, batch.frames)
        terms = self.loss.terms(prediction, batch.labelled, self.loss.counts(batch.labelled))
        self.loss.total(terms).backward()
        self.count += 1
        return torch.cat([weight.grad.flatten() for weight in self.potential.model.parameters()])

    def step(self) -> None:
        """A training step."""
        self.gradient()
        torch.nn.utils.clip_grad_norm_(self.potential.model.parameters(), np.inf)
        self.optimizer.step()
        self.average.update_parameters(self.potential)


def serve(connection: Connection, side: str, model: str, n: int) -> None:
    """Process that first sends its first gradient and then, on request, the CPU time (s) of a step."""
    run = Side(side, model, n)
    connection.send((run.gradient().numpy(), run.n_atoms, run.n_edges))
    while connection.recv():
        start = time.process_time()
        run.step()
        connection.send(time.process_time() - start)


def measure(model: str, n: int, repeats: int, row: Callable[[str, str, float, str], None]) -> None:
    """Compare the gradients of both sides and time their steps in turns."""
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for side in SIDES:
        ends[side], other = context.Pipe()
        context.Process(target=serve, args=(other, side, model, n), daemon=True).start()
    (one, n_atoms, n_edges), (other_gradient, *_) = (ends[side].recv() for side in SIDES)
    case = f"{model}, {n} structures ({n_atoms:.0f} atoms, {n_edges:.0f} edges) per step"
    difference = float(np.linalg.norm(one - other_gradient) / np.linalg.norm(other_gradient))
    row(case, "relative difference of the gradients, float32", difference, "")
    if not difference < 1e-3:
        raise SystemExit(f"the gradients differ by {difference}")
    for repeat, (side, end) in itertools.product(range(repeats + 2), ends.items()):
        end.send(True)
        seconds = end.recv()
        if repeat > 1:  # warm-up before
            times[side].append(seconds)
    for end in ends.values():
        end.send(False)
    medians = {side: float(np.median(values)) for side, values in times.items()}
    for side, value in medians.items():
        row(case, f"CPU time of a step ({side})", 1e3 * value, "ms")
    row(case, "ratio", medians["autograd"] / medians["compiled"], "")


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["catalysis-m", "modern-s"])
    parser.add_argument("--structures", type=int, nargs="+", default=[7, 96])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []

    def row(case: str, metric: str, value: float, unit: str) -> None:
        rows.append({"benchmark": "gradient_training", "case": case, "metric": metric, "value": value, "unit": unit})
        print(json.dumps(rows[-1]), flush=True)

    for model, n in itertools.product(arguments.models, arguments.structures):
        measure(model, n, arguments.repeats, row)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
