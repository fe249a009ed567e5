"""Many structures at once, in batches of a fixed amount of work."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal

import torch

from faenet_calc import elements
from faenet_calc.calculator.answer_checks import check_finite, check_volume
from faenet_calc.calculator.graph_source import GraphSource
from faenet_calc.errors import InputError
from faenet_calc.frames.frames import build_frames
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.potential.committee import Committee, GraphKey
from faenet_calc.progress import progress_bar

Graphs = dict[GraphKey, AtomGraph]
BatchSize = int | Literal["auto"]

# Edges × frames in an automatic batch, at about 9 kB each with forces of modern-s. A CPU is no faster with more.
EDGE_COPIES = {"cpu": 20_000, "cuda": 200_000, "mps": 100_000}


def predict_all(
    source: GraphSource,
    structures: Collection[Any],
    properties: Collection[str],
    *,
    batch_size: BatchSize,
    finite: bool,
    progress: bool,
) -> list[dict[str, Any]]:
    """Results of every structure, in order; errors name the index of the structure.

    Args:
        source: Of graphs, with its committee.
        structures: What :func:`faenet_calc.graphs.convert.to_graph` takes.
        properties: From the committee's.
        batch_size: Structures in a batch; "auto" fills batches up to :data:`EDGE_COPIES` edges × frames.
        finite: Raise for NaN and infinity.
        progress: Show a progress bar.
    """
    if batch_size != "auto" and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise InputError(f"{batch_size=}, expected 'auto' or a number of structures of at least 1")
    results: list[dict[str, Any]] = []
    with progress_bar(shown=progress, total=len(structures), unit="structure") as bar:
        for batch in _batches(_read(source, structures, properties), source.committee, batch_size):
            merged = {key: AtomGraph.batch([graphs[key] for graphs in batch]) for key in batch[0]}
            for graphs, answer in zip(batch, source.committee.evaluate(merged, properties), strict=True):
                if finite:
                    numbers = next(iter(graphs.values())).atomic_numbers.tolist()
                    check_finite(answer, [elements.symbol(z) for z in numbers], f"structure {len(results)}: ")
                results.append(answer)
            bar.update(len(batch))
    return results


def _read(source: GraphSource, structures: Iterable[Any], properties: Collection[str]) -> Iterator[Graphs]:
    for index, structure in enumerate(structures):
        try:
            graphs = source.graphs(structure, reuse=False)
        except InputError as error:
            raise InputError(f"structure {index}: {error}") from error
        check_volume(next(iter(graphs.values())), properties, f"structure {index}: ")
        yield graphs


def _batches(items: Iterable[Graphs], committee: Committee, batch_size: BatchSize) -> Iterator[list[Graphs]]:
    """Consecutive items within the limit of a batch, at least one at a time."""
    batch: list[Graphs] = []
    total, limit = 0, EDGE_COPIES[committee.members[0].device.type] if batch_size == "auto" else batch_size
    for graphs in items:
        cost = _edge_copies(graphs, committee) if batch_size == "auto" else 1
        if batch and total + cost > limit:
            yield batch
            batch, total = [], 0
        batch.append(graphs)
        total += cost
    if batch:
        yield batch


def _edge_copies(graphs: Graphs, committee: Committee) -> int:
    """(Edges + atoms) × frames of the first member: the work that a structure makes."""
    graph, member, mode = next(iter(graphs.values())), committee.members[0], committee.modes[0]
    n_frames = 1
    if mode not in ("one", "stochastic"):
        with torch.no_grad():
            n_frames = build_frames(graph, member.config.frames, mode, vacuum=member.cutoff).n_frames
    return (graph.n_edges + graph.n_atoms) * n_frames
