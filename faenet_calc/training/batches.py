"""Which structures form a step, and the batches made of them.

Batches are drawn by strata of size: with n batches, the n largest structures go to different batches, then the next n,
and so on, each stratum in random order. Batches are then random and of nearly equal cost. Everything random follows
from (seed, epoch, structure), so it depends neither on the number of processes nor on where a run was interrupted.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from faenet_calc.data.dataset import GraphDataset, LabelledBatch, LabelledGraph, collate
from faenet_calc.frames.config import FrameMode
from faenet_calc.frames.frames import Frames, build_frames
from faenet_calc.potential.config import PotentialConfig

Indices = NDArray[np.int64]
REPLAY_OFFSET = 1 << 40  # on the index of replayed structures, so that their frames are their own


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainBatch:
    """Labelled structures and the frames in which they are seen.

    Attributes:
        labelled: The structures.
        frames: Built before, or a mode.
    """

    labelled: LabelledBatch
    frames: Frames | FrameMode

    def to(self, device: torch.device) -> "TrainBatch":
        """The same batch on a device."""
        if device.type == "cpu":
            return self
        frames = self.frames
        if isinstance(frames, Frames):
            frames = Frames(
                rotation=frames.rotation.to(device), graph=frames.graph.to(device), weight=frames.weight.to(device)
            )
        return TrainBatch(labelled=self.labelled.to(device), frames=frames)


def epoch_batches(
    costs: Sequence[float] | NDArray[np.generic], batch_size: int, *, seed: int, epoch: int
) -> list[Indices]:
    """The batches of an epoch: every structure once, random, of nearly equal cost.

    Args:
        costs: [n_structures] e.g. numbers of edges.
        batch_size: Structures per batch; batches differ by at most one.
        seed: Of the run.
        epoch: Number of the pass.
    """
    random = np.random.default_rng([seed, epoch])
    n = len(costs)
    n_batches = max(1, -(-n // batch_size))
    order = np.argsort(-np.asarray(costs, dtype=float), kind="stable")
    members: list[list[int]] = [[] for _ in range(n_batches)]
    for start in range(0, n, n_batches):
        stratum = random.permutation(order[start : start + n_batches])
        for batch, structure in zip(random.permutation(n_batches), stratum, strict=False):
            members[batch].append(int(structure))
    return [np.array(batch, dtype=np.int64) for batch in members if batch]


def shares(batch: Indices, costs: NDArray[np.generic], n_parts: int) -> list[Indices]:
    """A batch divided into parts of nearly equal cost: the costliest structure goes to the cheapest part."""
    if n_parts == 1:
        return [batch]
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    load = np.zeros(n_parts)
    for structure in sorted(batch.tolist(), key=lambda index: (-float(costs[index]), index)):
        # An empty part comes first: every process needs something to do.
        lightest = min(range(n_parts), key=lambda part: (bool(parts[part]), load[part]))
        parts[lightest].append(structure)
        load[lightest] += float(costs[structure])
    return [np.array(part, dtype=np.int64) for part in parts]


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """Old data that is mixed into every batch of a fine-tuning.

    Attributes:
        dataset: Of the data that the model was trained on.
        share: Of a batch.
        references: [119] (eV) change of the element references, which the old labels follow.
    """

    dataset: GraphDataset
    share: float
    references: NDArray[np.float64]

    def draw(self, n_new: int, seed: Sequence[int]) -> list[LabelledGraph]:
        """Random old structures for a batch of ``n_new`` new ones, in terms of the new references."""
        n_old = max(1, round(n_new * self.share / (1 - self.share)))
        chosen = np.random.default_rng(list(seed)).choice(
            len(self.dataset), min(n_old, len(self.dataset)), replace=False
        )
        items = [self.dataset[int(index)] for index in chosen]
        return [
            dataclasses.replace(
                item,
                index=item.index + REPLAY_OFFSET,
                energy=None
                if item.energy is None
                else item.energy + float(self.references[item.graph.atomic_numbers.numpy()].sum()),
            )
            for item in items
        ]


class BatchMaker:
    """Makes training batches: structures from the data set, with their random frames.

    Args:
        dataset: The structures.
        config: Of the potential, for its frames.
        mode: Frames of training.
        seed: Of the run.
        replay: Old data to mix in.
    """

    def __init__(
        self,
        dataset: GraphDataset,
        config: PotentialConfig,
        mode: FrameMode,
        seed: int,
        replay: Replay | None = None,
    ) -> None:
        self.dataset, self.config, self.mode, self.seed, self.replay = dataset, config, mode, seed, replay

    def make(self, indices: Indices, epoch: int) -> TrainBatch:
        """The batch of some structures in an epoch."""
        items = [self.dataset[int(index)] for index in indices]
        if self.replay is not None:
            items += self.replay.draw(len(items), [self.seed, epoch, int(indices[0])])
        if self.mode != "stochastic":
            return TrainBatch(labelled=collate(items), frames=self.mode)
        drawn = [self._draw(item, epoch) for item in items]
        frames = Frames(
            rotation=torch.cat([frame.rotation for frame in drawn]),
            graph=torch.arange(len(items)),
            weight=torch.ones(len(items), dtype=drawn[0].weight.dtype),
        )
        return TrainBatch(labelled=collate(items), frames=frames)

    def _draw(self, item: LabelledGraph, epoch: int) -> Frames:
        """One random frame of one structure; another one in every epoch."""
        graph = item.graph
        if self.config.graph.rewiring != "none":
            graph = graph.keep_atoms(graph.tags != 0)
        seed = np.random.SeedSequence([self.seed, epoch, item.index]).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(seed >> np.uint64(1)))
        return build_frames(
            graph, self.config.frames, "stochastic", vacuum=self.config.model.cutoff, generator=generator
        )
