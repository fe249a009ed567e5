"""Fused evaluation of FAENet on the CPU: energies and their derivatives in one native call.

:class:`Engine` holds the weights of a model packed for ``native/fused.c``. It computes what :class:`FAENet` computes in
float32, with two differences in the order of operations: the radial part of the edge embedding is a cubic spline, and
frames U and -U share their edge embeddings. Second derivatives, other architectures and other devices use PyTorch.
"""

import ctypes
import itertools
import math
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from faenet_calc.network.faenet import FAENet
from faenet_calc.network.layers import EdgeNodeLinear, FeedForward, Interaction
from faenet_calc.network.native import Library, library, n_threads

INTERVALS = 1024
"""Of the spline for the radial part: its error is below the rounding of float32."""

EDGES_PER_GROUP = 2000
"""Edges per thread that are evaluated together if a frame has fewer; they fit into the cache."""

_KEPT_WORKSPACE = 1 << 28  # bytes; larger ones are returned to the system


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineInput:
    """A batch of structures and their frames.

    Attributes:
        kind: [n_atoms] int64, row of the atom embedding; see :meth:`Engine.kinds`.
        atom_start: [n_graphs + 1] int64, first atom of each structure.
        edge_start: [n_graphs + 1] int64, first edge of each structure.
        centre: [n_edges] int64, ascending.
        neighbor: [n_edges] int64.
        vectors: [n_edges, 3] float64 (Å).
        frame_start: [n_graphs + 1] int64, first frame of each structure.
        rotation: [n_frames, 3, 3] float64.
        share_inverse: Every edge has its reverse, and frames U and -U have opposite derivatives dU.
    """

    kind: Tensor
    atom_start: Tensor
    edge_start: Tensor
    centre: Tensor
    neighbor: Tensor
    vectors: Tensor
    frame_start: Tensor
    rotation: Tensor
    share_inverse: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineOutput:
    """Energies and derivatives of Σ_f seed_f E_f.

    Attributes:
        node_energy: [n_nodes] float64, frame after frame.
        features: [n_nodes, O] mixed last-layer features: ``lin2`` of them is the energy.
        grad_vectors: [n_edges, 3] float64.
        grad_rotation: [n_frames, 3, 3] float64; frames that share edges have their sum at the first of them.
        grad_copies: [n_edge_copies, 3] float64 by frame, or None.
    """

    node_energy: Tensor
    features: Tensor | None
    grad_vectors: Tensor | None
    grad_rotation: Tensor | None
    grad_copies: Tensor | None


class _Weights(ctypes.Structure):
    sizes = ("kinds", "hidden", "filters", "directional", "feed_forward", "output", "layers", "intervals", "power")
    numbers = ("cutoff", "message_scale", "output_bias")
    arrays = (
        "atom_states", "direction_weight", "direction_bias", "radial", "edge_weight", "filter_weight", "node_weight",
        "node_bias", "up_weight", "up_bias", "in_weight", "in_bias", "out_weight", "out_bias", "output_weight",
        "output_hidden_bias", "energy_weight", "mixing",
    )  # fmt: skip
    _fields_ = (
        *((name, ctypes.c_int64) for name in sizes),
        *((name, ctypes.c_double) for name in numbers),
        *((name, ctypes.c_void_p) for name in arrays),
    )


class _Batch(ctypes.Structure):
    sizes = ("n_graphs", "n_atoms", "n_edges", "n_frames", "share_inverse", "edges_per_group", "threads")
    inputs = ("atom_start", "edge_start", "kind", "centre", "neighbor", "vectors", "frame_start", "rotation", "seed")
    outputs = ("node_energy", "features", "grad_vectors", "grad_rotation", "grad_copies")
    _fields_ = (
        *((name, ctypes.c_int64) for name in sizes),
        *((name, ctypes.c_void_p) for name in (*inputs, *outputs)),
    )


def supports(model: FAENet) -> bool:
    """Whether a model's architecture, dtype and device are those of the engine."""
    config = model.config
    parameter = next(model.parameters())
    return (
        library() is not None
        and parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        and config.message == "updownscale_base"
        and config.activation in ("swish", "silu")
        and config.edge_features == "r_and_distance"
        and config.atoms.second_layer
        and config.jumping == "concat"
        and config.energy_weighting == "none"
        and config.decoder is None
        and not config.graph_norm
        and not config.extra_layer
    )


