"""Neighbor lists for any periodicity, and their reuse between steps.

The only module that uses the backends (vesin, and vesin-torch for tensors on a GPU). Arrays are float64 numpy;
distances are recomputed in a fixed order of operations, so that a reused list and a new one have bitwise identical
edges.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec

import numpy as np
import torch
import vesin
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from faenet_calc.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# The backend searches this much farther (Å); our own distance decides, strictly below the cutoff.
_SEARCH_MARGIN = 1e-6
# The backend makes bins of the size of its cutoff: a tiny one in a large box would cost minutes.
_LEAST_SEARCH = 3.0
# Above this number of bins the backend merges bins in equal proportion along all axes, and divides by zero (SIGFPE) if
# an axis is left with none.
_MOST_BINS = 1e5
# Atoms farther out than this (Å) are brought nearer before the search.
_FAR = 1e3
# Coordinates (Å) beyond this are refused: they no longer resolve a bond.
_FARTHEST = 1e8
# Distances that differ by less than this (Å) belong to the same shell of neighbors in keep_nearest; larger than the
# rounding of stored coordinates.
_TIE = 1e-5


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighborList:
    """Directed edges of one structure, sorted by (centre, neighbor, shift); every edge has its reverse.

    Attributes:
        centre: [n_edges] int64, index of the central atom i.
        neighbor: [n_edges] int64, index of the neighbor j.
        shift: [n_edges, 3] int64, so that ``r_j + shift @ cell - r_i`` is the edge vector for positions as given.
        distance: [n_edges] (Å).
        n_dropped: Number of edges within the cutoff removed by a limit on neighbors.
    """

    centre: Integers
    neighbor: Integers
    shift: Integers
    distance: Floats
    n_dropped: int = 0

    def __len__(self) -> int:
        return len(self.centre)

    def select(self, kept: NDArray[np.bool_], *, distance: Floats | None = None, n_dropped: int = 0) -> "NeighborList":
        """Keep the edges where ``kept`` [n_edges] is True, with new distances if given."""
        return NeighborList(
            centre=self.centre[kept],
            neighbor=self.neighbor[kept],
            shift=self.shift[kept],
            distance=(self.distance if distance is None else distance)[kept],
            n_dropped=n_dropped,
        )


def neighbor_list(
    positions: ArrayLike, cell: ArrayLike, pbc: ArrayLike, cutoff: float, *, max_neighbors: int | None = None
) -> NeighborList:
    """All pairs of atoms strictly closer than the cutoff, periodic images and self-images included.

    Args:
        positions: [n_atoms, 3] (Å); atoms may lie outside the cell, shifts refer to them as given.
        cell: [3, 3] (Å), rows are lattice vectors; those of non-periodic directions are not used and may be zero.
        pbc: [3] bool.
        cutoff: (Å).
        max_neighbors: Maximum number of nearest neighbors per atom, see :func:`keep_nearest`.

    Raises:
        InputError: For a cutoff that is not positive, lattice vectors that do not span the periodic directions, or
            coordinates that are not finite or beyond 1e8 Å.
    """
    positions, cell, periodic = _arrays(positions, cell, pbc)
    if not (np.isfinite(cutoff) and cutoff > 0):
        raise InputError(f"{cutoff=}, expected a positive length (Å)")
    wide = _search(positions, cell, periodic, max(cutoff + _SEARCH_MARGIN, _LEAST_SEARCH))
    found = wide.select(wide.distance < cutoff)
    return found if max_neighbors is None else keep_nearest(found, len(positions), max_neighbors)


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighborTensors:
    """The edges of a :class:`NeighborList` as tensors on the device of the positions.

    Attributes:
        centre, neighbor: [n_edges] int64.
        shift: [n_edges, 3] int64.
        distance: [n_edges] float64 (Å).
    """

    centre: Tensor
    neighbor: Tensor
    shift: Tensor
    distance: Tensor


def neighbor_tensors(
    positions: Tensor,
    cell: Tensor,
    pbc: ArrayLike,
    cutoff: float,
    *,
    max_neighbors: int | None = None,
    on_device: bool | None = None,
) -> NeighborTensors:
    """:func:`neighbor_list` for positions on any device, with the same edges in the same order.

    Positions on a CUDA device are searched there if vesin-torch is installed. Positions on the CPU, limits on the
    number of neighbors, and structures that need the precautions of :func:`neighbor_list` (coordinates beyond 1000 Å,
    flat or very long boxes) are searched on the CPU. The search on a device waits for it twice.

    Args:
        positions: [n_atoms, 3] (Å).
        cell: [3, 3] (Å), on the same device.
        pbc: [3] bool.
        cutoff: (Å).
        max_neighbors: See :func:`keep_nearest`.
        on_device: Use vesin-torch (True) or vesin (False); None chooses.

    Raises:
        InputError: As :func:`neighbor_list`.
    """
    positions, cell = positions.detach().double(), cell.detach().double()
    periodic = np.asarray(pbc, dtype=bool)
    reach = max(cutoff + _SEARCH_MARGIN, _LEAST_SEARCH)
    if on_device is None:
        on_device = positions.device.type == "cuda" and searches_on_device()
    if on_device and max_neighbors is None and cutoff > 0 and _is_simple(positions, cell, periodic, reach):
        return _search_on_device(positions, cell, periodic, cutoff, reach)
    found = neighbor_list(positions.cpu().numpy(), cell.cpu().numpy(), periodic, cutoff, max_neighbors=max_neighbors)
    moved = (
        torch.from_numpy(x).to(positions.device) for x in (found.centre, found.neighbor, found.shift, found.distance)
    )
    return NeighborTensors(**dict(zip(("centre", "neighbor", "shift", "distance"), moved, strict=True)))


@cache
def searches_on_device() -> bool:
    """Whether vesin-torch is installed (the extra ``gpu``)."""
    return find_spec("vesin_torch") is not None


def _is_simple(positions: Tensor, cell: Tensor, pbc: NDArray[np.bool_], reach: float) -> bool:
    """Whether the backend can search within ``reach`` (Å) as it is; reads 15 numbers from the device."""
    if len(positions) == 0:
        return False
    numbers = torch.cat([positions.amin(dim=0), positions.amax(dim=0), cell.flatten()]).cpu().numpy()
    lowest, highest, heights = numbers[:3], numbers[3:6], axis_heights(numbers[6:].reshape(3, 3), pbc)
    if not np.isfinite(numbers).all() or np.abs(numbers[:6]).max() > _FAR or (heights == 0).any():
        return False
    extents = np.where(pbc, heights, np.linalg.norm(highest - lowest))
    return _safe_reach(extents, reach) == reach


def _search_on_device(
    positions: Tensor, cell: Tensor, pbc: NDArray[np.bool_], cutoff: float, reach: float
) -> NeighborTensors:
    import vesin_torch

    periodic = torch.from_numpy(pbc)
    # The flags stay on the CPU: the backend reads them there.
    box = torch.where(periodic.to(cell.device)[:, None], cell, 0.0)
    backend = vesin_torch.NeighborList(cutoff=reach, full_list=True, n_threads=1)
    centre, neighbor, shift = backend.compute(positions, box, periodic, "ijS")
    centre, neighbor, shift = centre.long(), neighbor.long(), shift.long()
    offset = shift[:, :1] * cell[0] + shift[:, 1:2] * cell[1] + shift[:, 2:] * cell[2]
    x, y, z = ((positions[neighbor] - positions[centre]) + offset).unbind(dim=1)
    distance = torch.sqrt(x * x + y * y + z * z)
    order = torch.nonzero(distance < cutoff)[:, 0]
    for column in (shift[:, 2], shift[:, 1], shift[:, 0], neighbor, centre):  # the last one sorts first
        order = order[torch.argsort(column[order], stable=True)]
    return NeighborTensors(centre=centre[order], neighbor=neighbor[order], shift=shift[order], distance=distance[order])


def keep_nearest(edges: NeighborList, n_atoms: int, max_neighbors: int) -> NeighborList:
    """Keep the edges that are among the ``max_neighbors`` nearest of either end.

    Neighbors as far as the last one kept (within 1e-5 Å) are kept too, so the choice depends neither on the order of
    atoms nor on orientation, and an edge and its reverse are kept or dropped together. An atom may therefore end up
    with more than ``max_neighbors``.
    """
    if max_neighbors < 1:
        raise InputError(f"{max_neighbors=}, expected at least 1, or None for no limit")
    counts = np.bincount(edges.centre, minlength=n_atoms)
    crowded = np.flatnonzero(counts > max_neighbors)
    reach = np.full(n_atoms, np.inf)
    by_distance = edges.distance[np.lexsort((edges.distance, edges.centre))]
    starts = np.cumsum(counts) - counts
    reach[crowded] = by_distance[starts[crowded] + max_neighbors - 1] + _TIE
    kept = edges.distance <= np.maximum(reach[edges.centre], reach[edges.neighbor])
    return edges.select(kept, n_dropped=edges.n_dropped + int(len(kept) - kept.sum()))


def axis_heights(cell: ArrayLike, pbc: ArrayLike) -> Floats:
    """[3] (Å): how far each periodic lattice vector rises above the span of the other periodic ones; inf elsewhere.

    Zero for a vector that is zero or lies in the plane of the others.
    """
    return _axis_heights(np.asarray(cell, dtype=np.float64).tobytes(), np.asarray(pbc, dtype=bool).tobytes())


@lru_cache(maxsize=64)  # the cell is the same at every step of a simulation
def _axis_heights(cell_bytes: bytes, pbc_bytes: bytes) -> Floats:
    cell, periodic = np.frombuffer(cell_bytes).reshape(3, 3), np.frombuffer(pbc_bytes, dtype=bool)
    heights = np.full(3, np.inf)
    for axis in np.flatnonzero(periodic):
        others = cell[[other for other in np.flatnonzero(periodic) if other != axis]]
        lengths = np.linalg.norm(others, axis=1)
        others = others[lengths > 0] / lengths[lengths > 0, None]
        _, spread, directions = np.linalg.svd(others, full_matrices=False)
        plane = directions[spread > 1e-12]
        heights[axis] = np.linalg.norm(cell[axis] - plane.T @ (plane @ cell[axis]))
    heights.flags.writeable = False
    return heights


class VerletList:
    """A neighbor list that is rebuilt only when necessary.

    Pairs are searched within ``cutoff + skin`` and reused until an atom has moved more than half the skin since the
    search (a jump by a lattice vector counts as a move) or the cell, the periodicity, the elements or the number of
    atoms have changed. The result always equals that of :func:`neighbor_list` at the given positions.

    Attributes:
        n_calls: Number of calls of :meth:`update`.
        n_rebuilds: Number of searches.
    """

    def __init__(self, cutoff: float, skin: float = 0.5, max_neighbors: int | None = None) -> None:
        if not (np.isfinite(cutoff) and cutoff > 0):
            raise InputError(f"{cutoff=}, expected a positive length (Å)")
        if not (np.isfinite(skin) and skin >= 0):
            raise InputError(f"{skin=}, expected a length (Å) of at least 0; 0 rebuilds at every step")
        self.cutoff, self.skin, self.max_neighbors = float(cutoff), float(skin), max_neighbors
        self.n_calls = self.n_rebuilds = 0
        self._built: _Search | None = None

    def update(self, positions: ArrayLike, cell: ArrayLike, pbc: ArrayLike, numbers: ArrayLike) -> NeighborList:
        """Return the neighbor list of the structure; arguments as for :func:`neighbor_list`."""
        positions, cell, periodic = _arrays(positions, cell, pbc)
        numbers = np.asarray(numbers)
        self.n_calls += 1
        built = self._built
        if built is None or not built.holds_for(positions, cell, periodic, numbers, 0.5 * self.skin):
            self.n_rebuilds += 1
            edges = _search(positions, cell, periodic, self.cutoff + self.skin + _SEARCH_MARGIN)
            built = self._built = _Search(
                positions=positions.copy(),
                cell=cell.copy(),
                pbc=periodic.copy(),
                numbers=numbers.copy(),
                edges=edges,
                offset=_offsets(edges.shift, cell),
            )
        distance = _distances(positions, built.edges.centre, built.edges.neighbor, built.offset)
        found = built.edges.select(distance < self.cutoff, distance=distance)
        return found if self.max_neighbors is None else keep_nearest(found, len(positions), self.max_neighbors)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Search:
    """State of the last search of a Verlet list; ``offset`` [n_edges, 3] (Å) is shift @ cell."""

    positions: Floats
    cell: Floats
    pbc: NDArray[np.bool_]
    numbers: NDArray[np.integer]
    edges: NeighborList
    offset: Floats

    def holds_for(
        self, positions: Floats, cell: Floats, pbc: NDArray[np.bool_], numbers: NDArray[np.integer], reach: float
    ) -> bool:
        same = (
            np.array_equal(numbers, self.numbers)
            and np.array_equal(pbc, self.pbc)
            and np.array_equal(cell, self.cell)
            and positions.shape == self.positions.shape
        )
        if not same or reach == 0:
            return False
        moved = positions - self.positions
        return len(moved) == 0 or bool(np.einsum("ax,ax->a", moved, moved).max() <= reach**2)


def _arrays(positions: ArrayLike, cell: ArrayLike, pbc: ArrayLike) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    positions = np.asarray(positions, dtype=np.float64)
    cell, periodic = np.asarray(cell, dtype=np.float64), np.asarray(pbc, dtype=bool)
    if positions.ndim != 2 or positions.shape[1] != 3 or cell.shape != (3, 3) or periodic.shape != (3,):
        raise ValueError(f"{positions.shape=}, {cell.shape=}, {periodic.shape=}; expected [n_atoms, 3], [3, 3] and [3]")
    return positions, cell, periodic


def _search(positions: Floats, cell: Floats, pbc: NDArray[np.bool_], reach: float) -> NeighborList:
    """All edges within ``reach`` (Å), sorted and with recomputed distances."""
    far = np.flatnonzero(~(np.abs(positions) <= _FARTHEST).all(axis=1))
    if len(far):
        raise InputError(
            f"position {positions[far[0]].tolist()} of atom {far[0]} ({len(far)} such atoms), "
            f"expected finite coordinates within ±{_FARTHEST:.0e} Å; check the units or wrap the atoms into the cell"
        )
    heights = axis_heights(cell, pbc)
    if (heights == 0).any():
        raise InputError(f"cell={cell.tolist()} does not span the periodic directions pbc={pbc.tolist()}")
    directions = np.linalg.svd(cell[pbc])[2][pbc.sum() :] if pbc.any() else np.eye(3)
    placed, image = positions, np.zeros(positions.shape, dtype=np.int64)
    if len(positions) and np.abs(positions).max() > _FAR:
        image[:, pbc] = np.floor(positions @ np.linalg.pinv(cell[pbc])) if pbc.any() else 0
        placed = _without_voids(positions - image @ cell, directions, reach)
    extents = np.ptp(placed @ directions.T, axis=0) if len(placed) else np.zeros(len(directions))
    wider = _safe_reach(np.concatenate([heights[pbc], extents]), reach)
    backend = vesin.NeighborList(cutoff=wider, full_list=True, n_threads=1)
    i, j, s = backend.compute(placed, np.where(pbc[:, None], cell, 0.0), pbc, "ijS")
    centre, neighbor = i.astype(np.int64), j.astype(np.int64)
    shift = s.astype(np.int64) + image[centre] - image[neighbor]
    order = np.lexsort((shift[:, 2], shift[:, 1], shift[:, 0], neighbor, centre))
    centre, neighbor, shift = centre[order], neighbor[order], shift[order]
    distance = _distances(positions, centre, neighbor, _offsets(shift, cell))
    edges = NeighborList(centre=centre, neighbor=neighbor, shift=shift, distance=distance)
    return edges if wider == reach else edges.select(distance <= reach)


def _without_voids(positions: Floats, directions: Floats, reach: float) -> Floats:
    """Positions [n_atoms, 3] (Å) whose empty layers across ``directions`` [k, 3] are at most twice the reach.

    Pairs within ``reach`` keep their relative positions, pairs across a layer stay farther apart than that.
    """
    positions = positions.copy()
    for direction in directions:
        height = positions @ direction
        order = np.argsort(height)
        gaps = np.diff(height[order], prepend=0.0)
        positions[order] -= np.cumsum(gaps - np.minimum(gaps, 2 * reach))[:, None] * direction
    return positions


def _safe_reach(extents: Floats, reach: float) -> float:
    """``reach`` (Å), or as much more as keeps the bins of a flat or long box of ``extents`` [3] (Å) below the limit."""
    wider = reach
    while True:
        bins = np.floor(extents / wider) + 1
        if bins.prod() <= _MOST_BINS or bins.min() * np.cbrt(_MOST_BINS / bins.prod()) >= 2:
            return wider
        wider *= 1.05


def _offsets(shift: Integers, cell: Floats) -> Floats:
    # Written out: a matrix product may sum in another order for another number of edges.
    offset: Floats = shift[:, :1] * cell[0] + shift[:, 1:2] * cell[1] + shift[:, 2:] * cell[2]
    return offset


def _distances(positions: Floats, centre: Integers, neighbor: Integers, offset: Floats) -> Floats:
    x, y, z = ((positions[neighbor] - positions[centre]) + offset).T
    distance: Floats = np.sqrt(x * x + y * y + z * z)
    return distance
