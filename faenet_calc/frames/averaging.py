"""Frame averaging for any PyTorch Geometric model.

:class:`FrameAveraging` is a transform that stores a structure in its frames (upstream's fields ``fa_pos``, ``fa_cell``
and ``fa_rot``). :func:`frame_averaged` wraps a model so that its predictions are averaged over frames (paper Eq. 1-4):
scalars become invariant, vectors and rank-2 tensors equivariant, whatever the model does with the coordinates.

Kinds of frames:

- ``3D``, ``2D``: the paper's principal axes; 2D leaves the z axis alone. Undefined for symmetric structures.
- ``pair``: weighted pair frames, exact and smooth for every molecule (a single atom has no direction: its vectors are
  zero, its rank-2 tensors are not equivariant).
- ``lattice``: frames of the lattice for periodic structures, pair frames for molecules.

Methods are the modes of :data:`~faenet_calc.frames.config.FrameMode`; ``se3-…`` uses rotations only (no reflections).
Upstream's ``det`` is ``one`` and its ``random`` is ``stochastic``.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform

from faenet_calc.errors import InputError
from faenet_calc.frames.config import FrameKind, FrameMode, FramesConfig
from faenet_calc.frames.frames import Frames, build_frames
from faenet_calc.graphs.graph import AtomGraph

AveragingKind = Literal["3D", "2D", "lattice", "pair"]
OutputRank = Literal["scalar", "vector", "tensor"]

_KINDS: dict[str, FrameKind] = {"3D": "pca3d", "2D": "pca2d", "lattice": "lattice", "pair": "lattice"}
_UPSTREAM: dict[str, FrameMode] = {"det": "one", "random": "stochastic"}
_ROW_SHAPE: dict[OutputRank, tuple[int, ...]] = {"scalar": (), "vector": (3,), "tensor": (3, 3)}
_OF_BATCH = {"batch", "ptr"}  # fields that PyG makes anew for every batch


class FrameAveraging(BaseTransform):
    """PyG transform that adds a structure's coordinates in each of its frames.

    Adds ``fa_pos`` (list of [n_atoms, 3], centred, Å), ``fa_rot`` (list of [1, 3, 3], axes as columns), ``fa_weight``
    (list of [1], sums to one) and, for data with a cell, ``fa_cell`` (list of [1, 3, 3], Å). Data sets can be collated
    into batches if all structures have the same number of frames, which is not so for ``pair`` with more than one.

    Args:
        kind: Kind of frames.
        method: ``stochastic`` (one random frame each time), ``all``, ``pair``, ``one``, ``exact``, or ``se3-…``.
        vacuum: Thickness (Å) of an empty layer that makes a periodic structure a slab (``lattice`` only).
        generator: Source of stochastic frames; None uses PyTorch's default generator.
    """

    def __init__(
        self,
        kind: AveragingKind = "3D",
        method: str = "stochastic",
        *,
        vacuum: float = 5.0,
        generator: torch.Generator | None = None,
    ) -> None:
        self.kind, self.method, self.vacuum, self.generator = kind, method, vacuum, generator
        _settings(kind, method)

    def forward(self, data: Data) -> Data:
        """Return the data of one structure with the fields above added."""
        if isinstance(data, Batch):
            raise InputError(
                "FrameAveraging was given a Batch, expected the Data of one structure: apply it before batching"
            )
        _check_fields(data, ())
        frames = _frames(data, self.kind, self.method, self.vacuum, self.generator, differentiable=True)
        framed = [_in_frame(data, rotation, self.kind, ()) for rotation in frames.rotation]
        data.fa_pos = [one.pos for one in framed]
        data.fa_rot = list(frames.rotation[:, None])
        data.fa_weight = list(frames.weight[:, None])
        if _has(data, "cell"):
            data.fa_cell = [one.cell for one in framed]
        return data

    def __repr__(self) -> str:
        return f"FrameAveraging({self.kind!r}, {self.method!r})"


def frame_averaged(
    model: nn.Module,
    kind: AveragingKind = "3D",
    method: str = "all",
    *,
    outputs: OutputRank | Mapping[str, OutputRank] | None = None,
    training_method: str = "stochastic",
    call: Callable[[nn.Module, Batch], Any] | None = None,
    vector_fields: Sequence[str] = (),
    vacuum: float = 5.0,
    differentiable: bool = True,
    generator: torch.Generator | None = None,
) -> "FrameAveraged":
    """Make a model on PyG batches invariant or equivariant by averaging over frames.

    Args:
        model: Any module. It sees a ``Batch`` in which every structure occurs once per frame, with ``pos`` centred and
            rotated into the frame, ``cell`` and ``vector_fields`` rotated, and everything else as it is.
        kind: Kind of frames.
        method: Frames in evaluation mode (``model.eval()``); ``all`` is exact.
        outputs: What the model returns: ``scalar`` [n, ...], ``vector`` [n, ..., 3] or ``tensor`` [n, ..., 3, 3], with
            a row per structure or per atom; for a model that returns a dict, a mapping from its keys. None is
            ``scalar``, but an output of the shape of vectors or tensors is refused.
        training_method: Frames in training mode; ``stochastic`` draws one frame per structure (of a periodic one: the
            lattice frame with random signs and a random rotation, in the plane for slabs).
        call: How to call the model if not ``model(batch)``, e.g.
            ``lambda model, batch: model(batch.z, batch.pos, batch.batch)``.
        vector_fields: Further fields [n, 3] that rotate with the structure, e.g. velocities or edge vectors.
        vacuum: As in :class:`FrameAveraging`.
        differentiable: Gradients with respect to ``pos`` and ``cell`` include the derivative of the frames.
        generator: As in :class:`FrameAveraging`.

    Returns:
        A module with the parameters of ``model`` that takes ``Data`` or a ``Batch`` with ``pos`` and, for periodic
        structures, ``cell`` and ``pbc`` (without: periodic in three directions), and returns what the model returns.
    """
    return FrameAveraged(
        model,
        kind,
        method,
        outputs=outputs,
        training_method=training_method,
        call=call,
        vector_fields=vector_fields,
        vacuum=vacuum,
        differentiable=differentiable,
        generator=generator,
    )


class FrameAveraged(nn.Module):
    """What :func:`frame_averaged` returns; arguments are described there."""

    def __init__(
        self,
        model: nn.Module,
        kind: AveragingKind,
        method: str,
        *,
        outputs: OutputRank | Mapping[str, OutputRank] | None,
        training_method: str,
        call: Callable[[nn.Module, Batch], Any] | None,
        vector_fields: Sequence[str],
        vacuum: float,
        differentiable: bool,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        for name in (method, training_method):
            _settings(kind, name)
        ranks = outputs.values() if isinstance(outputs, Mapping) else [outputs or "scalar"]
        if wrong := sorted(set(ranks) - set(get_args(OutputRank))):
            raise InputError(f"{outputs=} has {wrong}; expected {', '.join(get_args(OutputRank))}")
        self.model, self.kind, self.method, self.training_method = model, kind, method, training_method
        self.outputs, self.call, self.vector_fields = outputs, call, tuple(vector_fields)
        self.vacuum, self.differentiable, self.generator = vacuum, differentiable, generator

    def forward(self, data: Data | Batch) -> Any:
        """Average the model's outputs over the frames of every structure."""
        _check_fields(data, self.vector_fields)
        batch = data if isinstance(data, Batch) else Batch.from_data_list([data])
        structures = batch.to_data_list()
        method = self.training_method if self.training else self.method
        frames = _frames(batch, self.kind, method, self.vacuum, self.generator, differentiable=self.differentiable)
        copies = Batch.from_data_list(
            [
                _in_frame(structures[graph], rotation, self.kind, self.vector_fields)
                for graph, rotation in zip(frames.graph.tolist(), frames.rotation, strict=True)
            ]
        )
        found = self.model(copies) if self.call is None else self.call(self.model, copies)
        sizes = torch.tensor([structure.num_nodes for structure in structures], device=frames.graph.device)
        if not isinstance(self.outputs, Mapping):
            return _average(found, self.outputs, frames, sizes, "the output")
        if not isinstance(found, Mapping) or (set(found) - set(self.outputs)):
            raise InputError(
                f"the model returned {_described(found)}, which outputs={dict(self.outputs)} does not name"
            )
        return {name: _average(value, self.outputs[name], frames, sizes, name) for name, value in found.items()}


