"""Fused evaluation of FAENet on the CPU: energies and their derivatives in one native call.

:class:`Engine` holds the packed weights of a model and calls ``native/fused.c``. It computes what :class:`FAENet`
computes in float32, with three differences in the order of operations: what depends on distances alone is a cubic
spline, linear maps of [e, h_j, h_i] are sums of three maps, and frames U and -U share their edge embeddings. Second
derivatives, other architectures and other devices use PyTorch.
"""

import ctypes
import itertools
import os
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from faenet_calc.frames.frames import Frames
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network import device_engine
from faenet_calc.network.device_engine import DeviceEngine
from faenet_calc.network.engine_output import EngineOutput
from faenet_calc.network.faenet import FAENet
from faenet_calc.network.native import Library, library, n_threads
from faenet_calc.network.packing import JUMPING, MESSAGES, CWeights, PackedWeights, first_read

EDGES_PER_GROUP = 2000
"""Edges per thread that are evaluated together if a frame has fewer; they fit into the cache."""

_SHARE_OF_MEMORY = 4  # a workspace of more than this part of the machine's memory is returned to the system


class _Batch(ctypes.Structure):
    sizes = ("n_graphs", "n_atoms", "n_edges", "n_frames", "share_inverse", "edges_per_group", "threads")
    inputs = (
        "atom_start", "edge_start", "kind", "centre", "neighbor", "shift", "vectors", "frame_start", "rotation", "seed",
        "factor",
    )  # fmt: skip
    outputs = (
        "energy", "node_energy", "hidden", "features", "grad_vectors", "grad_rotation", "grad_factor", "grad_copies",
    )  # fmt: skip
    _fields_ = (
        *((name, ctypes.c_int64) for name in sizes),
        *((name, ctypes.c_void_p) for name in (*inputs, *outputs)),
    )


def supports(model: torch.nn.Module) -> bool:
    """Whether a model's architecture, dtype and device are those of the engine."""
    if not isinstance(model, FAENet):
        return False
    config = model.config
    parameter = next(model.parameters())
    return (
        library() is not None
        and parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        and config.interactions > 0
        and config.message in MESSAGES
        and config.activation in ("swish", "silu")
        and config.edge_features == "r_and_distance"
        and config.jumping in JUMPING
        and config.split_filter  # imported weights keep the rounding of upstream
    )


