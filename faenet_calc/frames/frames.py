"""Frames of structures: the coordinate systems in which the network sees a structure.

A frame is an orthogonal matrix U with its axes as columns: ``vector_in_frame = vector @ U``, and a force predicted in
the frame is rotated back with ``force @ U.T`` (paper Eq. 3-4). A structure has one or more frames with weights that sum
to one; the potential averages over them (paper Eq. 1). Only edge vectors are rotated, never positions or the cell.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from faenet_calc.errors import InputError
from faenet_calc.frames import lattice, open_directions, pair, pca
from faenet_calc.frames.config import FrameMode, FramesConfig
from faenet_calc.graphs.graph import AtomGraph, moved_to


@dataclass(frozen=True, kw_only=True, eq=False)
class Frames:
    """The frames of all structures of a batch.

    Attributes:
        rotation: [n_frames, 3, 3], axes as columns.
        graph: [n_frames] int64, the structure of each frame, ascending for frames of whole structures.
        weight: [n_frames], sums to one over the frames of a structure; negative for parts that are subtracted.
        lattice: Whether all frames belong to lattices: rotations U and -U then have opposite derivatives.
        per_graph: Number of frames of every structure; None if structures have different numbers of frames.
        parts: In which part of a structure each frame is used; None if every frame is one of a whole structure.
    """

    rotation: Tensor
    graph: Tensor
    weight: Tensor
    lattice: bool = False
    per_graph: int | None = None
    parts: "Parts | None" = None

    @property
    def n_frames(self) -> int:
        """Number of frames in the batch."""
        return len(self.weight)

    def detach(self) -> "Frames":
        """The same frames as constants."""
        return dataclasses.replace(self, rotation=self.rotation.detach(), weight=self.weight.detach())

    @property
    def of_structures(self) -> "Frames":
        """Those of whole structures."""
        if self.parts is None:
            return self
        whole = slice(0, self.parts.n_whole)
        return Frames(rotation=self.rotation[whole], graph=self.graph[whole], weight=self.weight[whole])

    def edges_per_frame(self, graph: AtomGraph) -> Tensor:
        """[n_frames] number of edges of the structure or part of it in each frame."""
        if self.parts is None:
            return graph.edges_per_graph[self.graph]
        return self.parts.graph.edges_per_graph[self.parts.of_frame]

    def framed(self, graph: AtomGraph, some: slice | None = None) -> "FramedGraph":
        """The structures, or parts of them, copied into their frames.

        Args:
            graph: The structures.
            some: Which frames; None for all.
        """
        if self.parts is None:
            if some is None:
                return copy_into_frames(graph, self.graph, self.per_graph)
            return copy_into_frames(graph, self.graph[some])
        of_frame = self.parts.of_frame
        copies = copy_into_frames(self.parts.graph, of_frame if some is None else of_frame[some])
        return dataclasses.replace(
            copies,
            graph=graph,
            atom_of_node=self.parts.atom[copies.atom_of_node],
            edge_of_copy=self.parts.edge[copies.edge_of_copy],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """Structures and fragments of them, for frames in which a structure is seen in part.

    Attributes:
        graph: One batch: the structures, then their fragments.
        atom: [n_atoms of the batch] int64, the atom of the structures.
        edge: [n_edges of the batch] int64, the edge of the structures.
        of_frame: [n_frames] int64, the member of the batch that is used in each frame, ascending.
        n_whole: Number of frames of whole structures, which come first.
    """

    graph: AtomGraph
    atom: Tensor
    edge: Tensor
    of_frame: Tensor
    n_whole: int


@dataclass(frozen=True, kw_only=True, eq=False)
class FramedGraph:
    """Every structure copied once per frame: one batch in which all frames are evaluated together.

    Attributes:
        graph: The structures themselves.
        frame_of_node: [n_nodes] int64, ascending.
        atom_of_node: [n_nodes] int64.
        edge_of_copy: [n_edge_copies] int64; distances are computed once per edge and looked up with this.
        frame_of_edge: [n_edge_copies] int64.
        centre, neighbor: [n_edge_copies] int64 node indices.
        n_frames: Number of copies.
    """

    graph: AtomGraph
    frame_of_node: Tensor
    atom_of_node: Tensor
    edge_of_copy: Tensor
    frame_of_edge: Tensor
    centre: Tensor
    neighbor: Tensor
    n_frames: int

    @property
    def n_nodes(self) -> int:
        """Number of atom copies."""
        return len(self.atom_of_node)

    def sum_over_nodes(self, per_node: Tensor) -> Tensor:
        """[n_frames, ...] sums of a per-node quantity [n_nodes, ...]."""
        return per_node.new_zeros(self.n_frames, *per_node.shape[1:]).index_add(0, self.frame_of_node, per_node)


def copy_into_frames(graph: AtomGraph, graph_of_frame: Tensor, per_graph: int | None = None) -> FramedGraph:
    """The index arithmetic of :class:`FramedGraph`.

    Args:
        graph: The structures.
        graph_of_frame: [n_frames] the structure of each frame, ascending.
        per_graph: Number of frames of every structure, if it is the same for all.
    """
    sizes = (None, None) if per_graph is None else (per_graph * graph.n_atoms, per_graph * graph.n_edges)
    frame_of_node, atom_of_node, node_shift = _copies(graph.atoms_per_graph, graph_of_frame, sizes[0])
    frame_of_edge, edge_of_copy, _ = _copies(graph.edges_per_graph, graph_of_frame, sizes[1])
    shift = node_shift[frame_of_edge]
    return FramedGraph(
        graph=graph,
        frame_of_node=frame_of_node,
        atom_of_node=atom_of_node,
        edge_of_copy=edge_of_copy,
        frame_of_edge=frame_of_edge,
        centre=graph.centre[edge_of_copy] + shift,
        neighbor=graph.neighbor[edge_of_copy] + shift,
        n_frames=len(graph_of_frame),
    )


def _copies(counts: Tensor, graph_of_frame: Tensor, size: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """For items counted per graph: frame and original of every copy, and copy minus original per frame.

    Args:
        counts: [n_graphs] number of items.
        graph_of_frame: [n_frames].
        size: Number of copies; None to count them, which waits for a device.
    """
    first = torch.cumsum(counts, 0) - counts
    per_frame = counts[graph_of_frame]
    shift = torch.cumsum(per_frame, 0) - per_frame - first[graph_of_frame]
    frames = torch.arange(len(graph_of_frame), device=counts.device)
    frame = torch.repeat_interleave(frames, per_frame, output_size=size)
    return frame, torch.arange(len(frame), device=counts.device) - shift[frame], shift


def into_frame(vectors: Tensor, rotation: Tensor) -> Tensor:
    """[n, 3] vectors expressed in frames [n, 3, 3]."""
    return torch.einsum("ni,nij->nj", vectors, rotation)


def out_of_frame(vectors: Tensor, rotation: Tensor) -> Tensor:
    """[n, 3] the inverse of :func:`into_frame`."""
    return torch.einsum("nj,nij->ni", vectors, rotation)


def build_frames(
    graph: AtomGraph,
    config: FramesConfig,
    mode: FrameMode,
    *,
    vacuum: float,
    generator: torch.Generator | None = None,
) -> Frames:
    """The frames of every structure of a batch.

    Args:
        graph: The structures.
        config: Kind of frames.
        mode: Number and choice of frames, see :data:`~faenet_calc.frames.config.FrameMode`.
        vacuum: Thickness (Å) of an empty layer that opens a periodic direction; the cutoff of the edges.
        generator: Random number generator; required for ``stochastic``, whose frames are constants for gradients.
    """
    if mode == "stochastic":
        if generator is None:
            raise InputError("frames='stochastic' without a torch.Generator; pass generator= (or seed=)")
        with torch.no_grad():
            return _random_frames(graph, config, vacuum, generator)
    if config.kind in ("none", "augment3d", "augment2d"):
        return _uniform(
            torch.eye(3, dtype=graph.positions.dtype, device=graph.positions.device).expand(graph.n_graphs, 1, 3, 3)
        )
    if config.kind in ("pca3d", "pca2d"):
        frames = _uniform(_pca_rotations(graph, config, mode))
    else:
        frames = _natural_frames(graph, config, mode, vacuum)
    return frames if config.differentiable else frames.detach()


def _uniform(rotations: Tensor, *, lattice: bool = False) -> Frames:
    """Equally weighted frames from [n_graphs, k, 3, 3]."""
    n_graphs, k = rotations.shape[:2]
    return Frames(
        rotation=rotations.reshape(-1, 3, 3),
        graph=torch.arange(n_graphs, device=rotations.device).repeat_interleave(k),
        weight=rotations.new_full((n_graphs * k,), 1.0 / k),
        lattice=lattice,
        per_graph=k,
    )


def _pca_rotations(graph: AtomGraph, config: FramesConfig, mode: FrameMode) -> Tensor:
    planar = config.kind == "pca2d"
    axes = pca.principal_axes(graph, planar=planar)
    if mode in ("one", "pair"):
        axes = pca.lab_signs(axes, planar=planar)
    if mode == "one":
        return axes[:, None]
    flips = pca.flips_of(axes, planar=planar, proper=config.proper)
    return flips[:, :2] if mode == "pair" else flips


def _lattice_frames(cell: Tensor, is_open: Sequence[Sequence[bool]], mode: FrameMode, proper: bool) -> Frames:
    """Lattice frames in a mode other than ``exact``; those of bulk crystals with their axes in all cyclic orders.

    Args:
        cell: [n_graphs, 3, 3] (Å).
        is_open: [n_graphs, 3] whether each direction is open; at most one of each structure is.
        mode: Number of frames.
        proper: Rotations only.
    """
    special, bulk = _special_vectors(tuple(map(tuple, is_open)), cell.device)
    axes = lattice.lattice_axes(cell, special, proper=proper)
    choices = _sign_choices(cell, special, mode, proper)
    n_bulk = sum(not any(directions) for directions in is_open)
    if mode == "one" or n_bulk == 0:
        return _uniform(axes[:, None] @ choices, lattice=True)
    k = choices.shape[1]
    turned = (moved_to(lattice.cyclic_orders(), cell.device, cell.dtype)[None, :, None] @ choices[:, None]).flatten(
        1, 2
    )
    if n_bulk == len(is_open):
        return _uniform(axes[:, None] @ turned, lattice=True)
    used = bulk[:, None] | (torch.arange(3 * k, device=cell.device) < k)
    graph, choice = torch.nonzero(used, as_tuple=True)
    weight = 1.0 / (k * (1 + 2 * bulk.to(cell.dtype)))
    return Frames(rotation=(axes[:, None] @ turned)[graph, choice], graph=graph, weight=weight[graph], lattice=True)


def _sign_choices(cell: Tensor, special: Tensor, mode: FrameMode, proper: bool) -> Tensor:
    """[n_graphs, k, 3, 3] sign matrices of lattice frames: the identity, for ``pair`` with the inverse, or all.

    A cell without handedness (two periodic directions and no third vector) has the mirror image e3 → -e3 instead of the
    inverse, which keeps its two frames closed under O(3). Where only rotations are allowed, e2 changes its sign too.
    """
    flips = lattice.sign_flips_like(cell, proper)
    if mode == "one":
        flips = flips[:1]
    choices = flips.expand(len(cell), *flips.shape)
    if mode != "pair":
        return choices
    other = choices[:, 1]
    if not proper:
        other = torch.where(lattice.has_handedness(cell, special)[:, None, None], choices[:, -1], other)
    return torch.stack([choices[:, 0], other], dim=1)


@functools.lru_cache(maxsize=16)  # in simulations the cell is often the same at every step
def _kept_lattice_frames(
    cell: bytes,
    dtype: torch.dtype,
    is_open: tuple[tuple[bool, ...], ...],
    mode: FrameMode,
    proper: bool,
    device: torch.device,
) -> Frames:
    """Lattice frames of cells [n_graphs, 3, 3] that are not differentiated, computed on the CPU."""
    cells = torch.frombuffer(bytearray(cell), dtype=dtype).reshape(-1, 3, 3)
    frames = _lattice_frames(cells, is_open, mode, proper)
    if device.type == "cpu":
        return frames
    return dataclasses.replace(
        frames,
        rotation=moved_to(frames.rotation, device),
        graph=moved_to(frames.graph, device),
        weight=moved_to(frames.weight, device),
    )


@functools.lru_cache(maxsize=16)
def _special_vectors(is_open: tuple[tuple[bool, ...], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The cell vectors singled out [n_graphs] int64, and which structures are bulk [n_graphs] bool."""
    opened = torch.tensor(is_open, dtype=torch.bool, device=device).reshape(-1, 3)
    bulk = ~opened.any(dim=1)
    return torch.where(bulk, 2, opened.long().argmax(dim=1)), bulk


