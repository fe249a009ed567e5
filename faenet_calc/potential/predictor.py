"""Predictor: many graphs to predictions, under one memory budget, for one potential or a committee."""

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

import torch

from faenet_calc.errors import InputError
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.engine import Engine, engine_for
from faenet_calc.potential.capabilities import PROPERTIES, ForcesChoice, FramesChoice, Request
from faenet_calc.potential.committee import Committee
from faenet_calc.potential.fragments import frames_with_fragments
from faenet_calc.potential.modes import differentiable, prediction_mode
from faenet_calc.potential.net_force import balanced_forces
from faenet_calc.potential.network_pass import DEFAULT_BYTES, ENGINE_BYTES, bytes_per_edge_copy
from faenet_calc.potential.potential import Potential
from faenet_calc.potential.prediction import Prediction, committee_average

Graphs = AtomGraph | Sequence[AtomGraph]
"""One structure: its graph or, for a committee with several graph keys, one graph per key."""
BatchSize = int | Literal["auto"]

_SMALLEST_BUDGET = 1 << 20  # (bytes) a pass that runs out of memory with less has no smaller parts to offer
# Forces come at no extra cost with these, and an optimizer asks for them next.
_WITH_FORCES = {"stress", "forces_frame_std"}
_OF_COMMITTEES = {
    "energy_comm": "energy",
    "energy_var": "energy",
    "forces_comm": "forces",
    "forces_var": "forces",
    "stress_var": "stress",
}


