"""In which directions a structure is surrounded by vacuum, whatever its periodicity flags say.

A direction is *open* if it is not periodic, or if an empty layer between two planes of atoms is at least as thick as
the cutoff, so that no message crosses it. The frames of a structure follow from its open directions: none in bulk
crystals, one in slabs, two in wires, three in molecules. A molecule in a box therefore has the frames of the free
molecule, and a slab has the same frames with its vacuum along a, b or c.

Between ``BLEND`` (Å) below the cutoff and the cutoff a direction is partly open: the frames of both descriptions are
blended with weights that change smoothly, so that the energy does not jump when an atom enters the empty layer. The
frames of a box with two molecules that are farther apart than the cutoff on both sides change when the other of the two
empty layers becomes the thicker one; the energy does not, because such molecules have frames of their own
(``potential.fragments``; not in mode ``one``).

Symbols: L cell with the rows of non-periodic directions set to zero, L⁺ its pseudoinverse, f = x L⁺ fractional
coordinates along the periodic directions, 1 / |L⁺ e_d| distance (Å) of neighboring lattice planes along direction d.
"""

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from faenet_calc.graphs.graph import AtomGraph

BLEND = 1.0
"""Width (Å) of the empty layer over which a direction changes from closed to open."""

_SURE = 1e-12  # (of 1) how close to closed or open counts as such


def openness(graph: AtomGraph, vacuum: float) -> NDArray[np.float64]:
    """[n_graphs, 3] from 0 (closed) to 1 (open) for every cell vector.

    Args:
        graph: The structures.
        vacuum: Thickness (Å) of an empty layer that opens a direction.
    """
    return _smooth_step((empty_layers(graph) - vacuum) / BLEND + 1.0)


def n_closed(graph: AtomGraph, vacuum: float) -> list[int]:
    """[n_graphs] number of closed directions: 0 for molecules and clusters, 1 wires, 2 slabs, 3 bulk crystals."""
    half_open = vacuum - 0.5 * BLEND  # (Å) where the openness is 0.5
    return [sum(layer < half_open for layer in layers) for layers in empty_layers(graph).tolist()]


def empty_layers(graph: AtomGraph) -> NDArray[np.float64]:
    """[n_graphs, 3] (Å) thickest layer without atoms along each cell vector, infinite where it is not periodic.

    Computed from fractional coordinates modulo one: independent of the periodic image and the order of atoms.
    """
    graph = graph.on_host
    if graph.n_graphs == 1:  # the frames of a structure and the domain guard ask for the same
        kept: NDArray[np.float64] | None = graph.kept.get("empty layers")
        if kept is None:
            kept = graph.kept["empty layers"] = _layers_of_one(graph)
        return kept
    positions, n = _array(graph.positions), graph.n_graphs
    inverse, spacing = _lattice_of(graph)
    member = graph.graph_of_atom.cpu().numpy()
    fraction = np.einsum("ai,aij->aj", positions, inverse[member]) % 1.0
    ordered = np.sort(fraction + member[:, None], axis=0)  # atoms of a graph are consecutive: sorts within each graph
    counts = np.bincount(member, minlength=n)
    filled = np.flatnonzero(counts)
    start = (np.cumsum(counts) - counts)[filled]
    following = np.roll(ordered, -1, axis=0)
    following[start + counts[filled] - 1] = ordered[start] + 1.0
    widest = np.ones((n, 3))
    if len(filled):
        widest[filled] = np.maximum.reduceat(following - ordered, start, axis=0)
    return widest * spacing


def _layers_of_one(graph: AtomGraph) -> NDArray[np.float64]:
    inverse, spacing = _lattice_of(graph)
    ordered = _array(graph.positions) @ inverse[0] % 1.0
    ordered.sort(axis=0)
    gaps = np.concatenate([ordered[1:], ordered[:1] + 1.0]) - ordered
    return np.asarray(gaps.max(axis=0, initial=0.0, keepdims=True) * spacing)


def differentiable_openness(member: AtomGraph, vacuum: float) -> Tensor:
    """[3] the :func:`openness` of one structure, differentiable in positions and cell."""
    cell, positions = member.cell[0] * member.pbc[0][:, None], member.positions
    inverse = torch.linalg.pinv(cell)
    below, above = _edges_of_widest(member)
    values = []
    for direction, periodic in enumerate(member.pbc[0].tolist()):
        if not periodic:
            values.append(positions.new_ones(()))
            continue
        column = inverse[:, direction]
        gap = (positions[above[direction]] - positions[below[direction]]) @ column
        gap = gap - torch.floor(gap.detach())  # the layer may cross the border of the cell
        gap = torch.where(gap == 0, gap + 1.0, gap)  # one plane of atoms: the layer is the whole cell
        thickness = (gap / torch.linalg.vector_norm(column) - vacuum) / BLEND + 1.0
        t = thickness.clamp(0.0, 1.0)
        values.append(t**3 * (10 - 15 * t + 6 * t**2))
    return torch.stack(values)


def unwrapped(member: AtomGraph, is_open: tuple[bool, ...]) -> Tensor:
    """[n_atoms, 3] (Å) positions of one structure in one piece across its open periodic directions.

    Every atom is moved by whole cell vectors, such that the thickest empty layer lies outside.
    """
    inverse = _lattice_of(member)[0][0]
    fraction = _array(member.positions) @ inverse
    below, above = _edges_of_widest(member)
    shift = np.zeros_like(fraction)
    for direction in np.flatnonzero(np.array(is_open) & member.pbc[0].cpu().numpy()):
        first, last = fraction[above[direction], direction], fraction[below[direction], direction]
        middle = first - 0.5 * ((first - last) % 1.0 or 1.0)
        shift[:, direction] = -np.floor(fraction[:, direction] - middle)
    if not shift.any():
        return member.positions
    return member.positions + torch.as_tensor(shift).to(member.positions) @ member.cell[0]


def is_decided(opened: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether directions are closed or open, and not in between."""
    return (opened < _SURE) | (opened > 1.0 - _SURE)


def _edges_of_widest(member: AtomGraph) -> tuple[list[int], list[int]]:
    """Atoms of one structure below and above the thickest empty layer of every direction."""
    fraction = (_array(member.positions) @ _lattice_of(member)[0][0]) % 1.0
    below, above = [], []
    for column in fraction.T:
        order = np.argsort(column)
        gaps = np.diff(column[order], append=column[order[0]] + 1.0)
        widest = int(np.argmax(gaps))
        below.append(int(order[widest]))
        above.append(int(order[(widest + 1) % len(order)]))
    return below, above


def _lattice_of(graph: AtomGraph) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[n_graphs, 3, 3] the pseudoinverses L⁺ and [n_graphs, 3] (Å) the distances of lattice planes."""
    return _kept_lattice(_array(graph.cell).tobytes(), graph.pbc.cpu().numpy().tobytes())


@functools.lru_cache(maxsize=16)  # in simulations the cell is often the same at every step
def _kept_lattice(cell: bytes, pbc: bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows = np.frombuffer(cell).reshape(-1, 3, 3) * np.frombuffer(pbc, dtype=bool).reshape(-1, 3, 1)
    inverse = np.linalg.pinv(rows)
    with np.errstate(divide="ignore"):
        return inverse, 1.0 / np.linalg.norm(inverse, axis=1)


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().cpu().double().numpy()


def _smooth_step(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """From 0 at x = 0 to 1 at x = 1 with vanishing first and second derivatives at both ends."""
    t = np.minimum(np.maximum(x, 0.0), 1.0)
    return t**3 * (10 - 15 * t + 6 * t**2)