def _natural_frames(graph: AtomGraph, config: FramesConfig, mode: FrameMode, vacuum: float) -> Frames:
    """Lattice frames of bulk crystals and slabs, weighted pair frames of wires and molecules."""
    opened = open_directions.openness(graph, vacuum)
    masks = tuple(tuple(share > 0.5 for share in row) for row in opened.tolist())
    if mode != "exact" and all(sum(mask) <= 1 for mask in masks) and open_directions.is_decided(opened).all():
        if graph.cell.requires_grad:
            return _lattice_frames(graph.cell, masks, mode, config.proper)
        dtype, device = graph.cell.dtype, graph.cell.device
        cell = graph.cell if device.type == "cpu" else graph.on_host.cell.detach().to(dtype)
        return _kept_lattice_frames(cell.numpy().tobytes(), dtype, masks, mode, config.proper, device)
    found = [
        _frames_of_one(member, row, config, mode, vacuum) for member, row in zip(graph.split(), opened, strict=True)
    ]
    counts = torch.tensor([one.n_frames for one in found], device=graph.positions.device)
    index = torch.arange(graph.n_graphs, device=graph.positions.device)
    return Frames(
        rotation=torch.cat([one.rotation for one in found]),
        graph=index.repeat_interleave(counts),
        weight=torch.cat([one.weight for one in found]),
        lattice=all(one.lattice for one in found),
    )


