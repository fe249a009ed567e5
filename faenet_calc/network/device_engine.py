"""Evaluation of FAENet on a GPU: energies and their derivatives in few kernel launches.

:class:`DeviceEngine` computes what :class:`FAENet` and autograd compute, for one architecture (that of all presets
``modern``), with derivatives written out: matrix products are PyTorch's, everything between two of them is one operator
of ``kernels/device.py``. Second derivatives, other architectures and models compiled with ``torch.compile`` use
autograd. With L interactions and S = L + 1 states:

| symbol | here |
|---|---|
| k | frames that are evaluated together, of every structure |
| e_ij = σ(q), q = own + shared | ``q``, ``e`` [k, n_edges, F] |
| z_ij = W_e e of all layers | ``edges`` [k, n_edges, L F] |
| a, b, x: node terms of the filter and source | ``nodes`` [k n_atoms, 3 F] |
| h + σ(u) + W_out σ(v) | ``states`` [S, k n_atoms, H] |
"""

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from faenet_calc.frames.frames import FramedGraph, Frames, copy_into_frames
from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.engine_output import EngineOutput
from faenet_calc.network.faenet import FAENet
from faenet_calc.network.kernels.device import ops
from faenet_calc.network.kernels.device_plain import silu_backward
from faenet_calc.network.layers import EdgeNodeLinear, FeedForward, Interaction, edge_width

DEVICE_BYTES = 4 << 30
"""Memory (bytes) of the frames that are evaluated together, if the caller gives no budget."""

DEVICES = ("cuda", "meta")
"""Types of devices; "meta" tensors have no values, and serve to count operations (``benchmarks/gpu.py``)."""


