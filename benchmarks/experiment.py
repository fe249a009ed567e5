"""Train any network with the training loop of the package, and store the errors of every seed.

The rows of a benchmark have one line per metric and seed; :mod:`tables` shows their means and standard deviations. A
run that was interrupted continues with the seeds that are missing.
"""

import copy
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peers.schnet import SchNetPotential, SchNetSize
from rows import Row, Rows, rounded

from faenet_calc.data.dataset import GraphDataset
from faenet_calc.frames.config import FrameMode
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.predictor import Predictor
from faenet_calc.settings import checked
from faenet_calc.training.assessment import Assessment
from faenet_calc.training.batches import Indices
from faenet_calc.training.config import TrainConfig
from faenet_calc.training.config_file import read_config
from faenet_calc.training.distributed import Ranks, training_device
from faenet_calc.training.loop import Run
from faenet_calc.training.preparation import Prepared

QUIET = ("run.tensorboard=false", "run.report=false")
Measured = Mapping[str, tuple[float, str]]  # metric → value and unit


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network and its settings.

    Attributes:
        settings: Settings of the training run, as for ``faenet-calc train --set``.
        schnet: PyG's SchNet in the size of these settings replaces FAENet.
    """

    settings: tuple[str, ...]
    schnet: bool = False


class NetworkRun(Run):
    """A training run of FAENet or SchNet that keeps its best weights in memory instead of a checkpoint.

    Args:
        config: Settings.
        schnet: Train SchNet.
    """

    def __init__(self, config: TrainConfig, *, schnet: bool) -> None:
        self.schnet, self.best_weights = schnet, {}
        ranks = Ranks()
        super().__init__(checked(config), training_device(config.run.device, ranks), ranks)

    def prepare(self, config: TrainConfig, **reading: Any) -> Prepared:
        """Prepare the data, and SchNet in place of FAENet."""
        prepared = super().prepare(config, **reading)
        if not self.schnet:
            return prepared
        return dataclasses.replace(prepared, potential=schnet_like(prepared).to(self.device))

    def save_best(self, evaluated: Potential, found: Assessment) -> None:
        """Keep the weights."""
        self.best_weights = copy.deepcopy(evaluated.model.state_dict())

    def add_uncertainty(self) -> None:
        """Benchmarks compare errors only."""

    def best(self) -> Potential:
        """Return the potential with the best weights, ready to predict."""
        self.potential.model.load_state_dict(self.best_weights)
        return self.potential.eval().requires_grad_(False)


def schnet_like(prepared: Prepared) -> SchNetPotential:
    """Build SchNet with the width, depth, cutoff and normalization of the prepared FAENet."""
    ours = prepared.potential.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(prepared.config.run.seed)
        potential = SchNetPotential(
            SchNetSize(
                hidden_channels=ours.model.hidden_channels,
                num_filters=ours.model.filters,
                num_interactions=ours.model.interactions,
                num_gaussians=ours.model.gaussians,
            ),
            cutoff=ours.model.cutoff,
            normalization=ours.normalization,
            energy=ours.energy,
            trained_elements=ours.trained_elements,
        )
    return potential.train().requires_grad_(True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Result of a training run.

    Attributes:
        potential: With the best weights.
        prepared: Data and settings.
        cpu_s: CPU time of training and validation (s).
        steps: Number of optimizer steps.
    """

    potential: Potential
    prepared: Prepared
    cpu_s: float
    steps: int


def fit(network: Network, settings: Iterable[str]) -> Trained:
    """Train a network.

    Args:
        network: The network.
        settings: Data, duration and seed; they take precedence over those of the network.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = _start(network, settings, folder)
        began = time.process_time()
        run.loop(time.monotonic(), None)
        spent = time.process_time() - began
    return Trained(potential=run.best(), prepared=run.prepared, cpu_s=spent, steps=run.state.step)


def untrained(network: Network, settings: Iterable[str]) -> Trained:
    """Build a network as :func:`fit` does, with its random weights."""
    with tempfile.TemporaryDirectory() as folder:
        run = _start(network, settings, folder)
    return Trained(potential=run.potential.eval().requires_grad_(False), prepared=run.prepared, cpu_s=0.0, steps=0)


def _start(network: Network, settings: Iterable[str], folder: str) -> NetworkRun:
    changes = [*QUIET, *network.settings, *settings, f"run.out_dir={folder}"]
    return NetworkRun(read_config("", changes), schnet=network.schnet)


def measure(rows: Rows, words: Row, seeds: Sequence[int], once: Callable[[int], Measured]) -> None:
    """Append the rows of all seeds that are missing.

    Args:
        rows: Rows of the benchmark.
        words: Keys ``benchmark`` and ``case``, and optionally ``table``.
        seeds: Random seeds.
        once: Seed → metrics.
    """
    done = {row["seed"] for row in rows.rows if "seed" in row and all(row.get(key) == words[key] for key in words)}
    for seed in seeds:
        if seed not in done:
            found = once(seed)
            rows.extend(
                words | {"metric": metric, "value": rounded(float(value), 6), "unit": unit, "seed": seed}
                for metric, (value, unit) in found.items()
            )


def mean_of(rows: Iterable[Row], **words: Any) -> float:
    """Mean over seeds of the rows with these words.

    Raises:
        KeyError: There is no such row.
    """
    values = [row["value"] for row in rows if all(row.get(key) == word for key, word in words.items())]
    if not values:
        raise KeyError(words)
    return sum(values) / len(values)


def throughput(potential: Potential, dataset: GraphDataset, indices: Indices, frames: FrameMode) -> float:
    """Structures per second of CPU time, energies and forces if the potential has them, in batches.

    Reading and building graphs is not counted.
    """
    graphs = [dataset[int(index)].graph.to(device=potential.device) for index in indices]
    predictor = Predictor(potential, frames=frames, seed=0)
    wanted = [name for name in ("energy", "forces") if name in predictor.properties and dataset.n_labels.get(name)]
    began = time.process_time()
    n_predicted = sum(1 for _ in predictor.predict(iter(graphs), wanted))
    return n_predicted / (time.process_time() - began)
