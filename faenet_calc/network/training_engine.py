"""Energies, their derivatives with respect to edges, and gradients of both with respect to the weights, compiled.

Training on gradient forces differentiates a loss of first derivatives. :func:`energies_and_gradients` computes what
:class:`FAENet` and autograd compute in float32, in two native calls (``native/training.c``): one for the energies and
their derivatives, one for the gradient of the loss. It is one operation for autograd, so that everything before and
after it (geometry, frames, repulsion, loss) stays in PyTorch. Architectures that :func:`supports` rejects use autograd.
"""

import ctypes
import threading
import weakref
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from faenet_calc.frames.frames import FramedGraph
from faenet_calc.network.engine import EDGES_PER_GROUP
from faenet_calc.network.faenet import FAENet
from faenet_calc.network.layers import EdgeNodeLinear, FeedForward, Interaction
from faenet_calc.network.native import library, n_threads
from faenet_calc.network.packing import first_read

_MAX_FREE = 2  # blocks that are kept
_SPARE = 4  # a new block is larger than needed by one in so many parts, for the next batch
_WEIGHTS = (
    "direction_weight", "direction_bias", "radial_weight", "radial_bias", "edge_weight", "edge_bias", "filter_weight",
    "node_weight", "node_bias", "up_weight", "up_bias", "in_weight", "in_bias", "out_weight", "out_bias",
    "output_weight", "output_bias", "energy_weight", "energy_bias", "mixing",
)  # fmt: skip


class _Sizes(ctypes.Structure):
    """``TrainingSizes`` of ``native/training.h``."""

    integers = (
        "hidden", "filters", "edge", "directional", "radial", "gaussians", "feed_forward", "output", "layers",
        "first_read",
    )  # fmt: skip
    _fields_ = (
        *((name, ctypes.c_int64) for name in integers),
        ("spacing", ctypes.c_double),
        ("message_scale", ctypes.c_double),
    )


class _Weights(ctypes.Structure):
    """``TrainingWeights`` of ``native/training.h``."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in _WEIGHTS)


class _Batch(ctypes.Structure):
    """``TrainingBatch`` of ``native/training.h``."""

    sizes = ("n_frames", "n_edges", "edges_per_group", "parts")
    arrays = (
        "node_start", "edge_start", "centre", "neighbor", "vectors", "distances", "weights", "states", "seed", "energy",
        "grad_vectors", "grad_distances", "grad_weights", "grad_energy", "grad_grad_vectors", "grad_grad_distances",
        "grad_grad_weights", "grad_states", "packed", "kept", "workspace",
    )  # fmt: skip
    _fields_ = (
        *((name, ctypes.c_int64) for name in sizes),
        *((name, ctypes.c_void_p) for name in arrays),
        ("n_gradients", ctypes.c_int64),
        ("gradients", _Weights),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class EnergiesAndGradients:
    """Energies of all copies, differentiable with respect to the weights, as are their derivatives.

    Attributes:
        node_energy: [n_nodes] float64.
        grad_vectors: [n_edge_copies, 3] derivative of Σ seed · node_energy with respect to edge vectors in frames.
        grad_distances: [n_edge_copies] with respect to distances.
        grad_weights: [n_edge_copies] with respect to the factors of the messages.
    """

    node_energy: Tensor
    grad_vectors: Tensor
    grad_distances: Tensor
    grad_weights: Tensor


def supports(model: torch.nn.Module) -> bool:
    """Whether a model's architecture, dtype and device are those of the compiled functions."""
    if not isinstance(model, FAENet):
        return False
    config, parameter = model.config, next(model.parameters())
    found = library()
    return (
        found is not None
        and parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        and (found.threaded or torch.get_num_threads() == 1)
        and config.interactions > 0
        and config.message in ("updownscale", "updownscale_base")
        and config.activation in ("swish", "silu")
        and config.edge_features == "r_and_distance"
        and config.atoms.second_layer
        and config.jumping in ("none", "add", "concat")
        and config.energy_weighting == "none"
        and config.split_filter  # imported weights keep the rounding of upstream
        and not config.graph_norm
        and not config.extra_layer
        and model._compiled_call_impl is None
    )


