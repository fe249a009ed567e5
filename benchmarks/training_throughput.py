"""Training throughput against upstream-style training of the same network.

    python benchmarks/training_throughput.py [--structures 96] [--repeats 3] [--frames stochastic all] [-o FILE]

Both sides train the paper's S2EF network from the same weights on the same adsorbate slabs, with one CPU thread each.
They run in two processes, because memory management is one of the differences, and take steps in turns; CPU time
counts. ``upstream_style.py`` describes the other side. Before timing, the energies and forces of both sides are
compared, and the benchmark stops if they differ.

The loss of the S2EF recipe has energies, direct forces and the conservation term (direct force against -dE/dx as a
constant), with stochastic frames. The loss without that term is timed as well; upstream computes -dE/dx in either case.
Rows are JSON with the keys benchmark, case, metric, value and unit.
"""

import argparse
import copy
import dataclasses
import itertools
import json
import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import upstream_style
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from torch.nn.functional import l1_loss

from faenet_calc.data.dataset import LabelledGraph
from faenet_calc.memory import keep_freed_memory
from faenet_calc.potential.potential import Potential, build_potential
from faenet_calc.training.batches import BatchMaker
from faenet_calc.training.config import LossConfig
from faenet_calc.training.config_file import config_from_mapping
from faenet_calc.training.loss import Loss

PRESET = "paper-s2ef"
SIDES = ("ours", "upstream style")
Step = Callable[[], None]


def slabs(n: int) -> list[Atoms]:
    """Adsorbate slabs of the size of OC20 systems (48 metal atoms) with artificial labels."""
    draw, structures = np.random.default_rng(0), []
    for _ in range(n):
        atoms = fcc111("Cu", (4, 3, 4), vacuum=10.0)
        add_adsorbate(atoms, molecule("CH3OH"), 2.0, position=tuple(draw.uniform(0, 6, 2)))
        atoms.info, atoms.pbc = {}, True
        layer = np.argsort(np.argsort(-atoms.positions[:48, 2])) // 12
        atoms.set_tags([*np.where(layer == 0, 1, 0), *[2] * (len(atoms) - 48)])
        atoms.rattle(0.05, rng=draw)
        forces = draw.normal(size=(len(atoms), 3))
        atoms.calc = SinglePointCalculator(atoms, energy=float(draw.normal()), forces=forces)
        structures.append(atoms)
    return structures


def labelled(potential: Potential, structures: list[Atoms]) -> list[LabelledGraph]:
    """Graphs with labels as stored in the cache of a run; only atoms kept by the network count as free."""
    return [
        LabelledGraph(
            graph=potential.graph(atoms),
            energy=atoms.get_potential_energy(),
            forces=torch.tensor(atoms.get_forces()),
            stress=None,
            free=torch.tensor(atoms.get_tags() != 0),
            index=index,
        )
        for index, atoms in enumerate(structures)
    ]


def our_step(potential: Potential, structures: list[Atoms], mode: str, settings: LossConfig) -> Step:
    """Step as in ``training/loop.py``: cached graphs, one pass for all frames."""
    potential.train().requires_grad_(True)
    parameters = list(potential.model.parameters())
    loss, optimizer = Loss(settings, potential.config.forces), torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    maker = BatchMaker(labelled(potential, structures), potential.config, mode, seed=0)  # type: ignore[arg-type]
    indices, epochs = np.arange(len(structures)), itertools.count()

    def step() -> None:
        batch = maker.make(indices, next(epochs))
        prediction = loss.predict(potential, batch.labelled, batch.frames)
        optimizer.zero_grad(set_to_none=True)
        loss.total(loss.terms(prediction, batch.labelled, loss.counts(batch.labelled))).backward()
        torch.nn.utils.clip_grad_norm_(parameters, np.inf)
        optimizer.step()

    return step