def supports(model: FAENet) -> bool:
    """Whether a model's architecture is that of the engine; its device is not looked at."""
    config = model.config
    return (
        config.message == "updownscale_base"
        and config.activation in ("swish", "silu")
        and config.edge_features == "r_and_distance"
        and config.jumping in ("none", "add", "concat")
        and config.energy_weighting == "none"
        and config.atoms.second_layer
        and config.split_filter
        and config.interactions > 0
        and not config.graph_norm
        and not config.extra_layer
        and model._compiled_call_impl is None  # the user asked for torch.compile
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Layer:
    """Weights of an interaction block and of the feed-forward layer after it."""

    node: Tensor
    node_bias: Tensor
    up: Tensor
    up_bias: Tensor
    into: Tensor | None = None
    into_bias: Tensor | None = None
    out: Tensor | None = None
    out_bias: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Copies:
    """Structures in k frames each, the same number for all.

    A batch whose structures have different numbers of frames is a batch of copies in one frame each.

    Attributes:
        kind: [n_atoms] row of the table of atom states.
        centre, neighbor: [n_edges].
        vectors: [n_edges, 3] float64 (Å).
        factor: [n_edges] float64, or None.
        group_of_edge, group_of_atom: [n_edges], [n_atoms] rows of ``rotation`` and ``seed``; None if there is one row.
        rotation: [n_groups, k, 3, 3] float64.
        seed: [n_groups, k] float64.
    """

    kind: Tensor
    centre: Tensor
    neighbor: Tensor
    vectors: Tensor
    factor: Tensor | None
    group_of_edge: Tensor | None
    group_of_atom: Tensor | None
    rotation: Tensor
    seed: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    """What is computed of :class:`_Copies`; derivatives are None unless requested.

    Attributes:
        energy: [n_groups, k] float64.
        node_energy: [k, n_atoms] float64.
        states: [S, k, n_atoms, H].
        argument: [n_states, k, n_atoms, H / 2], before the activation of the output block.
        grad_vectors: [n_edges, 3] float64.
        grad_rotation: [n_groups, k, 3, 3] float64.
        grad_factor: [n_edges] float64.
    """

    energy: Tensor
    node_energy: Tensor
    states: Tensor
    argument: Tensor
    grad_vectors: Tensor | None = None
    grad_rotation: Tensor | None = None
    grad_factor: Tensor | None = None


class DeviceEngine:
    """A model's weights, arranged for few matrix products.

    Args:
        model: One that :func:`supports` accepts. Weights are copied; a changed model needs a new engine.
    """

    @torch.no_grad()
    def __init__(self, model: FAENet) -> None:
        config = model.config
        edge, self._cutoff, self._power = model.edge_embedding, config.cutoff, config.envelope_power
        blocks = [cast(Interaction, block) for block in model.interaction_blocks]
        self._scale = 1.0 / math.sqrt(config.mean_neighbors)
        self._offset = model.distance_expansion.offset
        self._n_tags = 3 if config.atoms.tag_channels else 1
        self._table = _atom_states(model, self._n_tags)
        assert edge.lin_e12 is not None and edge.lin_e2 is not None
        self._direction = edge.lin_e1.weight.contiguous(), edge.lin_e1.bias
        self._radial = edge.lin_e12.weight, edge.lin_e12.bias
        own = edge.lin_e1.out_features
        self._edge_own, self._edge_shared = edge.lin_e2.weight[:, :own], edge.lin_e2.weight[:, own:]
        self._edge_bias = edge.lin_e2.bias
        filters = [cast(EdgeNodeLinear, block.lin_geom) for block in blocks]
        self._filters = torch.cat([linear.weight[:, : edge_width(config)] for linear in filters])
        fed = [cast(FeedForward, block) for block in model.feed_forward_blocks]
        self._layers = [_layer(block, fed[number] if fed else None) for number, block in enumerate(blocks)]
        self._first_read = config.interactions if config.jumping == "none" else 0
        head, n_read = model.output_block, config.interactions + 1 - self._first_read
        self._read, self._read_bias = head.lin1.weight, head.lin1.bias
        self._energy_weight, self._energy_bias = head.lin2.weight[0].contiguous(), head.lin2.bias
        mixed = model.mlp_skip_co
        self._mixing = (self._read.new_ones(n_read) if mixed is None else mixed.weight[0]).double()
        self._per_copy = (2 * config.interactions + 5) * config.filters * self._read.dtype.itemsize

    @torch.no_grad()
    def evaluate(
        self,
        graph: AtomGraph,
        frames: Frames,
        vectors: Tensor,
        seed: Tensor,
        *,
        factor: Tensor | None = None,
        share_inverse: bool = False,
        outputs: Collection[str],
        memory_bytes: int | None = None,
    ) -> EngineOutput:
        """Energies of all frames and derivatives of their weighted sum; arguments as in :meth:`Engine.evaluate`.

        Args:
            graph: The structures, with edges sorted by centre.
            frames: Their frames.
            vectors: [n_edges, 3] float64 (Å).
            seed: [n_frames] float64 derivatives of the result with respect to the frames' energies.
            factor: [n_edges] float64 factors of the messages; None for 1.
            share_inverse: Not used: every frame has its own edges.
            outputs: Any of hidden, features, gradients (of vectors and rotations) and grad_copies.
            memory_bytes: Memory budget (bytes): the frames are evaluated in parts that fit; None for the default.
        """
        kind = graph.atomic_numbers if self._n_tags == 1 else graph.atomic_numbers * self._n_tags + graph.tags
        at_most = max(1, (memory_bytes or DEVICE_BYTES) // self._per_copy)
        k = frames.per_graph
        if k is not None and graph.n_edges <= at_most and "grad_copies" not in outputs:
            return self._evaluate_together(graph, frames, k, vectors, seed, factor, kind, outputs, at_most)
        return self._evaluate_copies(graph, frames, vectors, seed, factor, kind, outputs, at_most)

    def _evaluate_together(
        self,
        graph: AtomGraph,
        frames: Frames,
        k: int,
        vectors: Tensor,
        seed: Tensor,
        factor: Tensor | None,
        kind: Tensor,
        outputs: Collection[str],
        at_most: int,
    ) -> EngineOutput:
        """Structures with k frames each: what depends on distances alone is computed once for all of them."""
        n, one = graph.n_graphs, graph.n_graphs == 1
        rotation, seeds = frames.rotation.view(n, k, 3, 3), seed.view(n, k)
        step = max(1, at_most // max(1, graph.n_edges))
        found = []
        for start in range(0, k, step):
            part = slice(start, start + step)
            copies = _Copies(
                kind=kind,
                centre=graph.centre,
                neighbor=graph.neighbor,
                vectors=vectors,
                factor=factor,
                group_of_edge=None if one else graph.graph_of_edge,
                group_of_atom=None if one else graph.graph_of_atom,
                rotation=rotation[:, part],
                seed=seeds[:, part],
            )
            found.append(self._run(copies, gradients="gradients" in outputs))
        energy = _join([part.energy for part in found], 1)
        node_energy, hidden, features = self._of_nodes(found, outputs, frames_together=True)
        if not one:  # from all structures in their first frame to all frames of the first structure
            order = torch.argsort(graph.graph_of_atom.repeat(k), stable=True)
            node_energy = node_energy.index_select(0, order)
            hidden, features = (None if x is None else x.index_select(0, order) for x in (hidden, features))
        grad_rotation = _joined([part.grad_rotation for part in found], 1)
        return EngineOutput(
            energy=energy.flatten(),
            node_energy=node_energy,
            hidden=hidden,
            features=features,
            grad_vectors=_sum([part.grad_vectors for part in found]),
            grad_rotation=None if grad_rotation is None else grad_rotation.flatten(0, 1),
            grad_factor=None if factor is None else _sum([part.grad_factor for part in found]),
            grad_copies=None,
        )

    def _evaluate_copies(
        self,
        graph: AtomGraph,
        frames: Frames,
        vectors: Tensor,
        seed: Tensor,
        factor: Tensor | None,
        kind: Tensor,
        outputs: Collection[str],
        at_most: int,
    ) -> EngineOutput:
        """Any frames: every copy is a structure of its own with one frame."""
        differentiate = "gradients" in outputs
        found, of_copies = [], []
        grad_vectors, grad_factor = torch.zeros_like(vectors), vectors.new_zeros(graph.n_edges)
        for part in self._parts(graph, frames, at_most):
            whole = part == slice(0, frames.n_frames)
            framed = copy_into_frames(graph, frames.graph[part], frames.per_graph if whole else None)
            copies = _copies_of(framed, kind, vectors, factor, frames.rotation[part], seed[part])
            result = self._run(copies, gradients=differentiate)
            found.append(result)
            if result.grad_vectors is not None and result.grad_factor is not None:
                grad_vectors.index_add_(0, framed.edge_of_copy, result.grad_vectors)
                grad_factor.index_add_(0, framed.edge_of_copy, result.grad_factor)
                of_copies.append(result.grad_vectors)
        node_energy, hidden, features = self._of_nodes(found, outputs, frames_together=False)
        grad_rotation = _joined([part.grad_rotation for part in found], 0)
        return EngineOutput(
            energy=_join([part.energy for part in found], 0).flatten(),
            node_energy=node_energy,
            hidden=hidden,
            features=features,
            grad_vectors=grad_vectors if differentiate else None,
            grad_rotation=None if grad_rotation is None else grad_rotation.flatten(0, 1),
            grad_factor=grad_factor if differentiate and factor is not None else None,
            grad_copies=_join(of_copies, 0) if "grad_copies" in outputs else None,
        )

    def _parts(self, graph: AtomGraph, frames: Frames, at_most: int) -> list[slice]:
        """Consecutive frames with at most so many edges, or one frame that has more; waits for the device if needed."""
        if frames.per_graph is not None and frames.per_graph * graph.n_edges <= at_most:
            return [slice(0, frames.n_frames)]
        parts, start, filled = [], 0, 0
        for index, size in enumerate(graph.edges_per_graph[frames.graph].tolist()):
            if index > start and filled + size > at_most:
                parts.append(slice(start, index))
                start, filled = index, 0
            filled += size
        return [*parts, slice(start, frames.n_frames)]

    def _of_nodes(
        self, found: Sequence[_Found], outputs: Collection[str], *, frames_together: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Energies [n_nodes], final states [n_nodes, H] and features [n_nodes, D], where they are requested."""
        node_energy = _join([part.node_energy for part in found], 0 if frames_together else 1).flatten()
        hidden = features = None
        if "hidden" in outputs:
            hidden = _join([part.states[-1].flatten(0, 1) for part in found], 0)
        if "features" in outputs:
            activated = [functional.silu(part.argument) for part in found]
            features = _join([part.flatten(1, 2).transpose(0, 1).flatten(1) for part in activated], 0)
        return node_energy, hidden, features

    def _run(self, copies: _Copies, *, gradients: bool) -> _Found:
        """Forward pass and, with ``gradients``, backward pass."""
        k, n_edges, n_atoms = copies.rotation.shape[1], copies.centre.shape[0], copies.kind.shape[0]
        steps = torch.arange(n_atoms + 1, device=copies.centre.device)
        ends = torch.searchsorted(copies.centre, steps), copies.centre, copies.neighbor

        geometry = (copies.vectors, copies.rotation, copies.group_of_edge, copies.factor, self._offset)
        settings = (*self._direction, self._cutoff, self._power)
        basis, weight, own = ops.edge_features(*geometry, *settings)
        radial_weight, radial_bias = self._radial
        radial = torch.addmm(radial_bias, basis, radial_weight.t())
        shared = torch.addmm(self._edge_bias, functional.silu(radial), self._edge_shared.t())
        q, e = ops.add_swish((own.flatten(0, 1) @ self._edge_own.t()).view(k, *shared.shape), shared)
        edges = (e.flatten(0, 1) @ self._filters.t()).view(k, n_edges, len(self._filters))

        width = self._table.shape[1]
        states = self._table.new_empty(len(self._layers) + 1, k * n_atoms, width)
        states[0].view(k, n_atoms, width).copy_(self._table.index_select(0, copies.kind))
        kept: list[tuple[Tensor, Tensor, Tensor | None]] = []  # nodes, u and v of every layer
        for number, layer in enumerate(self._layers):
            h, following, v = states[number], states[number + 1], None
            nodes = torch.addmm(layer.node_bias, h, layer.node.t())
            message = ops.node_messages(edges, nodes, weight, *ends, number, self._scale)
            u = torch.addmm(layer.up_bias, message, layer.up.t())
            state = ops.residual(h, u, layer.out_bias, following)
            if layer.into is not None and layer.into_bias is not None and layer.out is not None:
                v = torch.addmm(layer.into_bias, state, layer.into.t())
                following.addmm_(functional.silu(v), layer.out.t())
            kept.append((nodes, u, v))

        read = states[self._first_read :]
        argument = torch.addmm(self._read_bias, read.flatten(0, 1), self._read.t()).view(len(read), k * n_atoms, -1)
        node_energy, grad_argument = ops.readout(
            argument, self._energy_weight, self._energy_bias, self._mixing, copies.seed, copies.group_of_atom
        )
        node_energy = node_energy.view(k, n_atoms)
        found = _Found(
            energy=_over_atoms(node_energy, copies.group_of_atom, len(copies.rotation)),
            node_energy=node_energy,
            states=states.view(len(states), k, n_atoms, width),
            argument=argument.view(len(read), k, n_atoms, -1),
        )
        if not gradients:
            return found

        grad_states = (grad_argument.flatten(0, 1) @ self._read).view(read.shape)
        filters = nodes.shape[1] // 3
        sums = nodes.new_zeros(len(self._layers) * nodes.numel() + k * n_edges)  # one memset for all that is added to
        grad_weight = sums[-k * n_edges :].view(k, n_edges) if k * n_edges else sums.new_empty(k, n_edges)
        grad_edges, grad = torch.empty_like(edges), grad_states[-1]
        for number, layer in reversed(list(enumerate(self._layers))):
            nodes, u, v = kept[number]
            if layer.into is not None and layer.out is not None and v is not None:
                grad = grad.addmm_(silu_backward(grad @ layer.out, v), layer.into)
            # The first state depends on the elements alone: its derivative is not needed.
            if number and number >= self._first_read:
                grad_u, grad = ops.residual_backward(grad, u, grad_states[number - self._first_read])
            else:
                grad_u = silu_backward(grad, u)
            grad_nodes = sums[number * nodes.numel() :][: nodes.numel()].view(nodes.shape) if number else None
            ops.node_messages_backward(
                grad_u @ layer.up, edges, nodes, weight, *ends, number, self._scale, grad_edges, grad_weight, grad_nodes
            )
            if grad_nodes is not None:
                grad = grad.addmm_(grad_nodes, layer.node)

        grad_e = (grad_edges.flatten(0, 1) @ self._filters).view(k, n_edges, filters)
        grad_q, grad_shared = ops.add_swish_backward(grad_e, q)
        grad_own = (grad_q.flatten(0, 1) @ self._edge_own).view(own.shape)
        grad_basis = silu_backward(grad_shared @ self._edge_shared, radial) @ radial_weight
        grad_vectors, in_frames, grad_factor = ops.edge_features_backward(
            grad_basis, grad_weight, grad_own, *geometry, *settings
        )
        return dataclasses.replace(
            found,
            grad_vectors=grad_vectors,
            grad_rotation=_of_rotation(copies, in_frames),
            grad_factor=grad_factor,
        )


def _layer(block: Interaction, fed: FeedForward | None) -> _Layer:
    linear = cast(EdgeNodeLinear, block.lin_geom)
    _, for_neighbor, for_centre = linear.weight.split(linear.widths, dim=1)
    interaction = {
        "node": torch.cat([for_centre, for_neighbor, block.lin_down.weight]),
        "node_bias": torch.cat([linear.bias, torch.zeros_like(linear.bias), block.lin_down.bias]),
        "up": block.lin_up.weight,
        "up_bias": block.lin_up.bias,
    }
    if fed is None:
        return _Layer(**interaction)
    return _Layer(
        **interaction,
        into=fed.lin_in.weight,
        into_bias=fed.lin_in.bias,
        out=fed.lin_out.weight,
        out_bias=fed.lin_out.bias,
    )


def _atom_states(model: FAENet, n_tags: int) -> Tensor:
    """[n_kinds, H] first state of every element and tag."""
    n_kinds = (model.config.atoms.n_elements + 1) * n_tags
    kinds = torch.arange(n_kinds, device=model.distance_expansion.offset.device)
    return cast(Tensor, model.atom_embedding(kinds // n_tags, kinds % n_tags))


def _copies_of(
    framed: FramedGraph, kind: Tensor, vectors: Tensor, factor: Tensor | None, rotation: Tensor, seed: Tensor
) -> _Copies:
    """Every copy as a structure with one frame."""
    return _Copies(
        kind=kind.index_select(0, framed.atom_of_node),
        centre=framed.centre,
        neighbor=framed.neighbor,
        vectors=vectors.index_select(0, framed.edge_of_copy),
        factor=None if factor is None else factor.index_select(0, framed.edge_of_copy),
        group_of_edge=framed.frame_of_edge,
        group_of_atom=framed.frame_of_node,
        rotation=rotation[:, None],
        seed=seed[:, None],
    )


def _over_atoms(per_node: Tensor, group: Tensor | None, n_groups: int) -> Tensor:
    """[n_groups, k] sums of [k, n_atoms]."""
    if group is None:
        return per_node.sum(dim=1)[None]
    return per_node.new_zeros(n_groups, per_node.shape[0]).index_add_(0, group, per_node.t())


def _of_rotation(copies: _Copies, in_frames: Tensor) -> Tensor:
    """[n_groups, k, 3, 3] Σ vector ⊗ derivative in the frame [k, n_edges, 3]."""
    if copies.group_of_edge is None:
        return (copies.vectors.t() @ in_frames)[None]
    products = torch.einsum("ei,kej->ekij", copies.vectors, in_frames)
    return torch.zeros_like(copies.rotation).index_add_(0, copies.group_of_edge, products)


def _join(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _joined(parts: Sequence[Tensor | None], dim: int) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return _join(given, dim) if given else None


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return sum(given[1:], start=given[0]) if given else None