def _frames_of_one(
    member: AtomGraph, opened: NDArray[np.float64], config: FramesConfig, mode: FrameMode, vacuum: float
) -> Frames:
    """Frames of a graph of one structure; those of all descriptions if a direction is neither closed nor open."""
    decided = open_directions.is_decided(opened)
    if decided.all():
        return _described_frames(member, tuple((opened > 0.5).tolist()), config, mode)
    share = open_directions.differentiable_openness(member, vacuum)
    parts = []
    for is_open in itertools.product(
        *([bool(x > 0.5)] if sure else [False, True] for x, sure in zip(opened, decided, strict=True))
    ):
        mixed = [share[d] if is_open[d] else 1 - share[d] for d in np.flatnonzero(~decided)]
        part = _described_frames(member, is_open, config, mode)
        parts.append(dataclasses.replace(part, weight=part.weight * torch.stack(mixed).prod()))
    return Frames(
        rotation=torch.cat([part.rotation for part in parts]),
        graph=torch.cat([part.graph for part in parts]),
        weight=torch.cat([part.weight for part in parts]),
        lattice=all(part.lattice for part in parts),
    )


def _described_frames(member: AtomGraph, is_open: tuple[bool, ...], config: FramesConfig, mode: FrameMode) -> Frames:
    """Frames of a graph of one structure with these open directions."""
    if sum(is_open) <= 1:
        if mode != "exact":
            return _lattice_frames(member.cell, [is_open], mode, config.proper)
        special, bulk = _special_vectors((is_open,), member.cell.device)
        axes = lattice.lattice_axes(member.cell, special, proper=config.proper)
        group = (lattice.icosahedral_group if bool(bulk) else lattice.slab_group)(config.proper)
        return _uniform((axes @ moved_to(group, axes.device, axes.dtype))[None], lattice=True)
    positions = open_directions.unwrapped(member, is_open)
    if sum(is_open) == 2:
        rotation, weight = pair.wire_frames(positions, member.cell[0, is_open.index(False)])
        if config.proper:
            rotation, weight = _right_handed(rotation, weight)
    else:
        rotation, weight = frames_of_molecule(positions, proper=config.proper)
    if mode == "one":
        best = int(weight.detach().argmax())
        rotation, weight = rotation[best : best + 1], torch.ones_like(weight[:1])
    return Frames(rotation=rotation, graph=weight.new_zeros(len(weight), dtype=torch.long), weight=weight)