def energies_and_gradients(
    model: FAENet, framed: FramedGraph, vectors: Tensor, distances: Tensor, weights: Tensor, seed: Tensor
) -> EnergiesAndGradients:
    """Energies of all nodes and derivatives of Σ seed · energy.

    Results are differentiable with respect to the parameters of the model, not with respect to the other arguments.

    Args:
        model: One that :func:`supports` accepts.
        framed: Structures and the indices of their copies.
        vectors: [n_edge_copies, 3] (Å) edge vectors in their frames.
        distances: [n_edge_copies] (Å).
        weights: [n_edge_copies] factors of the messages.
        seed: [n_nodes].
    """
    found = library()
    assert found is not None
    panel = int(found.function("fused_panel")())
    sizes, arrays = _weights(model, panel)
    states = model.atom_embedding(framed.graph.atomic_numbers, framed.graph.tags).index_select(0, framed.atom_of_node)
    results = _Energies.apply(  # type: ignore[no-untyped-call]
        (sizes, *_starts(framed), framed.centre, framed.neighbor),
        vectors.detach().float(),
        distances.detach().float(),
        weights.detach().float(),
        seed.detach().float(),
        padded(states, None, sizes.hidden),
        *arrays,
    )
    return EnergiesAndGradients(**dict(zip(EnergiesAndGradients.__dataclass_fields__, results, strict=True)))


def _starts(framed: FramedGraph) -> tuple[Tensor, Tensor]:
    """First node and first edge of every frame, and their numbers, [n_frames + 1] each."""
    found = []
    for frame in (framed.frame_of_node, framed.frame_of_edge):
        found.append(torch.searchsorted(frame, torch.arange(framed.n_frames + 1)))
    return found[0], found[1]


