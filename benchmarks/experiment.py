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
from matplotlib.axes import Axes
from peers.schnet import SchNetPotential, SchNetSize
from rows import Row, Rows, rounded

from faenet_calc.data.dataset import GraphDataset
from faenet_calc.frames.config import FrameMode
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.predictor import Predictor
from faenet_calc.reports.plots import COLORS
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
    """A training run of any network that keeps its best weights in memory instead of a checkpoint.

    On a CPU, a time limit counts the CPU time of all threads, so that other load does not shorten a run.

    Args:
        config: Settings.
        peer: Builds the potential that replaces FAENet from the prepared data; None for FAENet.
        progress: Report progress.
    """

    def __init__(
        self, config: TrainConfig, *, peer: Callable[[Prepared], Potential] | None = None, progress: bool = False
    ) -> None:
        self.peer, self.best_weights = peer, {}
        ranks = Ranks()
        device = training_device(config.run.device, ranks)
        if device.type == "cpu":
            self.clock = time.process_time
        super().__init__(checked(config), device, ranks, progress=progress)

    def prepare(self, config: TrainConfig, **reading: Any) -> Prepared:
        """Prepare the data, and the peer in place of FAENet."""
        prepared = super().prepare(config, **reading)
        if self.peer is None:
            return prepared
        return dataclasses.replace(prepared, potential=self.peer(prepared).to(self.device))

    def save_best(self, evaluated: Potential, found: Assessment) -> None:
        """Keep the weights."""
        self.best_weights = copy.deepcopy(evaluated.model.state_dict())

    def add_uncertainty(self) -> None:
        """Benchmarks compare errors only."""

    def best(self) -> Potential:
        """Return the potential with the best weights, ready to predict."""
        self.potential.model.load_state_dict(self.best_weights)
        return self.potential.eval().requires_grad_(False)


def schnet_like(prepared: Prepared, size: SchNetSize | None = None) -> SchNetPotential:
    """Build SchNet with the cutoff and normalization of the prepared FAENet, by default with its width and depth."""
    ours = prepared.potential.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(prepared.config.run.seed)
        potential = SchNetPotential(
            size
            or SchNetSize(
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
        run.loop(run.clock(), None)
        spent = time.process_time() - began
    return Trained(potential=run.best(), prepared=run.prepared, cpu_s=spent, steps=run.state.step)


def untrained(network: Network, settings: Iterable[str]) -> Trained:
    """Build a network as :func:`fit` does, with its random weights."""
    with tempfile.TemporaryDirectory() as folder:
        run = _start(network, settings, folder)
    return Trained(potential=run.potential.eval().requires_grad_(False), prepared=run.prepared, cpu_s=0.0, steps=0)


def _start(network: Network, settings: Iterable[str], folder: str) -> NetworkRun:
    changes = [*QUIET, *network.settings, *settings, f"run.out_dir={folder}"]
    return NetworkRun(read_config("", changes), peer=schnet_like if network.schnet else None)


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


def bars(
    axes: Axes, values: Mapping[str, Sequence[float]], label: str, *, names: bool = True, color: str | None = None
) -> None:
    """Draw a horizontal bar per case: its mean over seeds, and a point per seed.

    Args:
        axes: Where to draw.
        values: Case → values of its seeds.
        label: Of the axis of values.
        names: Whether to write the cases beside the bars.
        color: Of all bars; None for one color each.
    """
    for place, (case, found) in enumerate(values.items()):
        paint = color or COLORS[place % len(COLORS)]
        axes.barh(place, sum(found) / len(found), color=paint, alpha=0.5, label=case)
        axes.plot(found, [place] * len(found), "o", color=paint, markersize=4)
    axes.set_yticks(range(len(values)), list(values) if names else [""] * len(values))
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.set_xlabel(label)