def frames_of_molecule(positions: Tensor, *, proper: bool) -> tuple[Tensor, Tensor]:
    """Weighted pair frames of positions [n_atoms, 3] (Å), rotations only if ``proper``; see :mod:`pair`."""
    rotation, weight = pair.molecule_frames(positions)
    return _right_handed(rotation, weight) if proper else (rotation, weight)


def _right_handed(rotation: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The rotations among frames, with weights that sum to one."""
    kept = torch.linalg.det(rotation.detach()) > 0
    return rotation[kept], weight[kept] / weight[kept].sum()


def _random_frames(graph: AtomGraph, config: FramesConfig, vacuum: float, generator: torch.Generator) -> Frames:
    """One random frame per structure."""
    like = graph.positions
    if config.kind == "none":
        return _uniform(torch.eye(3, dtype=like.dtype, device=like.device).expand(graph.n_graphs, 1, 3, 3))
    if config.kind == "augment2d":
        drawn = [lattice.random_turn_about_z(generator) for _ in range(graph.n_graphs)]
        return _uniform(moved_to(torch.stack(drawn), like.device, like.dtype)[:, None])
    if config.kind == "augment3d":
        drawn = [
            lattice.random_rotation(generator) @ lattice.random_flip(generator, config.proper)
            for _ in range(graph.n_graphs)
        ]
        return _uniform(moved_to(torch.stack(drawn), like.device, like.dtype)[:, None])
    if config.kind in ("pca3d", "pca2d"):
        choices = _pca_rotations(graph, config, "all")
        picked = torch.randint(choices.shape[1], (graph.n_graphs,), generator=generator).to(like.device)
        rows = torch.arange(graph.n_graphs, device=like.device)
        return _uniform(choices[rows, picked][:, None])
    rotations = [_random_natural(member, config, vacuum, generator) for member in graph.split()]
    return _uniform(torch.stack(rotations)[:, None])


def _random_natural(member: AtomGraph, config: FramesConfig, vacuum: float, generator: torch.Generator) -> Tensor:
    """[3, 3] a random frame for training.

    Bulk: the lattice frame with any rotation. Slabs: the lattice frame with a rotation about the normal, or any
    orientation with probability ``config.free_orientation_slabs``. Molecules and wires: a pair frame drawn by its
    weight, or any orientation with probability ``config.free_orientation``. Signs of the axes are random.
    """

    def turned(rotation: Tensor) -> Tensor:
        return (rotation @ lattice.random_flip(generator, config.proper)).to(member.positions)

    free = float(torch.rand(1, generator=generator))
    is_open = tuple((open_directions.openness(member, vacuum)[0] > 0.5).tolist())
    if sum(is_open) > 1:
        if free < config.free_orientation:
            return turned(lattice.random_rotation(generator))
        frames = _described_frames(member, is_open, config, "all")
        return frames.rotation[int(torch.multinomial(frames.weight.cpu().double(), 1, generator=generator))]
    special, bulk = _special_vectors((is_open,), member.cell.device)
    axes = lattice.lattice_axes(member.cell, special, proper=config.proper)[0]
    if bool(bulk):
        return axes @ turned(lattice.random_rotation(generator))
    if free < config.free_orientation_slabs:
        return turned(lattice.random_rotation(generator))
    return axes @ turned(lattice.random_turn_about_z(generator))