def upstream_step(potential: Potential, structures: list[Atoms], mode: str, settings: LossConfig) -> Step:
    """Step in the style of upstream, see ``upstream_style.py``."""
    random.seed(0)
    cutoff, max_neighbors = potential.cutoff, potential.config.graph.max_neighbors
    model = upstream_style.UpstreamStyle(potential.model).train().requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        batch = upstream_style.collate(
            [upstream_style.sample(atoms, cutoff, max_neighbors, mode) for atoms in structures]
        )
        energy, forces, target = model(batch)
        loss = settings.energy * l1_loss(energy, batch.y) + settings.forces * l1_loss(forces, batch.force)
        if settings.conservation:
            loss = loss + settings.conservation * l1_loss(forces, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def compare(potential: Potential, other: Potential, atoms: Atoms) -> float:
    """Largest relative difference in energy, direct and gradient forces between the two sides."""
    ours = potential.evaluate(potential.graph(atoms), frames="all", forces="both")
    sample = upstream_style.sample(atoms, potential.cutoff, potential.config.graph.max_neighbors, "all")
    model = upstream_style.UpstreamStyle(copy.deepcopy(other.model)).eval()
    theirs = model(upstream_style.collate([sample]))
    kept = torch.tensor(atoms.get_tags() != 0)
    assert ours.direct_forces is not None and ours.gradient_forces is not None
    pairs = zip((ours.energy, ours.direct_forces[kept], ours.gradient_forces[kept]), theirs, strict=True)
    return max(float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs)


def serve(connection: Connection, side: str, n: int, mode: str, settings: LossConfig) -> None:
    """Process that takes a step on request and returns its CPU time (s)."""
    torch.set_num_threads(1)
    if side == "ours":
        keep_freed_memory()
    step = (our_step if side == "ours" else upstream_step)(build_potential(PRESET), slabs(n), mode, settings)
    while connection.recv():
        start = time.process_time()
        step()
        connection.send(time.process_time() - start)


def rates(n: int, mode: str, settings: LossConfig, repeats: int) -> dict[str, float]:
    """Side → samples per CPU second, from the median of steps taken in turns."""
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for side in SIDES:
        ends[side], other = context.Pipe()
        context.Process(target=serve, args=(other, side, n, mode, settings), daemon=True).start()
    for repeat, (side, end) in itertools.product(range(repeats + 1), ends.items()):
        end.send(True)
        seconds = end.recv()
        if repeat:  # the first is warm-up
            times[side].append(seconds)
    for end in ends.values():
        end.send(False)
    return {side: n / float(np.median(values)) for side, values in times.items()}


def main() -> None:
    """Compare the two sides, then time them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--structures", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--frames", nargs="+", choices=["stochastic", "all"], default=["stochastic", "all"])
    parser.add_argument("-o", "--output", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []

    def row(case: str, metric: str, value: float, unit: str) -> None:
        rows.append({"benchmark": "training_throughput", "case": case, "metric": metric, "value": value, "unit": unit})
        print(json.dumps(rows[-1]), flush=True)

    structures = slabs(arguments.structures)
    difference = compare(build_potential(PRESET), build_potential(PRESET), structures[0])
    row(PRESET, "largest relative difference between the sides, float32", difference, "")
    if not difference < 1e-4:
        raise SystemExit(f"the two sides differ by {difference}; they are not the same network")
    recipe = config_from_mapping({"model": {"preset": PRESET}}).loss
    for mode, weight in itertools.product(arguments.frames, (recipe.conservation, 0.0)):
        settings = dataclasses.replace(recipe, conservation=weight)
        case = f"{PRESET}, {arguments.structures} slabs of {len(structures[0])} atoms, frames={mode}, "
        case += "with conservation term" if weight else "without conservation term"
        case += " (the recipe's own)" if settings == recipe and mode == "stochastic" else ""
        found = rates(arguments.structures, mode, settings, arguments.repeats)
        for side, rate in found.items():
            row(case, f"samples per CPU second ({side})", rate, "1/s")
        row(case, "ratio", found["ours"] / found["upstream style"], "")
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