class Engine:
    """A model's weights, packed for the fused evaluation.

    Args:
        model: One that :func:`supports` accepts. Weights are copied; a changed model needs a new engine.
        instructions: Instruction set; None for the best of this processor.
    """

    def __init__(self, model: FAENet, instructions: str | None = None) -> None:
        found = library(instructions)
        assert found is not None
        self._library: Library = found
        config = model.config
        self._n_tags = 3 if config.atoms.tag_channels else 1
        self._n_features = config.hidden_channels // 2
        self._panel = int(found.function("fused_panel")())
        with torch.no_grad():
            sizes, self._arrays = self._pack(model)
        self.padded_features = sizes["output"]
        bias = model.output_block.lin2.bias
        weights = _Weights(
            **sizes,
            layers=config.interactions,
            intervals=INTERVALS,
            power=config.envelope_power,
            cutoff=config.cutoff,
            message_scale=1.0 / math.sqrt(config.mean_neighbors),
            output_bias=float(bias),
            **{name: array.data_ptr() for name, array in self._arrays.items()},
        )
        create = found.function("fused_model")
        create.restype, create.argtypes = ctypes.c_void_p, (ctypes.POINTER(_Weights),)
        self._handle = ctypes.c_void_p(create(ctypes.byref(weights)))
        if not self._handle:
            raise MemoryError("the weights of the engine could not be allocated")
        self._free = weakref.finalize(self, found.function("fused_free"), self._handle)
        self._number = next(_numbers)
        _engines[self._number] = self
        self._check, self._memory, self._evaluate = (
            found.function(name) for name in ("fused_check", "fused_memory", "fused_evaluate")
        )
        self._check.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Batch))
        self._memory.restype = ctypes.c_int64
        self._memory.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Batch))
        self._evaluate.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Batch), ctypes.c_void_p)

    def kinds(self, atomic_numbers: Tensor, tags: Tensor) -> Tensor:
        """[n_atoms] row of the atom embedding of each atom."""
        return atomic_numbers if self._n_tags == 1 else atomic_numbers * self._n_tags + tags

    def evaluate(
        self, batch: EngineInput, seed: Tensor, *, gradients: bool, features: bool = False, copies: bool = False
    ) -> EngineOutput:
        """Energies of all frames and derivatives of their weighted sum.

        Args:
            batch: Structures and frames.
            seed: [n_frames] float64 weights of the frames' energies.
            gradients: Compute derivatives.
            features: Return last-layer features.
            copies: Return derivatives of each frame by itself; ``batch.share_inverse`` must be off.
        """
        if copies and batch.share_inverse:
            raise ValueError(
                "copies=True and share_inverse=True: frames that share edges have no separate derivatives"
            )
        frames = np.diff(batch.frame_start.numpy())
        node_energy, found_features, grad_vectors, grad_rotation, grad_copies = torch.ops.faenet_calc.fused_evaluate(
            self._number,
            *(getattr(batch, name) for name in _Batch.inputs if name != "seed"),
            seed,
            batch.share_inverse,
            int(np.diff(batch.atom_start.numpy()) @ frames),
            int(np.diff(batch.edge_start.numpy()) @ frames) if copies else 0,
            gradients,
            self._n_features if features else 0,
        )
        return EngineOutput(
            node_energy=node_energy,
            features=found_features if features else None,
            grad_vectors=grad_vectors if gradients else None,
            grad_rotation=grad_rotation if gradients else None,
            grad_copies=grad_copies if copies else None,
        )

    def run(self, share_inverse: int, inputs: dict[str, Tensor], outputs: dict[str, Tensor | None]) -> None:
        """Call the native function with contiguous arrays by the names of ``native/fused.h``."""
        threads = n_threads(self._library)
        arrays = inputs | outputs
        call = _Batch(
            n_graphs=len(inputs["atom_start"]) - 1,
            n_atoms=len(inputs["kind"]),
            n_edges=len(inputs["centre"]),
            n_frames=len(inputs["seed"]),
            share_inverse=share_inverse,
            edges_per_group=EDGES_PER_GROUP * threads,
            threads=threads,
            **{name: None if array is None else array.data_ptr() for name, array in arrays.items()},
        )
        wrong = self._check(self._handle, ctypes.byref(call))
        if wrong:
            name = list(_CHECKED)[wrong - 1]
            raise IndexError(f"{name} = {inputs[name]}, expected {_CHECKED[name]}")
        workspace = _workspaces.of_size(self._memory(self._handle, ctypes.byref(call)))
        aligned = (workspace.data_ptr() + 63) // 64 * 64
        if self._evaluate(self._handle, ctypes.byref(call), aligned):
            raise MemoryError("the engine could not allocate its lists of frames")

    def _pack(self, model: FAENet) -> tuple[dict[str, int], dict[str, Tensor]]:
        """Padded widths and weights by the names of ``native/fused.h``."""
        config = model.config
        hidden, filters = self._wide(config.hidden_channels), self._wide(config.filters)
        directional, output = self._wide(config.filters // 2), self._wide(config.hidden_channels // 2)
        feed_forward = self._wide(config.feed_forward)
        embedding = model.edge_embedding
        blocks = [block for block in model.interaction_blocks if isinstance(block, Interaction)]
        assert embedding.lin_e2 is not None and model.mlp_skip_co is not None
        own = embedding.lin_e1.out_features
        node_weights, node_biases, filter_weights = [], [], []
        for block in blocks:
            assert isinstance(block.lin_geom, EdgeNodeLinear)
            for_edge, for_neighbor, for_centre = block.lin_geom.weight.split(block.lin_geom.widths, dim=1)
            filter_weights.append(_padded(for_edge, filters, filters))
            parts = (for_centre, for_neighbor, block.lin_down.weight)
            node_weights.append(torch.cat([_padded(part, filters, hidden) for part in parts]))
            biases = (block.lin_geom.bias, torch.zeros_like(block.lin_geom.bias), block.lin_down.bias)
            node_biases.append(torch.cat([_padded(bias, filters) for bias in biases]))
        wide = [block for block in model.feed_forward_blocks if isinstance(block, FeedForward)]
        head = model.output_block
        arrays = {
            "atom_states": _padded(_atom_states(model), None, hidden),
            "direction_weight": _padded(embedding.lin_e1.weight.t(), None, directional),
            "direction_bias": _padded(embedding.lin_e1.bias, directional),
            "radial": _radial_spline(model, filters),
            "edge_weight": _padded(embedding.lin_e2.weight[:, :own], filters, directional),
            "filter_weight": torch.stack(filter_weights),
            "node_weight": torch.stack(node_weights),
            "node_bias": torch.stack(node_biases),
            "up_weight": torch.stack([_padded(block.lin_up.weight, hidden, filters) for block in blocks]),
            "up_bias": torch.stack([_padded(block.lin_up.bias, hidden) for block in blocks]),
            "in_weight": _stacked([_padded(block.lin_in.weight, feed_forward, hidden) for block in wide]),
            "in_bias": _stacked([_padded(block.lin_in.bias, feed_forward) for block in wide]),
            "out_weight": _stacked([_padded(block.lin_out.weight, hidden, feed_forward) for block in wide]),
            "out_bias": _stacked([_padded(block.lin_out.bias, hidden) for block in wide]),
            "output_weight": _padded(head.lin1.weight, output, hidden),
            "output_hidden_bias": _padded(head.lin1.bias, output),
            "energy_weight": _padded(head.lin2.weight[0], output),
            "mixing": model.mlp_skip_co.weight[0].clone(),
        }
        sizes = {
            "kinds": len(arrays["atom_states"]),
            "hidden": hidden,
            "filters": filters,
            "directional": directional,
            "feed_forward": feed_forward,
            "output": output,
        }
        return sizes, {name: array.contiguous() for name, array in arrays.items()}

    def _wide(self, width: int) -> int:
        """A width rounded up to whole panels."""
        return -(-width // self._panel) * self._panel


# What ``fused_check`` looks at, in its order.
_CHECKED = {
    "atom_start": "ascending numbers from 0 to the number of atoms",
    "edge_start": "ascending numbers from 0 to the number of edges",
    "frame_start": "ascending numbers from 0 to the number of frames",
    "kind": "rows of the atom embedding",
    "centre": "atoms of the same structure in ascending order",
    "neighbor": "atoms of the same structure",
}


def _check_shapes(inputs: dict[str, Tensor]) -> None:
    n_edges, n_frames, starts = len(inputs["centre"]), len(inputs["seed"]), len(inputs["atom_start"])
    expected = {
        "edge_start": (starts,),
        "frame_start": (starts,),
        "neighbor": (n_edges,),
        "vectors": (n_edges, 3),
        "rotation": (n_frames, 3, 3),
    }
    for name, shape in expected.items():
        if inputs[name].shape != shape:
            raise ValueError(f"{name} has shape {tuple(inputs[name].shape)}, expected {shape}")


_numbers = itertools.count()
_engines: "weakref.WeakValueDictionary[int, Engine]" = weakref.WeakValueDictionary()


def _empty_outputs(
    vectors: Tensor, rotation: Tensor, n_nodes: int, n_copies: int, gradients: bool, n_features: int
) -> tuple[Tensor, ...]:
    """Zeros for the five outputs of the operator; those that are not requested have no rows."""
    new = vectors.new_zeros
    return (
        new(n_nodes),
        new(n_nodes if n_features else 0, n_features, dtype=torch.float32),
        new(vectors.shape[0] if gradients else 0, 3),
        new(rotation.shape[0] if gradients else 0, 3, 3),
        new(n_copies, 3),
    )


def _fused_evaluate(
    engine: int,
    atom_start: Tensor,
    edge_start: Tensor,
    kind: Tensor,
    centre: Tensor,
    neighbor: Tensor,
    vectors: Tensor,
    frame_start: Tensor,
    rotation: Tensor,
    seed: Tensor,
    share_inverse: bool,
    n_nodes: int,
    n_copies: int,
    gradients: bool,
    n_features: int,
) -> tuple[Tensor, ...]:
    """The operator on the CPU: checks, since compiled code does none, and the native call."""
    chosen = _engines[engine]
    given = (atom_start, edge_start, kind, centre, neighbor, vectors, frame_start, rotation, seed)
    inputs = {name: array.contiguous() for name, array in zip(_Batch.inputs, given, strict=True)}
    for name, array in inputs.items():
        expected = torch.float64 if name in ("vectors", "rotation", "seed") else torch.int64
        if array.dtype != expected:
            raise TypeError(f"{name} has dtype {array.dtype}, expected {expected}")
    _check_shapes(inputs)
    padded = chosen.padded_features if n_features else 0
    outputs = _empty_outputs(vectors, rotation, n_nodes, n_copies, gradients, padded)
    wanted = (True, n_features > 0, gradients, gradients, n_copies > 0)
    written = {name: array if use else None for name, array, use in zip(_Batch.outputs, outputs, wanted, strict=True)}
    chosen.run(int(share_inverse), inputs, written)
    node_energy, features, *grads = outputs
    return node_energy, features[:, :n_features].contiguous(), *grads


def _fused_evaluate_fake(engine: int, *arguments: Any) -> tuple[Tensor, ...]:
    vectors, rotation = arguments[5], arguments[7]
    return _empty_outputs(vectors, rotation, *arguments[10:])


torch.library.define(
    "faenet_calc::fused_evaluate",
    "(int engine, Tensor atom_start, Tensor edge_start, Tensor kind, Tensor centre, Tensor neighbor, Tensor vectors, "
    "Tensor frame_start, Tensor rotation, Tensor seed, bool share_inverse, SymInt n_nodes, SymInt n_copies, "
    "bool gradients, SymInt n_features) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.impl("faenet_calc::fused_evaluate", "cpu", _fused_evaluate)
torch.library.register_fake("faenet_calc::fused_evaluate", _fused_evaluate_fake)


def _padded(values: Tensor, *sizes: int | None) -> Tensor:
    """The same values with zeros after them, up to these sizes; None keeps a size."""
    missing = [0 if size is None else size - have for size, have in zip(sizes, values.shape, strict=True)]
    return functional.pad(values, [amount for size in reversed(missing) for amount in (0, size)])


def _stacked(arrays: list[Tensor]) -> Tensor:
    return torch.stack(arrays) if arrays else torch.empty(0)


def _atom_states(model: FAENet) -> Tensor:
    """[n_kinds, H] first states of all elements, for each tag if there are tags."""
    config = model.config.atoms
    n_tags = 3 if config.tag_channels else 1
    numbers = torch.arange(config.n_elements + 1).repeat_interleave(n_tags)
    return model.atom_embedding(numbers, torch.arange(n_tags).repeat(config.n_elements + 1))


def _radial_spline(model: FAENet, width: int) -> Tensor:
    """[INTERVALS + 1, 2, width] values and slopes × spacing of the distance's part of the edge embedding."""
    embedding, cutoff = model.edge_embedding, model.config.cutoff
    assert embedding.lin_e2 is not None and embedding.lin_e12 is not None
    outer = embedding.lin_e2.weight[:, embedding.lin_e1.out_features :].double()
    inner, inner_bias = embedding.lin_e12.weight.double(), embedding.lin_e12.bias.double()
    outer_bias, offset = embedding.lin_e2.bias.double(), model.distance_expansion.offset.double()

    spacing, width_of_basis = cutoff / INTERVALS, offset[1] - offset[0]
    knots = torch.linspace(0.0, cutoff, INTERVALS + 1, dtype=torch.float64)
    scaled = (knots[:, None] - offset) / width_of_basis
    basis = torch.exp(-0.5 * scaled.square())
    z, slope_z = basis @ inner.t() + inner_bias, (-scaled / width_of_basis * basis) @ inner.t()
    sigmoid = torch.sigmoid(z)
    values = (z * sigmoid) @ outer.t() + outer_bias
    slopes = (sigmoid * (1 + z * (1 - sigmoid)) * slope_z) @ outer.t()
    return _padded(torch.stack([values, slopes * spacing], dim=1).float(), None, None, width)


class _Workspaces(threading.local):
    """Memory of each thread, kept between calls so that the operating system need not map and clear it every time."""

    kept: Tensor = torch.empty(0, dtype=torch.uint8)

    def of_size(self, size: int) -> Tensor:
        """At least this many bytes, with room for alignment."""
        if self.kept.numel() >= size + 64:
            return self.kept
        new = torch.empty(size + 64, dtype=torch.uint8)
        if new.numel() <= _KEPT_WORKSPACE:
            self.kept = new
        return new


_workspaces = _Workspaces()