def engine_for(model: FAENet) -> "Engine | DeviceEngine | None":
    """The engine of a model, packed again after its weights have changed; None if there is no engine for it."""
    kept = _kept.get(model)
    if kept is None:
        groups = [group for module in model.modules() for group in (module._parameters, module._buffers)]
        slots = [(group, name) for group in groups for name, value in group.items() if value is not None]
        kept = _kept[model] = _Kept(slots)
    tensors = [group[name] for group, name in kept.slots]
    version = [tensor.data_ptr() for tensor in tensors]
    try:
        version += [tensor._version for tensor in tensors]
    except RuntimeError:  # of inference tensors unknown
        version += [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    version.append(model._compiled_call_impl is not None)
    if kept.version != version:
        kept.version, kept.engine = version, _new_engine(model)
    return kept.engine


def _new_engine(model: FAENet) -> "Engine | DeviceEngine | None":
    if supports(model):
        return Engine(model)
    on_device = next(model.parameters()).device.type in device_engine.DEVICES
    return DeviceEngine(model) if on_device and device_engine.supports(model) else None


@dataclass(eq=False)
class _Kept:
    """The engine of a model and the state of the model's tensors when it was made.

    Attributes:
        slots: Dictionaries of parameters and buffers, each with a name in it.
        version: Number of changes and address of every tensor.
    """

    slots: list[tuple[dict[str, Any], str]]
    version: list[int] | None = None
    engine: "Engine | DeviceEngine | None" = None


_kept: "weakref.WeakKeyDictionary[FAENet, _Kept]" = weakref.WeakKeyDictionary()


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
        self.n_states = config.interactions + 1 - first_read(model)
        self._has_atom_energies, self._bias = model.has_atom_energies, 0.0
        if model.mlp_skip_co is not None and model.mlp_skip_co.bias is not None:
            self._bias = float(model.mlp_skip_co.bias.detach())
        self._width, self._n_features = config.hidden_channels, config.hidden_channels // 2 * self.n_states
        self._weights = PackedWeights.of(model, int(found.function("fused_panel")()))
        self.padded = self._weights.hidden, self._weights.output * self.n_states
        create = found.function("fused_model")
        create.restype, create.argtypes = ctypes.c_void_p, (ctypes.POINTER(CWeights),)
        self._handle = ctypes.c_void_p(create(ctypes.byref(self._weights.structure)))
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

    def evaluate(
        self,
        graph: AtomGraph,
        frames: Frames,
        vectors: Tensor,
        seed: Tensor,
        *,
        factor: Tensor | None = None,
        share_inverse: bool,
        outputs: Collection[str],
        memory_bytes: int | None = None,
    ) -> EngineOutput:
        """Energies of all frames and derivatives of their weighted sum.

        Args:
            graph: The structures.
            frames: Their frames.
            vectors: [n_edges, 3] float64 (Å).
            seed: [n_frames] float64 derivatives of the result with respect to the frames' energies.
            factor: [n_edges] float64 factors of the messages, the same for an edge and its reverse; None for 1.
            share_inverse: Frames U and -U may share their edges. Their rotations must then have opposite derivatives,
                as those of a lattice do, and ``grad_copies`` is not available.
            outputs: Any of hidden, features, gradients (of vectors and rotations) and grad_copies.
            memory_bytes: Not used: intermediate results are kept for a few frames only.
        """
        if share_inverse and "grad_copies" in outputs:
            raise ValueError(
                "grad_copies with share_inverse=True: frames that share edges have no separate derivatives"
            )
        n, one = graph.n_graphs, graph.n_graphs == 1
        n_nodes = graph.n_atoms * frames.n_frames if one else int(graph.atoms_per_graph[frames.graph].sum())
        n_copies = graph.n_edges * frames.n_frames if one else int(graph.edges_per_graph[frames.graph].sum())
        if one:
            starts = torch.tensor([[0, graph.n_atoms], [0, graph.n_edges], [0, frames.n_frames]]).unbind()
        else:
            starts = tuple(_starts(group, n) for group in (graph.graph_of_atom, graph.graph_of_edge, frames.graph))
        tags, traced = self._n_tags, torch.compiler.is_compiling() or type(vectors) is not Tensor
        # The dispatcher takes its time.
        call: Any = torch.ops.faenet_calc.fused_evaluate if traced else _evaluated
        found = call(
            self._number,
            starts[0],
            starts[1],
            graph.atomic_numbers if tags == 1 else graph.atomic_numbers * tags + graph.tags,
            graph.centre,
            graph.neighbor,
            graph.shift,
            vectors,
            starts[2],
            frames.rotation,
            seed,
            factor,
            share_inverse,
            n_nodes,
            self._width if "hidden" in outputs else 0,
            self._n_features if "features" in outputs else 0,
            "gradients" in outputs,
            n_copies if "grad_copies" in outputs else 0,
        )
        energy, node_energy, hidden, features, grad_vectors, grad_rotation, grad_factor, grad_copies = found
        if grad_copies is None and not n_copies:
            grad_copies = vectors.new_zeros(0, 3)
        return EngineOutput(
            energy=energy + self._bias if self._bias else energy,
            node_energy=node_energy if self._has_atom_energies else None,
            hidden=hidden if "hidden" in outputs else None,
            features=features if "features" in outputs else None,
            grad_vectors=grad_vectors if "gradients" in outputs else None,
            grad_rotation=grad_rotation if "gradients" in outputs else None,
            grad_factor=grad_factor if "gradients" in outputs and factor is not None else None,
            grad_copies=grad_copies if "grad_copies" in outputs else None,
        )

    def run(self, share_inverse: int, inputs: dict[str, Tensor], outputs: dict[str, Tensor | None]) -> None:
        """Call the native function with contiguous arrays by the names of ``native/fused.h``."""
        threads = n_threads(self._library)
        arrays = inputs | outputs
        call = _Batch(
            n_graphs=inputs["atom_start"].shape[0] - 1,
            n_atoms=inputs["kind"].shape[0],
            n_edges=inputs["centre"].shape[0],
            n_frames=inputs["seed"].shape[0],
            share_inverse=share_inverse,
            edges_per_group=EDGES_PER_GROUP * threads,
            threads=threads,
            **{name: None if array is None else array.data_ptr() for name, array in arrays.items()},
        )
        wrong = self._check(self._handle, ctypes.byref(call))
        if wrong:
            name = list(_CHECKED)[wrong - 1]
            first, last = inputs[name].aminmax()
            raise IndexError(f"{name} from {int(first)} to {int(last)}, expected {_CHECKED[name]}")
        workspace = _workspaces.of_size(self._memory(self._handle, ctypes.byref(call)))
        aligned = (workspace.ctypes.data + 63) // 64 * 64
        if self._evaluate(self._handle, ctypes.byref(call), aligned):
            raise MemoryError("the engine could not allocate its lists of frames")


# What ``fused_check`` looks at, in its order.
_CHECKED = {
    "atom_start": "ascending numbers from 0 to the number of atoms",
    "edge_start": "ascending numbers from 0 to the number of edges",
    "frame_start": "ascending numbers from 0 to the number of frames",
    "kind": "rows of the atom embedding",
    "centre": "atoms of the same structure in ascending order",
    "neighbor": "atoms of the same structure",
}


def _check_arrays(inputs: dict[str, Tensor]) -> None:
    n_edges, n_frames, starts = (inputs[name].shape[0] for name in ("centre", "seed", "atom_start"))
    shapes = {
        "edge_start": (starts,),
        "frame_start": (starts,),
        "neighbor": (n_edges,),
        "shift": (n_edges, 3),
        "vectors": (n_edges, 3),
        "rotation": (n_frames, 3, 3),
        "factor": (n_edges,),
    }
    for name, array in inputs.items():
        dtype = torch.float64 if name in ("vectors", "rotation", "seed", "factor") else torch.int64
        if array.dtype != dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, expected {dtype}")
        if name in shapes and array.shape != shapes[name]:
            raise ValueError(f"{name} has shape {tuple(array.shape)}, expected {shapes[name]}")


_numbers = itertools.count()
_engines: "weakref.WeakValueDictionary[int, Engine]" = weakref.WeakValueDictionary()


def _outputs(
    vectors: Tensor, rotation: Tensor, n_nodes: int, hidden: int, features: int, gradients: bool, n_copies: int
) -> tuple[Tensor, ...]:
    """The outputs of the operator by shape, zero; those that are not requested have no rows."""
    new, rows = vectors.new_zeros, vectors.shape[0]
    return (
        new(rotation.shape[0]),
        new(n_nodes),
        vectors.new_empty(n_nodes, hidden, dtype=torch.float32),
        vectors.new_empty(n_nodes, features, dtype=torch.float32),
        new(rows if gradients else 0, 3),
        new(rotation.shape[0] if gradients else 0, 3, 3),
        new(rows if gradients else 0),
        new(n_copies, 3),
    )


def _evaluated(engine: int, *arguments: Any) -> tuple[Tensor | None, ...]:
    """What the operator returns, None where nothing was requested: checks what compiled code does not, and calls it."""
    chosen, n_inputs = _engines[engine], len(_Batch.inputs)
    given = zip(_Batch.inputs, arguments[:n_inputs], strict=True)
    inputs = {name: array.contiguous() for name, array in given if array is not None}
    _check_arrays(inputs)
    share_inverse, n_nodes, hidden, features, gradients, n_copies = arguments[n_inputs:]
    vectors, rotation = inputs["vectors"], inputs["rotation"]
    padded_hidden, padded_features = chosen.padded
    outputs = {
        "energy": vectors.new_zeros(rotation.shape[0]),
        "node_energy": vectors.new_zeros(n_nodes),
        "hidden": vectors.new_empty(n_nodes, padded_hidden, dtype=torch.float32) if hidden else None,
        "features": vectors.new_empty(n_nodes, padded_features, dtype=torch.float32) if features else None,
        "grad_vectors": torch.zeros_like(vectors) if gradients else None,
        "grad_rotation": torch.zeros_like(rotation) if gradients else None,
        "grad_factor": torch.zeros_like(inputs["factor"]) if gradients and "factor" in inputs else None,
        "grad_copies": vectors.new_zeros(n_copies, 3) if n_copies else None,
    }
    chosen.run(int(share_inverse), inputs, outputs)
    wide_hidden, wide_features = outputs["hidden"], outputs["features"]
    if wide_hidden is not None and padded_hidden != hidden:
        outputs["hidden"] = wide_hidden[:, :hidden].contiguous()
    if wide_features is not None and padded_features != features:
        per_state = wide_features.unflatten(1, (chosen.n_states, -1))
        outputs["features"] = per_state[..., : features // chosen.n_states].flatten(1)
    return tuple(outputs.values())


def _fused_evaluate(engine: int, *arguments: Any) -> tuple[Tensor, ...]:
    """The operator on the CPU."""
    found, empty = _evaluated(engine, *arguments), _fused_evaluate_fake(engine, *arguments)
    return tuple(other if one is None else one for one, other in zip(found, empty, strict=True))


def _fused_evaluate_fake(engine: int, *arguments: Any) -> tuple[Tensor, ...]:
    vectors, rotation = (arguments[_Batch.inputs.index(name)] for name in ("vectors", "rotation"))
    return _outputs(vectors, rotation, *arguments[len(_Batch.inputs) + 1 :])


torch.library.define(
    "faenet_calc::fused_evaluate",
    f"(int engine, {', '.join(f'Tensor {name}' for name in _Batch.inputs[:-1])}, Tensor? factor, "
    "bool share_inverse, SymInt n_nodes, "
    "SymInt hidden, SymInt features, bool gradients, SymInt n_copies) "
    f"-> ({', '.join('Tensor' for _ in _Batch.outputs)})",
)
torch.library.impl("faenet_calc::fused_evaluate", "cpu", _fused_evaluate)
torch.library.register_fake("faenet_calc::fused_evaluate", _fused_evaluate_fake)


def _starts(group: Tensor, n_groups: int) -> Tensor:
    """[n_groups + 1] where each group begins in an ascending tensor of group numbers."""
    return torch.searchsorted(group, torch.arange(n_groups + 1))


@cache
def _largest_kept() -> int:
    """Bytes of the largest workspace that is kept; 256 MB where the machine does not tell its memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE_OF_MEMORY
    except (AttributeError, ValueError, OSError):
        return 1 << 28


class _Workspaces(threading.local):
    """Memory of each thread, kept between calls so that the operating system need not map and clear it every time.

    NumPy allocates it, because it asks Linux for large pages: they are mapped much faster, and with fewer cache misses.
    """

    kept: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    def of_size(self, size: int) -> NDArray[np.uint8]:
        """At least this many bytes, with room for alignment."""
        if len(self.kept) >= size + 64:
            return self.kept
        new = np.empty(size + 64, dtype=np.uint8)
        if len(new) <= _largest_kept():
            self.kept = new
        return new


_workspaces = _Workspaces()