def _settings(kind: str, method: str) -> tuple[FrameKind, FrameMode, bool]:
    """Kind, mode and properness of our frames from the words of this module."""
    if kind not in _KINDS:
        raise InputError(f"frame averaging {kind=}, expected one of {', '.join(_KINDS)}")
    words = str(method).removeprefix("se3-")
    mode = _UPSTREAM.get(words, words)
    if mode not in get_args(FrameMode):
        raise InputError(f"frame averaging {method=}, expected one of {', '.join(get_args(FrameMode))} or se3-…")
    return _KINDS[kind], cast(FrameMode, mode), words != method


def _check_fields(data: object, vector_fields: Sequence[str]) -> None:
    """Refuse data that cannot be divided into structures or rotated as a whole."""
    if not isinstance(data, Data):
        raise InputError(f"frame averaging of {_described(data)}, expected a Data or Batch of PyTorch Geometric")
    n_graphs = data.num_graphs if isinstance(data, Batch) else 1
    _check_vectors(data, "pos", "[n_atoms, 3] (Å)")
    for name in vector_fields:
        _check_vectors(data, name, "[n, 3], since it is one of vector_fields")
    for name, shape in {"cell": (3, 3), "pbc": (3,)}.items():
        value = data[name] if _has(data, name) else torch.zeros(n_graphs, *shape)
        if not isinstance(value, Tensor) or value.numel() != n_graphs * math.prod(shape):
            raise InputError(f"{name} is {_described(value)}, expected a tensor {[n_graphs, *shape]}")
    if isinstance(data, Batch):
        _check_slices(data)
    elif _has(data, "batch"):
        raise InputError(
            "a Data with the field batch has structures of unknown limits; make a Batch with Batch.from_data_list or a "
            "DataLoader"
        )