class Predictor:
    """Predicts structures in batches.

    Args:
        potential: A potential or a committee.
        forces: "auto" (each potential's own kind), "gradient", "direct" or "both".
        frames: "auto" (each potential's own mode) or a mode.
        remove_net_force: Whether the net force (of molecules: and torque) is removed from direct forces; "auto" removes
            it unless the potential was trained on forces of free atoms only.
        seed: For stochastic frames; None draws one.
        memory_bytes: Memory budget of a batch (bytes); None for the default of the device. It is halved whenever a
            batch runs out of memory.

    Attributes:
        committee: The potentials.
        properties: Names of the available properties.
        kinds: Kind of forces of every potential.
        modes: Frame mode of every potential.
        generator: Source of stochastic frames.
        memory_bytes: The current budget.
    """

    def __init__(
        self,
        potential: Potential | Committee,
        *,
        forces: ForcesChoice = "auto",
        frames: FramesChoice = "auto",
        remove_net_force: Literal["auto"] | bool = False,
        seed: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self.committee = potential if isinstance(potential, Committee) else Committee([potential])
        self.forces, self.frames = forces, frames
        members = self.committee.members
        self.kinds = tuple(member.capabilities.kind(forces) for member in members)
        self.modes = tuple(member.capabilities.mode(frames) for member in members)
        self.remove_net_force = remove_net_force
        self._requests: dict[frozenset[str], list[Request]] = {}
        self._missing: dict[str, str] = {}
        for member, kind in zip(members, self.kinds, strict=True):
            self._missing |= member.capabilities.missing("auto" if kind == "none" else kind, frames)
        if len(members) > 1:
            self._missing["atom_features"] = "members of a committee have different features"
        offered = (*PROPERTIES, *_OF_COMMITTEES) if len(members) > 1 else PROPERTIES
        self.properties = tuple(name for name in offered if _OF_COMMITTEES.get(name, name) not in self._missing)
        self.memory_bytes = memory_bytes or DEFAULT_BYTES[members[0].device.type]
        self.generator = torch.Generator()
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    def with_frames(self, frames: FramesChoice) -> "Predictor":
        """A predictor of the same potentials and settings with other frames."""
        return Predictor(
            self.committee,
            forces=self.forces,
            frames=frames,
            remove_net_force=self.remove_net_force,
            seed=self.generator.initial_seed(),
            memory_bytes=self.memory_bytes,
        )

    def why_not(self, name: str) -> str:
        """The reason why a property is not available."""
        if name in _OF_COMMITTEES and len(self.committee.members) == 1:
            return "it needs a committee; give a list or glob of checkpoints"
        close = difflib.get_close_matches(name, self.properties, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        return self._missing.get(_OF_COMMITTEES.get(name, name), f"{hint}known are {', '.join(self.properties)}")

    def predict(
        self, structures: Iterable[Graphs], properties: Collection[str], *, batch_size: BatchSize = "auto"
    ) -> Iterator[Prediction]:
        """Predict every structure, in order; each prediction is a batch of one.

        Args:
            structures: Graphs, read as they are needed.
            properties: Names from :attr:`properties`.
            batch_size: Structures per batch; "auto" fills the memory budget.
        """
        for batch in self.predict_batches(structures, properties, batch_size=batch_size):
            yield from batch.split()

    def predict_batches(
        self, structures: Iterable[Graphs], properties: Collection[str], *, batch_size: BatchSize = "auto"
    ) -> Iterator[Prediction]:
        """Predict every structure, in order, as the batches in which they were computed."""
        if batch_size != "auto" and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
            raise InputError(f"{batch_size=}, expected 'auto' or a number of structures of at least 1")
        for batch in self._batches(structures, properties, batch_size):
            yield from self._predict_within_budget(batch, properties)

    def predict_one(self, structure: Graphs, properties: Collection[str]) -> Prediction:
        """Predict one structure."""
        graphs = (structure,) if isinstance(structure, AtomGraph) else tuple(structure)
        (prediction,) = self._predict_within_budget([graphs], properties)
        return prediction

    def _predict_within_budget(
        self, batch: list[tuple[AtomGraph, ...]], properties: Collection[str]
    ) -> list[Prediction]:
        """Predict a batch; out of memory, halve the budget and predict the halves of the batch."""
        try:
            return [self._predict_batch(batch, frozenset(properties))]
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not _out_of_memory(error) or (len(batch) == 1 and self.memory_bytes < _SMALLEST_BUDGET):
                raise
        self.memory_bytes //= 2
        if self.committee.members[0].device.type == "cuda":
            torch.cuda.empty_cache()
        middle = (len(batch) + 1) // 2
        halves = [half for half in (batch[:middle], batch[middle:]) if half]
        return [part for half in halves for part in self._predict_within_budget(half, properties)]

    def _predict_batch(self, batch: list[tuple[AtomGraph, ...]], properties: frozenset[str]) -> Prediction:
        if properties not in self._requests:
            self._requests[properties] = self._resolve(properties)
        predictions = []
        for number, (member, request) in enumerate(
            zip(self.committee.members, self._requests[properties], strict=True)
        ):
            key = self.committee.graph_of_member[number]
            graph = AtomGraph.batch([graphs[key] for graphs in batch])
            with prediction_mode(member.device):
                found = member.run(
                    differentiable(graph), request, generator=self.generator, memory_bytes=self.memory_bytes
                )
            if found.forces is not None and self.kinds[number] == "direct" and self._balances(member):
                found = dataclasses.replace(found, forces=balanced_forces(found.forces, graph))
            predictions.append(found)
        return committee_average(predictions)

    def _resolve(self, properties: frozenset[str]) -> list[Request]:
        """The request to every member; energy always comes along, and forces where they cost nothing."""
        wanted = {"energy"} | {_OF_COMMITTEES.get(name, name) for name in properties}
        if wanted & _WITH_FORCES:
            wanted.add("forces")
        return [
            member.capabilities.request(wanted, "auto" if kind == "none" else kind, self.frames)
            for member, kind in zip(self.committee.members, self.kinds, strict=True)
        ]

    def _balances(self, member: Potential) -> bool:
        if self.remove_net_force == "auto":
            return not member.config.forces_on_free_atoms_only
        return self.remove_net_force

    def _batches(
        self, structures: Iterable[Graphs], properties: Collection[str], batch_size: BatchSize
    ) -> Iterator[list[tuple[AtomGraph, ...]]]:
        """Group consecutive structures within the budget, at least one at a time."""
        batch: list[tuple[AtomGraph, ...]] = []
        filled = 0
        for structure in structures:
            graphs = (structure,) if isinstance(structure, AtomGraph) else tuple(structure)
            if batch_size == "auto":
                cost, limit = self.memory_of(graphs, properties), self.memory_bytes
            else:
                cost, limit = 1, batch_size
            if batch and filled + cost > limit:
                yield batch
                batch, filled = [], 0
            batch.append(graphs)
            filled += cost
        if batch:
            yield batch

    def memory_of(self, graphs: tuple[AtomGraph, ...], properties: Collection[str]) -> int:
        """Estimate the memory (bytes) that predicting a structure takes in all frames, for the first potential."""
        graph, member, mode = graphs[0], self.committee.members[0], self.modes[0]
        n_copies = graph.n_edges + graph.n_atoms
        if mode not in ("one", "stochastic"):
            with torch.no_grad():
                frames = frames_with_fragments(member.config, graph, mode)
            n_copies = int(frames.edges_per_frame(graph).sum()) + graph.n_atoms * frames.n_frames
        compiled = (
            isinstance(engine_for(member.model), Engine) and "forces_uncertainty" not in properties
        )  # which needs autograd
        per_copy = ENGINE_BYTES if compiled else bytes_per_edge_copy(member.config.model, member.dtype, gradient=True)
        return n_copies * per_copy


def _out_of_memory(error: Exception) -> bool:
    """Whether an exception of torch says that memory ran out; on a CPU it is a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)
