"""Random batches of nearly equal cost, with the frames of each structure.

Structures are sorted by size and divided into strata of as many structures as there are batches; each stratum is dealt
to the batches in random order. Random numbers depend on (seed, epoch, structure) only, hence neither on the number of
processes nor on where a run was interrupted.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from faenet_calc.data.dataset import GraphDataset, LabelledBatch, LabelledGraph, collate
from faenet_calc.frames.config import FrameMode
from faenet_calc.frames.frames import Frames, build_frames
from faenet_calc.potential.config import PotentialConfig

Indices = NDArray[np.int64]
Batch = TypeVar("Batch")
Made = TypeVar("Made")
AHEAD = 2  # batches that are built while earlier ones are used
REPLAY_OFFSET = 1 << 40  # added to the index of replayed structures, so that their random frames are independent


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainBatch:
    """Labelled structures and their frames.

    Attributes:
        labelled: The structures.
        frames: Frames, or a mode for frames that are built in the forward pass.
    """

    labelled: LabelledBatch
    frames: Frames | FrameMode

    def to(self, device: torch.device) -> "TrainBatch":
        """Move the batch to a device."""
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
    """Divide all structures into random batches of nearly equal cost.

    Args:
        costs: [n_structures] cost of each structure, e.g. its number of edges.
        batch_size: Structures per batch; batch sizes differ by at most one.
        seed: Random seed of the run.
        epoch: Index of the epoch.
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
    """Divide a batch into parts of nearly equal cost: the costliest structures first, each to the cheapest part."""
    if n_parts == 1:
        return [batch]
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    load = np.zeros(n_parts)
    for structure in sorted(batch.tolist(), key=lambda index: (-float(costs[index]), index)):
        # Empty parts first: every process needs at least one structure.
        lightest = min(range(n_parts), key=lambda part: (bool(parts[part]), load[part]))
        parts[lightest].append(structure)
        load[lightest] += float(costs[structure])
    return [np.array(part, dtype=np.int64) for part in parts]


def made_ahead(make: Callable[[Batch], Made], batches: Iterable[Batch], n_ahead: int = AHEAD) -> Iterator[Made]:
    """Yield ``make(batch)`` for each batch, in order; the next ``n_ahead`` are made in another thread meanwhile.

    An error is raised where its batch would have been yielded. What was begun is finished before this ends.
    """
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as thread:
        try:
            for batch in batches:
                waiting.append(thread.submit(make, batch))
                if len(waiting) > n_ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            thread.shutdown(cancel_futures=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """Earlier training data that is mixed into every batch during fine-tuning.

    Attributes:
        dataset: Data that the model was trained on.
        share: Fraction of a batch.
        references: [119] (eV) change of the element references, which is applied to the energies; None leaves out the
            energies.
    """

    dataset: GraphDataset
    share: float
    references: NDArray[np.float64] | None

    def draw(self, n_new: int, seed: Sequence[int]) -> list[LabelledGraph]:
        """Draw random old structures for a batch of ``n_new`` new ones; their energies follow the new references."""
        n_old = max(1, round(n_new * self.share / (1 - self.share)))
        chosen = np.random.default_rng(list(seed)).choice(
            len(self.dataset), min(n_old, len(self.dataset)), replace=False
        )
        items = [self.dataset[int(index)] for index in chosen]
        return [
            dataclasses.replace(item, index=item.index + REPLAY_OFFSET, energy=self._energy(item)) for item in items
        ]

    def _energy(self, item: LabelledGraph) -> float | None:
        """Energy (eV) with the new references, or None."""
        if item.energy is None or self.references is None:
            return None
        return item.energy + float(self.references[item.graph.atomic_numbers.numpy()].sum())


class BatchMaker:
    """Builds training batches: structures from the data set, with their random frames.

    Args:
        dataset: The structures.
        config: Settings of the potential.
        mode: Frame mode of training.
        seed: Random seed of the run.
        replay: Earlier data to mix in.
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

    def make(self, indices: Indices, epoch: int, copies: Indices | None = None) -> TrainBatch:
        """Build the batch of the given structures in an epoch; ``copies`` tells apart those drawn several times."""
        items = [self.dataset[int(index)] for index in indices]
        copy_of_first = 0 if copies is None else int(copies[0])
        if self.replay is not None:
            items += self.replay.draw(len(items), self._key(epoch, int(indices[0]), copy_of_first))
        if self.mode != "stochastic":
            return TrainBatch(labelled=collate(items), frames=self.mode)
        numbers = [copy_of_first] * len(items)
        if copies is not None:
            numbers[: len(copies)] = copies.tolist()
        drawn = [self._draw(item, epoch, copy) for item, copy in zip(items, numbers, strict=True)]
        frames = Frames(
            rotation=torch.cat([frame.rotation for frame in drawn]),
            graph=torch.arange(len(items)),
            weight=torch.ones(len(items), dtype=drawn[0].weight.dtype),
        )
        return TrainBatch(labelled=collate(items), frames=frames)

    def _key(self, epoch: int, index: int, copy: int) -> list[int]:
        """Seed that is different for every structure, epoch and copy."""
        return [self.seed, epoch, index, copy] if copy else [self.seed, epoch, index]

    def _draw(self, item: LabelledGraph, epoch: int, copy: int) -> Frames:
        """Draw one random frame of a structure; a different one in every epoch and for every copy."""
        graph = item.graph
        if self.config.graph.rewiring != "none":
            graph = graph.keep_atoms(graph.tags != 0)
        seed = np.random.SeedSequence(self._key(epoch, item.index, copy)).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(seed >> np.uint64(1)))
        return build_frames(
            graph, self.config.frames, "stochastic", vacuum=self.config.model.cutoff, generator=generator
        )