def _check_vectors(data: Data, name: str, expected: str) -> None:
    value = data[name] if _has(data, name) else None
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2 or value.shape[-1] != 3:
        raise InputError(f"{name} is {_described(value)}, expected a floating-point tensor {expected}")


def _check_slices(batch: Batch) -> None:
    """Refuse fields that were added to a batch or changed in length: to which structures they belong is not known."""
    slices = batch._slice_dict
    late = set(batch.keys()) - set(slices) - _OF_BATCH
    for name in slices:
        value = batch[name]
        if isinstance(value, Tensor) and value.size(batch.__cat_dim__(name, value) or 0) != int(slices[name][-1]):
            late.add(name)
    if late:
        raise InputError(
            f"the fields {', '.join(sorted(late))} were added to the batch or changed in length, so they cannot be "
            "divided into structures; set them on each Data before batching, or compute them in the model"
        )


def _described(value: object) -> str:
    """What a value is, for errors."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(str, value))}"
    return "missing" if value is None else f"a {type(value).__name__}"


def _frames(
    data: Data | Batch,
    kind: AveragingKind,
    method: str,
    vacuum: float,
    generator: torch.Generator | None,
    *,
    differentiable: bool,
) -> Frames:
    """Frames of every structure of a batch."""
    own_kind, mode, proper = _settings(kind, method)
    config = FramesConfig(kind=own_kind, proper=proper, differentiable=differentiable, free_orientation=0.0)
    if generator is None:
        generator = torch.default_generator
    return build_frames(_bare_graph(data, periodic=kind == "lattice"), config, mode, vacuum=vacuum, generator=generator)


def _has(data: Data, name: str) -> bool:
    return name in data and data[name] is not None


def _bare_graph(data: Data | Batch, *, periodic: bool) -> AtomGraph:
    """Positions and cells as a graph without edges, which frames do not need."""
    pos, index = data.pos, data.batch if isinstance(data, Batch) else None
    graph_of_atom = torch.zeros(len(pos), dtype=torch.long, device=pos.device) if index is None else index
    n_graphs = data.num_graphs if isinstance(data, Batch) else 1
    periodic = periodic and _has(data, "cell")
    cell = data.cell.to(pos.dtype).reshape(n_graphs, 3, 3) if periodic else pos.new_zeros(n_graphs, 3, 3)
    pbc = torch.full((n_graphs, 3), periodic, device=pos.device)
    if periodic and _has(data, "pbc"):
        pbc = data.pbc.bool().reshape(n_graphs, 3)
    none = graph_of_atom[:0]
    return AtomGraph(
        positions=pos,
        atomic_numbers=torch.zeros_like(graph_of_atom),
        tags=torch.zeros_like(graph_of_atom),
        cell=cell,
        pbc=pbc,
        graph_of_atom=graph_of_atom,
        centre=none,
        neighbor=none,
        shift=none.new_zeros(0, 3),
    )


def _in_frame(data: Data, rotation: Tensor, kind: AveragingKind, vector_fields: Sequence[str]) -> Data:
    """A shallow copy with positions relative to their centroid, the cell and other vectors in a frame [3, 3]."""
    framed = copy.copy(data)
    centroid = data.pos.mean(dim=0)
    if kind == "2D":
        centroid = centroid * centroid.new_tensor([1.0, 1.0, 0.0])
    framed.pos = (data.pos - centroid) @ rotation
    for name in ("cell", *vector_fields):
        if _has(data, name):
            framed[name] = data[name] @ rotation
    return framed


def _average(values: Any, rank: OutputRank | None, frames: Frames, sizes: Tensor, name: str) -> Tensor:
    """Weighted average of per-structure or per-atom outputs over frames, rotated back.

    Args:
        values: [n_frames, ...] or [n_atoms of all copies, ...].
        rank: Of the output; None for scalars that must not look like vectors or tensors.
        frames: Of the batch.
        sizes: [n_graphs] number of atoms of each structure.
        name: Of the output, for errors.
    """
    _check_output(values, rank, name)
    copied = sizes[frames.graph]
    if len(values) == frames.n_frames:
        frame, target, n_rows = torch.arange(frames.n_frames, device=values.device), frames.graph, len(sizes)
    elif len(values) == int(copied.sum()):
        frame = torch.repeat_interleave(torch.arange(frames.n_frames, device=values.device), copied)
        first, start = torch.cumsum(sizes, 0) - sizes, torch.cumsum(copied, 0) - copied
        target = torch.arange(len(values), device=values.device) - start[frame] + first[frames.graph[frame]]
        n_rows = int(sizes.sum())
    else:
        raise InputError(
            f"{name} has {len(values)} rows for {frames.n_frames} structures with {int(copied.sum())} atoms (frames "
            "counted as structures); expected a row per structure or per atom"
        )
    rotation = frames.rotation[frame].to(values.dtype)
    if rank == "vector":
        values = torch.einsum("n...j,nij->n...i", values, rotation)
    elif rank == "tensor":
        values = torch.einsum("nik,n...kl,njl->n...ij", rotation, values, rotation)
    weight = frames.weight[frame].to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return values.new_zeros(n_rows, *values.shape[1:]).index_add(0, target, values * weight)


def _check_output(values: Any, rank: OutputRank | None, name: str) -> None:
    """Refuse an output that cannot be averaged as what it was said to be."""
    if isinstance(values, Mapping):
        raise InputError(f"{name} is {_described(values)}; expected outputs={{key: rank}} with the rank of each")
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.dim() == 0:
        raise InputError(
            f"{name} is {_described(values)}, expected a floating-point tensor with a row per structure or per atom, "
            "or a dict of such tensors; `call` can make one of what the model returns"
        )
    shape = _ROW_SHAPE[rank or "scalar"]
    if tuple(values.shape[max(1, values.dim() - len(shape)) :]) != shape and rank in ("vector", "tensor"):
        raise InputError(f"{name} is {_described(values)}, expected [n, ..., {str(list(shape))[1:]} for a {rank}")
    if rank is None and values.dim() > 1 and values.shape[-1] == 3:
        raise InputError(
            f"{name} is {_described(values)}, which may be vectors; give outputs='vector' (or 'tensor'), or 'scalar' "
            "for three invariant numbers"
        )