def _weights(model: FAENet, panel: int) -> tuple[_Sizes, list[Tensor]]:
    """Widths and weights by the names of ``native/training.h``, differentiable functions of the parameters."""

    def wide(width: int) -> int:
        return -(-width // panel) * panel

    config, embedding, head = model.config, model.edge_embedding, model.output_block
    assert embedding.lin_e12 is not None and embedding.lin_e2 is not None
    own, shared = embedding.lin_e1.out_features, embedding.lin_e12.out_features
    sizes = _Sizes(
        hidden=wide(config.hidden_channels),
        filters=wide(config.filters),
        edge=wide(embedding.lin_e2.out_features),
        directional=wide(own),
        radial=wide(shared),
        gaussians=wide(config.gaussians),
        feed_forward=wide(config.feed_forward),
        output=wide(config.hidden_channels // 2),
        layers=config.interactions,
        first_read=first_read(model),
        spacing=float(model.distance_expansion.offset[1] - model.distance_expansion.offset[0]),
        message_scale=config.mean_neighbors**-0.5,
    )
    hidden, filters = sizes.hidden, sizes.filters
    of_own, of_shared = embedding.lin_e2.weight.split([own, shared], dim=1)
    blocks = [block for block in model.interaction_blocks if isinstance(block, Interaction)]
    feed_forward = [block for block in model.feed_forward_blocks if isinstance(block, FeedForward)]
    filter_weights, node_weights, node_biases = [], [], []
    for block in blocks:
        linear = block.lin_geom
        assert linear is not None
        for_edge, nothing = linear.weight, linear.weight.new_zeros(filters, hidden)
        of_nodes = [nothing, nothing]
        if isinstance(linear, EdgeNodeLinear):
            for_edge, for_neighbor, for_centre = linear.weight.split(linear.widths, dim=1)
            of_nodes = [padded(weight, filters, hidden) for weight in (for_centre, for_neighbor)]
        filter_weights.append(padded(for_edge, filters, sizes.edge))
        node_weights.append(torch.cat([*of_nodes, padded(block.lin_down.weight, filters, hidden)]))
        biases = (linear.bias, torch.zeros_like(linear.bias), block.lin_down.bias)
        node_biases.append(torch.cat([padded(bias, filters) for bias in biases]))

    def of_all(tensors: list[Tensor], *widths: int) -> Tensor:
        return torch.stack([padded(tensor, *widths) for tensor in tensors]) if tensors else torch.zeros(0)

    arrays = {
        "direction_weight": padded(embedding.lin_e1.weight.t(), None, sizes.directional),
        "direction_bias": padded(embedding.lin_e1.bias, sizes.directional),
        "radial_weight": padded(embedding.lin_e12.weight, sizes.radial, sizes.gaussians),
        "radial_bias": padded(embedding.lin_e12.bias, sizes.radial),
        "edge_weight": torch.cat(
            [padded(of_own, sizes.edge, sizes.directional), padded(of_shared, sizes.edge, sizes.radial)], dim=1
        ),
        "edge_bias": padded(embedding.lin_e2.bias, sizes.edge),
        "filter_weight": torch.stack(filter_weights),
        "node_weight": torch.stack(node_weights),
        "node_bias": torch.stack(node_biases),
        "up_weight": of_all([block.lin_up.weight for block in blocks], hidden, filters),
        "up_bias": of_all([block.lin_up.bias for block in blocks], hidden),
        "in_weight": of_all([block.lin_in.weight for block in feed_forward], sizes.feed_forward, hidden),
        "in_bias": of_all([block.lin_in.bias for block in feed_forward], sizes.feed_forward),
        "out_weight": of_all([block.lin_out.weight for block in feed_forward], hidden, sizes.feed_forward),
        "out_bias": of_all([block.lin_out.bias for block in feed_forward], hidden),
        "output_weight": padded(head.lin1.weight, sizes.output, hidden),
        "output_bias": padded(head.lin1.bias, sizes.output),
        "energy_weight": padded(head.lin2.weight[0], sizes.output),
        "energy_bias": head.lin2.bias,
        "mixing": torch.ones(sizes.layers + 1) if model.mlp_skip_co is None else model.mlp_skip_co.weight[0],
    }
    return sizes, [arrays[name].contiguous() for name in _WEIGHTS]


def padded(values: Tensor, *sizes: int | None) -> Tensor:
    """The same values with zeros after them, up to these sizes; None keeps a size."""
    missing = [0 if size is None else size - have for size, have in zip(sizes, values.shape, strict=True)]
    if not any(missing):
        return values
    return functional.pad(values, [amount for size in reversed(missing) for amount in (0, size)])


class _Pool:
    """Blocks of memory that are used again, so that the operating system need not map and clear them every step.

    NumPy allocates them, because it asks Linux for large pages.
    """

    def __init__(self) -> None:
        self._free: list[NDArray[np.float32]] = []
        self._lock = threading.Lock()

    def take(self, size: int, owner: object) -> Tensor:
        """[at least ``size``] float32 without a value, until ``owner`` ceases to exist."""
        with self._lock:
            large_enough = [number for number, block in enumerate(self._free) if len(block) >= size]
            if large_enough:
                block = self._free.pop(large_enough[0])
            else:
                self._free.clear()  # too small now, hence often
                block = np.empty(size + size // _SPARE, dtype=np.float32)
        weakref.finalize(owner, self._give, block).atexit = False
        return torch.from_numpy(block)

    def _give(self, block: NDArray[np.float32]) -> None:
        with self._lock:
            if len(self._free) < _MAX_FREE:
                self._free.append(block)


_pool = _Pool()


class _Work:
    """Owner of the memory of one native call."""


class _Call:
    """The arguments of both native calls.

    Args:
        sizes: Widths of the network.
        given: Arrays by the names of ``TrainingBatch``.
        weights: In the order of ``_WEIGHTS``.
    """

    def __init__(self, sizes: _Sizes, given: dict[str, Tensor], weights: tuple[Tensor, ...]) -> None:
        found = library()
        assert found is not None
        self.found, self.sizes, self.arrays, self.weights = found, sizes, given, weights
        n_edges, threads = len(given["centre"]), n_threads(found)
        limit = max(1, min(EDGES_PER_GROUP, -(-n_edges // threads)))
        self.batch = _Batch(
            n_frames=len(given["node_start"]) - 1, n_edges=n_edges, edges_per_group=limit, parts=threads
        )
        self._point(given)
        wrong = found.function("training_check")(ctypes.byref(self.batch), ctypes.c_int64(len(given["states"])))
        if wrong:
            name = ("node_start", "edge_start", "centre", "neighbor")[wrong - 1]
            raise IndexError(f"{name} has numbers that are not indices of the same copy: {given[name]}")
        memory = (ctypes.c_int64 * 4)()
        found.function("training_memory")(ctypes.byref(sizes), ctypes.byref(self.batch), memory)
        packed, kept, *self.work = memory
        memory_of_both = _pool.take(packed + kept, self)
        self._point({"packed": memory_of_both[:packed], "kept": memory_of_both[packed:]})

    def run(self, second: int, arrays: dict[str, Tensor], gradients: Tensor | None = None) -> None:
        """Run the first (0) or the second (1) call with further arrays."""
        owner = _Work()
        self._point(arrays | {"workspace": _pool.take(self.batch.parts * self.work[second], owner)})
        if gradients is not None:
            self.batch.n_gradients, self.batch.gradients = gradients.shape[1], _pointers(self._split(gradients[0]))
        self.found.function("training_run")(
            ctypes.byref(self.sizes),
            ctypes.byref(_pointers(self.weights)),
            ctypes.byref(self.batch),
            ctypes.c_int(second),
            ctypes.c_int64(self.work[second]),
        )

    def new_gradients(self) -> Tensor:
        """[parts, n] zeros for the gradients of all weights."""
        return torch.zeros(self.batch.parts, sum(weight.numel() for weight in self.weights))

    def _split(self, gradients: Tensor) -> tuple[Tensor, ...]:
        parts = gradients.split([weight.numel() for weight in self.weights])
        return tuple(part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True))

    def split(self, gradients: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the weights, from the sums over all parts."""
        return self._split(gradients[0])

    def _point(self, arrays: dict[str, Tensor]) -> None:
        for name, array in arrays.items():
            assert array.is_contiguous(), name
            setattr(self.batch, name, array.data_ptr())


def _pointers(weights: tuple[Tensor, ...]) -> _Weights:
    return _Weights(*(weight.data_ptr() for weight in weights))


class _Energies(Function):
    """Energies of nodes and derivatives of their weighted sum with respect to edges."""

    @staticmethod
    def forward(
        ctx: Any,
        fixed: tuple[_Sizes, Tensor, Tensor, Tensor, Tensor],
        vectors: Tensor,
        distances: Tensor,
        weights: Tensor,
        seed: Tensor,
        states: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sizes, *indices = fixed
        edges = {"vectors": vectors, "distances": distances, "weights": weights}
        given = dict(zip(("node_start", "edge_start", "centre", "neighbor"), indices, strict=True))
        given |= edges | {"seed": seed, "states": states}
        given = {name: array.contiguous() for name, array in given.items()}
        _check(given, sizes)
        call = _Call(sizes, given, tuple(parameter.detach() for parameter in parameters))
        results = {"energy": torch.empty(len(states), dtype=torch.float64)}
        results |= {f"grad_{name}": torch.empty_like(array) for name, array in edges.items()}
        call.run(0, results)
        ctx.call = call
        ctx.save_for_backward(states, *parameters)  # their version is checked before the second call
        return cast(tuple[Tensor, Tensor, Tensor, Tensor], tuple(results.values()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_energy: Tensor, *grad_grads: Tensor) -> tuple[Tensor | None, ...]:
        states, *_ = ctx.saved_tensors
        call: _Call = ctx.call
        gradients, grad_states = call.new_gradients(), torch.empty_like(states)
        names = ("grad_grad_vectors", "grad_grad_distances", "grad_grad_weights")
        given = dict(zip(names, (grad.contiguous() for grad in grad_grads), strict=True))
        given["grad_energy"] = grad_energy.float().contiguous()
        call.run(1, {**given, "grad_states": grad_states}, gradients)
        return None, None, None, None, None, grad_states, *call.split(gradients)


def _check(given: dict[str, Tensor], sizes: _Sizes) -> None:
    """Compiled code does not check shapes and types."""
    n_nodes, n_edges = len(given["states"]), len(given["centre"])
    shapes = {
        "neighbor": (n_edges,),
        "vectors": (n_edges, 3),
        "distances": (n_edges,),
        "weights": (n_edges,),
        "seed": (n_nodes,),
        "states": (n_nodes, sizes.hidden),
        "edge_start": tuple(given["node_start"].shape),
    }
    for name, array in given.items():
        integer = name in ("node_start", "edge_start", "centre", "neighbor")
        dtype = torch.int64 if integer else torch.float32
        if array.dtype != dtype or array.device.type != "cpu":
            raise TypeError(f"{name} is {array.dtype} on {array.device}, expected {dtype} on the CPU")
        if name in shapes and array.shape != shapes[name]:
            raise ValueError(f"{name} has shape {tuple(array.shape)}, expected {shapes[name]}")
