"""How much faster is training than an upstream-style loop on the same network?

    python benchmarks/training_throughput.py [--structures 12] [--repeats 3] [--preset paper-s2ef]

Both sides train the same network on the same adsorbate slabs, one CPU thread, and are timed in turns in one run.
Upstream style means: filters of concatenated edge and node states, one pass per frame, neighbour lists built anew every
epoch, and -dE/dx computed at every step with its graph kept, whether the loss uses it (conservation term, a constant)
or not. Cases: the paper's S2EF loss with and without the conservation term; one random frame or all of them.
Rows are JSON: benchmark, case, metric, value, unit.
"""

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Callable

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from faenet_calc.frames import Frames, build_frames
from faenet_calc.memory import keep_freed_memory
from faenet_calc.potential import Potential, build_potential
from faenet_calc.prediction import Prediction
from faenet_calc.training.batches import TrainBatch
from faenet_calc.training.config import config_from_mapping
from faenet_calc.training.data import LabelledBatch, LabelledGraph, collate
from faenet_calc.training.loss import Loss


def row(case: str, metric: str, value: float, unit: str) -> None:
    """Print one result."""
    print(
        json.dumps({"benchmark": "training_throughput", "case": case, "metric": metric, "value": value, "unit": unit})
    )


def slabs(n: int) -> list[Atoms]:
    """Adsorbate slabs of the size of OC20 systems (48 metal atoms), with made-up labels."""
    random, structures = np.random.default_rng(0), []
    for _ in range(n):
        atoms = fcc111("Cu", (4, 3, 4), vacuum=10.0)
        add_adsorbate(atoms, molecule("CH3OH"), 2.0, position=tuple(random.uniform(0, 6, 2)))
        atoms.info, atoms.pbc = {}, True
        layer = np.argsort(np.argsort(-atoms.positions[:48, 2])) // 12
        atoms.set_tags([*np.where(layer == 0, 1, 0), *[2] * (len(atoms) - 48)])
        atoms.rattle(0.05, rng=random)
        forces = random.normal(size=(len(atoms), 3))
        atoms.calc = SinglePointCalculator(atoms, energy=float(random.normal()), forces=forces)
        structures.append(atoms)
    return structures


def labelled(potential: Potential, structures: list[Atoms]) -> list[LabelledGraph]:
    """Graphs with labels, edges built now."""
    return [
        LabelledGraph(
            graph=potential.graph(atoms),
            energy=atoms.get_potential_energy(),
            forces=torch.tensor(atoms.get_forces()),
            stress=None,
            free=torch.ones(len(atoms), dtype=torch.bool),
            index=index,
        )
        for index, atoms in enumerate(structures)
    ]


def draw(potential: Potential, batch: LabelledBatch, mode: str) -> Frames:
    """The frames of a batch, of the rewired graph."""
    graph = batch.graph.keep_atoms(batch.graph.tags != 0) if potential.config.graph.rewiring != "none" else batch.graph
    generator = torch.Generator().manual_seed(0)
    return build_frames(graph, potential.config.frames, mode, vacuum=potential.cutoff, generator=generator)


def one_by_one(potential: Potential, batch: LabelledBatch, frames: Frames) -> Prediction:
    """Upstream style: a pass for each frame, averaged, with second derivatives kept."""
    per_graph = frames.n_frames // batch.graph.n_graphs
    parts = []
    for k in range(per_graph):
        rows = torch.arange(k, frames.n_frames, per_graph)
        single = Frames(
            rotation=frames.rotation[rows], graph=frames.graph[rows], weight=torch.ones_like(frames.weight[rows])
        )
        parts.append(
            potential.evaluate(
                batch.graph, properties=("energy", "forces"), frames=single, forces="both", create_graph=True
            )
        )
    names = ("energy", "forces", "direct_forces", "gradient_forces")
    means = {name: torch.stack([getattr(part, name) for part in parts]).mean(dim=0) for name in names}
    return dataclasses.replace(parts[0], **means)


def step_maker(
    potential: Potential, loss: Loss, structures: list[Atoms], mode: str, *, upstream: bool
) -> Callable[[], None]:
    """A function that does one training step."""
    optimizer = torch.optim.AdamW(potential.model.parameters(), lr=1e-4, fused=not upstream)
    stored = labelled(potential, structures)

    def step() -> None:
        batch = collate(labelled(potential, structures) if upstream else stored)
        frames = draw(potential, batch, mode)
        if upstream:
            prediction = one_by_one(potential, batch, frames)
        else:
            item = TrainBatch(labelled=batch, frames=frames)
            prediction = loss.predict(potential, item.labelled, item.frames)
        optimizer.zero_grad()
        loss.total(loss.terms(prediction, batch, loss.counts(batch))).backward()
        optimizer.step()

    return step


def main() -> None:
    """Time both sides in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--structures", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--preset", default="paper-s2ef")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    config = config_from_mapping({"model": {"preset": arguments.preset}})
    structures = slabs(arguments.structures)
    for mode, weight in itertools.product(("stochastic", "all"), (config.loss.conservation, 0.0)):
        settings = dataclasses.replace(config.loss, conservation=weight)
        sides = {}
        for name, split in (("ours", True), ("upstream style", False)):
            potential = build_potential(arguments.preset, split_filter=split).train().requires_grad_(True)
            loss = Loss(settings, potential.config.forces)
            sides[name] = step_maker(potential, loss, structures, mode, upstream=not split)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for repeat in range(arguments.repeats + 1):
            for name, step in sides.items():
                start = time.process_time()
                step()
                if repeat:  # the first is warm-up
                    times[name].append(time.process_time() - start)
        case = f"{arguments.preset}, {arguments.structures} slabs of {len(structures[0])} atoms, frames={mode}, "
        case += "with conservation term" if weight else "without conservation term"
        rates = {name: arguments.structures / float(np.median(values)) for name, values in times.items()}
        for name, rate in rates.items():
            row(case, f"samples per CPU second ({name})", rate, "1/s")
        row(case, "ratio", rates["ours"] / rates["upstream style"], "")


if __name__ == "__main__":
    main()
